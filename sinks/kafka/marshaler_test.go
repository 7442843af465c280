package kafka_test

import (
	"testing"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// asRead turns a record into what a consumer gets.
func asRead(t *testing.T, record *sarama.ProducerMessage) *sarama.ConsumerMessage {
	t.Helper()
	value := testkit.Must(record.Value.Encode())(t)
	read := &sarama.ConsumerMessage{Topic: record.Topic, Value: value}
	for i := range record.Headers {
		read.Headers = append(read.Headers, &record.Headers[i])
	}
	return read
}

// FuzzMarshaler: any message comes back, whatever its metadata, and without
// sharing memory, also as a CloudEvent.
func FuzzMarshaler(f *testing.F) {
	events := testkit.Must(cloudevents.New(cloudevents.Config{}))(f)
	f.Add("uuid", []byte("payload"), "name", "value", "agrimill-key-x")
	f.Add("", []byte(nil), "", "", wmkafka.UUIDHeaderKey)
	f.Add("\xff", []byte{0}, "\xff", "\r\n\x00", "agrimill-key-%FF")
	f.Add("uuid", []byte("payload"), "ce_", "value", "ce_type")
	f.Add("uuid", []byte("payload"), "content-type", "value", "Content-Type")
	f.Add("uuid", []byte("payload"), "agrimill-key-ce_id", "value", "ce_id")
	f.Fuzz(func(t *testing.T, uuid string, payload []byte, name, value, other string) {
		for _, m := range []kafka.Marshaler{{}, {CloudEvents: events}} {
			msg := message.NewMessage(uuid, append([]byte{}, payload...))
			msg.Metadata[other] = "other"
			msg.Metadata[name] = value
			record := testkit.Must(m.Marshal("topic", msg))(t)
			clear(msg.Payload)
			back := testkit.Must(m.Unmarshal(asRead(t, record)))(t)
			want := message.NewMessage(uuid, payload)
			want.Metadata = msg.Metadata
			if back.UUID != uuid || string(back.Payload) != string(payload) || !back.Equals(want) {
				t.Fatalf("got %q %q %q, want %q %q %q", back.UUID, back.Payload, back.Metadata, uuid, payload, want.Metadata)
			}
			if back.Payload == nil {
				t.Fatal("an empty payload became a null value")
			}
		}
	})
}

// TestForeignRecords: records of others are read as far as they go.
func TestForeignRecords(t *testing.T) {
	msg := testkit.Must(kafka.Marshaler{}.Unmarshal(&sarama.ConsumerMessage{Headers: []*sarama.RecordHeader{
		{Key: []byte("a"), Value: []byte("1")},
		nil,
		{Key: []byte("a"), Value: []byte("2")},
		{Key: []byte("null")},
		{Key: []byte("agrimill-key-plain"), Value: []byte("not ours")},
	}}))(t)
	want := message.Metadata{"a": "2", "null": "", "agrimill-key-plain": "not ours"}
	if len(msg.Metadata) != len(want) || len(msg.Payload) != 0 || msg.UUID != "" {
		t.Errorf("got %+v", msg)
	}
	for name, value := range want {
		if msg.Metadata[name] != value {
			t.Errorf("%s is %q, want %q", name, msg.Metadata[name], value)
		}
	}
}

// TestTraceContextIsPlain checks that any consumer with OpenTelemetry can continue
// a trace: the W3C headers are headers of their own, as they are.
func TestTraceContextIsPlain(t *testing.T) {
	events := testkit.Must(cloudevents.New(cloudevents.Config{}))(t)
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"tracestate":  "vendor=t61rcWkgMzE,other@system=00f067aa0ba902b7",
		"baggage":     "season=2026;unit=year, field=north%20side",
	}
	for _, m := range []kafka.Marshaler{{}, {CloudEvents: events}} {
		record := testkit.Must(m.Marshal("topic", msg))(t)
		found := 0
		for _, header := range record.Headers {
			if value, ok := msg.Metadata[string(header.Key)]; ok && value == string(header.Value) {
				found++
			}
		}
		if found != len(msg.Metadata) {
			t.Errorf("%d of %d headers are as they were: %q", found, len(msg.Metadata), record.Headers)
		}
	}
}
