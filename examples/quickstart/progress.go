package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints what happens, one line each, with the time since the start.
// It may be used from several goroutines.
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

// Write takes lines of a logger, so that they do not end up within others.
func (p *progress) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.w.Write(line)
}
