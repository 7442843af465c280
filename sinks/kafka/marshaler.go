package kafka

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

var _ wmkafka.MarshalerUnmarshaler = Marshaler{}

// Marshaler writes Watermill messages as Kafka records and reads them back, any
// payload and any metadata byte for byte. It fits into the publisher and the
// subscriber of watermill-kafka. What it writes, watermill-kafka's
// DefaultMarshaler reads too, apart from the names of the last rule.
//
//   - The payload is the value; an empty one is an empty value, not a null one,
//     which would delete the key in a compacted topic.
//   - The UUID is the header _watermill_message_uuid, as in watermill-kafka.
//   - Each metadata entry is a header of the same name, with its value as it is.
//   - A name that is the UUID's, that is not UTF-8 (clients in Java would alter
//     it), or that begins with `agrimill-key-` is written percent-encoded behind
//     `agrimill-key-`.
//
// It sets no key: the sink does, by Config.PartitionKey.
type Marshaler struct {
	// CloudEvents also writes the attributes of CloudEvents 1.0 in binary mode,
	// as headers ce_…, and content-type; metadata of such a name is then written
	// behind agrimill-key-. Reading with it set skips these headers; without, they
	// become metadata, unless the message has its own of that name. Nil means none.
	CloudEvents *cloudevents.Mapping
}

const (
	keyPrefix       = "agrimill-key-"
	eventPrefix     = "ce_"
	contentTypeName = "content-type"
)

// names percent-encodes names of headers.
var names = sinks.Segments{Mark: '%', Legal: func(b byte) bool { return b > ' ' && b < 0x7f && b != '%' }}

// Marshal makes the record for a topic. It keeps nothing of msg: value and
// headers are copies.
func (m Marshaler) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	headers, value, _ := m.marshal(msg, "")
	return &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(value), Headers: headers}, nil
}

// marshal makes what a record consists of, with a key for it.
func (m Marshaler) marshal(msg *message.Message, key string) (headers []sarama.RecordHeader, value, keyBytes []byte) {
	var attributes []cloudevents.Attribute
	if m.CloudEvents != nil {
		attributes = m.CloudEvents.Attributes(msg)
	}
	size := len(msg.Payload) + len(wmkafka.UUIDHeaderKey) + len(msg.UUID) + len(key)
	for name, value := range msg.Metadata {
		size += len(name) + len(value)
	}
	for _, a := range attributes {
		size += max(len(eventPrefix)+len(a.Name), len(contentTypeName)) + len(a.Value)
	}
	// One allocation for everything. Escaped names are longer and rare; append
	// finds room for them.
	buf := make([]byte, 0, size)
	put := func(s string) []byte {
		start := len(buf)
		buf = append(buf, s...)
		return buf[start:len(buf):len(buf)]
	}
	headers = make([]sarama.RecordHeader, 1, len(msg.Metadata)+len(attributes)+1)
	headers[0] = sarama.RecordHeader{Key: put(wmkafka.UUIDHeaderKey), Value: put(msg.UUID)}
	for name, value := range msg.Metadata {
		header := encodeName(name)
		if m.CloudEvents != nil && isEventName(name) {
			header = escapeName(name)
		}
		headers = append(headers, sarama.RecordHeader{Key: put(header), Value: put(value)})
	}
	for _, a := range attributes {
		name := eventPrefix + a.Name
		if a.Name == cloudevents.ContentType {
			name = contentTypeName
		}
		headers = append(headers, sarama.RecordHeader{Key: put(name), Value: put(strings.ToValidUTF8(a.Value, "\uFFFD"))})
	}
	keyBytes = put(key)
	start := len(buf)
	buf = append(buf, msg.Payload...)
	return headers, buf[start:len(buf):len(buf)], keyBytes
}

// Unmarshal makes the Watermill message of a record. Its payload is the value,
// not a copy. Of several headers with one name the last one counts. It never
// fails.
func (m Marshaler) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg := message.NewMessage("", record.Value)
	var own []string // keys behind agrimill-key-
	for _, header := range record.Headers {
		if header == nil {
			continue
		}
		switch name := string(header.Key); {
		case name == wmkafka.UUIDHeaderKey:
			msg.UUID = string(header.Value)
		case m.CloudEvents != nil && isEventName(name):
		default:
			key := decodeName(name)
			if key != name {
				own = append(own, key)
			} else if slices.Contains(own, key) {
				continue // an attribute of CloudEvents, beside the message's own metadata
			}
			msg.Metadata[key] = string(header.Value)
		}
	}
	return msg, nil
}

func encodeName(name string) string {
	if isPlainName(name) {
		return name
	}
	return escapeName(name)
}

func escapeName(name string) string { return keyPrefix + names.Escape(name) }

// isEventName reports whether a header is one of CloudEvents.
func isEventName(name string) bool {
	return strings.HasPrefix(name, eventPrefix) || name == contentTypeName
}

// isPlainName reports whether a name can be a header as it is.
func isPlainName(name string) bool {
	return name != wmkafka.UUIDHeaderKey && !strings.HasPrefix(name, keyPrefix) && utf8.ValidString(name)
}

// decodeName reverses encodeName. What encodeName never writes stays as it is.
func decodeName(name string) string {
	if escaped, ok := strings.CutPrefix(name, keyPrefix); ok {
		if decoded, err := names.Unescape(escaped); err == nil && (!isPlainName(decoded) || isEventName(decoded)) {
			return decoded
		}
	}
	return name
}
