package isoxml

import (
	"archive/zip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/farmdata"
	"github.com/agrimill/agrimill/internal/testkit"
)

// TestLargeTaskDataInLittleMemory reads 256 MB of TaskData in a process of its own,
// which may take 64 MB from the operating system for everything that Go allocates.
func TestLargeTaskDataInLittleMemory(t *testing.T) {
	t.Parallel()
	const size, most = 256 << 20, 64 << 20
	if file := os.Getenv("FARMDATA_LARGE_FILE"); file != "" { // the process of its own
		bytes := readEverything(t, file)
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		fmt.Printf("MEASURED %d %d\n", bytes, memory.Sys)
		return
	}
	file := filepath.Join(t.TempDir(), "large.zip")
	writeLarge(t, file, size)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLargeTaskDataInLittleMemory$", "-test.v")
	cmd.Env = append(os.Environ(), "FARMDATA_LARGE_FILE="+file)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var bytes, memory int64
	_, line, _ := strings.Cut(string(out), "MEASURED ")
	if _, err := fmt.Sscan(line, &bytes, &memory); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d MB read with %d MB", bytes>>20, memory>>20)
	if bytes < size || memory > most {
		t.Errorf("%d bytes read with %d bytes of memory, want at least %d with at most %d", bytes, memory, size, most)
	}
}

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

// readEverything returns how many bytes the records of a file have.
func readEverything(t *testing.T, file string) (bytes int64) {
	fixed := int64(len(sampleRecord(0, 0, 0)))
	for _, log := range openFile(t, file).Sets[0].Logs {
		for record, err := range log.Records {
			if err != nil {
				t.Fatal(err)
			}
			bytes += fixed + int64(5*len(record.Values))
		}
	}
	return bytes
}

// writeLarge writes an archive whose logs have size bytes together.
func writeLarge(t *testing.T, file string, size int) {
	t.Helper()
	f := testkit.Must(os.Create(file))(t)
	defer f.Close()
	w := zip.NewWriter(f)
	put := func(name string, method uint16, content string, times int) {
		out, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		for range times {
			if err == nil {
				_, err = io.WriteString(out, content)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	var chunk strings.Builder
	values := make([]value, 100)
	for chunk.Len() < 1<<20 {
		for i := range values {
			values[i] = value{byte(i % 2), random.Int32()}
		}
		chunk.WriteString(sampleRecord(uint32(chunk.Len()), 525000000+random.Int32N(1000), 75000000, values...))
	}
	put("TASKDATA.XML", zip.Deflate, sample, 1)
	const logs = 16
	for i := range logs {
		put(fmt.Sprintf("TLG%05d.XML", i), zip.Deflate, sampleHeader, 1)
		put(fmt.Sprintf("TLG%05d.BIN", i), zip.Store, chunk.String(), size/logs>>20)
	}
	put("TLG00016.XML", zip.Deflate, sampleHeader, 1)
	put("TLG00016.BIN", zip.Deflate, chunk.String(), 1) // unpacking costs memory
	testkit.NoError(t, w.Close())
}

// BenchmarkRecords decodes a log from memory: values per second on one core, and
// what a log that is being read takes.
func BenchmarkRecords(b *testing.B) {
	for name, values := range map[string]int{"1 value": 1, "4 values": 4, "16 values": 16} {
		b.Run(name, func(b *testing.B) {
			list := make([]value, values)
			for i := range list {
				list[i] = value{byte(i % 2), int32(i)}
			}
			bin := strings.Repeat(sampleRecord(1000, 525000000, 75000000, list...), 1_000_000/values)
			h := header{position: positionLayout{north: 6, east: 10, status: 14, length: 15}, columns: make([]farmdata.Column, 2)}
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
