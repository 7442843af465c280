package router_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

// bench measures a middleware around a handler that does nothing. Each message
// is a new one.
func bench(b *testing.B, middleware message.HandlerMiddleware) {
	h := middleware(nothing)
	payload := bytes.Repeat([]byte("x"), 1024)
	msg := farmMessage("1", "7e7d6c1c-6b1c-4b6e-9c57-5d7f0f3b8a11", "", string(payload))
	contexts := make([]string, 1<<12)
	for i := range contexts {
		contexts[i] = fmt.Sprintf("%08x-6b1c-4b6e-9c57-5d7f0f3b8a11", i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i%len(contexts) == 0 {
			msg.Metadata["x-router-tenant-id"] = strconv.Itoa(i)
			msg.Metadata["x-router-receiving-endpoint-id"] = strconv.Itoa(i)
		}
		msg.Metadata["x-router-context-id"] = contexts[i%len(contexts)]
		msg.Metadata["x-router-message-id"] = contexts[i%len(contexts)]
		if _, err := h(msg); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func BenchmarkNoMiddleware(b *testing.B) {
	bench(b, func(h message.HandlerFunc) message.HandlerFunc { return h })
}

func BenchmarkPoisonQueue(b *testing.B) {
	queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: newSink(nil)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	bench(b, queue.Middleware)
}

func BenchmarkRetry(b *testing.B) {
	retry, err := router.NewRetry(router.RetryConfig{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	bench(b, retry.Middleware)
}

func BenchmarkDedup(b *testing.B) {
	dedup, err := router.NewDedup(router.DedupConfig{Scope: "route", DedupSettings: router.DedupSettings{Store: newStore(b, 1<<16)}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	bench(b, dedup.Middleware)
}

func BenchmarkRecoverer(b *testing.B) { bench(b, router.NewRecoverer(nil)) }

func BenchmarkDefaultKeys(b *testing.B) {
	for _, size := range []int{0, 1 << 10, 1 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			msg := farmMessage("1", "7e7d6c1c-6b1c-4b6e-9c57-5d7f0f3b8a11", "0b6d9a0e-6b1c-4b6e-9c57-5d7f0f3b8a11", "")
			msg.Payload = bytes.Repeat([]byte("x"), size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if keys, err := router.DefaultKeys("route", msg); keys.Valid() != nil || err != nil {
					b.Fatal(keys, err)
				}
			}
		})
	}
}

func BenchmarkMemoryStore(b *testing.B) {
	for _, entries := range []int{1 << 16, router.DefaultMemoryStoreEntries} {
		b.Run(strconv.Itoa(entries), func(b *testing.B) {
			store := newStore(b, entries)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				// Random, as keys are, and two for each message.
				random := rand.New(rand.NewPCG(uint64(i), 1))
				var claim router.Claim
				for _, key := range []*router.Key{&claim.Keys.Delivery, &claim.Keys.Content} {
					binary.LittleEndian.PutUint64(key[:8], random.Uint64())
					binary.LittleEndian.PutUint64(key[8:], random.Uint64())
				}
				reservation, err := store.Reserve(b.Context(), claim, router.DefaultDedupLease)
				if err != nil {
					b.Fatal(err)
				}
				if err := store.Commit(b.Context(), claim, reservation.Token, router.DefaultDedupTTL); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRedactError(b *testing.B) {
	err := errors.New("cannot parse the position of the machine: bad value 52.x at offset 17")
	for _, size := range []int{1 << 10, 16 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			msg := message.NewMessage("1", bytes.Repeat([]byte("0123456789abcdef"), size/16))
			b.ReportAllocs()
			for b.Loop() {
				router.RedactError(err, msg)
			}
		})
	}
}

// discard is a sink that keeps nothing.
type discard struct{ *memorySink }

func (discard) Publish(string, ...*message.Message) error { return nil }
func (d discard) Reads() sinks.Sink                       { return d }

// BenchmarkRouter measures one message's way through the whole Router: intake,
// chain, copy, topic and sink, 64 in flight.
func BenchmarkRouter(b *testing.B) {
	from, to := newSource(), discard{newSink(nil)}
	r := build(b, router.Config{Poison: to}, farmRoute(from, to))
	result := make(chan error, 1)
	go func() { result <- r.Run(b.Context()) }()
	<-r.Running()

	const window = 64
	payload := bytes.Repeat([]byte("x"), 1024)
	open := make(chan *message.Message, window)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range open {
			<-msg.Acked()
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		msg := farmMessage(strconv.Itoa(i), "7e7d6c1c-6b1c-4b6e-9c57-5d7f0f3b8a11", strconv.Itoa(i), "")
		msg.Payload = payload
		open <- msg
		from.messages <- msg
	}
	close(open)
	<-done
	b.StopTimer()
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-result; err != nil {
		b.Fatal(err)
	}
}
