package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/router"
)

// Waits between attempts to open what cannot be reached.
const (
	minOpenWait = 250 * time.Millisecond
	maxOpenWait = 15 * time.Second
)

// errNotOpen says that nothing was tried yet.
var errNotOpen = errors.New("not opened yet")

// later is something that need not be there when the bridge starts. It is opened
// as soon as that works.
type later[T any] struct {
	attempt func(context.Context) (T, error)
	discard func(T) error // closes what is opened when nobody wants it any more
	logger  *slog.Logger

	stop context.CancelFunc // ends what start began; nil before
	done chan struct{}      // closed when that has ended

	value atomic.Pointer[T] // nil: not there; asked for with every message
	mu    sync.Mutex
	err   error // why it is not there
}

func newLater[T any](attempt func(context.Context) (T, error), discard func(T) error, logger *slog.Logger) *later[T] {
	return &later[T]{attempt: attempt, discard: discard, logger: logger, done: make(chan struct{}), err: errNotOpen}
}

// get returns the value, or why it is not there.
func (l *later[T]) get() (value T, err error) {
	if opened := l.value.Load(); opened != nil {
		return *opened, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if opened := l.value.Load(); opened != nil {
		return *opened, nil
	}
	return value, l.err
}

// start opens it in the background, until that has worked, ctx ends, or shut.
// opened is called when it has.
func (l *later[T]) start(ctx context.Context, opened func(T)) {
	ctx, l.stop = context.WithCancel(ctx)
	go func() { // ends with ctx, and an attempt that is under way
		defer close(l.done)
		l.run(ctx)
		if value, err := l.get(); err == nil {
			opened(value)
		}
	}()
}

// shut ends what start began, and returns what is to be closed then; false when
// there is nothing. An attempt to open is waited for until ctx ends. What it opens
// later is discarded.
func (l *later[T]) shut(ctx context.Context) (value T, ok bool) {
	if l.stop != nil {
		l.stop()
		select {
		case <-l.done:
		case <-ctx.Done():
		}
	}
	value, err := l.get()
	return value, err == nil
}

// run opens it.
func (l *later[T]) run(ctx context.Context) {
	wait := minOpenWait
	for ctx.Err() == nil {
		value, err := l.attempt(ctx)
		first, kept := l.set(ctx, value, err)
		if err == nil {
			if !kept {
				_ = l.discard(value) // nobody is left to be told
			}
			return
		}
		if first && ctx.Err() == nil {
			l.logger.Warn("cannot be opened, trying until it can", "error", router.RedactError(err, nil))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		wait = min(2*wait, maxOpenWait)
	}
}

// set takes in the result of an attempt, unless ctx has ended: shut may have
// looked already.
func (l *later[T]) set(ctx context.Context, value T, err error) (first, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = errors.Is(l.err, errNotOpen)
	if ctx.Err() != nil {
		return first, false
	}
	l.err = err
	if err == nil {
		l.value.Store(&value)
	}
	return first, true
}
