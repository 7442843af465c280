package nats_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

// TestCloudEventsReadByTheSDK writes to a server and lets the official SDK read:
// the NATS binding names its headers as that for HTTP does.
func TestCloudEventsReadByTheSDK(t *testing.T) {
	server := natstest.Start(t)
	config := cloudevents.Config{TypePrefix: "com.example.", ContentTypes: map[string]string{"iso:11783:-10:taskdata:zip": "application/zip"}}
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}, CloudEvents: &config}, nil))(t)
	defer func() { _ = sink.Close() }()

	payload := []byte("PK\x03\x04\r\n\x00\xff")
	msg := message.NewMessage("0e3a", payload)
	msg.Metadata = message.Metadata{
		gateway.KeyEventType: string(gateway.EventFileReceived), gateway.KeyMessageType: "iso:11783:-10:taskdata:zip",
		gateway.KeyTenantID: "tenant", gateway.KeyReceivingEndpointID: "endpoint", gateway.KeyFilename: "Hof Grün.zip",
		gateway.KeySentTimestamp: "2026-01-02T03:04:05.678Z", gateway.KeyDedupID: "dedup",
		"ce-id": "the user's own", "Content-Type": "text/plain", "ce-unknown": "x\r\n",
	}
	plain := message.NewMessage("1f4b", nil)
	referred := message.NewMessage("2a5c", nil)
	referred.Metadata = message.Metadata{
		gateway.KeyPayloadMode: gateway.PayloadModeClaimCheck, gateway.KeyPayloadReference: "dedup/abc",
	}
	testkit.NoError(t, sink.Publish("t", msg, plain, referred))
	raw := readRaw(t, server.URL(), "agrimill.t")
	if len(raw) != 3 {
		t.Fatalf("%d messages", len(raw))
	}

	got := readEvent(t, raw[0])
	subject := testkit.Must(url.PathUnescape(got.Subject()))(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	if got.SpecVersion() != "1.0" || got.Type() != "com.example.iso:11783:-10:taskdata:zip" || got.Source() != "/tenant/endpoint" ||
		got.ID() != "dedup" || subject != "Hof Grün.zip" || !got.Time().Equal(at) || got.DataContentType() != "application/zip" ||
		!bytes.Equal(got.Data(), payload) || len(got.Extensions()) != 0 {
		t.Errorf("got\n%s", got)
	}
	if got := readEvent(t, raw[1]); got.ID() != "1f4b" || got.Type() != "com.example.untyped" || got.Source() != "/none/none" || got.Subject() != "" || !got.Time().IsZero() {
		t.Errorf("got\n%s", got)
	}
	if got := readEvent(t, raw[2]); got.Extensions()["dataref"] != "dedup/abc" {
		t.Errorf("got\n%s", got)
	}

	// The message itself comes back as it was, whoever reads it.
	mapping := testkit.Must(cloudevents.New(config))(t)
	back, err := nats.Marshaler{CloudEvents: mapping}.Unmarshal(raw[0])
	if err != nil || back.UUID != msg.UUID || !bytes.Equal(back.Payload, payload) || !maps.Equal(back.Metadata, msg.Metadata) {
		t.Errorf("got %q %v, want %q", back.Metadata, err, msg.Metadata)
	}
	for range 20 { // headers come in any order
		back, err := nats.Marshaler{}.Unmarshal(raw[0])
		if err != nil || back.Metadata["ce-type"] != got.Type() {
			t.Errorf("got %q, %v", back.Metadata, err)
		}
		for key, value := range msg.Metadata {
			if back.Metadata[key] != value {
				t.Errorf("%s is %q without the mapping, want %q", key, back.Metadata[key], value)
			}
		}
	}
}

// readEvent reads a NATS message with the SDK. Names on the wire are lower case,
// as the binding writes them.
func readEvent(t *testing.T, msg *natsgo.Msg) *event.Event {
	t.Helper()
	header := http.Header{}
	for name, values := range msg.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "ce-") || lower == "content-type" {
			if name != lower || len(values) != 1 {
				t.Errorf("header %q: %q", name, values)
			}
			header.Set(name, values[0])
		}
	}
	e, err := binding.ToEvent(t.Context(), cehttp.NewMessage(header, io.NopCloser(bytes.NewReader(msg.Data))))
	if err != nil {
		t.Fatalf("the SDK does not read %q: %v", slices.Sorted(maps.Keys(msg.Header)), err)
	}
	if err := e.Validate(); err != nil {
		t.Errorf("not valid: %v", err)
	}
	return e
}

// The promises of a sink hold with CloudEvents too. Those about outages have nothing to do with how a message looks.
func TestCloudEventsConformance(t *testing.T) {
	t.Parallel()
	f := features()
	f.Outage, f.Hang = false, false
	f.ReservedNames = append(f.ReservedNames, "ce-id", "ce-", "Ce-Type", "content-type", "Content-Type", "agrimill-key-ce-id")
	sinktest.Run(t, sinktest.Suite{
		New: func(t *testing.T, settings sinktest.Settings) sinktest.Backend {
			t.Helper()
			b := newBackend(t, settings)
			b.config.CloudEvents = &cloudevents.Config{}
			return &eventBackend{b}
		},
		Features: f,
	})
}

// eventBackend reads with the option that it was written with.
type eventBackend struct{ *backend }

func (b *eventBackend) Read(t *testing.T, topic string) []*message.Message {
	t.Helper()
	mapping := testkit.Must(cloudevents.New(*b.config.CloudEvents))(t)
	var messages []*message.Message
	for _, raw := range readRaw(t, b.server.URL(), nats.DefaultSubjectPrefix+"."+topic) {
		msg := testkit.Must(nats.Marshaler{CloudEvents: mapping}.Unmarshal(raw))(t)
		messages = append(messages, msg)
	}
	return messages
}

func TestCloudEventsConfig(t *testing.T) {
	for _, config := range []nats.Config{
		{CloudEvents: &cloudevents.Config{Source: "{"}},
		{CloudEvents: &cloudevents.Config{}, Marshaler: otherMarshaler{}},
	} {
		testkit.ErrorIs(t, config.Validate(), nats.ErrConfig)
	}
}

type otherMarshaler struct{ nats.Marshaler }
