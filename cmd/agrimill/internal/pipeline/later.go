package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/router"
)

// Waits between attempts to open what is unreachable.
const (
	minOpenWait = 250 * time.Millisecond
	maxOpenWait = 15 * time.Second
)

// overdue is how long opening something may take before it is logged as an error:
// everything may be starting at the same time.
const overdue = time.Minute

// notOpen says that something has not been opened since the start, and why. It hides the
// cause, which may be a context error that would be taken for the end of the message's own
// context.
type notOpen struct{ cause error }

// errNotTried is the error until the first attempt has ended.
var errNotTried = notOpen{}

// Error implements error.
func (e notOpen) Error() string {
	if e.cause == nil {
		return router.ErrNotConnected.Error()
	}
	return router.ErrNotConnected.Error() + ": " + router.RedactError(e.cause, nil)
}

// Unwrap returns router.ErrNotConnected, which tells routes that they only have to wait.
func (e notOpen) Unwrap() error { return router.ErrNotConnected }

// later is something that may be unavailable when agrimill starts. It is opened as soon as
// that works.
type later[T any] struct {
	attempt func(context.Context) (value T, closing func() error, err error)
	logger  *slog.Logger

	stop  context.CancelFunc // stops what start began; nil before
	done  chan struct{}      // closed when that has ended
	tried chan struct{}      // closed after the first attempt

	value atomic.Pointer[opened[T]] // nil: not open; read for every message
	mu    sync.Mutex
	err   error // why it is not open, a notOpen
}

// opened is a value, and how to close it.
type opened[T any] struct {
	value   T
	closing func() error
}

// closing is the result of a constructor whose value closes itself.
func closing[T interface{ Close() error }](value T, err error) (T, func() error, error) {
	return value, func() error { return value.Close() }, err
}

func newLater[T any](attempt func(context.Context) (T, func() error, error), logger *slog.Logger) *later[T] {
	return &later[T]{attempt: attempt, logger: logger, done: make(chan struct{}), tried: make(chan struct{}), err: errNotTried}
}

// get returns the value, or why it is not open.
func (l *later[T]) get() (value T, err error) {
	if opened := l.value.Load(); opened != nil {
		return opened.value, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if opened := l.value.Load(); opened != nil {
		return opened.value, nil
	}
	return value, l.err
}

// try opens it at once, or returns why that failed. It may be called once, before start.
func (l *later[T]) try(ctx context.Context) error {
	value, closing, err := l.attempt(ctx)
	if err == nil {
		l.value.Store(&opened[T]{value, closing})
		close(l.tried)
	}
	return err
}

// start opens it in the background, until that succeeds, ctx ends, or close is called. It
// calls opened, unless that is nil, on success.
func (l *later[T]) start(ctx context.Context, opened func(T)) {
	if l == nil {
		return
	}
	ctx, l.stop = context.WithCancel(ctx)
	go func() { // ends with ctx, and an attempt that is under way
		defer close(l.done)
		if l.value.Load() == nil {
			l.run(ctx)
		}
		if value, err := l.get(); err == nil && opened != nil {
			opened(value)
		}
	}()
}

// close stops what start began, and closes what is open. It waits for an attempt in progress, and then for the closing,
// until ctx ends. What is opened after that is closed at once; a closing that has not returned is abandoned.
func (l *later[T]) close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	if l.stop != nil {
		l.stop()
		select {
		case <-l.done:
		case <-ctx.Done():
		}
	}
	if opened := l.value.Load(); opened != nil {
		return within(ctx, opened.closing)
	}
	return nil
}

// within calls something that cannot be interrupted, and returns at the latest when ctx ends.
func within(ctx context.Context, closing func() error) error {
	result := make(chan error, 1)
	go func() { result <- closing() }() // ends when closing returns
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return errors.New("Close did not return in time")
	}
}

// run retries until it is open.
func (l *later[T]) run(ctx context.Context) {
	policy := backoff.Policy{Initial: minOpenWait, Max: maxOpenWait}
	began, reported := time.Now(), false
	for n := 0; ctx.Err() == nil; n++ {
		value, closing, err := l.attempt(ctx)
		first, kept := l.set(ctx, &opened[T]{value, closing}, err)
		if first {
			close(l.tried)
		}
		if err == nil {
			if !kept {
				_ = closing() // nobody is left to report it to
			}
			return
		}
		switch {
		case ctx.Err() != nil:
		case first:
			l.logger.Warn("unavailable; retrying", "error", router.RedactError(err, nil))
		case !reported && time.Since(began) >= overdue:
			reported = true
			l.logger.Error("still unavailable; retrying", "error", router.RedactError(err, nil), "since", began)
		}
		_ = policy.Wait(ctx, n) // the loop looks at ctx
	}
}

// set stores the result of an attempt, unless ctx has ended: close may have read it already.
func (l *later[T]) set(ctx context.Context, value *opened[T], err error) (first, kept bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = errors.Is(l.err, errNotTried)
	if ctx.Err() != nil {
		return false, false
	}
	if err == nil {
		l.value.Store(value)
		l.err = nil
	} else {
		l.err = notOpen{err}
	}
	return first, true
}
