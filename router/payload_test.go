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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/setaside"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

var _ router.ClaimCheck = (*claimcheck.Store)(nil)

// countingStore is a claim check that counts what is put into it.
type countingStore struct {
	*claimcheck.Store
	puts atomic.Int64
	down atomic.Bool
}

func newClaimCheck(t *testing.T) *countingStore {
	t.Helper()
	store, err := claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"})
	require.NoError(t, err)
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
	assert.Empty(t, msg.Payload)
	assert.Equal(t, gateway.PayloadModeClaimCheck, msg.Metadata[gateway.KeyPayloadMode])
	assert.Equal(t, hex.EncodeToString(sum[:]), msg.Metadata[gateway.KeyPayloadSHA256])
	assert.Equal(t, strconv.Itoa(len(payload)), msg.Metadata[gateway.KeyPayloadSize])
	r, size, err := store.OpenMessage(msg)
	require.NoError(t, err)
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	assert.True(t, bytes.Equal(payload, got) && size == int64(len(payload)), "the stored payload is another one")
}

func large(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }

func TestTooLargeForTheSinkGoesIntoTheClaimCheck(t *testing.T) {
	for name, told := range map[string]bool{"the sink tells its limit": true, "the sink refuses": false} {
		t.Run(name, func(t *testing.T) {
			store, to, poison := newClaimCheck(t), newLimited(100_000, told), newSink(nil)
			from := newSource()
			r := start(t, router.Config{Poison: poison, ClaimCheck: store}, farmRoute(from, to))
			for _, payload := range [][]byte{large(200_000), []byte("small")} {
				msg := farmMessage("1", "e", "c", string(payload))
				from.messages <- msg
				require.Equal(t, "ack", verdict(t, msg))
				assert.Equal(t, message.Payload(payload), msg.Payload, "the message is not changed")
			}
			require.Len(t, to.all(), 2)
			assertCheckedIn(t, store, to.all()[0].msg, large(200_000))
			assert.Equal(t, "small", string(to.all()[1].msg.Payload))
			assert.Empty(t, to.all()[1].msg.Metadata[gateway.KeyPayloadMode])
			assert.Empty(t, poison.all())

			// A copy is recognised: the key is that of the payload, wherever it is.
			again := farmMessage("2", "e", "c", string(large(200_000)))
			from.messages <- again
			require.Equal(t, "ack", verdict(t, again))
			assert.EqualValues(t, 1, r.Health()[0].Duplicates)
			assert.EqualValues(t, 1, store.puts.Load())
		})
	}
}

func TestTooLargeWithoutClaimCheckIsPoisonedWithAdvice(t *testing.T) {
	for _, told := range []bool{true, false} {
		to, poison, from := newLimited(100_000, told), newSink(nil), newSource()
		start(t, router.Config{Poison: poison}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", string(large(200_000)))
		from.messages <- msg
		require.Equal(t, "ack", verdict(t, msg))
		record := poison.all()[0].msg
		assert.Equal(t, msg.Payload, record.Payload)
		assert.Equal(t, "permanent", record.Metadata[router.KeyPoisonClass])
		assert.Contains(t, record.Metadata[router.KeyPoisonReason], "router.Config.ClaimCheck")
		assert.Contains(t, record.Metadata[router.KeyPoisonReason], "200000 bytes")
		assert.Empty(t, to.all())
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
	require.Equal(t, "ack", verdict(t, msg))
	all := to.all()
	require.Len(t, all, 4)
	assert.Equal(t, "a", string(all[0].msg.Payload))
	assertCheckedIn(t, store, all[1].msg, large(5000))
	assert.Equal(t, "b", string(all[2].msg.Payload))
	assertCheckedIn(t, store, all[3].msg, large(6000))
	assert.NotEqual(t, all[1].msg.Metadata[gateway.KeyPayloadReference], all[3].msg.Metadata[gateway.KeyPayloadReference])
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
		assert.EqualValues(t, 1, store.puts.Load())
		assertCheckedIn(t, store, to.all()[0].msg, large(5000))
		assert.Empty(t, poison.all())
		require.NoError(t, r.stop())
	})
}

