package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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
	open   func(context.Context) (T, error)
	logger *slog.Logger

	mu    sync.Mutex
	value T
	err   error // nil: value is there
	ready chan struct{}
}

func newLater[T any](open func(context.Context) (T, error), logger *slog.Logger) *later[T] {
	return &later[T]{open: open, logger: logger, err: errNotOpen, ready: make(chan struct{})}
}

// get returns the value, or why it is not there.
func (l *later[T]) get() (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.err
}

// run opens it. It returns when that has worked, or when ctx ends.
func (l *later[T]) run(ctx context.Context) {
	wait := minOpenWait
	for ctx.Err() == nil {
		value, err := l.open(ctx)
		l.mu.Lock()
		first := errors.Is(l.err, errNotOpen)
		l.value, l.err = value, err
		l.mu.Unlock()
		if err == nil {
			close(l.ready)
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
