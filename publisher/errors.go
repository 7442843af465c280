package publisher

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agrimill/agrimill/gateway"
)

// ErrClosed: Publish was called on a closed publisher, or Close canceled it. It also
// matches gateway.ErrClosed.
var ErrClosed = fmt.Errorf("publisher: %w", gateway.ErrClosed)

// Outcome is what became of one message of a Publish call.
type Outcome int

const (
	// NotSent: nothing was sent, because a message of the call broke a rule, an earlier one
	// failed, or the wait for a free slot was canceled.
	NotSent Outcome = iota
	// Sent: the service accepted the message.
	Sent
	// PartiallyDelivered: the service delivered to some of the direct
	// recipients. It must not be sent to all of them again.
	PartiallyDelivered
	// Failed: sending failed. Unless the error says that the service refused it, the
	// service may still have accepted the message; if it is sent again, receivers recognize
	// the duplicate by its context ID.
	Failed
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case NotSent:
		return "not sent"
	case Sent:
		return "sent"
	case PartiallyDelivered:
		return "partially delivered"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// PublishError reports what became of each message of a Publish call. It unwraps to the
// error of the message that ended the call.
type PublishError struct {
	// Outcomes has one entry for each message of the call, in its order.
	Outcomes []Outcome
	// Index is the message that failed, counted from 0.
	Index int
	// UUID is that message's UUID.
	UUID string
	// Err is its error.
	Err error
}

// Error names the message and its error.
func (e *PublishError) Error() string {
	return fmt.Sprintf("publisher: message %q (%d of %d): %v", e.UUID, e.Index+1, len(e.Outcomes), e.Err)
}

// Unwrap returns the error of the message that failed.
func (e *PublishError) Unwrap() error { return e.Err }

// MetadataError names the metadata key whose value breaks a rule, without the value. It
// matches what its cause matches, which is gateway.ErrInvalid.
type MetadataError struct {
	// Key is the metadata key. If it is absent from the metadata, the value is its
	// replacement: the topic, or a field of [Config].
	Key string
	// Err is the rule.
	Err error
}

// Error names the key and the rule.
func (e *MetadataError) Error() string { return fmt.Sprintf("metadata %s: %v", e.Key, e.Err) }

// Unwrap returns the rule's error.
func (e *MetadataError) Unwrap() error { return e.Err }

// invalid makes the error for a metadata value that breaks a rule.
func invalid(key, rule string) error {
	return &MetadataError{Key: key, Err: &gateway.ValidationError{Field: "value", Rule: rule}}
}

// nameKey translates a field that the client rejects to its metadata key.
func (m *prepared) nameKey(err error) error {
	if err == nil {
		return nil
	}
	var (
		rule  *gateway.ValidationError
		named *MetadataError
	)
	if !errors.As(err, &rule) || errors.As(err, &named) {
		return err
	}
	key, ok := keyOfField(rule.Field)
	if m.open != nil && (rule.Field == "Payload" || rule.Field == "Size") {
		key, ok = gateway.KeyPayloadSize, true
	}
	if !ok {
		return err
	}
	return &MetadataError{Key: key, Err: rule}
}

// keyOfField maps the fields of gateway.SendMessageRequest to metadata keys.
func keyOfField(field string) (key string, ok bool) {
	field, _, _ = strings.Cut(field, "[")
	switch field {
	case "TenantID":
		return gateway.KeyTenantID, true
	case "EndpointID":
		return gateway.KeyEndpointID, true
	case "MessageType":
		return gateway.KeyMessageType, true
	case "DirectRecipients":
		return gateway.KeyDirectRecipients, true
	case "IsPublish":
		return gateway.KeyIsPublish, true
	case "ContextID":
		return gateway.KeyContextID, true
	case "SentAt":
		return gateway.KeySentTimestamp, true
	case "TeamsetContextID":
		return gateway.KeyTeamsetContextID, true
	case "Filename":
		return gateway.KeyFilename, true
	}
	return "", false
}
