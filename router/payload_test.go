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
	store, err := claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"})
	if err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("msg.Payload = %q, want none", msg.Payload)
	}
	if msg.Metadata[gateway.KeyPayloadMode] != gateway.PayloadModeClaimCheck {
		t.Errorf("KeyPayloadMode = %q, want %q", msg.Metadata[gateway.KeyPayloadMode], gateway.PayloadModeClaimCheck)
	}
	if got, want := msg.Metadata[gateway.KeyPayloadSHA256], hex.EncodeToString(sum[:]); got != want {
		t.Errorf("KeyPayloadSHA256 = %q, want %q", got, want)
	}
	if got, want := msg.Metadata[gateway.KeyPayloadSize], strconv.Itoa(len(payload)); got != want {
		t.Errorf("KeyPayloadSize = %q, want %q", got, want)
	}
	r, size, err := store.OpenMessage(msg)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(payload, got) || size != int64(len(payload)) {
		t.Errorf("stored another payload: %d bytes of size %d, want %d", len(got), size, len(payload))
	}
}

func large(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }

func TestTooLargeForTheSinkGoesIntoTheClaimCheck(t *testing.T) {
	for name, told := range map[string]bool{"the sink tells its limit": true, "the sink refuses": false} {
		t.Run(name, func(t *testing.T) {
			store, to, poison := newClaimCheck(t), newLimited(100_000, told), newSink(nil)
			from := newSource()
			r := start(t, router.Config{Poison: poison, ClaimCheck: store}, farmRoute(from, to))
			for i, payload := range [][]byte{large(200_000), []byte("small")} {
				msg := farmMessage(strconv.Itoa(i), "e", "c"+strconv.Itoa(i), string(payload))
				from.messages <- msg
				wantAck(t, msg)
				if !bytes.Equal(msg.Payload, payload) {
					t.Errorf("msg.Payload = %q, want %q: the message is not changed", msg.Payload, payload)
				}
			}
			to.wantStored(t, 2)
			assertCheckedIn(t, store, to.all()[0].msg, large(200_000))
			if got := string(to.all()[1].msg.Payload); got != "small" {
				t.Errorf("to.all()[1].msg.Payload = %q, want small", got)
			}
			if got := to.all()[1].msg.Metadata[gateway.KeyPayloadMode]; got != "" {
				t.Errorf("KeyPayloadMode = %q, want none", got)
			}
			poison.wantStored(t, 0)

			// A copy is recognized: the key is that of the payload, wherever it is.
			again := farmMessage("2", "e", "c0", string(large(200_000)))
			from.messages <- again
			wantAck(t, again)
			if got := r.Health()[0].Duplicates; got != 1 {
				t.Errorf("r.Health()[0].Duplicates = %d, want 1", got)
			}
			if got := store.puts.Load(); got != 1 {
				t.Errorf("store.puts.Load() = %d, want 1", got)
			}
		})
	}
}

