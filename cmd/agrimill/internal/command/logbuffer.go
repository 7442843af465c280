package command

import (
	"io"
	"log/slog"
	"sync"
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
	out    io.Writer
	logger atomic.Pointer[slog.Logger] // writes to the buffer; says how many lines were dropped
	wake   chan struct{}
	idle   chan struct{} // closed when Close was called and nothing is left

	mu     sync.Mutex
	queue  [][]byte
	bytes  int
	lost   int
	closed bool
}

func newLogBuffer(out io.Writer) *logBuffer {
	b := &logBuffer{out: out, wake: make(chan struct{}, 1), idle: make(chan struct{})}
	go b.run() // ends after Close, unless the stream never takes what it was given
	return b
}

// Write queues a line. It never fails, since there is nobody to tell.
func (b *logBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+len(line) > maxLogBuffer {
		b.lost++
		return len(line), nil
	}
	b.queue = append(b.queue, append([]byte(nil), line...))
	b.bytes += len(line)
	b.signal()
	return len(line), nil
}

func (b *logBuffer) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *logBuffer) run() {
	for range b.wake {
		for line := b.next(); line != nil; line = b.next() {
			_, err := b.out.Write(line)
			if lost := b.written(line, err); lost > 0 {
				b.tell(lost)
			}
		}
		b.mu.Lock()
		over := b.closed && len(b.queue) == 0
		b.mu.Unlock()
		if over {
			close(b.idle)
			return
		}
	}
}

// next takes the first line; nil if there is none.
func (b *logBuffer) next() (line []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 {
		line, b.queue = b.queue[0], b.queue[1:]
	}
	return line
}

// written records what came of a line. It returns how many lines were dropped, once the stream takes
// lines again and there is room to say so.
func (b *logBuffer) written(line []byte, err error) (lost int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= len(line)
	if err != nil {
		b.lost++
		return 0
	}
	if b.bytes <= maxLogBuffer/2 {
		lost, b.lost = b.lost, 0
	}
	return lost
}

func (b *logBuffer) tell(lost int) {
	if logger := b.logger.Load(); logger != nil {
		logger.Warn("the log lacks lines here: nobody took them from stderr", "lines", lost)
	}
}

// Close waits a moment for the stream to take what is left. What is written later is lost.
func (b *logBuffer) Close() {
	b.mu.Lock()
	b.closed = true
	b.signal()
	b.mu.Unlock()
	timer := time.NewTimer(logFlush)
	defer timer.Stop()
	select {
	case <-b.idle:
	case <-timer.C:
	}
}
