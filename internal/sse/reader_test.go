package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

const noLimit = 1 << 30

// readAll reads to the end of the stream. Any end but io.EOF fails the test.
func readAll(t testing.TB, src io.Reader, limit int) result {
	t.Helper()
	var res result
	r := NewReader(src, limit)
	for {
		event, err := r.Next()
		var tooLarge *TooLargeError
		switch {
		case err == nil:
			if event.Data == nil {
				t.Fatal("event with nil data")
			}
			res.events = append(res.events, record{name: string(event.Name), data: string(event.Data)})
		case errors.As(err, &tooLarge):
			res.events = append(res.events, record{name: tooLarge.Name, tooLarge: true})
		case err == io.EOF:
			res.retry, res.hasRe = r.Retry()
			if _, err := r.Next(); err != io.EOF {
				t.Fatalf("Next after the end: got error %v, want io.EOF", err)
			}
			return res
		default:
			t.Fatalf("Next: %v", err)
		}
	}
}

// pieces returns a source that gives b in reads of n bytes.
func pieces(b []byte, n int) io.Reader { return &piecewise{b: b, n: n} }

type piecewise struct {
	b []byte
	n int
}

func (p *piecewise) Read(dst []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(dst, p.b[:min(p.n, len(p.b))])
	p.b = p.b[n:]
	return n, nil
}

// check compares the reader with the reference, for every way to cut the input
// that is worth trying.
func check(t testing.TB, input []byte, limit int) {
	t.Helper()
	want := reference(input, limit)
	sources := map[string]io.Reader{
		"whole":          bytes.NewReader(input),
		"byte by byte":   iotest.OneByteReader(bytes.NewReader(input)),
		"half reads":     iotest.HalfReader(bytes.NewReader(input)),
		"end with bytes": iotest.DataErrReader(bytes.NewReader(input)),
		"3 bytes":        pieces(input, 3),
		"7 bytes":        pieces(input, 7),
	}
	for how, src := range sources {
		if got := readAll(t, src, limit); !reflect.DeepEqual(got, want) {
			t.Errorf("%s, limit %d:\ninput %q\n got %+v\nwant %+v", how, limit, clip(input), got, want)
		}
	}
}

func clip(b []byte) []byte { return b[:min(len(b), 500)] }

func TestReaderAgainstReference(t *testing.T) {
	inputs := []string{
		"",
		"\n\n\r\r\n\r\n",
		"data: a\n\n",
		"event: x\ndata: a\n\nevent: y\r\ndata: b\r\n\r\nevent: z\rdata: c\r\r",
		"data: a\nevent: later and longer than the data before it\ndata: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n\n",
		"event: one\ndata: a\nevent: two\ndata: b\nevent\ndata: c\n\ndata: d\n\n",
		"event: one\ndata: a\nevent: two\nevent: three\ndata: b\n\n",
		"data\ndata\ndata\n\n",
		"data\ndata\ndata\nretry\nid\nevent\n\n", // as large as the limit, and then fields without a value
		"data:\ndata: \ndata:  \n\n",
		"event: only a name\n\ndata: no name\n\n",
		"id: 1\ndata: a\n\nid: 2\n\ndata: b\n\nid: 3\ndata: unfinished",
		"retry: 10\nretry: x\nretry:\nretry: -1\nretry: 1 \nretry\ndata: a\n\n",
		"retry: 99999999999999999999999999\n",
		"\xEF\xBB\xBFdata: a\n\n",
		"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\ndata: b\n\n",
		"\xEF\xBBdata: a\n\ndata: b\n\n",
		"\xEF\xBB",
		":\xEF\xBB\xBF\n\xEF\xBB\xBFdata: a\n\n",
		": comment\n:\ndata: a\n: in between\ndata: b\n:\n\n",
		"datas: x\ndat: x\nData: x\n data: x\ndata : x\nevents: x\nidx: 1\nretrying: 5\n: \n\n",
		"data:a:b\ndata::c\n\n",
		"data: \x00\xff\xfe\n\n",
	}
	for _, input := range inputs {
		for _, limit := range []int{noLimit, 1, 2, 3, 5, 8, 13, 40} {
			check(t, []byte(input), limit)
		}
	}
}

