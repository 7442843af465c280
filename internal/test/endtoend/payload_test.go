package endtoend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// serverLimit is what a NATS server takes by default (max_payload).
const serverLimit = 1 << 20

// embedded is the default embedding: one NATS sink for the messages and for the
// poison queue.
type embedded struct {
	*world
	router *router.Router
	logs   *testkit.Output
}

// embed starts it. Messages that begin with "broken" cannot be handled.
func (w *world) embed(store gateway.ClaimCheck, mode subscriber.PayloadMode) *embedded {
	w.Helper()
	e := &embedded{world: w, logs: &testkit.Output{}}
	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(io.MultiWriter(w.Output(), e.logs), &slog.HandlerOptions{Level: watermill.LevelTrace})))
	client := testkit.Must(gateway.New(w.gateway.ClientConfig()))(w)
	w.Cleanup(func() { _ = client.Close() })
	short := subscriber.Backoff{Initial: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	// One key for everything: what holds up one message would hold up all.
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Nack: short, Reconnect: short, Payload: subscriber.PayloadConfig{Mode: mode},
		Confirm: subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond, Retry: short}, ChunkSize: 4 << 20,
	}, logger))(w)
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: w.nats.URL()}}, logger))(w)
	e.router = testkit.Must(router.New(router.Config{Poison: sink, ClaimCheck: store}, logger))(w)
	testkit.NoError(w, e.router.Add(router.Route{
		Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink, ToTopic: topicTemplate,
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if bytes.HasPrefix(msg.Payload, []byte("broken")) {
				return nil, router.Permanent(io.ErrUnexpectedEOF)
			}
			return []*message.Message{msg}, nil
		},
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.router.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run: %v", err)
		}
	})
	return e
}

// records reads a topic's messages out of the stream.
func (e *embedded) records(subject string) []*message.Message {
	e.Helper()
	stream := testkit.Must(e.oracle.js.Stream(e.Context(), "AGRIMILL"))(e)
	info := testkit.Must(stream.Info(e.Context()))(e)
	var records []*message.Message
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		raw, err := stream.GetMsg(e.Context(), seq)
		if err != nil {
			continue
		}
		if matches(raw.Subject, subject) {
			msg, _ := nats.Marshaler{}.Unmarshal(&natsgo.Msg{Data: raw.Data, Header: raw.Header})
			records = append(records, msg)
		}
	}
	return records
}

// matches knows a subject, and "!" and one for all but it.
func matches(subject, pattern string) bool {
	if not, ok := strings.CutPrefix(pattern, "!"); ok {
		return subject != not
	}
	return subject == pattern
}

func newStore(t *testing.T) *claimcheck.Store {
	t.Helper()
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"}))(t)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func (e *embedded) assertPayload(store *claimcheck.Store, msg *message.Message, want []byte) {
	e.Helper()
	r, _, err := store.OpenMessage(msg)
	if err != nil {
		e.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		e.Errorf("%d bytes, %v; want the %d bytes that were sent", len(got), err, len(want))
	}
	_ = r.Close()
}

const poisonSubject = "agrimill.poison"

// Payloads above the server's limit reach NATS by reference, whatever the mode
// of the subscriber, and so do those that have to go to the poison queue.
func TestLargePayloadsIntoNATS(t *testing.T) {
	t.Parallel() // it waits
	for name, mode := range map[string]subscriber.PayloadMode{"inline": subscriber.PayloadInline, "lazy": subscriber.PayloadLazy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, store := newWorld(t, gatewaytest.Config{ChunkSize: 4 << 20}), newStore(t)
			e := w.embed(store, mode)
			good := bytes.Repeat([]byte("good "), serverLimit/4)
			w.sendPayload(messageType, good)
			w.sendPayload(messageType, []byte("small"))
			medium := bytes.Repeat([]byte("medium"), 20_000) // not embedded in its event, and fits
			w.sendPayload(messageType, medium)
			w.waitConfirmed(3)
			for i, msg := range e.records("!" + poisonSubject) {
				want := [][]byte{good, []byte("small"), medium}[i]
				if inline := len(msg.Payload) > 0; inline != (len(want) < serverLimit) {
					t.Errorf("payload of %d bytes: %d in the message", len(want), len(msg.Payload))
				}
				e.assertPayload(store, msg, want)
			}

			if mode == subscriber.PayloadLazy {
				return // the handler would have to open the payload to find it broken
			}
			broken := bytes.Repeat([]byte("broken"), serverLimit/4)
			w.sendPayload(messageType, broken)
			w.waitConfirmed(4)
			records := e.records(poisonSubject)
			if len(records) != 1 {
				t.Fatalf("%d messages in the poison queue", len(records))
			}
			e.assertPayload(store, records[0], broken)
		})
	}
}

