package publisher_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

func newStore(t *testing.T) *claimcheck.Store {
	t.Helper()
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { _ = bucket.Close() })
	s := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{Bucket: bucket}))(t)
	return s
}

// store puts a payload and returns a message that refers to it.
func store(t *testing.T, s *claimcheck.Store, payload string) *message.Message {
	t.Helper()
	msg := newMessage("", gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	reference := testkit.Must(s.Put(t.Context(), msg.UUID, strings.NewReader(payload)))(t)
	sum := sha256.Sum256([]byte(payload))
	msg.Metadata.Set(gateway.KeyPayloadReference, reference)
	msg.Metadata.Set(gateway.KeyPayloadSize, strconv.Itoa(len(payload)))
	msg.Metadata.Set(gateway.KeyPayloadSHA256, hex.EncodeToString(sum[:]))
	return msg
}

func TestClaimCheckIsStreamed(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	s := newStore(t)
	cfg.ClaimCheck = s
	pub := f.publisher(cfg)
	large := strings.Repeat("large ", 500_000)
	for name, change := range map[string]func(message.Metadata){
		"all told":   func(message.Metadata) {},
		"no digest":  func(m message.Metadata) { delete(m, gateway.KeyPayloadSHA256) },
		"no size":    func(m message.Metadata) { delete(m, gateway.KeyPayloadSize) },
		"size is -1": func(m message.Metadata) { m.Set(gateway.KeyPayloadSize, "-1") },
	} {
		for _, payload := range []string{"", "small", large} {
			msg := store(t, s, payload)
			change(msg.Metadata)
			f.server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Times: 2})
			if err := pub.Publish(typeJSON, msg); err != nil {
				t.Errorf("%s, %d bytes: %v", name, len(payload), err)
				continue
			}
			entries := f.server.Ledger()
			if last := entries[len(entries)-1]; last.PayloadSHA256 != sha256.Sum256([]byte(payload)) || last.ContextID != msg.UUID {
				t.Errorf("%s: %d bytes arrived, want %d", name, last.PayloadSize, len(payload))
			}
		}
	}
}

func TestClaimCheckThatIsNotWhatItWas(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	s := newStore(t)
	cfg.ClaimCheck = s
	pub := f.publisher(cfg)
	for name, test := range map[string]struct {
		now  string
		key  string
		gone bool
	}{
		"changed": {now: "2345", key: gateway.KeyPayloadSHA256},
		"longer":  {now: "12345", key: gateway.KeyPayloadSize},
		"shorter": {now: "123", key: gateway.KeyPayloadSize},
		"gone":    {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			msg := store(t, s, "1234")
			reference := msg.Metadata.Get(gateway.KeyPayloadReference)
			want := gateway.ErrInvalid
			if test.gone {
				want = gateway.ErrNotFound
				testkit.NoError(t, s.Delete(t.Context(), reference))
			} else if _, err := s.Put(t.Context(), reference, strings.NewReader(test.now)); err != nil {
				t.Fatal(err)
			}
			if name == "shorter" || name == "longer" { // tell the size alone
				delete(msg.Metadata, gateway.KeyPayloadSHA256)
			}
			err := pub.Publish(typeJSON, msg)
			testkit.ErrorIs(t, err, want)
			var named *publisher.MetadataError
			if errors.As(err, &named) != (test.key != "") || named != nil && named.Key != test.key {
				t.Errorf("%v does not name %q", err, test.key)
			}
		})
	}
	if f.entries() != 0 {
		t.Errorf("%d messages arrived, want none", f.entries())
	}
}

// flaky is a store that fails a number of times.
type flaky struct {
	*claimcheck.Store
	fails atomic.Int64
}

func (s *flaky) Open(ctx context.Context, reference string) (io.ReadCloser, int64, error) {
	if s.fails.Add(-1) >= 0 {
		return nil, 0, fmt.Errorf("bucket is down: %w", gateway.ErrUnavailable)
	}
	return s.Store.Open(ctx, reference)
}

