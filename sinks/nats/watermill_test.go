package nats_test

import (
	"io"
	"maps"
	"strings"
	"testing"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/nats"
)

// TestWatermillSubscriber: the stock subscriber of watermill-nats reads what the sink writes, with
// its own unmarshaler and with ours: every message, with its UUID, metadata and payload, also one
// whose payload is in a claim check. Its own one leaves values encoded that a header would alter,
// and takes the attributes of CloudEvents for metadata.
func TestWatermillSubscriber(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"}))(t)
	defer func() { _ = store.Close() }()
	reference := testkit.Must(store.Put(t.Context(), "0f3a", strings.NewReader("large")))(t)
	small, large := message.NewMessage("the UUID", []byte("PK\x03\x04\r\n\x00\xff")), message.NewMessage("another", nil)
	for _, msg := range []*message.Message{small, large} {
		msg.Metadata = message.Metadata{
			gateway.KeyReceivingEndpointID: "endpoint", gateway.KeyMessageType: "type", gateway.KeyFilename: "Hof Grün.zip", "own": "x",
		}
	}
	small.Metadata[gateway.KeyDedupID] = "dedup"
	large.Metadata[gateway.KeyPayloadMode], large.Metadata[gateway.KeyPayloadReference] = gateway.PayloadModeClaimCheck, reference
	altered := message.NewMessage("third", []byte("payload"))
	altered.Metadata["lines"], altered.Metadata[natsgo.MsgIdHdr] = "two\r\nlines", "the user's own"

	events := &cloudevents.Config{}
	mapping := testkit.Must(cloudevents.New(*events))(t)
	for name, c := range map[string]struct {
		events      *cloudevents.Config
		unmarshaler wmnats.Unmarshaler
		exact       bool
	}{
		"own":                    {nil, &wmnats.NATSMarshaler{}, false},
		"ours":                   {nil, nats.Marshaler{}, true},
		"own, with CloudEvents":  {events, &wmnats.NATSMarshaler{}, false},
		"ours, with CloudEvents": {events, nats.Marshaler{CloudEvents: mapping}, true},
	} {
		t.Run(name, func(t *testing.T) {
			topic := strings.NewReplacer(",", "", " ", "-").Replace(name)
			sink := newSink(t, nats.Config{Connection: nats.Connection{URL: server.URL()}, CloudEvents: c.events}, nil)
			testkit.NoError(t, sink.Publish(topic, small.Copy(), large.Copy(), altered.Copy()))
			subscriber := testkit.Must(wmnats.NewSubscriber(wmnats.SubscriberConfig{
				URL: server.URL(), Unmarshaler: c.unmarshaler, SubjectCalculator: nats.SubjectCalculator(""),
				JetStream: wmnats.JetStreamConfig{SubscribeOptions: []natsgo.SubOpt{natsgo.DeliverAll(), natsgo.AckExplicit()}},
			}, nil))(t)
			defer func() {
				if err := subscriber.Close(); err != nil {
					t.Error(err)
				}
			}()
			messages := testkit.Must(subscriber.Subscribe(testkit.Context(t), topic))(t)
			for _, want := range []*message.Message{small, large, altered} {
				got, ok := <-messages
				if !ok {
					t.Fatal("no message")
				}
				if got.UUID != want.UUID || string(got.Payload) != string(want.Payload) {
					t.Errorf("got %s %q, want %s %q", got.UUID, got.Payload, want.UUID, want.Payload)
				}
				same := maps.Equal(got.Metadata, want.Metadata)
				if want != altered && !c.exact {
					same = has(got.Metadata, want.Metadata)
				}
				if same != (want != altered || c.exact) {
					t.Errorf("%s: got %q, want %q", want.UUID, got.Metadata, want.Metadata)
				}
				if want == large {
					payload, _, err := store.OpenMessage(got)
					if err != nil {
						t.Fatal(err)
					}
					if content, err := io.ReadAll(payload); err != nil || string(content) != "large" {
						t.Errorf("the claim check opens %q, %v", content, err)
					}
					_ = payload.Close()
				}
				got.Ack() // which ends its context
			}
		})
	}
}

// has reports whether all of want is in got.
func has(got, want message.Metadata) bool {
	for key, value := range want {
		if v, ok := got[key]; !ok || v != value {
			return false
		}
	}
	return true
}
