package sse

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"testing"
	"time"
)

// sizes are the payload sizes of the benchmarks, before base64.
var sizes = []struct {
	name string
	n    int
}{{"1KiB", 1 << 10}, {"12KiB", 12 << 10}, {"192KiB", 192 << 10}}

func benchEvent(n int) []byte {
	payload := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("agri"), n/4))
	return fmt.Appendf(nil, "event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":\"2a0b8a2e-6f0e-4b39-a1ea-0123456789ab\",\"payload\":\"%s\"}\n\n", payload)
}

// BenchmarkReader reports its time as a multiple of the floor, which is the least
// anybody must do: copy the bytes out of the source, and look at each of them
// once for an LF.
func BenchmarkReader(b *testing.B) {
	for _, size := range sizes {
		event := benchEvent(size.n)
		b.Run(size.name, func(b *testing.B) {
			r := NewReader(&loop{b: event}, 0)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
			spent := b.Elapsed()
			b.StopTimer()
			dst := make([]byte, len(event))
			start := time.Now()
			for range b.N {
				copy(dst, event)
				for rest := dst; len(rest) > 0; {
					rest = rest[index(rest, '\n')+1:]
				}
			}
			if floor := time.Since(start); floor > 0 {
				b.ReportMetric(float64(floor.Nanoseconds())/float64(b.N), "floor-ns/op")
				b.ReportMetric(float64(spent)/float64(floor), "x-floor")
			}
			b.ReportMetric(float64(b.N)/spent.Seconds(), "events/s")
		})
	}
}
