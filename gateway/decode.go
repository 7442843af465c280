package gateway

import (
	"fmt"
	"strings"
)

// DecodeError describes why the data of an event violates the specification, without payload and payload_uri, and with
// the IDs as far as they could be read, so that an event that was stored elsewhere can be confirmed.
type DecodeError struct {
	// EventType is the SSE event name or, if the stream had none, the event_type of the data if it is one of the six;
	// otherwise empty.
	EventType EventType
	// Field is the path of the offending field, such as "tenant.endpoints[2].id"; empty if the data is no JSON object.
	Field string
	// Reason describes the problem. It quotes none of the data.
	Reason string

	// EndpointID is the receiving endpoint; empty if it could not be read.
	EndpointID string
	// MessageIDs are those of the event, all or none: nil if they could not be read.
	MessageIDs []string
	// TenantID is empty if it is absent or could not be read.
	TenantID string
}

// Error returns the event type, the field and the reason.
func (e *DecodeError) Error() string {
	var b strings.Builder
	b.WriteString("gateway: decode ")
	switch {
	case e.EventType == "":
		b.WriteString("event")
	case e.EventType.Known():
		b.WriteString(string(e.EventType))
	default:
		// It is untrusted input: quote it and limit its length.
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

// EntryError describes why an entry of a list of tenants or endpoints, or an optional field, was skipped. It quotes none
// of the data.
type EntryError struct {
	// Field is the path of the offending field, such as "tenants[1].endpoints[0].capabilities.can_send".
	Field string
	// Reason describes the problem.
	Reason string
	// EndpointID is the ID of the endpoint in a list; empty if it could not be read, and otherwise.
	EndpointID string
}

// Error returns the field and the reason.
func (e *EntryError) Error() string { return "gateway: skipped: " + e.Field + " " + e.Reason }

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
	reasonNotSize      = "is not the length of payload"
	reasonNotEventName = "differs from the name of the event"
)

// DecodeEvent decodes the data of one event of GET /events (specification,
// "Events"). name is the SSE event name; if it is empty, the data's event_type
// decides. data is not retained.
//
// An event whose type is not in the specification is not an error but
// an [*UnknownEvent]. Any other deviation is a [*DecodeError]:
//
//   - The data is one JSON object (RFC 8259), nested at most 10,000 deep. Names
//     are case-sensitive, the last of repeated names counts, unknown names are
//     ignored, null counts as absent, and invalid UTF-8 in a string is read as
//     U+FFFD.
//   - Required fields are present; a string may be empty unless its format
//     forbids it. event_type equals name.
//   - null in place of a required list is an empty list, except for message_ids,
//     without which a file cannot be confirmed, and for endpoints of
//     ENDPOINTS_LIST_CHANGED (see [EndpointsListChanged]).
//   - An invalid endpoint in a list is skipped and reported in the event ([EntryError]); the
//     others are kept. So is an optional field that cannot be read, of an event or an endpoint;
//     one that is an empty string counts as absent.
//   - A number in place of a string is read as its text, except where a format is required.
//   - Fields that the specification declares as uuid have the form of a UUID, in
//     either case, and are kept unmodified. app_message_id is any string, and so is
//     tenant_id of received messages and files.
//   - A date-time follows RFC 3339 or ISO 8601: in the extended or basic form, with
//     or without seconds, minutes and offset. A time without offset is read as UTC, a date
//     alone is no date-time. Times are returned in UTC.
//   - Exactly one of payload and payload_uri is present. payload is base64 of either alphabet, with
//     or without padding. payload_uri is an absolute http or https URI and kept unmodified.
//   - size is not negative, and is the length of an embedded payload. It may be a string, or have a
//     fraction of zero. message_ids may be empty, since the specification sets no minimum.
//   - Values of enumerations are not checked, so that a new endpoint type
//     does no harm.
func DecodeEvent(name EventType, data []byte) (Event, error) {
	if name == EventMessageReceived {
		// By far the most frequent event. Anything unusual is left to the other decoder.
		if event := decodeFlat(data); event != nil {
			return event, nil
		}
	}
	return decodeObject(name, data)
}
