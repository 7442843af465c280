package isoxml

import (
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
)

// TestMemoryOfALogIsIndependentOfItsLength counts everything that is allocated
// while a log is read.
func TestMemoryOfALogIsIndependentOfItsLength(t *testing.T) {
	for _, length := range []int{1, 50_000} {
		bin := strings.Repeat(sampleRecord(1000, 525000000, 75000000, value{0, 1}, value{1, 2}), length)
		set := openSet(t, entry{"TASKDATA.XML", sample}, entry{"TLG00001.XML", sampleHeader}, entry{"TLG00001.BIN", bin})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		count := 0
		for _, err := range set.Logs[0].Records {
			if err == nil {
				count++
			}
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; count != length || got > 256<<10 {
			t.Errorf("%d records: %d bytes allocated, want at most %d", count, got, 256<<10)
		}
	}
}

// BenchmarkRecords decodes a log from memory: values per second on one core, and
// what a log that is being read takes.
func BenchmarkRecords(b *testing.B) {
	for name, values := range map[string]int{"1 value": 1, "4 values": 4, "16 values": 16} {
		b.Run(name, func(b *testing.B) {
			list := make([]value, values)
			for i := range list {
				list[i] = value{byte(i), int32(i)}
			}
			bin := strings.Repeat(sampleRecord(1000, 525000000, 75000000, list...), 1_000_000/values)
			h := header{position: positionLayout{north: 6, east: 10, status: 14, length: 15}, columns: make([]farmdata.Column, values)}
			read := records(file{open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(bin)), nil }}, h, 1<<30, 1)
			b.SetBytes(int64(len(bin)))
			b.ReportAllocs()
			b.ResetTimer()
			total, sum := 0, int64(0)
			start := time.Now()
			for b.Loop() {
				for record, err := range read {
					if err != nil {
						b.Fatal(err)
					}
					total += len(record.Values)
					for _, v := range record.Values {
						sum += v.Raw
					}
				}
			}
			b.ReportMetric(float64(total)/time.Since(start).Seconds()/1e6, "Mvalues/s")
			_ = sum
		})
	}
}
