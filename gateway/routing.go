package gateway

import "strings"

// The two routing failures of POST /messages share status 400. Their texts are
// the only difference on the wire, and this file is the only place that looks
// at them.
const (
	// MessageNoRecipients is the text of a 400 that delivered to nobody.
	MessageNoRecipients = "No recipients for this sender and info type"
	// MessagePartialDelivery is the text of a 400 that delivered to the
	// reachable direct recipients only.
	MessagePartialDelivery = "Recipient is not allowed from this sender"
)

type routingFailure int

const (
	routingNone routingFailure = iota
	routingNoRecipients
	routingPartial
)

// routingFailureOf recognises the two texts, whatever their case and with or
// without a full stop.
func routingFailureOf(message string) routingFailure {
	message = strings.TrimRight(strings.TrimSpace(message), ".!")
	switch {
	case strings.EqualFold(message, MessageNoRecipients):
		return routingNoRecipients
	case strings.EqualFold(message, MessagePartialDelivery):
		return routingPartial
	}
	return routingNone
}
