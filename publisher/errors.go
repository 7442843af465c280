package publisher

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/sinks"
)

// ErrClosed: a closed publisher was called, or Close canceled the call; also a gateway.ErrClosed.
var ErrClosed = fmt.Errorf("publisher: %w", gateway.ErrClosed)

// Outcome is what became of one message of a call.
type Outcome int

const (
	// NotSent: the service does not have the message, or refused the only attempt, or its token.
	NotSent Outcome = iota
	// Sent: the service accepted the message.
	Sent
	// PartiallyDelivered: the service delivered to some of the direct
	// recipients. It must not be sent to all of them again.
	PartiallyDelivered
	// Unknown: the message may have been sent, as no answer says what the service did, or the call ended before one.
	// Send the same message again: receivers recognize a copy by its context ID.
	Unknown
)

// String returns the outcome in words.
func (o Outcome) String() string {
	return enum.Text(o, []string{"not sent", "sent", "partially delivered", "unknown"})
}

// outcomeOf returns what became of a message by the error of the client.
func outcomeOf(err error) Outcome {
	call, ok := errors.AsType[*gateway.Error](err)
	switch {
	case err == nil:
		return Sent
	case errors.Is(err, gateway.ErrPartialDelivery):
		return PartiallyDelivered
	case ok && (call.Attempts == 0 || call.Attempts == 1 && (gateway.Refused(err) ||
		errors.Is(err, gateway.ErrUnauthorized) || errors.Is(err, gateway.ErrToken) || errors.Is(err, errReadOnce))):
		return NotSent // of several attempts, an earlier one may have been accepted
	}
	return Unknown
}

// PublishError reports what became of each message of a call. It unwraps to Err.
type PublishError struct {
	// Outcomes has one entry for each message of the call, in its order.
	Outcomes []Outcome
	// Index is the message that failed, counted from 0.
	Index int
	// UUID is that message's UUID.
	UUID string
	// Err is its error: a [*sinks.Error], or one that matches that of a context that ended.
	Err error

	topic string
	to    string // empty before the recipients were checked
}

// Error says in one sentence what became of the message that failed, to whom it goes, why, and what to do.
func (e *PublishError) Error() string {
	outcome, cause, topic := e.Outcomes[e.Index], e.Err, e.topic
	if class, ok := errors.AsType[*sinks.Error](e.Err); ok && class.Cause != nil {
		cause = class.Cause
	}
	if topic != "" {
		topic = ", " + topic
	}
	if e.to != "" {
		topic += " to " + e.to
	}
	return fmt.Sprintf("publisher: message %q (%d of %d%s) %s: %s; %s", e.UUID, e.Index+1, len(e.Outcomes), topic,
		outcome.sentence(), redact.Addresses(cause.Error()), advice(outcome, e.Err))
}

// addressees names who is to get the message: some of them, because a header holds hundreds.
func (m *prepared) addressees() string {
	const most = 3
	to := slices.Clone(m.request.DirectRecipients)
	if len(to) > most {
		to = append(to[:most], fmt.Sprintf("%d other endpoints", len(to)-most))
	}
	if m.request.IsPublish {
		to = append(to, "the subscribers")
	}
	return strings.Join(to, ", ")
}

// sentence says what became of a message.
func (o Outcome) sentence() string {
	switch o {
	case NotSent:
		return "was not sent"
	case PartiallyDelivered:
		return "was sent to only some of its recipients"
	}
	return "may have been sent"
}

// advice is what to do about a message that failed.
func advice(outcome Outcome, err error) string {
	switch {
	case outcome == PartiallyDelivered:
		return "do not send it to all of them again"
	case errors.Is(err, gateway.ErrNoRecipients):
		return "send it again when a route leads to a recipient"
	case errors.Is(err, sinks.ErrRejected):
		return "correct it: it would be refused again"
	case outcome == Unknown:
		return "send it again under the same context ID, by which receivers recognize a copy"
	}
	return "send it again"
}

// Stored returns how many messages of the call the service has, before the one that failed.
func (e *PublishError) Stored() int {
	n := 0
	for n < e.Index && (e.Outcomes[n] == Sent || e.Outcomes[n] == PartiallyDelivered) {
		n++
	}
	return n
}

// Unwrap returns the error of the message that failed.
func (e *PublishError) Unwrap() error { return e.Err }

// MetadataError names the metadata key whose value breaks a rule, without the value. It matches gateway.ErrInvalid.
type MetadataError struct {
	// Key is the metadata key. If it is absent, the value is its replacement: the topic, or a field of [Config].
	Key string
	// Err is the rule.
	Err error
}

// Error names the key, the place in its list, and the rule.
func (e *MetadataError) Error() string {
	rule, ok := errors.AsType[*gateway.ValidationError](e.Err)
	if !ok {
		return fmt.Sprintf("metadata %s: %v", e.Key, e.Err)
	}
	place := ""
	if at := strings.IndexByte(rule.Field, '['); at >= 0 {
		place = rule.Field[at:]
	}
	return "metadata " + e.Key + place + " " + rule.Rule
}

// Unwrap returns the rule's error.
func (e *MetadataError) Unwrap() error { return e.Err }

// invalid makes the error for a metadata value that breaks a rule.
func invalid(key, rule string) error {
	return &MetadataError{Key: key, Err: &gateway.ValidationError{Field: "value", Rule: rule}}
}

// nameKey translates a field that the client rejects to its metadata key.
func (m *prepared) nameKey(err error) error {
	rule, broken := errors.AsType[*gateway.ValidationError](err)
	if _, named := errors.AsType[*MetadataError](err); !broken || named {
		return err
	}
	field, _, _ := strings.Cut(rule.Field, "[")
	key, ok := fieldKeys[field]
	if m.open != nil && (rule.Field == "Payload" || rule.Field == "Size") {
		key, ok = gateway.KeyPayloadSize, true
	}
	if !ok {
		return err
	}
	return &MetadataError{Key: key, Err: rule}
}

// fieldKeys maps the fields of gateway.SendMessageRequest to metadata keys.
var fieldKeys = map[string]string{
	"TenantID": gateway.KeyTenantID, "EndpointID": gateway.KeyEndpointID, "MessageType": gateway.KeyMessageType,
	"DirectRecipients": gateway.KeyDirectRecipients, "IsPublish": gateway.KeyIsPublish, "ContextID": gateway.KeyContextID,
	"SentAt": gateway.KeySentTimestamp, "TeamsetContextID": gateway.KeyTeamsetContextID, "Filename": gateway.KeyFilename,
}