func TestReaderLargeEvents(t *testing.T) {
	// Around every size at which the buffer has to move or to grow.
	for _, size := range []int{
		baseSize - minRead - 10, baseSize - 20, baseSize - 7, baseSize - 6, baseSize - 1, baseSize, baseSize + 1,
		2*baseSize - 6, 5 << 20,
	} {
		payload := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		var input bytes.Buffer
		for i := range 3 {
			fmt.Fprintf(&input, "event: E%d\ndata: %s\n\n: between\n\nevent: small\ndata: %d\n\n", i, payload, i)
		}
		got := readAll(t, bytes.NewReader(input.Bytes()), 16<<20)
		want := reference(input.Bytes(), 16<<20)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("size %d: got %d events, want %d", size, len(got.events), len(want.events))
		}
	}
}

// A stream that is cut anywhere yields the events that were complete, and no
// other; whatever way the lines end.
func TestReaderCutAtEveryOffset(t *testing.T) {
	var lf bytes.Buffer
	for i := range 5 {
		fmt.Fprintf(&lf, "event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"payload\":\"%s\"}\n\n", strings.Repeat("QUJD", 20*i))
		fmt.Fprintf(&lf, ": keep-alive\n\nid: %d\nevent: FILE_RECEIVED\ndata: one\ndata: two\n\n", i)
	}
	for _, eol := range []string{"\n", "\r\n", "\r"} {
		input := bytes.ReplaceAll(lf.Bytes(), []byte("\n"), []byte(eol))
		want := reference(input, noLimit).events
		if len(want) != 10 {
			t.Fatalf("%d events, want 10", len(want))
		}
		for cut := range len(input) {
			got := readAll(t, bytes.NewReader(input[:cut]), noLimit).events
			if len(got) > len(want) || (len(got) > 0 && !reflect.DeepEqual(got, want[:len(got)])) {
				t.Fatalf("lines ended by %q, cut at %d: got %+v", eol, cut, got)
			}
			if complete := reference(input[:cut], noLimit).events; len(got) != len(complete) {
				t.Fatalf("lines ended by %q, cut at %d: got %d events, want %d", eol, cut, len(got), len(complete))
			}
		}
	}
}

func TestReaderJoinsManyLines(t *testing.T) {
	var input bytes.Buffer
	input.WriteString("event: many\n")
	for i := range 40_000 {
		fmt.Fprintf(&input, "data: line %d\r\n: comment %d\r\nignored: %d\r\n", i, i, i)
	}
	input.WriteString("\r\ndata: after\r\n\r\n")
	check(t, input.Bytes(), noLimit)
}

func TestTooLargeErrorTellsWhatWasSkipped(t *testing.T) {
	big := strings.Repeat("x", 300_000)
	r := NewReader(strings.NewReader("event: MESSAGE_RECEIVED\ndata: {\"id\":\"secret\",\ndata: "+big+"\n\ndata: next\n\n"), 100_000)
	_, err := r.Next()
	var tooLarge *TooLargeError
	if !errors.As(err, &tooLarge) {
		t.Fatalf("got error %v, want a TooLargeError", err)
	}
	if tooLarge.Limit != 100_000 || tooLarge.Name != "MESSAGE_RECEIVED" {
		t.Errorf("got limit %d and name %q", tooLarge.Limit, tooLarge.Name)
	}
	if len(tooLarge.Head) != headSize || !strings.HasPrefix(string(tooLarge.Head), "{\"id\":\"secret\",\nxxx") {
		t.Errorf("head is %d bytes: %.40q", len(tooLarge.Head), tooLarge.Head)
	}
	if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "MESSAGE") {
		t.Errorf("the error text %q quotes the stream", err)
	}
	if event, err := r.Next(); err != nil || string(event.Data) != "next" {
		t.Errorf("after the skipped event: got %q, %v, want next", event.Data, err)
	}
}

