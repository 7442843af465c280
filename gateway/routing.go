package gateway

import "strings"

// The two routing failures of POST /messages share status 400. Only their texts
// distinguish them on the wire, and this file is the only place that examines
// the texts.
const (
	// MessageNoRecipients is the text of a 400 for a message that was not delivered.
	MessageNoRecipients = "No recipients for this sender and info type"
	// MessagePartialDelivery is the text of a 400 for a message that was delivered to
	// the reachable direct recipients only.
	MessagePartialDelivery = "Recipient is not allowed from this sender"
)

// routingFailure recognizes the two texts in any case, with or
// without a period: [ErrNoRecipients], [ErrPartialDelivery], or nil.
func routingFailure(message string) error {
	message = strings.TrimRight(strings.TrimSpace(message), ".!")
	switch {
	case strings.EqualFold(message, MessageNoRecipients):
		return ErrNoRecipients
	case strings.EqualFold(message, MessagePartialDelivery):
		return ErrPartialDelivery
	}
	return nil
}
