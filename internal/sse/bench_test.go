package sse

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"testing"
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

// The time of the floor is that of the least anybody must do: copy the bytes
// out of the source, and look at each of them once for an LF.
func BenchmarkReader(b *testing.B) {
	for _, size := range sizes {
		event := benchEvent(size.n)
		b.Run(size.name+"/read", func(b *testing.B) {
			r := NewReader(&loop{b: event}, 0)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(size.name+"/floor", func(b *testing.B) {
			dst := make([]byte, len(event))
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				copy(dst, event)
				for rest := dst; len(rest) > 0; {
					rest = rest[index(rest, '\n')+1:]
				}
			}
		})
	}
}