// endless gives a prefix and then the same byte for n bytes, then the rest.
func endless(prefix string, n int64, rest string) io.Reader {
	return io.MultiReader(strings.NewReader(prefix), io.LimitReader(xs{}, n), strings.NewReader(rest))
}

var manyXs = bytes.Repeat([]byte("x"), 1<<20)

type xs struct{}

func (xs) Read(p []byte) (int, error) {
	return copy(p, manyXs), nil
}

// A line without end must cost neither memory nor the events after it, whatever
// kind of line it is.
func TestReaderEndlessLine(t *testing.T) {
	const limit, length = 1 << 20, 16 << 20
	tests := []struct {
		prefix string
		lost   int // events skipped
	}{
		{"data: ", 1},
		{"event: E\ndata: a\ndata: ", 1},
		{"event: ", 1},
		{"data: a\nevent: ", 1},
		{"data: a\nid: ", 0},
		{"retry: ", 1},
		{": comment", 0},
		{"ignored field: ", 0},
		{"event: E\ndata: kept\n: comment in the middle", 0},
	}
	for _, tt := range tests {
		t.Run(tt.prefix, func(t *testing.T) {
			r := NewReader(endless(tt.prefix, length, "\n\ndata: next\n\n"), limit)
			lost, seen := 0, []string(nil)
			for {
				event, err := r.Next()
				var tooLarge *TooLargeError
				if errors.As(err, &tooLarge) {
					lost++
					continue
				}
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				seen = append(seen, string(event.Data))
			}
			if lost != tt.lost {
				t.Errorf("%d events skipped, want %d", lost, tt.lost)
			}
			if len(seen) == 0 || seen[len(seen)-1] != "next" {
				t.Errorf("events %q, want the last to be next", seen)
			}
			if n := len(r.buf) + cap(r.name); n > 2*limit+2*baseSize {
				t.Errorf("%d bytes held, want at most twice the limit of %d", n, limit)
			}
		})
	}
}

func TestReaderGivesMemoryBack(t *testing.T) {
	input := "data: " + strings.Repeat("x", 8<<20) + "\n\ndata: small\n\n: end\n"
	r := NewReader(strings.NewReader(input), 16<<20)
	event, err := r.Next()
	if err != nil || len(event.Data) != 8<<20 {
		t.Fatalf("got %d bytes, %v", len(event.Data), err)
	}
	if event, err = r.Next(); err != nil || string(event.Data) != "small" {
		t.Fatalf("got %.10q, %v", event.Data, err)
	}
	if _, err = r.Next(); err != io.EOF {
		t.Fatalf("got %v, want io.EOF", err)
	}
	if len(r.buf) != baseSize {
		t.Errorf("buffer of %d bytes, want %d", len(r.buf), baseSize)
	}
}

func TestReaderEventDoesNotWaitForMore(t *testing.T) {
	// An event is there with its empty line, even when that ends in a CR that
	// may or may not be followed by an LF.
	for _, input := range []string{"data: a\n\n", "data: a\r\r", "data: a\r\n\r"} {
		pr, pw := io.Pipe()
		r := NewReader(pr, 0)
		done := make(chan struct{})
		go func() { // ends when the pipe is closed
			defer close(done)
			_, _ = pw.Write([]byte(input))
		}()
		event, err := r.Next()
		if err != nil || string(event.Data) != "a" {
			t.Errorf("%q: got %q, %v", input, event.Data, err)
		}
		<-done
		_ = pw.Close()
	}
}