func TestTooLargeWithoutClaimCheckIsPoisonedWithAdvice(t *testing.T) {
	for _, told := range []bool{true, false} {
		to, poison, from := newLimited(100_000, told), newSink(nil), newSource()
		start(t, router.Config{Poison: poison}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", string(large(200_000)))
		from.messages <- msg
		wantAck(t, msg)
		record := poison.all()[0].msg
		if !bytes.Equal(record.Payload, msg.Payload) {
			t.Errorf("record.Payload = %q, want %q", record.Payload, msg.Payload)
		}
		if record.Metadata[router.KeyPoisonClass] != "permanent" {
			t.Errorf("KeyPoisonClass = %q, want permanent", record.Metadata[router.KeyPoisonClass])
		}
		if !strings.Contains(record.Metadata[router.KeyPoisonReason], "router.Config.ClaimCheck") {
			t.Errorf("KeyPoisonReason = %q, want %q in it", record.Metadata[router.KeyPoisonReason], "router.Config.ClaimCheck")
		}
		if !strings.Contains(record.Metadata[router.KeyPoisonReason], "200000 bytes") {
			t.Errorf("KeyPoisonReason = %q, want %q in it", record.Metadata[router.KeyPoisonReason], "200000 bytes")
		}
		to.wantStored(t, 0)
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
	msg := farmMessage("1", "e", "c", "p")
	from.messages <- msg
	wantAck(t, msg)
	all := to.all()
	if len(all) != 4 {
		t.Fatalf("all has %d elements, want 4", len(all))
	}
	if string(all[0].msg.Payload) != "a" {
		t.Errorf("all[0].msg.Payload = %q, want a", all[0].msg.Payload)
	}
	assertCheckedIn(t, store, all[1].msg, large(5000))
	if string(all[2].msg.Payload) != "b" {
		t.Errorf("all[2].msg.Payload = %q, want b", all[2].msg.Payload)
	}
	assertCheckedIn(t, store, all[3].msg, large(6000))
	if got, want := all[3].msg.Metadata[gateway.KeyPayloadReference], all[1].msg.Metadata[gateway.KeyPayloadReference]; got == want {
		t.Errorf("KeyPayloadReference = %q, want another one than %q", got, want)
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
		r := start(t, router.Config{Poison: poison, ClaimCheck: store}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", string(large(5000)))
		from.messages <- msg
		<-msg.Acked()
		if got := store.puts.Load(); got != 1 {
			t.Errorf("store.puts.Load() = %d, want 1", got)
		}
		assertCheckedIn(t, store, to.all()[0].msg, large(5000))
		poison.wantStored(t, 0)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
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
	payload := large(5000)
	whole := func() (io.Reader, error) { return bytes.NewReader(payload), nil }
	tests := []struct {
		name     string
		size     int64
		inline   int64
		limit    int64 // of the sink
		store    bool
		stored   string // "inline", "claim check", "poisoned"
		inRecord string // the same, of the record in the poison queue
	}{
		{name: "small", size: 5000, limit: 1 << 20, stored: "inline"},
		{name: "unknown size", size: -1, limit: 1 << 20, stored: "inline"},
		{name: "unknown size, claim check", size: -1, limit: 1 << 20, store: true, stored: "claim check"},
		{name: "above the limit of messages", size: 5000, inline: 1000, limit: 1 << 20, store: true, stored: "claim check"},
		{name: "above the limit of the sink", size: 5000, limit: 1000, store: true, stored: "claim check"},
		{name: "above the limit of the sink, none to put it", size: 5000, limit: 1000, stored: "poisoned", inRecord: "inline"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			from, to, poison := newSource(), newLimited(test.limit, true), newSink(nil)
			to.fail = failTimes(3, down)
			config := router.Config{Poison: poison, MaxInlinePayload: test.inline, Retry: fastRetry}
			store := newClaimCheck(t)
			if test.store {
				config.ClaimCheck = store
			}
			start(t, config, farmRoute(from, to))
			var opens atomic.Int64
			msg := lazyMessage("1", test.size, &opens, whole)
			from.messages <- msg
			wantAck(t, msg)
			where, got := test.stored, to.memorySink
			if where == "poisoned" {
				to.wantStored(t, 0)
				where, got = test.inRecord, poison
				if got := poison.all()[0].msg.Metadata[router.KeyPoisonReason]; !strings.Contains(got, "router.Config.ClaimCheck") {
					t.Errorf("KeyPoisonReason = %q, want %q in it", got, "router.Config.ClaimCheck")
				}
			} else {
				if got := opens.Load(); got != 1 {
					t.Errorf("opens.Load() = %d, want 1: fetched once, whatever became of the sink", got)
				}
				poison.wantStored(t, 0)
			}
			got.wantStored(t, 1)
			switch out := got.all()[0].msg; where {
			case "inline":
				if !bytes.Equal(out.Payload, payload) {
					t.Errorf("out.Payload = %q, want %q", out.Payload, payload)
				}
				if out.Metadata[gateway.KeyPayloadMode] != "" {
					t.Errorf("KeyPayloadMode = %q, want none", out.Metadata[gateway.KeyPayloadMode])
				}
				if out.Metadata[gateway.KeyPayloadSize] != "5000" {
					t.Errorf("KeyPayloadSize = %q, want 5000", out.Metadata[gateway.KeyPayloadSize])
				}
			default:
				assertCheckedIn(t, store, out, payload)
			}
		})
	}
}

func TestLazyPayloadFailures(t *testing.T) {
	var opens atomic.Int64
	t.Run("expired", func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		start(t, router.Config{Poison: poison}, farmRoute(from, to))
		msg := lazyMessage("1", 10, &opens, func() (io.Reader, error) { return nil, gateway.ErrPayloadExpired })
		from.messages <- msg
		wantNack(t, msg) // only a new delivery has a new address
		to.wantStored(t, 0)
		poison.wantStored(t, 0)
	})
	t.Run("expired when poisoned", func(t *testing.T) {
		from, poison := newSource(), newSink(nil)
		route := farmRoute(from, newSink(nil))
		route.Transform = func(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errHandler) }
		start(t, router.Config{Poison: poison}, route)
		msg := lazyMessage("1", 10, &opens, func() (io.Reader, error) { return nil, gateway.ErrPayloadExpired })
		from.messages <- msg
		wantNack(t, msg)
		poison.wantStored(t, 0)
	})
	t.Run("breaks off", func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		start(t, router.Config{Poison: poison, Retry: fastRetry}, farmRoute(from, to))
		n := 0
		msg := lazyMessage("1", 5, &opens, func() (io.Reader, error) {
			if n++; n < 10 {
				return io.MultiReader(strings.NewReader("he"), iotest.ErrReader(errors.New("connection is gone"))), nil
			}
			return strings.NewReader("hello"), nil
		})
		from.messages <- msg
		wantAck(t, msg)
		if got := string(to.all()[0].msg.Payload); got != "hello" {
			t.Errorf("to.all()[0].msg.Payload = %q, want hello", got)
		}
		poison.wantStored(t, 0)
	})
	t.Run("from elsewhere", func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		start(t, router.Config{Poison: poison}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", "")
		msg.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
		from.messages <- msg
		wantAck(t, msg)
		to.wantStored(t, 0)
		record := poison.all()[0].msg.Metadata
		if !strings.Contains(record[router.KeyPoisonReason], "subscriber.PayloadConfig.Mode") {
			t.Errorf("record[router.KeyPoisonReason] = %q, want %q in it", record[router.KeyPoisonReason], "subscriber.PayloadConfig.Mode")
		}
		if record[gateway.KeyPayloadMode] != gateway.PayloadModeLazy {
			t.Errorf("record[gateway.KeyPayloadMode] = %q, want %q: it does not pass for an empty payload", record[gateway.KeyPayloadMode], gateway.PayloadModeLazy)
		}
	})
	t.Run("payload of the handler", func(t *testing.T) {
		from, to := newSource(), newSink(nil)
		route := farmRoute(from, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			msg.Payload = []byte("decoded")
			return []*message.Message{msg}, nil
		}
		start(t, router.Config{Poison: newSink(nil)}, route)
		msg := lazyMessage("1", 5, &opens, func() (io.Reader, error) { return nil, errHandler })
		from.messages <- msg
		wantAck(t, msg)
		out := to.all()[0].msg
		if string(out.Payload) != "decoded" {
			t.Errorf("out.Payload = %q, want decoded", out.Payload)
		}
		if out.Metadata[gateway.KeyPayloadMode] != "" {
			t.Errorf("KeyPayloadMode = %q, want none", out.Metadata[gateway.KeyPayloadMode])
		}
		if out.Metadata[gateway.KeyPayloadSize] != "7" {
			t.Errorf("KeyPayloadSize = %q, want 7", out.Metadata[gateway.KeyPayloadSize])
		}
	})
}

