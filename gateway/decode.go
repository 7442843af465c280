package gateway

import (
	"fmt"
	"strings"
)

// DecodeError says why the data of an event is not what the specification
// declares. It holds no payload and no payload_uri. What could be read of the
// IDs in spite of it is there, so that an event that was put aside can be
// confirmed.
type DecodeError struct {
	// EventType is the type of the event: the SSE event name, or, when the
	// stream gave none, event_type of the data as far as it is one of the six;
	// else empty.
	EventType EventType
	// Field is the path of the offending field, for example "sent_at" or
	// "tenant.endpoints[2].id"; empty when the data as a whole is not a JSON
	// object.
	Field string
	// Reason is what is wrong with it. It quotes nothing of the data.
	Reason string

	// EndpointID is the receiving endpoint, empty when it could not be read.
	EndpointID string
	// MessageIDs are the messages the event stands for: one of a
	// MESSAGE_RECEIVED, all of a FILE_RECEIVED; nil when they could not be read.
	MessageIDs []string
	// TenantID is empty when it is absent or could not be read.
	TenantID string
}

// Error names the event type, the field and the reason.
func (e *DecodeError) Error() string {
	var b strings.Builder
	b.WriteString("gateway: decode ")
	switch {
	case e.EventType == "":
		b.WriteString("event")
	case e.EventType.Known():
		b.WriteString(string(e.EventType))
	default:
		// It came from outside: no control characters, no novels.
		fmt.Fprintf(&b, "event %.64q", string(e.EventType))
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field)
		b.WriteByte(' ')
	}
	b.WriteString(e.Reason)
	return b.String()
}

// Reasons of a [DecodeError].
const (
	reasonNotJSON      = "data is not valid JSON"
	reasonNotObject    = "is not an object"
	reasonEmpty        = "is empty"
	reasonMissing      = "is missing"
	reasonNotString    = "is not a string"
	reasonNotBool      = "is not a boolean"
	reasonNotArray     = "is not an array"
	reasonNotInteger   = "is not a 64-bit integer"
	reasonNegative     = "is negative"
	reasonNotUUID      = "is not a UUID"
	reasonNotDateTime  = "is not an ISO 8601 date-time"
	reasonNotBase64    = "is not base64"
	reasonNotURI       = "is not an absolute http or https URI"
	reasonWithPayload  = "is present together with payload"
	reasonNoPayload    = "is missing, and so is payload_uri"
	reasonNotEventName = "differs from the name of the event"
)

// DecodeEvent decodes the data of one event of GET /events (specification,
// "Events"). name is the SSE event name; when it is empty, event_type of the
// data decides. data is not retained.
//
// An event of a type that the specification does not know is not an error but
// an [*UnknownEvent]. Every other deviation is a [*DecodeError]:
//
//   - The data is one JSON object (RFC 8259), nested at most 10,000 deep. Names
//     are case-sensitive, of repeated names the last counts, unknown ones are
//     ignored, null counts as absent, and what is not UTF-8 in a string reads as
//     U+FFFD.
//   - Required fields are present; a string may be empty unless its format
//     forbids it. event_type equals name.
//   - What the specification declares as uuid has the form of one, in either
//     case, and is kept as it came. app_message_id is any string, and so is
//     tenant_id of received messages and files.
//   - A date-time is as RFC 3339 has it; as ISO 8601 also allows, the offset may
//     do without colon or minutes, and a time without offset is taken as UTC.
//     Times are returned in UTC.
//   - Exactly one of payload and payload_uri is present. payload is standard
//     base64 with padding, exactly what encoding/base64.StdEncoding takes.
//     payload_uri is an absolute http or https URI and kept as it came.
//   - size is not negative. message_ids may be empty, since the specification
//     sets no minimum. It is not compared with the payload.
//   - Values of enumerations are not checked, so that a new endpoint type
//     harms nobody.
func DecodeEvent(name EventType, data []byte) (Event, error) {
	switch name {
	case EventMessageReceived, EventFileReceived:
		// By far the most events. What is unusual in any way is left to the
		// other decoder, which is also the one that knows what is wrong.
		if event := decodeFlat(name, data); event != nil {
			return event, nil
		}
	}
	return decodeObject(name, data)
}
