package pipeline

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/opening"
)

// later is something that may be unavailable when agrimill starts. It is opened as soon as
// that works.
type later[T any] struct {
	*opening.Opening
	value T // read once Err returns nil

	mu      sync.Mutex
	closing func() error // nil until it is open
	closed  bool
}

// closing is the result of a constructor whose value closes itself.
func closing[T interface{ Close() error }](value T, err error) (T, func() error, error) {
	return value, func() error { return value.Close() }, err
}

func newLater[T any](attempt func(context.Context) (T, func() error, error), logger watermill.LoggerAdapter) *later[T] {
	l := &later[T]{}
	l.Opening = opening.New(func(ctx context.Context) error {
		value, closing, err := attempt(ctx)
		if err != nil {
			return err
		}
		l.value = value
		l.mu.Lock()
		l.closing = closing
		closed := l.closed
		l.mu.Unlock()
		if closed { // close has not waited for this
			return errors.Join(context.Canceled, closing())
		}
		return nil
	}, logger)
	return l
}

// get returns the value, or why it is not open.
func (l *later[T]) get() (value T, err error) {
	if err := l.Err(); err != nil {
		return value, err
	}
	return l.value, nil
}

// start opens it in the background, until that succeeds, ctx ends, or close is called.
func (l *later[T]) start(ctx context.Context) {
	if l != nil {
		l.Start(ctx, nil)
	}
}

// close stops what start began, and closes what is open. It waits for an attempt in progress, and then for the closing,
// until ctx ends. What is opened after that is closed at once; a closing that has not returned is abandoned.
func (l *later[T]) close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.Stop(ctx)
	l.mu.Lock()
	l.closed = true
	closing := l.closing
	l.mu.Unlock()
	if closing == nil {
		return nil
	}
	return within(ctx, closing)
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