func TestClaimCheckOutage(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	s := &flaky{Store: newStore(t)}
	cfg := f.config()
	cfg.ClaimCheck = s
	pub := f.publisher(cfg)
	msg := store(t, s.Store, "payload")
	s.fails.Store(3)
	if err := pub.Publish(typeJSON, msg); err != nil {
		t.Errorf("an outage that passes: %v", err)
	}
	s.fails.Store(1000)
	if err := pub.Publish(typeJSON, msg); !errors.Is(err, gateway.ErrUnavailable) {
		t.Errorf("an outage that stays: %v", err)
	}
	if f.entries() != 1 {
		t.Errorf("%d messages arrived, want one", f.entries())
	}
}

func TestEnvelopeRoundTrip(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	sub := testkit.Must(subscriber.New(subscriber.Config{Client: f.client, Unmarshaler: subscriber.EnvelopeUnmarshaler{}}, nil))(t)
	t.Cleanup(func() { _ = sub.Close() })
	messages := testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
	cfg := f.config()
	cfg.Marshaler = publisher.EnvelopeMarshaler{}
	pub := f.publisher(cfg)
	free := message.Metadata{
		"plain": "value", "a\r\nX: y": "b\r\n\r\nGET / HTTP/1.1", "\x00": "\xff\xfe", "ключ": "значение — 農場", " outer ": " spaces ",
		"": "", "long": strings.Repeat("x", 10_000), "Nats-Msg-Id": "1", "_watermill_message_uuid": "other",
	}
	for _, payload := range []string{"payload", "", "AGM1", strings.Repeat("x", 100_000)} {
		for _, uuid := range []string{someID, "", "a\r\nb"} {
			sent := message.NewMessage(uuid, []byte(payload))
			sent.Metadata = maps.Clone(free)
			sent.Metadata.Set(gateway.KeyFilename, "a.zip")
			// What a sender must not decide at the receiver.
			sent.Metadata.Set(gateway.KeyPayloadReference, "somebody's")
			sent.Metadata.Set(gateway.KeyDedupID, "mine")
			testkit.NoError(t, pub.Publish(typeJSON, sent))
			all := f.headers()
			header := all[len(all)-1]
			got := testkit.Receive(t, "the message", messages)
			if got.UUID != uuid || string(got.Payload) != payload {
				t.Errorf("got UUID %q and %d bytes, want %q and %d", got.UUID, len(got.Payload), uuid, len(payload))
			}
			for key, value := range free {
				if v, ok := got.Metadata[key]; !ok || v != value {
					t.Errorf("%q arrived as %q (%v), want %q", key, v, ok, value)
				}
			}
			for key, want := range map[string]string{
				gateway.KeyFilename: "a.zip", gateway.KeyContextID: header.Get(gateway.KeyContextID),
				gateway.KeySentTimestamp: header.Get(gateway.KeySentTimestamp), gateway.KeyMessageType: typeJSON,
				gateway.KeyPayloadReference: "", gateway.KeyDedupID: "", gateway.KeyPayloadSize: strconv.Itoa(len(payload)), gateway.KeyEndpointID: "",
			} {
				if v := got.Metadata.Get(key); v != want {
					t.Errorf("%s = %q, want %q", key, v, want)
				}
			}
			got.Ack()
		}
	}
}

// Receivers recognise a copy by context ID and payload, so the envelope of a
// message must not change from one call to the next.
func TestEnvelopeIsTheSameEveryTime(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Marshaler = publisher.EnvelopeMarshaler{}
	pub := f.publisher(cfg)
	original := message.NewMessage("", []byte("payload"))
	original.Metadata = message.Metadata{"a": "1", "b": "2", gateway.KeyDedupID: "d"}
	for _, msg := range []*message.Message{original, original, original.Copy()} {
		msg.Metadata = maps.Clone(msg.Metadata)
		testkit.NoError(t, pub.Publish(typeJSON, msg))
	}
	original.Metadata = message.Metadata{"b": "2", "a": "1", gateway.KeyDedupID: "d"} // a fresh copy
	testkit.NoError(t, pub.Publish(typeJSON, original))
	entries := f.server.Ledger()
	for _, e := range entries[1:] {
		if e.PayloadSHA256 != entries[0].PayloadSHA256 || e.ContextID != entries[0].ContextID {
			t.Errorf("sent again as payload %x of %s, was %x of %s", e.PayloadSHA256[:4], e.ContextID, entries[0].PayloadSHA256[:4], entries[0].ContextID)
		}
	}
}
