package kafka_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

// TestCloudEventsReadByTheSDK writes to a broker and lets the official SDK read:
// the Kafka binding differs from that for HTTP in the prefix of its headers, and
// in that values are not encoded.
func TestCloudEventsReadByTheSDK(t *testing.T) {
	cluster := kafkatest.Start(t)
	config := suiteConfig(cluster.Addr(), sinktest.Settings{})
	config.CloudEvents = &cloudevents.Config{
		TypePrefix: "com.example.", ContentTypes: map[string]string{"iso:11783:-10:taskdata:zip": "application/zip"},
	}
	sink := testkit.Must(kafka.New(config, nil))(t)
	defer func() { _ = sink.Close() }()

	payload := []byte("PK\x03\x04\r\n\x00\xff")
	msg := message.NewMessage("0e3a", payload)
	msg.Metadata = message.Metadata{
		gateway.KeyEventType: string(gateway.EventFileReceived), gateway.KeyMessageType: "iso:11783:-10:taskdata:zip",
		gateway.KeyTenantID: "tenant", gateway.KeyReceivingEndpointID: "endpoint", gateway.KeyFilename: "Hof Grün.zip",
		gateway.KeySentTimestamp: "2026-01-02T03:04:05.678Z", gateway.KeyDedupID: "dedup",
		"ce_id": "the user's own", "content-type": "text/plain", "ce_unknown": "x\r\n",
	}
	plain := message.NewMessage("1f4b", nil)
	testkit.NoError(t, sink.Publish("t", msg, plain))
	records := kafkatest.Read(t, cluster.Addr(), "agrimill.t")
	if len(records) != 2 {
		t.Fatalf("%d records", len(records))
	}
	got := readEvent(t, records[0])
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	if got.SpecVersion() != "1.0" || got.Type() != "com.example.iso:11783:-10:taskdata:zip" || got.Source() != "/tenant/endpoint" ||
		got.ID() != "dedup" || got.Subject() != "Hof Grün.zip" || !got.Time().Equal(at) || got.DataContentType() != "application/zip" ||
		!bytes.Equal(got.Data(), payload) || len(got.Extensions()) != 0 {
		t.Errorf("got\n%s", got)
	}
	if got := readEvent(t, records[1]); got.ID() != "1f4b" || got.Type() != "com.example.untyped" || got.Source() != "/none/none" {
		t.Errorf("got\n%s", got)
	}

	mapping := testkit.Must(cloudevents.New(*config.CloudEvents))(t)
	back := unmarshal(t, kafka.Marshaler{CloudEvents: mapping}, records[0])
	if back.UUID != msg.UUID || !bytes.Equal(back.Payload, payload) || !maps.Equal(back.Metadata, msg.Metadata) {
		t.Errorf("got %q, want %q", back.Metadata, msg.Metadata)
	}
	back = unmarshal(t, kafka.Marshaler{}, records[0])
	if back.Metadata["ce_type"] != got.Type() {
		t.Errorf("got %q", back.Metadata)
	}
	for key, value := range msg.Metadata {
		if back.Metadata[key] != value {
			t.Errorf("%s is %q without the mapping, want %q", key, back.Metadata[key], value)
		}
	}
}

// readEvent reads a record with the SDK.
func readEvent(t *testing.T, record *kgo.Record) *event.Event {
	t.Helper()
	header := http.Header{}
	for _, h := range record.Headers {
		name, isAttribute := strings.CutPrefix(h.Key, "ce_")
		switch {
		case isAttribute:
			header.Add("ce-"+name, string(h.Value))
		case h.Key == "content-type":
			header.Add(h.Key, string(h.Value))
		}
	}
	for name, values := range header {
		if len(values) != 1 {
			t.Errorf("header %s: %q", name, values)
		}
	}
	e, err := binding.ToEvent(t.Context(), cehttp.NewMessage(header, io.NopCloser(bytes.NewReader(record.Value))))
	if err != nil {
		t.Fatalf("the SDK does not read %q: %v", header, err)
	}
	if err := e.Validate(); err != nil {
		t.Errorf("not valid: %v", err)
	}
	return e
}

func TestCloudEventsConfig(t *testing.T) {
	for _, config := range []kafka.Config{
		{Connection: kafka.Connection{Brokers: []string{"a:1"}}, CloudEvents: &cloudevents.Config{Source: "{"}},
		{Connection: kafka.Connection{Brokers: []string{"a:1"}}, CloudEvents: &cloudevents.Config{}, Marshaler: otherMarshaler{}},
	} {
		testkit.ErrorIs(t, config.Validate(), kafka.ErrConfig)
	}
}

type otherMarshaler struct{ kafka.Marshaler }
