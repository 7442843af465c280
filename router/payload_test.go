package router_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

// countingStore is a claim check that counts what is put into it.
type countingStore struct {
	*claimcheck.Store
	puts atomic.Int64
	down atomic.Bool
}

func newClaimCheck(t *testing.T) *countingStore {
	t.Helper()
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"}))(t)
	t.Cleanup(func() { _ = store.Close() })
	return &countingStore{Store: store}
}

func (s *countingStore) Put(ctx context.Context, key string, r io.Reader) (string, error) {
	if s.down.Load() {
		return "", gateway.ErrUnavailable
	}
	s.puts.Add(1)
	return s.Store.Put(ctx, key, r)
}

// limited is a sink with a size limit. It tells the limit when told is set, and
// otherwise only refuses.
type limited struct {
	*memorySink
	limit int64
	told  bool
}

func newLimited(limit int64, told bool) *limited {
	return &limited{memorySink: newSink(nil), limit: limit, told: told}
}

func (s *limited) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if int64(len(msg.Payload)) > s.limit {
			return sinks.NewError("limited", topic, sinks.ErrTooLarge, nil)
		}
	}
	return s.memorySink.Publish(topic, msgs...)
}

func (s *limited) Describe() sinks.Description {
	d := s.memorySink.Describe()
	if s.told {
		d.MaxMessageSize = s.limit
	}
	return d
}

// assertCheckedIn holds a message against the payload that was taken out of it.
func assertCheckedIn(t *testing.T, store *countingStore, msg *message.Message, payload []byte) {
	t.Helper()
	sum := sha256.Sum256(payload)
	if len(msg.Payload) != 0 {
		t.Errorf("the message has %d bytes, want none", len(msg.Payload))
	}
	wantMetadata(t, msg, map[string]string{
		gateway.KeyPayloadMode: gateway.PayloadModeClaimCheck, gateway.KeyPayloadSHA256: hex.EncodeToString(sum[:]),
		gateway.KeyPayloadSize: strconv.Itoa(len(payload)),
	})
	r, size, err := store.OpenMessage(msg)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	testkit.NoError(t, errors.Join(err, r.Close()))
	if !bytes.Equal(payload, got) || size != int64(len(payload)) {
		t.Errorf("stored another payload: %d bytes of size %d, want %d", len(got), size, len(payload))
	}
}

func large(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }

func TestTooLargeForTheSinkGoesIntoTheClaimCheck(t *testing.T) {
	for name, told := range map[string]bool{"the sink tells its limit": true, "the sink refuses": false} {
		t.Run(name, func(t *testing.T) {
			store, to, poison, from := newClaimCheck(t), newLimited(100_000, told), newSink(nil), newSource()
			r := start(t, router.Config{Poison: poison, ClaimCheck: store}, farmRoute(from, to))
			for i, payload := range [][]byte{large(200_000), []byte("small")} {
				msg := farmMessage(strconv.Itoa(i), "e", "c"+strconv.Itoa(i), string(payload))
				from.deliver(t, msg)
				if !bytes.Equal(msg.Payload, payload) {
					t.Errorf("the received message has %d bytes, want %d as before", len(msg.Payload), len(payload))
				}
			}
			to.wantStored(t, 2)
			assertCheckedIn(t, store, to.all()[0].msg, large(200_000))
			wantInline(t, to.all()[1].msg, "small")
			poison.wantStored(t, 0)

			// A copy is recognized: the key is that of the payload, wherever it is.
			from.deliver(t, farmMessage("2", "e", "c0", string(large(200_000))))
			if duplicates, puts := r.Health()[0].Duplicates, store.puts.Load(); duplicates != 1 || puts != 1 {
				t.Errorf("%d duplicates and %d payloads put away, want 1 and 1", duplicates, puts)
			}
		})
	}
}

// wantInline fails the test unless the message has its payload.
func wantInline(t *testing.T, msg *message.Message, payload string) {
	t.Helper()
	if got, mode := string(msg.Payload), msg.Metadata[gateway.KeyPayloadMode]; got != payload || mode != "" {
		t.Errorf("message %s has %.20q (%d bytes, mode %q), want %.20q", msg.UUID, got, len(got), mode, payload)
	}
}

