package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

const header = "goos: linux\ngoarch: amd64\npkg: github.com/agrimill/agrimill/internal/test/bench\ncpu: A Processor\n"

// Three repetitions in which the machine becomes slower: the quotient stays.
const input = header + `
BenchmarkFloorScan/1KiB-2         	  704870	       300.0 ns/op	5572.37 MB/s	   3031758 events/s	       0 B/op	       0 allocs/op
BenchmarkParseDecode/1KiB-2       	  253812	       600.0 ns/op	1219441 events/s	    1424 B/op	       3 allocs/op
BenchmarkSubscriber/ByKey/1KiB    	   35623	      6250 ns/op	 301.80 MB/s	   5000 cpu-ns/op	    160000 events/s	    3790 B/op	      18 allocs/op
PASS
ok  	github.com/agrimill/agrimill/internal/test/bench	8.795s
` + header + `
BenchmarkFloorScan/1KiB-2         	  704870	       400.0 ns/op	5572.37 MB/s	   3031758 events/s	       0 B/op	       0 allocs/op
BenchmarkParseDecode/1KiB-2       	  253812	       800.0 ns/op	1219441 events/s	    1424 B/op	       3 allocs/op
BenchmarkSubscriber/ByKey/1KiB    	   35623	      6250 ns/op	 301.80 MB/s	   5000 cpu-ns/op	    160000 events/s	    3790 B/op	      19 allocs/op
ok  	github.com/agrimill/agrimill/internal/test/bench	8.795s
` + header + `
BenchmarkFloorScan/1KiB-2         	  704870	       900.0 ns/op	5572.37 MB/s	   3031758 events/s	       0 B/op	       0 allocs/op
BenchmarkParseDecode/1KiB-2       	  253812	      2700.0 ns/op	1219441 events/s	    1424 B/op	       3 allocs/op
BenchmarkSubscriber/ByKey/1KiB    	   35623	      6250 ns/op	 301.80 MB/s	   5000 cpu-ns/op	    160000 events/s	    3790 B/op	      19 allocs/op
ok  	github.com/agrimill/agrimill/internal/test/bench	8.795s
pkg: github.com/agrimill/agrimill/internal/test/peakmem
BenchmarkPeakMemory/subscribe/inline/256MB-2      	       1	2273898764 ns/op	 118.05 MB/s	       263.7 peak-MB	       274.9 rss-MB
BenchmarkPeakMemory/subscribe/lazy/256MB-2        	       1	 838041303 ns/op	 320.31 MB/s	         7.909 peak-MB	        19.33 rss-MB
BenchmarkPeakMemory/publish/claim-check/256MB-2   	       1	3202900399 ns/op	  83.81 MB/s	        64.53 peak-MB
pkg: github.com/agrimill/agrimill/router
BenchmarkDefaultKey               	       1	        12.34 ns/op
ok  	github.com/agrimill/agrimill/router	8.795s
`

const want = `Medians of 3 repetitions (goos: linux, goarch: amd64, cpu: A Processor). × is the time divided by that of the floor or peer:
the median over the repetitions. CPU is the processor time of the process, without the gateway.

### In memory: parse and decode

| benchmark        | ns/event |  events/s | CPU ns | B/event | allocs |    × | floor or peer  | aim                 |
| ---------------- | -------: | --------: | -----: | ------: | -----: | ---: | -------------- | ------------------- |
| FloorScan/1KiB   |      400 | 2 500 000 |        |       0 |      0 |      |                |                     |
| ParseDecode/1KiB |      800 | 1 250 000 |        |   1 424 |      3 | 2.00 | FloorScan/1KiB | ≤ 1 000 ns: reached |

### Stream over HTTP, one core

| benchmark             | ns/event | events/s | CPU ns | B/event | allocs |   × | floor or peer | aim                       |
| --------------------- | -------: | -------: | -----: | ------: | -----: | --: | ------------- | ------------------------- |
| Subscriber/ByKey/1KiB |    6 250 |  160 000 |  5 000 |   3 790 |     19 |     |               | ≥ 200 000/s: missed, 80 % |

### Peak memory for one large payload

| payload                   | peak MB | resident MB | MB/s | aim              |
| ------------------------- | ------: | ----------: | ---: | ---------------- |
| subscribe/inline/256MB    |     264 |         275 |  118 |                  |
| subscribe/lazy/256MB      |    7.91 |        19.3 |  320 | ≤ 64 MB: reached |
| publish/claim-check/256MB |    64.5 |             | 83.8 | ≤ 64 MB: missed  |

### Others

| benchmark         | ns/event |   events/s | CPU ns | B/event | allocs |   × | floor or peer | aim |
| ----------------- | -------: | ---------: | -----: | ------: | -----: | --: | ------------- | --- |
| router.DefaultKey |     12.3 | 81 037 277 |        |         |        |     |               |     |
`

func TestReport(t *testing.T) {
	t.Parallel()
	var out, echo bytes.Buffer
	if err := run(strings.NewReader(input), &out, &echo); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if echo.String() != input {
		t.Errorf("not shown as it came:\n%s", echo.String())
	}
}

func TestReportRefuses(t *testing.T) {
	t.Parallel()
	const good = header + "BenchmarkX 1 1.0 ns/op\n"
	for name, tt := range map[string]struct {
		input string
		want  error
	}{
		"nothing":         {"", errNothing},
		"only a header":   {header + "PASS\n", errNothing},
		"failed":          {good + "--- FAIL: BenchmarkY\n", errFailed},
		"package failed":  {good + "FAIL\tgithub.com/agrimill/agrimill/internal/test/bench\t1s\n", errFailed},
		"panic":           {good + "panic: oh\n", errFailed},
		"no measurements": {header + "BenchmarkX\nBenchmarkX 1\nBenchmarkX 1 x ns/op\nBenchmarkX one 1 ns/op\nBenchmarkX 1 1 B/op\n", errNothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := run(strings.NewReader(tt.input), io.Discard, io.Discard); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median of %v is %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 3: "3", 2.5: "2.50", 12.34: "12.3", 999.4: "999", 1000: "1 000", 999.9: "1 000", 1234567: "1 234 567",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

// TestRows checks that no row compares a benchmark with itself and
// none is there twice.
func TestRows(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range sections {
		for _, r := range s.rows {
			if seen[r.name] || r.floor == r.name || r.floor == "" {
				t.Errorf("row %q beside %q", r.name, r.floor)
			}
			seen[r.name] = true
		}
	}
}

// The aim of the publisher is in times of its floor and in allocations: one missed is missed.
func TestAimInTimesAndAllocations(t *testing.T) {
	t.Parallel()
	floor := []sample{{nsPerOp: 100}, {nsPerOp: 200}, {nsPerOp: 400}}
	aim := atMostTimes(1.15, 75)
	for name, tt := range map[string]struct {
		times, allocs float64
		floor         []sample
		want          string
	}{
		"both":        {1.15, 75, floor, "× ≤ 1.15, ≤ 75 allocs: reached"},
		"times":       {1.16, 75, floor, "× ≤ 1.15, ≤ 75 allocs: missed"},
		"allocations": {1.15, 76, floor, "× ≤ 1.15, ≤ 75 allocs: missed"},
		"no floor":    {1.15, 75, nil, "× ≤ 1.15, ≤ 75 allocs"},
	} {
		var samples []sample
		for _, f := range floor {
			samples = append(samples, sample{nsPerOp: f[nsPerOp] * tt.times, allocsPerOp: tt.allocs})
		}
		if got := verdict(samples, tt.floor, aim); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
