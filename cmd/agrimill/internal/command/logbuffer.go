package command

import (
	"bytes"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// maxLogBuffer is how many bytes of the log wait for stderr at most.
	maxLogBuffer = 1 << 20
	// logFlush is how long the end waits for stderr to take what is left.
	logFlush = time.Second
)

// logBuffer writes to a stream without ever waiting for it: whoever reads the log may have stopped
// reading. What does not fit is dropped and counted.
type logBuffer struct {
	out     io.Writer
	logger  atomic.Pointer[slog.Logger] // writes to the buffer; says how many lines were dropped
	lines   chan []byte
	bytes   atomic.Int64 // of the lines that wait
	lost    atomic.Int64
	closing chan struct{}
	idle    chan struct{} // closed when Close was called and nothing is left
}

func newLogBuffer(out io.Writer) *logBuffer {
	b := &logBuffer{out: out, lines: make(chan []byte, maxLogBuffer/128), closing: make(chan struct{}), idle: make(chan struct{})}
	go b.run() // ends after Close, unless the stream never takes what it was given
	return b
}

// Write queues a line. It never fails, since there is nobody to tell.
func (b *logBuffer) Write(line []byte) (int, error) {
	size := int64(len(line))
	if b.bytes.Add(size) <= maxLogBuffer {
		select {
		case b.lines <- bytes.Clone(line):
			return len(line), nil
		default:
		}
	}
	b.bytes.Add(-size)
	b.lost.Add(1)
	return len(line), nil
}

func (b *logBuffer) run() {
	defer close(b.idle)
	for {
		select {
		case line := <-b.lines:
			b.pass(line)
		case <-b.closing:
			if len(b.lines) == 0 {
				return
			}
		}
	}
}

// pass writes a line, and then how many were dropped, once the stream takes lines again and there is room to say so.
func (b *logBuffer) pass(line []byte) {
	_, err := b.out.Write(line)
	left := b.bytes.Add(-int64(len(line)))
	if err != nil {
		b.lost.Add(1)
		return
	}
	if left > maxLogBuffer/2 {
		return
	}
	if lost := b.lost.Swap(0); lost > 0 {
		if logger := b.logger.Load(); logger != nil {
			logger.Warn("the log lacks lines here: nobody took them from stderr", "lines", lost)
		}
	}
}

// Close waits a moment for the stream to take what is left. What is written later is lost.
func (b *logBuffer) Close() {
	close(b.closing)
	select {
	case <-b.idle:
	case <-time.After(logFlush):
	}
}