// Of several messages for one topic only the large one is moved.
func TestTooLargeAmongSeveral(t *testing.T) {
	store, to, from := newClaimCheck(t), newLimited(1000, false), newSource()
	route := farmRoute(from, to)
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		var out []*message.Message
		for _, payload := range [][]byte{[]byte("a"), large(5000), []byte("b"), large(6000)} {
			m := message.NewMessage(msg.UUID, payload)
			m.Metadata = msg.Copy().Metadata
			out = append(out, m)
		}
		return out, nil
	}
	start(t, router.Config{Poison: newSink(nil), ClaimCheck: store}, route)
	from.deliver(t, farmMessage("1", "e", "c", "p"))
	to.wantStored(t, 4)
	all := to.all()
	wantInline(t, all[0].msg, "a")
	assertCheckedIn(t, store, all[1].msg, large(5000))
	wantInline(t, all[2].msg, "b")
	assertCheckedIn(t, store, all[3].msg, large(6000))
	if one := all[1].msg.Metadata[gateway.KeyPayloadReference]; one == all[3].msg.Metadata[gateway.KeyPayloadReference] {
		t.Errorf("both have the reference %q", one)
	}
}

// An outage, of the claim check or of the sink, is waited for; the payload is
// stored once.
func TestClaimCheckOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, poison, from := newClaimCheck(t), newSink(nil), newSource()
		to := newLimited(100, false)
		to.fail = failTimes(5, sinks.NewError("limited", "t", sinks.ErrUnavailable, nil))
		store.down.Store(true)
		repair := time.AfterFunc(time.Hour, func() { store.down.Store(false) })
		defer repair.Stop()
		start(t, router.Config{Poison: poison, ClaimCheck: store}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", string(large(5000)))
		from.messages <- msg
		<-msg.Acked()
		if got := store.puts.Load(); got != 1 {
			t.Errorf("store.puts.Load() = %d, want 1", got)
		}
		assertCheckedIn(t, store, to.all()[0].msg, large(5000))
		poison.wantStored(t, 0)
	})
}

// lazyMessage is a message whose payload is still with the service.
func lazyMessage(id string, size int64, opens *atomic.Int64, open func() (io.Reader, error)) *message.Message {
	msg := farmMessage(id, "e", "c", "")
	msg.Payload = nil
	msg.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
	msg.SetContext(msgctx.With(context.Background(), msgctx.Value{Open: func(context.Context) (io.ReadCloser, int64, error) {
		opens.Add(1)
		r, err := open()
		if err != nil {
			return nil, 0, err
		}
		return io.NopCloser(r), size, nil
	}}))
	return msg
}

func TestLazyPayloadIsNeverStoredEmpty(t *testing.T) {
	tests := []struct {
		name     string
		size     int64
		limit    int64 // of the sink
		store    bool
		stored   string // "inline", "claim check", "poisoned"
		inRecord string // the same, of the record in the poison queue
	}{
		{name: "small", size: 5000, limit: 1 << 20, stored: "inline"},
		{name: "unknown size", size: -1, limit: 1 << 20, stored: "inline"},
		{name: "unknown size, claim check", size: -1, limit: 1 << 20, store: true, stored: "claim check"},
		{name: "above the limit of messages", size: 2 << 20, limit: 4 << 20, store: true, stored: "claim check"},
		{name: "above the limit of the sink", size: 5000, limit: 1000, store: true, stored: "claim check"},
		{name: "above the limit of the sink, none to put it", size: 5000, limit: 1000, stored: "poisoned", inRecord: "inline"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			payload := large(max(5000, int(test.size)))
			whole := func() (io.Reader, error) { return bytes.NewReader(payload), nil }
			from, to, poison := newSource(), newLimited(test.limit, true), newSink(nil)
			to.fail = failTimes(3, down)
			config := router.Config{Poison: poison, Retry: fastRetry}
			store := newClaimCheck(t)
			if test.store {
				config.ClaimCheck = store
			}
			start(t, config, farmRoute(from, to))
			var opens atomic.Int64
			msg := lazyMessage("1", test.size, &opens, whole)
			from.deliver(t, msg)
			where, got := test.stored, to.memorySink
			if where == "poisoned" {
				to.wantStored(t, 0)
				where, got = test.inRecord, poison
				testkit.Contains(t, poison.all()[0].msg.Metadata[router.KeyPoisonReason], "no claim check is configured")
			} else {
				if got := opens.Load(); got != 1 {
					t.Errorf("opens.Load() = %d, want 1: fetched once, whatever became of the sink", got)
				}
				poison.wantStored(t, 0)
			}
			got.wantStored(t, 1)
			switch out := got.all()[0].msg; where {
			case "inline":
				wantInline(t, out, string(payload))
				wantMetadata(t, out, map[string]string{gateway.KeyPayloadSize: "5000"})
			default:
				assertCheckedIn(t, store, out, payload)
			}
		})
	}
}

