package gateway

import (
	"net/http"
	"strings"
)

// Only the texts tell what a 400 of POST /messages means. They are examined here alone.
const (
	// MessageNoRecipients is the text of a 400 for a message that was not delivered.
	MessageNoRecipients = "No recipients for this sender and info type"
	// MessagePartialDelivery is that for one that was delivered to the reachable direct recipients only.
	MessagePartialDelivery = "Recipient is not allowed from this sender"

	// messageDuplicate is the beginning of the text of a 400 for a message that the service has already. Its context ID follows.
	messageDuplicate = "Duplicate message "
)

// routingFailure returns [ErrNoRecipients], [ErrPartialDelivery], or nil.
func routingFailure(message string) error {
	message = trimmed(message)
	switch {
	case strings.EqualFold(message, MessageNoRecipients):
		return ErrNoRecipients
	case strings.EqualFold(message, MessagePartialDelivery):
		return ErrPartialDelivery
	}
	return nil
}

// unlessDuplicate returns nil if e is a 400 that says that the service has the message of this context ID already: an earlier attempt,
// perhaps of another call or process, has arrived, and its answer was lost. Another payload must not have the same ID.
func (x *exchange) unlessDuplicate(e *Error) *Error {
	if x.req.op != opSend || e.StatusCode != http.StatusBadRequest {
		return e
	}
	contextID := x.req.header[x.c.names[KeyContextID]][0]
	if !strings.EqualFold(trimmed(e.Message), messageDuplicate+contextID) {
		return e
	}
	x.c.cfg.Logger.Info("gateway: the service has this message already", "context_id", contextID)
	return nil
}

func trimmed(message string) string { return strings.TrimRight(strings.TrimSpace(message), ".!") }
