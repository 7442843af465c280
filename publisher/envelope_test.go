package publisher_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/subscriber"
)

// enveloped publishes messages in envelopes, and returns what a subscriber with the configuration receives.
func enveloped(t *testing.T, f *fixture, config subscriber.Config, messages ...*message.Message) <-chan *message.Message {
	config.Client, config.Unmarshaler = f.client, subscriber.EnvelopeUnmarshaler{}
	sub := testkit.Must(subscriber.New(config, nil))(t)
	t.Cleanup(func() { _ = sub.Close() })
	cfg := f.config()
	cfg.Marshaler = publisher.EnvelopeMarshaler{}
	testkit.NoError(t, f.publisher(cfg).Publish(typeJSON, messages...))
	return testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
}

// The metadata of an envelope belongs to the message, so its payload is there, too; what is in no envelope goes to the claim check.
func TestEnvelopeIsNotCheckedIn(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	store := newStore(t)
	sent := newMessage(strings.Repeat("x", 1000), "name", "harvested")
	config := subscriber.Config{Payload: subscriber.PayloadConfig{Mode: subscriber.PayloadClaimCheck, ClaimCheck: store, ClaimCheckFrom: 1}}
	messages := enveloped(t, f, config, sent)
	for _, other := range []string{"AGM", strings.Repeat("y", 1000)} {
		testkit.NoError(t, f.publisher(f.config()).Publish(typeJSON, newMessage(other)))
	}
	got := testkit.Receive(t, "the envelope", messages)
	if got.UUID != sent.UUID || got.Metadata.Get("name") != "harvested" || string(got.Payload) != string(sent.Payload) || got.Metadata.Get(gateway.KeyPayloadMode) != "" {
		t.Errorf("got UUID %s, metadata %v, %d bytes", got.UUID, got.Metadata, len(got.Payload))
	}
	got.Ack()
	for _, other := range []string{"AGM", strings.Repeat("y", 1000)} {
		got := testkit.Receive(t, "what is in no envelope", messages)
		payload, _, err := subscriber.OpenPayload(got)
		testkit.NoError(t, err)
		read := testkit.Must(io.ReadAll(payload))(t)
		testkit.NoError(t, payload.Close())
		if string(read) != other || got.Metadata.Get(gateway.KeyPayloadMode) != gateway.PayloadModeClaimCheck {
			t.Errorf("got %d bytes, metadata %v", len(read), got.Metadata)
		}
		got.Ack()
	}
}

// Nobody takes an envelope for a payload: a lazy one cannot be unpacked, and says so.
func TestLazyEnvelope(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	messages := enveloped(t, f, subscriber.Config{Payload: subscriber.PayloadConfig{Mode: subscriber.PayloadLazy}}, newMessage("payload"))
	testkit.NoError(t, f.publisher(f.config()).Publish(typeJSON, newMessage("plain")))
	got := testkit.Receive(t, "the envelope", messages)
	if _, _, err := subscriber.OpenPayload(got); !errors.Is(err, gateway.ErrInvalid) || !strings.Contains(err.Error(), "as inline or claim_check") {
		t.Errorf("got error %v, want what to do", err)
	}
	got.Ack()
	got = testkit.Receive(t, "what is in no envelope", messages)
	payload, size, err := subscriber.OpenPayload(got)
	testkit.NoError(t, err)
	read := testkit.Must(io.ReadAll(payload))(t)
	testkit.NoError(t, payload.Close())
	if string(read) != "plain" || size != int64(len("plain")) {
		t.Errorf("got %q, size %d", read, size)
	}
	got.Ack()
}

// A chunk of an envelope is not taken for all of it: it stays with the service, and its file comes as a whole.
func TestEnvelopeLargerThanAChunk(t *testing.T) {
	for name, files := range map[string][]string{"files": {typeJSON}, "no files": nil} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{ChunkSize: 1000})
			sent, undeliverable := newMessage(strings.Repeat("x", 1500), "name", "harvested"), make(chan error, 10)
			messages := enveloped(t, f, subscriber.Config{Files: files, Hooks: subscriber.Hooks{
				Undeliverable: func(_ gateway.Event, err error) { undeliverable <- err },
			}}, sent)
			got := testkit.Receive(t, "a message", messages)
			for got.Metadata.Get(gateway.KeyEventType) != string(gateway.EventFileReceived) {
				if files != nil || got.Metadata.Get("name") != "" {
					t.Errorf("got a message with %v, %d bytes", got.Metadata, len(got.Payload))
				}
				got.Ack()
				got = testkit.Receive(t, "another message", messages)
			}
			got.Ack()
			if got.UUID != sent.UUID || got.Metadata.Get("name") != "harvested" || string(got.Payload) != string(sent.Payload) {
				t.Errorf("got UUID %s, metadata %v, %d bytes", got.UUID, got.Metadata, len(got.Payload))
			}
			if files == nil {
				if err := testkit.Receive(t, "the chunk", undeliverable); !strings.Contains(err.Error(), "takes the message type app:test:json as files") {
					t.Errorf("got error %v, want what to do", err)
				}
			}
		})
	}
}