func TestLazyPayloadFailures(t *testing.T) {
	var opens atomic.Int64
	expired := func() (io.Reader, error) { return nil, gateway.ErrPayloadExpired }
	for name, transform := range map[string]message.HandlerFunc{"expired": nil, "expired when poisoned": broken} {
		t.Run(name, func(t *testing.T) {
			from, to, poison := newSource(), newSink(nil), newSink(nil)
			route := farmRoute(from, to)
			route.Transform = transform
			start(t, router.Config{Poison: poison}, route)
			msg := lazyMessage("1", 10, &opens, expired)
			from.messages <- msg
			wantNack(t, msg) // only a new delivery has a new address
			to.wantStored(t, 0)
			poison.wantStored(t, 0)
		})
	}
	t.Run("breaks off", func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		start(t, router.Config{Poison: poison, Retry: fastRetry}, farmRoute(from, to))
		n := 0
		from.deliver(t, lazyMessage("1", 5, &opens, func() (io.Reader, error) {
			if n++; n < 10 {
				return io.MultiReader(strings.NewReader("he"), iotest.ErrReader(errors.New("connection is gone"))), nil
			}
			return strings.NewReader("hello"), nil
		}))
		wantInline(t, to.all()[0].msg, "hello")
		poison.wantStored(t, 0)
	})
	t.Run("from elsewhere", func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		start(t, router.Config{Poison: sinks.FromPublisher("queue", poison, sinks.PublisherConfig{})}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", "")
		msg.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
		from.deliver(t, msg)
		to.wantStored(t, 0)
		record := poison.all()[0].msg
		if got, want := record.Metadata[router.KeyPoisonReason], "where they are received"; !strings.Contains(got, want) {
			t.Errorf("the reason is %q, want %q in it", got, want)
		}
		wantMetadata(t, record, map[string]string{gateway.KeyPayloadMode: gateway.PayloadModeLazy}) // it does not pass for an empty payload
	})
	t.Run("payload of the handler", func(t *testing.T) {
		from, to := newSource(), newSink(nil)
		route := farmRoute(from, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			msg.Payload = []byte("decoded")
			return []*message.Message{msg}, nil
		}
		start(t, router.Config{Poison: newSink(nil)}, route)
		from.deliver(t, lazyMessage("1", 5, &opens, func() (io.Reader, error) { return nil, errHandler }))
		out := to.all()[0].msg
		wantInline(t, out, "decoded")
		wantMetadata(t, out, map[string]string{gateway.KeyPayloadSize: "7"})
	})
}

func TestSinkThatOpensPayloadsIsLeftToIt(t *testing.T) {
	from, to := newSource(), newSink(nil)
	sink := sinks.FromPublisher("broker", to, sinks.PublisherConfig{Description: sinks.Description{OpensPayloads: true}})
	start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, sink))
	var opens atomic.Int64
	from.deliver(t, lazyMessage("1", 1<<30, &opens, func() (io.Reader, error) { return nil, errHandler }))
	wantMetadata(t, to.all()[0].msg, map[string]string{gateway.KeyPayloadMode: gateway.PayloadModeLazy})
	if got := opens.Load(); got != 0 {
		t.Errorf("the payload was opened %d times, want 0", got)
	}
}

