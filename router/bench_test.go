package router_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

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
				reservation := testkit.Must(store.Reserve(b.Context(), claim, router.DefaultDedupLease))(b)
				testkit.NoError(b, store.Commit(b.Context(), claim, reservation.Token, router.DefaultDedupTTL))
			}
		})
	}
}

// discard is a sink that keeps nothing.
type discard struct{ *memorySink }

func (d discard) Describe() sinks.Description { return sinks.DescribeAs(d, d.memorySink) }

func (discard) Publish(string, ...*message.Message) error { return nil }
