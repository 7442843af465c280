package spool_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/spool"
	"github.com/agrimill/agrimill/internal/testkit"
)

var errBroken = errors.New("broken")

// broken is a stream that breaks after some bytes.
func broken(bytes int) spool.Reading {
	return spool.StreamOf(io.MultiReader(strings.NewReader(strings.Repeat("x", bytes)), failing{}))
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func read(t *testing.T, p *spool.Payload) string {
	t.Helper()
	r := testkit.Must(p.Open())(t)
	b, err := io.ReadAll(r)
	testkit.NoError(t, errors.Join(err, r.Close()))
	return string(b)
}

// leftovers fails the test if there is a file in a directory.
func leftovers(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 0 {
		t.Errorf("%d files are left behind, %v", len(files), err)
	}
}

// Whatever its size, a payload is read from the start any number of times and at any place; only what exceeds the memory is in a
// file, of which nothing is left.
func TestBuffer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 7, 8, 9, 99, 100} { // 8 in memory, 100 at all
		dir := t.TempDir()
		want := strings.Repeat("0123456789", 10)[:size]
		p, err := spool.Buffer(spool.StreamOf(slowly(want)), "it", spool.Limits{Max: 100, Memory: 8, Dir: dir})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if p.Size != int64(size) || read(t, p) != want || read(t, p) != want {
			t.Errorf("%d bytes: it has %d, or others", size, p.Size)
		}
		if inMemory := p.Data != nil || size == 0; inMemory != (size <= 8) {
			t.Errorf("%d bytes: in memory: %t", size, inMemory)
		}
		end := make([]byte, 4)
		if n, err := p.At.ReadAt(end, int64(max(0, size-2))); !errors.Is(err, io.EOF) || n != min(size, 2) || !strings.HasSuffix(want, string(end[:n])) {
			t.Errorf("%d bytes: at the end %q, %v", size, end[:n], err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		leftovers(t, dir)
	}
}

// slowly reads a text byte by byte.
func slowly(text string) io.Reader {
	readers := make([]io.Reader, len(text))
	for i := range readers {
		readers[i] = strings.NewReader(text[i : i+1])
	}
	return io.MultiReader(readers...)
}

// One byte too much is too large, in memory and in a file; no more of a stream without end is read.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	for _, limits := range []spool.Limits{{Max: 4, Memory: 8}, {Max: 8, Memory: 8}, {Max: 100, Memory: 8}, {Max: 100}} {
		limits.Dir = t.TempDir()
		endless := &counted{}
		p, err := spool.Buffer(spool.StreamOf(endless), "it", limits)
		if !errors.Is(err, gateway.ErrTooLarge) || p != nil || !strings.HasPrefix(err.Error(), "it: ") {
			t.Errorf("%+v: got %v, want ErrTooLarge", limits, err)
		}
		if most := max(limits.Max, limits.Memory, spool.DefaultMemory) + 1<<20; endless.n > most {
			t.Errorf("%+v: %d bytes were read, want at most %d", limits, endless.n, most)
		}
		leftovers(t, limits.Dir)
	}
}

// counted is a stream without end.
type counted struct{ n int64 }

func (c *counted) Read(b []byte) (int, error) {
	c.n += int64(len(b))
	clear(b)
	return len(b), nil
}

// A stream that breaks is its error, and leaves nothing behind.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, after := range []int{0, 5, 50} {
		dir := t.TempDir()
		if p, err := spool.Buffer(broken(after), "it", spool.Limits{Max: 100, Memory: 8, Dir: dir}); !errors.Is(err, errBroken) || p != nil {
			t.Errorf("after %d bytes: got %v", after, err)
		}
		leftovers(t, dir)
	}
	missing := spool.Limits{Max: 100, Memory: 8, Dir: t.TempDir() + "/missing"}
	if _, err := spool.Buffer(broken(50), "it", missing); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "--spool-dir") {
		t.Errorf("without a directory: %v", err)
	}
}

// What is in memory is not copied.
func TestInMemory(t *testing.T) {
	t.Parallel()
	data := []byte("payload")
	p := spool.InMemory(data)
	if p.Size != 7 || !bytes.Equal(p.Data, data) || &p.Data[0] != &data[0] || read(t, p) != "payload" || p.Close() != nil {
		t.Errorf("got %+v", p)
	}
}