func TestPoisonTooLarge(t *testing.T) {
	t.Run("claim check", func(t *testing.T) {
		for _, told := range []bool{true, false} {
			store, poison, from := newClaimCheck(t), newLimited(100_000, told), newSource()
			route := farmRoute(from, newSink(nil))
			route.Transform = broken
			start(t, router.Config{Poison: poison, ClaimCheck: store}, route)
			from.deliver(t, farmMessage("1", "e", "c", string(large(200_000))))
			record := poison.all()[0].msg
			assertCheckedIn(t, store, record, large(200_000))
			wantMetadata(t, record, map[string]string{router.KeyPoisonReason: "handler failed"})
		}
	})
	t.Run("none", func(t *testing.T) {
		// It stays open, is logged once, and does not spin.
		synctest.Test(t, func(t *testing.T) {
			book := testkit.NewLog()
			queue := testkit.Must(router.NewPoisonQueue(router.PoisonConfig{Publisher: newLimited(1000, true)}, book))(t)
			h := queue.Middleware(broken)
			began := time.Now()
			for range 20 {
				_, err := h(farmMessage("1", "e", "c", string(large(5000))))
				testkit.ErrorIs(t, err, router.ErrNoClaimCheck)
				wantClass(t, err, router.ClassOutage)
			}
			if got := time.Since(began); got <= time.Hour {
				t.Errorf("20 attempts took %v, want more than an hour", got)
			}
			handle(t, h, farmMessage("2", "e", "c", "small"))
			var lines []string
			for _, line := range book.Texts() {
				if strings.HasPrefix(line, "ERROR poison queue") {
					lines = append(lines, line)
				}
			}
			if len(lines) != 1 || !strings.Contains(lines[0], "no claim check is configured") {
				t.Errorf("logged %q, want one line with the setting", lines)
			}
			if strings.Contains(book.String(), "0123456789abcdef") {
				t.Errorf("the log has the payload: %s", book)
			}
		})
	})
	t.Run("subscriber that sets messages aside", func(t *testing.T) {
		var nack msgctx.Nack
		msg := farmMessage("1", "e", "c", string(large(5000)))
		msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Nack: &nack}))
		_, err := newPoison(t, router.PoisonConfig{Publisher: newLimited(1000, true)}).Middleware(broken)(msg) // would wait for 5 seconds at least
		testkit.ErrorIs(t, err, router.ErrNoClaimCheck)
		if got := nack.Outcome(); got != msgctx.SetAside {
			t.Errorf("a nack stands for %v, want %v", got, msgctx.SetAside)
		}
	})
}

// A message whose payload went into the claim check on the way into the poison
// queue is whole again when it is replayed.
func TestReplayOfALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, q, to, from := newClaimCheck(t), &poisonqueue.Queue{}, newSink(nil), newSource()
		poison := &limitedQueue{Queue: q, limit: 1000}
		var fixed atomic.Bool
		route := farmRoute(from, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			if !fixed.Load() || len(msg.Payload) != 5000 {
				return nil, router.Permanent(errHandler)
			}
			return []*message.Message{msg}, nil
		}
		r := start(t, router.Config{Poison: poison, ClaimCheck: store}, route)
		from.deliver(t, farmMessage("1", "e", "c", string(large(5000))))
		testkit.Equal(t, replayAll(t, r.Router, q), router.ReplayReport{Poisoned: 1, Reason: "handler failed"})
		fixed.Store(true)
		testkit.Equal(t, replayAll(t, r.Router, q), router.ReplayReport{Sent: 1})
		wantInline(t, to.all()[0].msg, string(large(5000)))
		wantNoPoison(t, to.all()[0].msg)
		// A copy of it is recognised.
		from.deliver(t, farmMessage("1", "e", "c", string(large(5000))))
		to.wantStored(t, 1)
	})
}

type limitedQueue struct {
	*poisonqueue.Queue
	limit int
}

func (q *limitedQueue) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if len(msg.Payload) > q.limit {
			return sinks.NewError("queue", topic, sinks.ErrTooLarge, nil)
		}
	}
	return q.Queue.Publish(topic, msgs...)
}