// Without a claim check a message that fits nowhere stays unconfirmed. It is
// reported once, does not spin, and does not hold up the others, not even those
// of its own order key.
func TestLargePayloadWithoutClaimCheckIsSetAside(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{ChunkSize: 4 << 20})
	var early atomic.Int64
	w.gateway.OnConfirm(func(entry gatewaytest.LedgerEntry) {
		if entry.Size > serverLimit {
			early.Add(1)
		}
	})
	e := w.embed(nil, subscriber.PayloadInline)
	w.sendPayload(messageType, bytes.Repeat([]byte("good "), serverLimit/4))
	w.send(20)
	w.waitConfirmed(20)
	health := e.router.Health()[0]
	if health.Returned != 1 || health.InFlight != 0 {
		t.Errorf("returned %d, in flight %d; want 1 and 0", health.Returned, health.InFlight)
	}
	// After a reconnect it is tried again, once.
	w.gateway.CutStreams()
	testkit.Eventually(w, "a second try", func() bool { return e.router.Health()[0].Returned == 2 })
	w.send(5)
	w.waitConfirmed(25)
	if got := e.router.Health()[0].Returned; got != 2 || early.Load() != 0 {
		t.Errorf("returned %d times, confirmed %d times; want 2 and 0", got, early.Load())
	}
	if got := strings.Count(e.logs.String(), "permanently rejects this message"); got != 1 {
		t.Errorf("reported %d times, want once", got)
	}
	if !strings.Contains(e.logs.String(), "no claim check is configured") {
		t.Error("the log does not tell what to configure")
	}
}

// A payload that is still with one gateway is streamed to the next one, whatever
// its size: the publisher opens it, so the route leaves it alone.
func TestLazyPayloadFromGatewayToGateway(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t, gatewaytest.Config{ChunkSize: 16 << 20})
	there := gatewaytest.New(t, gatewaytest.Config{ChunkSize: 16 << 20})
	sender := there.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{messageType}})
	there.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{messageType}, Subscribe: []string{messageType}})
	connect := func(config gateway.Config) *gateway.Client {
		client := testkit.Must(gateway.New(config))(t)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: connect(w.gateway.ClientConfig()), Payload: subscriber.PayloadConfig{Mode: subscriber.PayloadLazy},
		Confirm: subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond}, ChunkSize: 16 << 20,
	}, nil))(t)
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: connect(there.ClientConfig()), TenantID: there.Tenant(), EndpointID: sender.ID,
	}, nil))(t)
	poison := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: w.nats.URL()}}, nil))(t)
	r := testkit.Must(router.New(router.Config{Poison: poison}, nil))(t)
	testkit.NoError(t, r.Add(router.Route{
		Name: "onwards", From: sub, Topic: subscriber.AllData, To: pub, ToTopic: "{type}",
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata[gateway.KeyTenantID] = there.Tenant()
			return []*message.Message{msg}, nil
		},
	}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	payload := bytes.Repeat([]byte("shapes"), 1<<20)
	w.sendPayload(messageType, payload)
	w.waitConfirmed(1)
	ledger := there.Ledger()
	if len(ledger) != 1 || ledger[0].PayloadSHA256 != sha256.Sum256(payload) {
		t.Errorf("%d messages arrived: %+v", len(ledger), ledger)
	}
	if health := r.Health()[0]; health.Poisoned != 0 || health.Delivered != 1 {
		t.Errorf("health: %+v", health)
	}
}