func TestReaderSourceErrors(t *testing.T) {
	broken := errors.New("connection reset")
	r := NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)), 0)
	if event, err := r.Next(); err != nil || string(event.Data) != "a" {
		t.Fatalf("got %q, %v", event.Data, err)
	}
	for range 2 {
		if _, err := r.Next(); err != broken {
			t.Fatalf("got error %v, want %v", err, broken)
		}
	}
	if _, err := NewReader(idle{}, 0).Next(); err != io.ErrNoProgress {
		t.Errorf("source that returns nothing: got error %v, want io.ErrNoProgress", err)
	}
	if _, err := NewReader(liar{}, 0).Next(); err == nil {
		t.Error("source that returns more than it was asked for: no error")
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

type liar struct{}

func (liar) Read(p []byte) (int, error) { return len(p) + 1, nil }

func TestReaderDefaultLimit(t *testing.T) {
	for _, limit := range []int{0, -1} {
		if got := NewReader(strings.NewReader(""), limit).limit; got != 16<<20 {
			t.Errorf("limit %d means %d, want 16 MiB", limit, got)
		}
	}
	// The largest limit there is must not overflow.
	check(t, []byte("event: a\ndata: "+strings.Repeat("x", 200_000)+"\n\n"), int(^uint(0)>>1))
}

func TestReaderRetry(t *testing.T) {
	r := NewReader(strings.NewReader("retry: 1500\n\ndata: a\n\n"), 0)
	if d, ok := r.Retry(); ok {
		t.Errorf("before anything was read: %v", d)
	}
	testkit.Must(r.Next())(t)
	if d, ok := r.Retry(); !ok || d != 1500*time.Millisecond {
		t.Errorf("got %v, %v, want 1.5s", d, ok)
	}
}

func TestReaderDoesNotAllocate(t *testing.T) {
	one := []byte("event: MESSAGE_RECEIVED\ndata: " + strings.Repeat("x", 1000) + "\n\n")
	r := NewReader(&loop{b: one}, 0)
	allocs := testing.AllocsPerRun(1000, func() {
		testkit.Must(r.Next())(t)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per event, want none", allocs)
	}
}

// loop gives b over and over.
type loop struct {
	b   []byte
	off int
}

func (l *loop) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], l.b[l.off:])
		n += k
		if l.off += k; l.off == len(l.b) {
			l.off = 0
		}
	}
	return n, nil
}

// Time must grow with the size of a line, not with its square, and a stream of
// short lines ended by CR alone must not search for an LF again and again.
func TestReaderIsLinear(t *testing.T) {
	count := func(src io.Reader) int {
		r, n := NewReader(src, 64<<20), 0
		for {
			if _, err := r.Next(); err != nil {
				if err != io.EOF {
					t.Fatal(err)
				}
				return n
			}
			n++
		}
	}
	// 16 MiB in reads of 512 bytes: 32,768 reads, which a search from the start
	// of the line would make 3·10^11 bytes.
	big := append(append([]byte("data: "), bytes.Repeat([]byte("x"), 16<<20)...), "\n\n"...)
	if n := count(pieces(big, 512)); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	// One event of 1 MiB before it makes the buffer large.
	cr := append(append([]byte("data: "), bytes.Repeat([]byte("x"), 1<<20)...), "\r\r"...)
	cr = append(cr, bytes.Repeat([]byte("data: a\r\r"), 500_000)...)
	if n := count(bytes.NewReader(cr)); n != 500_001 {
		t.Errorf("%d events, want 500001", n)
	}
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{
		"event: MESSAGE_RECEIVED\ndata: {}\n\n",
		"\xEF\xBB\xBFdata: a\r\n\r\ndata: b\r\rid: 1\ndata\n\n",
		"data: a\nevent: x\ndata: b\n: c\nretry: 10\n\n",
		"data: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n\ndata: b\n\n",
	} {
		f.Add([]byte(s), uint8(20))
	}
	f.Fuzz(func(t *testing.T, input []byte, limit uint8) {
		check(t, input, noLimit)
		check(t, input, int(limit)+1)
	})
}