func TestSinkThatOpensPayloadsIsLeftToIt(t *testing.T) {
	from, to := newSource(), newSink(nil)
	sink := sinks.FromPublisher("broker", to, sinks.WithDescription(sinks.Description{OpensPayloads: true}))
	start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, sink))
	var opens atomic.Int64
	msg := lazyMessage("1", 1<<30, &opens, func() (io.Reader, error) { return nil, errHandler })
	from.messages <- msg
	wantAck(t, msg)
	if got := to.all()[0].msg.Metadata[gateway.KeyPayloadMode]; got != gateway.PayloadModeLazy {
		t.Errorf("KeyPayloadMode = %q, want %q", got, gateway.PayloadModeLazy)
	}
	if got := opens.Load(); got != 0 {
		t.Errorf("opens.Load() = %d, want 0", got)
	}
}

func TestPoisonTooLarge(t *testing.T) {
	broken := func(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errHandler) }
	t.Run("claim check", func(t *testing.T) {
		for _, told := range []bool{true, false} {
			store, poison, from := newClaimCheck(t), newLimited(100_000, told), newSource()
			route := farmRoute(from, newSink(nil))
			route.Transform = broken
			start(t, router.Config{Poison: poison, ClaimCheck: store}, route)
			msg := farmMessage("1", "e", "c", string(large(200_000)))
			from.messages <- msg
			wantAck(t, msg)
			record := poison.all()[0].msg
			assertCheckedIn(t, store, record, large(200_000))
			if got, want := record.Metadata[router.KeyPoisonReason], "handler failed"; got != want {
				t.Errorf("KeyPoisonReason = %q, want %q", got, want)
			}
		}
	})
	t.Run("none", func(t *testing.T) {
		// It stays open, is logged once, and does not spin.
		synctest.Test(t, func(t *testing.T) {
			book := testkit.NewLog()
			poison := newLimited(1000, true)
			queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: poison}, book)
			if err != nil {
				t.Fatal(err)
			}
			h := queue.Middleware(broken)
			began := time.Now()
			for range 20 {
				_, err := h(farmMessage("1", "e", "c", string(large(5000))))
				if !errors.Is(err, router.ErrNoClaimCheck) {
					t.Fatalf("err = %v, want ErrNoClaimCheck", err)
				}
				if got := router.Classify(err); got != router.ClassOutage {
					t.Fatalf("router.Classify(err) = %v, want %v", got, router.ClassOutage)
				}
			}
			if got := time.Since(began); got <= time.Hour {
				t.Errorf("time.Since(began) = %v, want more than %v", got, time.Hour)
			}
			if _, err = h(farmMessage("2", "e", "c", "small")); err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, line := range book.Texts() {
				if strings.HasPrefix(line, "ERROR poison queue") {
					lines = append(lines, line)
				}
			}
			if len(lines) != 1 {
				t.Fatalf("lines has %d elements, want 1: %q", len(lines), lines)
			}
			if !strings.Contains(lines[0], "router.Config.ClaimCheck") {
				t.Errorf("lines[0] = %q, want %q in it", lines[0], "router.Config.ClaimCheck")
			}
			if got := strings.Join(book.Texts(), ""); strings.Contains(got, "0123456789abcdef") {
				t.Errorf("the log is %q, want no %q in it", got, "0123456789abcdef")
			}
		})
	})
	t.Run("subscriber that sets messages aside", func(t *testing.T) {
		queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: newLimited(1000, true)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var nack msgctx.Nack
		msg := farmMessage("1", "e", "c", string(large(5000)))
		msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Nack: &nack}))
		_, err = queue.Middleware(broken)(msg) // would wait for 5 seconds at least
		if !errors.Is(err, router.ErrNoClaimCheck) {
			t.Fatalf("err = %v, want ErrNoClaimCheck", err)
		}
		if got := nack.Outcome(); got != msgctx.SetAside {
			t.Errorf("a nack stands for %v, want %v", got, msgctx.SetAside)
		}
	})
}

