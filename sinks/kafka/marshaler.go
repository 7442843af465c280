package kafka

import (
	"strings"
	"unicode/utf8"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/metaheader"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

var _ wmkafka.MarshalerUnmarshaler = Marshaler{}

// Marshaler writes Watermill messages as Kafka records and reads them back, any payload and any metadata byte for byte. It fits
// into the publisher and the subscriber of watermill-kafka. What it writes, watermill-kafka's DefaultMarshaler reads too, apart
// from the names of the last rule.
//
//   - The payload is the value; an empty one is not null, which would delete the key in a compacted topic.
//   - The UUID is the header _watermill_message_uuid, as in watermill-kafka.
//   - Each metadata entry is a header of the same name, with its value as it is.
//   - A name that is the UUID's, that is not UTF-8 (clients in Java would alter
//     it), or that begins with `agrimill-key-` is written percent-encoded behind `agrimill-key-`.
//
// It sets no key: the sink does, by Config.PartitionKey.
type Marshaler struct {
	// CloudEvents also writes the attributes of CloudEvents 1.0 in binary mode, as headers ce_…, and content-type; metadata of
	// such a name is then written behind agrimill-key-. Reading with it set skips these headers; without, they become metadata,
	// unless the message has its own of that name. Nil means none.
	CloudEvents *cloudevents.Mapping
}

const eventPrefix = "ce_"

// names are the names of headers.
var names = metaheader.Names{
	Segments: sinks.Segments{Mark: '%', Legal: func(b byte) bool { return b > ' ' && b < 0x7f && b != '%' }},
	IsPlain: func(name string) bool {
		return name != wmkafka.UUIDHeaderKey && !strings.HasPrefix(name, metaheader.Prefix) && utf8.ValidString(name)
	},
	IsEvent: func(name string) bool { return strings.HasPrefix(name, eventPrefix) || name == metaheader.ContentType },
}

// Marshal makes the record for a topic. It keeps nothing of msg: value and headers are copies.
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
		size += max(len(eventPrefix)+len(a.Name), len(metaheader.ContentType)) + len(a.Value)
	}
	// One allocation for everything. Escaped names are longer and rare; append finds room for them.
	buf := make([]byte, 0, size)
	put := func(s string) []byte {
		start := len(buf)
		buf = append(buf, s...)
		return buf[start:len(buf):len(buf)]
	}
	headers = make([]sarama.RecordHeader, 1, len(msg.Metadata)+len(attributes)+1)
	headers[0] = sarama.RecordHeader{Key: put(wmkafka.UUIDHeaderKey), Value: put(msg.UUID)}
	for name, value := range msg.Metadata {
		headers = append(headers, sarama.RecordHeader{Key: put(names.Header(name, m.CloudEvents != nil)), Value: put(value)})
	}
	for _, a := range attributes {
		name := eventPrefix + a.Name
		if a.Name == cloudevents.ContentType {
			name = metaheader.ContentType
		}
		headers = append(headers, sarama.RecordHeader{Key: put(name), Value: put(strings.ToValidUTF8(a.Value, "\uFFFD"))})
	}
	keyBytes = put(key)
	start := len(buf)
	buf = append(buf, msg.Payload...)
	return headers, buf[start:len(buf):len(buf)], keyBytes
}

// Unmarshal makes the Watermill message of a record. Its payload is the value, not a copy. Of several headers with one name the
// last one counts. It never fails.
func (m Marshaler) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg := message.NewMessage("", record.Value)
	metadata := metaheader.Reader{Names: &names, Events: m.CloudEvents != nil, Metadata: msg.Metadata}
	for _, header := range record.Headers {
		switch {
		case header == nil:
		case string(header.Key) == wmkafka.UUIDHeaderKey:
			msg.UUID = string(header.Value)
		default:
			metadata.Add(string(header.Key), string(header.Value))
		}
	}
	return msg, nil
}
