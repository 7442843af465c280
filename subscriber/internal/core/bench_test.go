package core

import (
	"fmt"
	"testing"
	"time"
	"unsafe"
)

func BenchmarkMessage(b *testing.B) {
	for _, keys := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			c := New(Config{MaxInFlight: 1000, MaxBytes: 1 << 30, MaxUnconfirmed: 10000, Ordered: true, Recent: 1 << 16, RecentFor: time.Hour})
			c.Add(1, "r", func(*Message) bool { return true }, false)
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("k", i)
			}
			c.Connected(1)
			var unconfirmed []*Message
			e := c.Effects()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				now := time.Duration(i + 2)
				m := &Message{Tenant: "t", Key: names[i%keys], Bytes: 1024}
				id := newID(i)
				m.IDs = []ID{id}
				if c.Take(now, m) != Opened {
					b.Fatal("not opened")
				}
				it := e.Start[0]
				e.Reset()
				c.Done(now, it, Acked, 0)
				unconfirmed = append(unconfirmed, e.Closed...)
				e.Reset()
				if len(unconfirmed) == 500 {
					for _, m := range unconfirmed {
						c.Confirmed(now, m.Confirm[0])
					}
					e.Reset()
					unconfirmed = unconfirmed[:0]
				}
				i++
			}
		})
	}
	b.Logf("message %d item %d lane %d", unsafe.Sizeof(Message{}), unsafe.Sizeof(Item{}), unsafe.Sizeof(Lane{}))
}