// A message whose payload went into the claim check on the way into the poison
// queue is whole again when it is replayed.
func TestReplayOfALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, q, to, from := newClaimCheck(t), newQueue(), newSink(nil), newSource()
		poison := &limitedQueue{queue: q, limit: 1000}
		var fixed atomic.Bool
		route := farmRoute(from, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			if !fixed.Load() || len(msg.Payload) != 5000 {
				return nil, router.Permanent(errHandler)
			}
			return []*message.Message{msg}, nil
		}
		r := start(t, router.Config{Poison: poison, ClaimCheck: store}, route)
		sent := farmMessage("1", "e", "c", string(large(5000)))
		from.messages <- sent
		wantAck(t, sent)
		send := router.ReplayConfig{From: q, Decide: func(router.Poisoned) router.ReplayAction { return router.ReplaySend }}
		report, err := r.Replay(t.Context(), send)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Equal(t, report, router.ReplayReport{Poisoned: 1, Reason: "handler failed"})
		fixed.Store(true)
		report, err = r.Replay(t.Context(), send)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Equal(t, report, router.ReplayReport{Sent: 1})
		got := to.all()[0].msg
		if !bytes.Equal(got.Payload, sent.Payload) {
			t.Errorf("got.Payload = %q, want %q", got.Payload, sent.Payload)
		}
		if got.Metadata[gateway.KeyPayloadMode] != "" {
			t.Errorf("KeyPayloadMode = %q, want none", got.Metadata[gateway.KeyPayloadMode])
		}
		for key := range got.Metadata {
			if strings.Contains(key, "poison") {
				t.Errorf("key = %q, want no %q in it", key, "poison")
			}
		}
		// A copy of it is recognised.
		again := farmMessage("1", "e", "c", string(large(5000)))
		from.messages <- again
		wantAck(t, again)
		to.wantStored(t, 1)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

type limitedQueue struct {
	*queue
	limit int
}

func (q *limitedQueue) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if len(msg.Payload) > q.limit {
			return sinks.NewError("queue", topic, sinks.ErrTooLarge, nil)
		}
	}
	return q.queue.Publish(topic, msgs...)
}
