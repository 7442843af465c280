package gateway

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	asm "github.com/segmentio/asm/base64"

	"github.com/agrimill/agrimill/internal/sse"
)

var benchSizes = []struct {
	name string
	n    int
}{{"1KiB", 1 << 10}, {"12KiB", 12 << 10}, {"192KiB", 192 << 10}}

// benchStream gives one event over and over, as a connection would.
type benchStream struct {
	b   []byte
	off int
}

func (s *benchStream) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], s.b[s.off:])
		n += k
		if s.off += k; s.off == len(s.b) {
			s.off = 0
		}
	}
	return n, nil
}

func benchPayload(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// reportFloor reports the time of one operation as a multiple of floor, which
// is run as often as the benchmark was.
func reportFloor(b *testing.B, floor func()) {
	per := b.Elapsed()
	b.StopTimer()
	start := time.Now()
	for range b.N {
		floor()
	}
	if d := time.Since(start); d > 0 {
		b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), "floor-ns/op")
		b.ReportMetric(float64(per)/float64(d), "x-floor")
	}
	b.ReportMetric(float64(b.N)/per.Seconds(), "events/s")
}

// BenchmarkReadAndDecode takes events off a stream and decodes them. The floor
// is what nobody can do without: copy the bytes from the source, look at each
// once, and decode the base64 into a buffer that is there already.
func BenchmarkReadAndDecode(b *testing.B) {
	for _, size := range benchSizes {
		payload := benchPayload(size.n)
		encoded := []byte(payload)
		data := validData(EventMessageReceived).with("received_at", `"2026-11-20T12:34:57.123Z"`).with("payload", `"`+payload+`"`).json()
		event := fmt.Appendf(nil, "event: MESSAGE_RECEIVED\ndata: %s\n\n", data)
		dst := make([]byte, len(event))
		out := make([]byte, size.n+8)
		floor := func() {
			copy(dst, event)
			for rest := dst; ; {
				i := bytes.IndexByte(rest, '\n')
				if i < 0 {
					break
				}
				rest = rest[i+1:]
			}
			if _, err := asm.StdEncoding.Decode(out, encoded); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(size.name+"/both", func(b *testing.B) {
			r := sse.NewReader(&benchStream{b: event}, 0)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				e, err := r.Next()
				if err != nil {
					b.Fatal(err)
				}
				if _, err := DecodeEvent(internEventType(e.Name), e.Data); err != nil {
					b.Fatal(err)
				}
			}
			reportFloor(b, floor)
		})
		b.Run(size.name+"/decode", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeEvent(EventMessageReceived, data); err != nil {
					b.Fatal(err)
				}
			}
			reportFloor(b, floor)
		})
		b.Run(size.name+"/encoding-json", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decodeObject(EventMessageReceived, data); err != nil {
					b.Fatal(err)
				}
			}
			reportFloor(b, floor)
		})
	}
}