// lazyMessage is a message whose payload is still with the service.
func lazyMessage(id string, size int64, opens *atomic.Int64, open func() (io.Reader, error)) *message.Message {
	msg := farmMessage(id, "e", "c", "")
	msg.Payload = nil
	msg.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
	msg.SetContext(payloadref.NewContext(context.Background(), func(context.Context) (io.ReadCloser, int64, error) {
		opens.Add(1)
		r, err := open()
		if err != nil {
			return nil, 0, err
		}
		return io.NopCloser(r), size, nil
	}))
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
			require.Equal(t, "ack", verdict(t, msg))
			where, got := test.stored, to.memorySink
			if where == "poisoned" {
				require.Empty(t, to.all())
				where, got = test.inRecord, poison
				assert.Contains(t, poison.all()[0].msg.Metadata[router.KeyPoisonReason], "router.Config.ClaimCheck")
			} else {
				assert.EqualValues(t, 1, opens.Load(), "fetched once, whatever became of the sink")
				assert.Empty(t, poison.all())
			}
			require.Len(t, got.all(), 1)
			switch out := got.all()[0].msg; where {
			case "inline":
				assert.Equal(t, message.Payload(payload), out.Payload)
				assert.Empty(t, out.Metadata[gateway.KeyPayloadMode])
				assert.Equal(t, "5000", out.Metadata[gateway.KeyPayloadSize])
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
		require.Equal(t, "nack", verdict(t, msg), "only a new delivery has a new address")
		assert.Empty(t, to.all())
		assert.Empty(t, poison.all())
	})
	t.Run("expired when poisoned", func(t *testing.T) {
		from, poison := newSource(), newSink(nil)
		route := farmRoute(from, newSink(nil))
		route.Transform = func(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errHandler) }
		start(t, router.Config{Poison: poison}, route)
		msg := lazyMessage("1", 10, &opens, func() (io.Reader, error) { return nil, gateway.ErrPayloadExpired })
		from.messages <- msg
		require.Equal(t, "nack", verdict(t, msg))
		assert.Empty(t, poison.all())
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
		require.Equal(t, "ack", verdict(t, msg))
		assert.Equal(t, "hello", string(to.all()[0].msg.Payload))
		assert.Empty(t, poison.all())
	})
	t.Run("from elsewhere", func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		start(t, router.Config{Poison: poison}, farmRoute(from, to))
		msg := farmMessage("1", "e", "c", "")
		msg.Metadata[gateway.KeyPayloadMode] = gateway.PayloadModeLazy
		from.messages <- msg
		require.Equal(t, "ack", verdict(t, msg))
		assert.Empty(t, to.all())
		record := poison.all()[0].msg.Metadata
		assert.Contains(t, record[router.KeyPoisonReason], "subscriber.PayloadConfig.Mode")
		assert.Equal(t, gateway.PayloadModeLazy, record[gateway.KeyPayloadMode], "it does not pass for an empty payload")
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
		require.Equal(t, "ack", verdict(t, msg))
		out := to.all()[0].msg
		assert.Equal(t, "decoded", string(out.Payload))
		assert.Empty(t, out.Metadata[gateway.KeyPayloadMode])
		assert.Equal(t, "7", out.Metadata[gateway.KeyPayloadSize])
	})
}

// opensPayloads is a publisher that opens payloads by itself, as the one to the
// gateway does.
type opensPayloads struct{ *memorySink }

func (opensPayloads) OpensPayloads() bool { return true }

func TestSinkThatOpensPayloadsIsLeftToIt(t *testing.T) {
	from, to := newSource(), newSink(nil)
	sink := sinks.FromPublisher("gateway", opensPayloads{to}, sinks.WithDescription(sinks.Description{}))
	start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, sink))
	var opens atomic.Int64
	msg := lazyMessage("1", 1<<30, &opens, func() (io.Reader, error) { return nil, errHandler })
	from.messages <- msg
	require.Equal(t, "ack", verdict(t, msg))
	assert.Equal(t, gateway.PayloadModeLazy, to.all()[0].msg.Metadata[gateway.KeyPayloadMode])
	assert.Zero(t, opens.Load())
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
			require.Equal(t, "ack", verdict(t, msg))
			record := poison.all()[0].msg
			assertCheckedIn(t, store, record, large(200_000))
			assert.Equal(t, "handler failed", record.Metadata[router.KeyPoisonReason])
		}
	})
	t.Run("none", func(t *testing.T) {
		// It stays open, is logged once, and does not spin.
		synctest.Test(t, func(t *testing.T) {
			book := newLogBook()
			poison := newLimited(1000, true)
			queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: poison}, book)
			require.NoError(t, err)
			h := queue.Middleware(broken)
			began := time.Now()
			for range 20 {
				_, err := h(farmMessage("1", "e", "c", string(large(5000))))
				require.ErrorIs(t, err, router.ErrNoClaimCheck)
				require.Equal(t, router.ClassOutage, router.Classify(err))
			}
			assert.Greater(t, time.Since(began), time.Hour)
			_, err = h(farmMessage("2", "e", "c", "small"))
			require.NoError(t, err)
			var lines []string
			for _, line := range book.all() {
				if strings.HasPrefix(line, "ERROR poison queue") {
					lines = append(lines, line)
				}
			}
			require.Len(t, lines, 1)
			assert.Contains(t, lines[0], "router.Config.ClaimCheck")
			assert.NotContains(t, strings.Join(book.all(), ""), "0123456789abcdef")
		})
	})
	t.Run("subscriber that sets messages aside", func(t *testing.T) {
		queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: newLimited(1000, true)}, nil)
		require.NoError(t, err)
		var aside []string
		msg := farmMessage("1", "e", "c", string(large(5000)))
		msg.SetContext(setaside.NewContext(t.Context(), func(uuid string) { aside = append(aside, uuid) }))
		_, err = queue.Middleware(broken)(msg) // would wait for 5 seconds at least
		require.ErrorIs(t, err, router.ErrNoClaimCheck)
		assert.Equal(t, []string{"1"}, aside)
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
		require.Equal(t, "ack", verdict(t, sent))
		send := router.ReplayConfig{From: q, Decide: func(router.Poisoned) router.ReplayAction { return router.ReplaySend }}
		report, err := r.Replay(t.Context(), send)
		require.NoError(t, err)
		require.Equal(t, router.ReplayReport{Poisoned: 1}, report)
		fixed.Store(true)
		report, err = r.Replay(t.Context(), send)
		require.NoError(t, err)
		require.Equal(t, router.ReplayReport{Sent: 1}, report)
		got := to.all()[0].msg
		assert.Equal(t, sent.Payload, got.Payload)
		assert.Empty(t, got.Metadata[gateway.KeyPayloadMode])
		for key := range got.Metadata {
			assert.NotContains(t, key, "poison")
		}
		// A copy of it is recognised.
		again := farmMessage("1", "e", "c", string(large(5000)))
		from.messages <- again
		require.Equal(t, "ack", verdict(t, again))
		assert.Len(t, to.all(), 1)
		require.NoError(t, r.stop())
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
