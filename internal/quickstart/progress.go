package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints one line per event, with the time since the start.
// It is safe for concurrent use.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, start: time.Now()} }

func (p *progress) printf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = fmt.Fprintf(p.w, "%6.2fs  %s\n", time.Since(p.start).Seconds(), line)
}

// Write writes lines of a logger, so that they do not interleave with others.
func (p *progress) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w.Write(line)
}
