package main

import (
	"github.com/agrimill/agrimill/internal/testkit"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestInstrument(t *testing.T) {
	t.Parallel()
	const source = `package p

func f(c chan int) {
	n := 1
	c <- n
	mu.Lock()
	defer mu.Unlock()
	if v, ok := <-c; ok {
		n = v
	}
loop:
	for {
		select {
		case <-c:
			close(c)
		default:
			n++
			break loop
		}
	}
	go func() { n++; wg.Done() }()
	switch n {
	case 1:
		x.Store(func() int { return <-c }())
	}
}
`
	const want = `package p

func f(c chan int) {
	n := 1
	yieldGiveWay(5); c <- n
	yieldGiveWay(6); mu.Lock()
	yieldGiveWay(7); defer mu.Unlock()
	yieldGiveWay(8); if v, ok := <-c; ok {
		n = v
	}
loop:
	for {
		yieldGiveWay(9); select {
		case <-c:
			yieldGiveWay(10); close(c)
		default:
			n++
			break loop
		}
	}
	yieldGiveWay(11); go func() { n++; yieldGiveWay(12); wg.Done() }()
	switch n {
	case 1:
		yieldGiveWay(13); x.Store(func() int { yieldGiveWay(14); return <-c }())
	}
}
`
	got, pkg, next, err := instrument([]byte(source), 5)
	if err != nil || pkg != "p" || next != 15 {
		t.Errorf("package %q, next %d, error %v", pkg, next, err)
	}
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A package with the overlay passes its tests, and its goroutines have given way.
func TestOverlay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module p\n\ngo 1.26\n",
		"p.go": `package p

func Sum(n int) (sum int) {
	c := make(chan int)
	go func() { defer close(c); for i := range n { c <- i } }()
	for { i, ok := <-c; if !ok { return sum }; sum += i }
}
`,
		"p_test.go": `package p

import "testing"

func Test(t *testing.T) {
	if got := Sum(100); got != 4950 || yieldCalls.Load() < 200 || yieldSeed != 7 {
		t.Errorf("%d after %d calls with seed %d", got, yieldCalls.Load(), yieldSeed)
	}
}
`,
	} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	out := t.TempDir()
	testkit.NoError(t, write(out, []string{dir}))
	test := exec.Command("go", "test", "-overlay", filepath.Join(out, "overlay.json"), "./...")
	test.Dir, test.Env = dir, append(os.Environ(), "YIELD_SEED=7", "GOFLAGS=", "GOWORK=off")
	if output, err := test.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestNoPackage(t *testing.T) {
	t.Parallel()
	if err := write(t.TempDir(), []string{t.TempDir()}); err == nil || !strings.Contains(err.Error(), "no Go files") {
		t.Errorf("error %v", err)
	}
}
