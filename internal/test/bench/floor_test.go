package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/segmentio/asm/base64"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/sse"
	"github.com/agrimill/agrimill/internal/testkit"
)

const kib = 1 << 10

var sizes = []int{kib, 12 * kib, 192 * kib}

func sizeName(n int) string { return fmt.Sprintf("%dKiB", n/kib) }

func reportRate(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// meter begins to measure and returns the end of it. Beside the time that
// passes it takes the processor time, which says more on a machine that has
// other things to do. It is for benchmarks with one loop over b.N; what passes
// between the end and the return does not count.
func meter(b *testing.B) (end func()) {
	b.ResetTimer()
	before := processorTime()
	return func() {
		b.StopTimer()
		if used := processorTime() - before; used > 0 {
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
		}
		reportRate(b)
	}
}

// scan is the least that any reader has to do with an event that is in memory:
// find its lines, copy it once, decode its payload.
func scan(event, buf, out []byte) error {
	copy(buf, event)
	for rest := buf[:len(event)]; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		rest = rest[i+1:]
	}
	start := bytes.Index(buf, []byte(`"payload":"`)) + len(`"payload":"`)
	end := start + bytes.IndexByte(buf[start:], '"')
	_, err := base64.StdEncoding.Decode(out, buf[start:end])
	return err
}

// BenchmarkFloorScan is the floor of whatever parses and decodes in memory.
func BenchmarkFloorScan(b *testing.B) {
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			e := newEvent(size, 0).data
			buf, out := make([]byte, len(e)), make([]byte, size+3)
			b.ReportAllocs()
			b.SetBytes(int64(len(e)))
			for b.Loop() {
				testkit.NoError(b, scan(e, buf, out))
			}
			reportRate(b)
		})
	}
}

// The events that the benchmarks measure are ones that the gateway sends.
func TestEventsAreRead(t *testing.T) {
	for _, size := range sizes {
		raw := testkit.Must(sse.NewReader(bytes.NewReader(newEvent(size, 0).data), 0).Next())(t)
		event := testkit.Must(gateway.DecodeEvent(gateway.EventMessageReceived, raw.Data))(t)
		if got := len(event.(*gateway.MessageReceived).Payload); got != size {
			t.Errorf("got a payload of %d bytes, want %d", got, size)
		}
	}
}

// repeat is a stream of one event over and over.
type repeat struct {
	data []byte
	at   int
}

func (r *repeat) Read(p []byte) (n int, err error) {
	for n < len(p) {
		k := copy(p[n:], r.data[r.at:])
		n += k
		if r.at += k; r.at == len(r.data) {
			r.at = 0
		}
	}
	return n, nil
}

// BenchmarkParseDecode parses and decodes events in memory.
func BenchmarkParseDecode(b *testing.B) {
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			e := newEvent(size, 0).data
			r := sse.NewReader(&repeat{data: e}, 0)
			b.ReportAllocs()
			b.SetBytes(int64(len(e)))
			for b.Loop() {
				raw := testkit.Must(r.Next())(b)
				testkit.Must(gateway.DecodeEvent(gateway.EventMessageReceived, raw.Data))(b)
			}
			reportRate(b)
		})
	}
}

// BenchmarkFloorHTTP reads the stream over HTTP and does nothing with it.
func BenchmarkFloorHTTP(b *testing.B) { floorHTTP(b, nil) }

// BenchmarkFloorStream reads the stream over HTTP and does with each event what
// BenchmarkFloorScan does. It is the floor of whatever works on the stream.
func BenchmarkFloorStream(b *testing.B) { floorHTTP(b, scan) }

// floorHTTP reads the stream and calls f, if it is not nil, with each event.
func floorHTTP(b *testing.B, f func(event, buf, out []byte) error) {
	base := startSource(b)
	for _, size := range sizes {
		b.Run(sizeName(size), func(b *testing.B) {
			length := len(newEvent(size, 0).data) // all are equally long
			b.SetBytes(int64(length))
			b.ReportAllocs()
			prepare(b, base, b.N, size, 16)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			req := testkit.Must(http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", http.NoBody))(b)
			in := make([]byte, max(64*kib, 2*length))
			buf, out := make([]byte, length), make([]byte, size+3)
			end := meter(b)
			resp := testkit.Must(http.DefaultClient.Do(req))(b)
			defer func() { _ = resp.Body.Close() }()
			filled := 0
			for left := b.N * length; left > 0; {
				n, err := resp.Body.Read(in[filled:])
				if err != nil && !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
				left -= n
				filled += n
				if f == nil {
					filled = 0
					continue
				}
				start := 0
				for ; filled-start >= length; start += length {
					testkit.NoError(b, f(in[start:start+length], buf, out))
				}
				filled = copy(in, in[start:filled])
			}
			end()
		})
	}
}
