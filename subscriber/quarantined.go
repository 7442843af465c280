package subscriber

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// digest identifies an event.
type digest = [sha256.Size]byte

// quarantined is an event to be stored in the quarantine.
type quarantined struct {
	digest   digest
	class    string
	reason   string
	event    string // its type
	body     []byte // nil for a notice
	received time.Time

	endpoint, tenant string
	messages         []string
	metadata         message.Metadata // that the record has as well
	// confirm means that the record contains all of messages[0].
	confirm bool
}

// Type implements [gateway.Event].
func (r *quarantined) Type() gateway.EventType { return gateway.EventType(r.event) }

// comesAgain reports whether the service delivers the event until it is confirmed. One without a type may be a message.
func (r *quarantined) comesAgain() bool {
	t := r.Type()
	return t == "" || t == gateway.EventMessageReceived || t == gateway.EventFileReceived
}

// payloadURI matches the part that differs each time an event is delivered.
var payloadURI = regexp.MustCompile(`"payload_uri"\s*:\s*"[^"]*"?`)

// digestOf returns the same digest for all copies of an event.
func digestOf(class string, eventType gateway.EventType, data []byte) digest {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(class), []byte(eventType), payloadURI.ReplaceAll(data, nil)} {
		_, _ = h.Write(strconv.AppendInt(nil, int64(len(part)), 10)) // a hash never fails
		_, _ = h.Write([]byte{0})
		_, _ = h.Write(part)
	}
	return digest(h.Sum(nil))
}

// newMalformed creates the record of an event that could not be decoded.
func newMalformed(raw gateway.RawEvent, err error) *quarantined {
	r := &quarantined{
		digest: digestOf(QuarantineMalformed, raw.Type, raw.Data), class: QuarantineMalformed, reason: err.Error(),
		event: string(raw.Type), body: append([]byte{}, raw.Data...), received: time.Now(),
	}
	var decode *gateway.DecodeError
	if !errors.As(err, &decode) {
		return r
	}
	r.event = cmp.Or(r.event, string(decode.EventType))
	r.endpoint, r.tenant, r.messages = decode.EndpointID, decode.TenantID, decode.MessageIDs
	if decode.EventType == gateway.EventMessageReceived && r.endpoint != "" && len(r.messages) == 1 {
		r.confirm = isWhole(raw.Data)
	}
	return r
}

// isWhole reports whether the data of a MESSAGE_RECEIVED contains the whole
// message. Confirming it discards a payload stored elsewhere, which one without a payload has under whatever name.
func isWhole(data []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &fields) != nil {
		return false
	}
	uri, payload := string(fields["payload_uri"]), string(fields["payload"]) // as gateway.DecodeEvent reads them
	return (uri == "" || uri == "null" || uri == `""`) && payload != "" && payload != "null"
}

// newTooLarge creates the notice for an event that was skipped.
func newTooLarge(err *gateway.EventTooLargeError) *quarantined {
	r := &quarantined{
		digest: digestOf(QuarantineTooLarge, err.Type, err.Head), class: QuarantineTooLarge, reason: err.Error(),
		event: string(err.Type), received: time.Now(),
	}
	fields := headFields(err.Head)
	r.event = cmp.Or(r.event, fields["event_type"])
	r.endpoint, r.tenant = fields["receiving_endpoint_id"], fields["tenant_id"]
	if id := fields["id"]; id != "" {
		r.messages = []string{id}
	}
	return r
}

// headFields returns the string fields at the beginning of a truncated JSON object.
func headFields(head []byte) map[string]string {
	fields := make(map[string]string)
	d := json.NewDecoder(bytes.NewReader(head))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil
	}
	for {
		key, err1 := d.Token()
		value, err2 := d.Token()
		name, isString := key.(string)
		if _, nested := value.(json.Delim); err1 != nil || err2 != nil || !isString || nested {
			return fields
		}
		if text, ok := value.(string); ok {
			fields[name] = text
		}
	}
}

// maxQuarantineValue bounds a value from an untrusted source, in bytes.
const maxQuarantineValue = 1024

// message returns the record to store.
func (r *quarantined) message(topic string, body bool) *message.Message {
	id := uuid.NewHash(sha256.New(), uuid.NameSpaceOID, r.digest[:], 8).String()
	msg := message.NewMessage(id, nil)
	m := message.Metadata{
		KeyQuarantineReason:   limited(r.reason),
		KeyQuarantineClass:    r.class,
		KeyQuarantineReceived: r.received.UTC().Format(time.RFC3339Nano),
		gateway.KeyDedupID:    topic + "-" + hex.EncodeToString(r.digest[:]),
	}
	for key, value := range r.metadata {
		if _, own := m[key]; !own {
			m[key] = value
		}
	}
	for key, value := range map[string]string{
		KeyQuarantineEventType: r.event, KeyQuarantineEndpointID: r.endpoint, KeyQuarantineTenantID: r.tenant,
		KeyQuarantineMessageIDs: strings.Join(r.messages, ","),
	} {
		if value != "" {
			m[key] = limited(value)
		}
	}
	if body && r.body != nil {
		msg.Payload = r.body
	} else {
		m[KeyQuarantineBody] = "absent"
		m[gateway.KeyDedupID] += "-notice" // the event itself may follow
	}
	msg.Metadata = m
	return msg
}

// limited truncates a value from an untrusted source.
func limited(text string) string {
	if len(text) <= maxQuarantineValue {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuarantineValue], "") + "…"
}

func (r *quarantined) fields() watermill.LogFields {
	fields := watermill.LogFields{}
	if r.body != nil {
		fields["size"] = len(r.body)
	}
	if r.endpoint != "" {
		fields["endpoint_id"] = limited(r.endpoint)
	}
	if len(r.messages) == 1 {
		fields["message_id"] = limited(r.messages[0])
	}
	return fields
}
