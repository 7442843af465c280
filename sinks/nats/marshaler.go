package nats

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/metaheader"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

var _ wmnats.MarshalerUnmarshaler = Marshaler{}

// Marshaler writes Watermill messages as NATS messages and reads them back, any
// payload and any metadata byte for byte. It fits into the publisher and the
// subscriber of watermill-nats.
//
//   - The payload is the data.
//   - The UUID is the header _watermill_message_uuid, as in watermill-nats.
//   - Each metadata entry is a header of the same name, with its value as it is.
//   - A value that a header would alter (control characters, white space at the
//     ends, bytes that are not UTF-8) or that begins with "=?" is written as one
//     encoded word of RFC 2047: `=?utf-8?B?` base64 of the bytes `?=`.
//   - A name that is not legal in a header, that NATS reserves (Nats-…, Status,
//     Description) or that collides with the two names of this list is written
//     percent-encoded behind `agrimill-key-`: `agrimill-key-Nats-Msg-Id`. So
//     metadata never controls the server.
//   - [gateway.KeyDedupID] is also written as Nats-Msg-Id, followed by a space and
//     the subject, since the server looks for duplicates in the whole stream and
//     not per subject. Without it there is no Nats-Msg-Id, and the server stores
//     every copy.
//
// Reading skips Nats-… headers. Messages of others are read too: a header with
// several values becomes one entry, the values joined by ", ".
type Marshaler struct {
	// CloudEvents also writes the attributes of CloudEvents 1.0 in binary mode,
	// as headers ce-…, and content-type; metadata of such a name is then written
	// behind agrimill-key-. Reading with it set skips these headers; without, they
	// become metadata, unless the message has its own of that name. Nil means none.
	CloudEvents *cloudevents.Mapping
}

const (
	wordPrefix  = "=?utf-8?B?"
	wordSuffix  = "?="
	natsPrefix  = "nats-"
	statusName  = "status"
	detailsName = "description"
	eventPrefix = "ce-"
)

// Marshal makes the NATS message for a subject. Its data is msg's payload, not
// a copy.
func (m Marshaler) Marshal(subject string, msg *message.Message) (*natsgo.Msg, error) {
	id := msg.Metadata[gateway.KeyDedupID]
	if id != "" {
		id = encodeValue(id) + " " + subject
	}
	d := draft{msg: &natsgo.Msg{}}
	m.write(&d, subject, id, msg)
	return d.msg, nil
}

// write makes d the message for a subject, with an ID for the server.
func (m Marshaler) write(d *draft, subject, id string, msg *message.Message) {
	var attributes []cloudevents.Attribute
	if m.CloudEvents != nil {
		attributes = m.CloudEvents.Attributes(msg)
	}
	d.begin(subject, msg.Payload, len(msg.Metadata)+len(attributes)+2)
	d.set(wmnats.WatermillUUIDHdr, encodeValue(msg.UUID))
	for name, value := range msg.Metadata {
		d.set(names.Header(name, m.CloudEvents != nil), encodeValue(value))
	}
	for _, a := range attributes {
		if a.Name == cloudevents.ContentType {
			d.set(metaheader.ContentType, a.Value)
			continue
		}
		d.set(eventPrefix+a.Name, cloudevents.EncodeHeader(a.Value))
	}
	if id != "" {
		d.set(natsgo.MsgIdHdr, id)
	}
}

// subjectAndID returns the subject of a topic, and what the server recognizes a copy of a message
// by: its ID and the subject. They are one string, to allocate one.
func subjectAndID(prefix, topic, id string) (subject, subjectID string) {
	topic = legalTopic(topic)
	if id == "" {
		return prefix + "." + topic, ""
	}
	subjectID = encodeValue(id) + " " + prefix + "." + topic
	return subjectID[len(subjectID)-len(prefix)-1-len(topic):], subjectID
}

// Unmarshal makes the Watermill message of a NATS message. Its payload is the
// data, not a copy. It never fails.
func (m Marshaler) Unmarshal(natsMsg *natsgo.Msg) (*message.Message, error) {
	msg := message.NewMessage("", natsMsg.Data)
	metadata := metaheader.Reader{Names: &names, Events: m.CloudEvents != nil, Metadata: msg.Metadata}
	for name, values := range natsMsg.Header {
		value := ""
		if len(values) > 0 {
			value = decodeValue(values[0])
		}
		for _, more := range values[min(1, len(values)):] {
			value += ", " + decodeValue(more)
		}
		switch {
		case name == wmnats.WatermillUUIDHdr:
			msg.UUID = value
		case hasPrefixFold(name, natsPrefix):
		default:
			metadata.Add(name, value)
		}
	}
	return msg, nil
}

// names are the names of headers.
var names = metaheader.Names{
	Segments: sinks.Segments{Mark: '%', Legal: func(b byte) bool { return b != '%' && plainNameBytes[b] }},
	IsPlain:  isPlainName,
	IsEvent: func(name string) bool {
		return hasPrefixFold(name, eventPrefix) || strings.EqualFold(name, metaheader.ContentType)
	},
}

// plainNameBytes are the bytes that a name may have to be a header as it is: what nats.go accepts (ADR-4 without some separators).
var plainNameBytes = func() (plain [256]bool) {
	for c := byte('!'); c < 0x7f; c++ {
		plain[c] = strings.IndexByte(`"()/,:;<=>?@[\]{}`, c) < 0
	}
	return plain
}()

// isPlainName reports whether a name can be a header as it is.
func isPlainName(name string) bool {
	for i := 0; i < len(name); i++ {
		if !plainNameBytes[name[i]] {
			return false
		}
	}
	if name == "" {
		return false
	}
	switch name[0] | ' ' { // in lower case, if it is a letter
	case 'n':
		return !hasPrefixFold(name, natsPrefix)
	case 'a':
		return !hasPrefixFold(name, metaheader.Prefix)
	case 's':
		return !strings.EqualFold(name, statusName)
	case 'd':
		return !strings.EqualFold(name, detailsName)
	}
	return !strings.EqualFold(name, wmnats.WatermillUUIDHdr)
}

func encodeValue(value string) string {
	if isPlainValue(value) {
		return value
	}
	return wordPrefix + base64.StdEncoding.EncodeToString([]byte(value)) + wordSuffix
}

// isPlainValue reports whether a value survives as a header value.
func isPlainValue(value string) bool {
	if value == "" {
		return true
	}
	ascii := true
	for i := range len(value) {
		c := value[i]
		if c < ' ' || c == 0x7f {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return value[0] != ' ' && value[len(value)-1] != ' ' && !strings.HasPrefix(value, "=?") &&
		(ascii || utf8.ValidString(value))
}

// decodeValue reverses encodeValue. What encodeValue never writes stays as it
// is.
func decodeValue(value string) string {
	word, ok := strings.CutPrefix(value, wordPrefix)
	if !ok {
		return value
	}
	word, ok = strings.CutSuffix(word, wordSuffix)
	if !ok {
		return value
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(word)
	if err != nil || isPlainValue(string(decoded)) {
		return value
	}
	return string(decoded)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
