package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// results are the results of the benchmarks, in the order in which they first appeared.
type results struct {
	environment []string // goos, goarch, cpu
	names       []string
	samples     map[string][]sample
}

// sample is one line: values by unit, e.g. "ns/op".
type sample map[string]float64

var (
	errNothing = errors.New("no benchmark in the input")
	errFailed  = errors.New("a benchmark failed")

	// processors is the suffix of benchmarks that run on more than one processor.
	processors = regexp.MustCompile(`-\d+$`)
)

// parse reads the output of go test. Benchmarks are named without the prefix Benchmark and
// without the number of processors; outside internal/test/bench, the name of the package
// comes first. Lines go to echo as they arrive.
func parse(in io.Reader, echo io.Writer) (*results, error) {
	r := &results{samples: map[string][]sample{}}
	pkg, failed := "", false
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if _, err := fmt.Fprintln(echo, line); err != nil {
			return nil, err
		}
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "pkg":
			if pkg = path.Base(value) + "."; pkg == "bench." {
				pkg = ""
			}
		case "goos", "goarch", "cpu":
			r.describe(line)
		}
		if strings.HasPrefix(line, "--- FAIL") || line == "FAIL" || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "panic: ") {
			failed = true
		}
		if name, s, ok := parseLine(line); ok {
			r.add(pkg+name, s)
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return nil, err
	case failed:
		return nil, errFailed
	case len(r.names) == 0:
		return nil, errNothing
	}
	return r, nil
}

func (r *results) describe(line string) {
	for _, known := range r.environment {
		if known == line {
			return
		}
	}
	r.environment = append(r.environment, line)
}

func (r *results) add(name string, s sample) {
	if _, known := r.samples[name]; !known {
		r.names = append(r.names, name)
	}
	r.samples[name] = append(r.samples[name], s)
}

// parseLine parses a line such as
//
//	BenchmarkX/1KiB-2   	  1000	  820.0 ns/op	  1219441 events/s	  3 allocs/op
func parseLine(line string) (name string, s sample, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
		return "", nil, false
	}
	if _, err := strconv.Atoi(fields[1]); err != nil {
		return "", nil, false
	}
	s = sample{}
	for i := 2; i+1 < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return "", nil, false
		}
		s[fields[i+1]] = v
	}
	if _, ok := s[nsPerOp]; !ok {
		return "", nil, false
	}
	return processors.ReplaceAllString(strings.TrimPrefix(fields[0], "Benchmark"), ""), s, true
}
