package opening

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
)

// Later is a value that may be unavailable at first. It is opened as soon as that works.
type Later[T any] struct {
	*Opening
	value T // read once Err returns nil

	mu      sync.Mutex
	closing func() error // nil until it is open
	closed  bool
}

// NewLater returns what Try or Start opens by attempt, which also returns how the value is closed.
func NewLater[T any](attempt func(context.Context) (T, func() error, error), logger watermill.LoggerAdapter) *Later[T] {
	l := &Later[T]{}
	l.Opening = New(func(ctx context.Context) error {
		value, closing, err := attempt(ctx)
		if err != nil {
			return err
		}
		l.value = value
		l.mu.Lock()
		l.closing = closing
		closed := l.closed
		l.mu.Unlock()
		if closed { // Close has not waited for this
			return errors.Join(context.Canceled, closing())
		}
		return nil
	}, logger)
	return l
}

// Get returns the value, or why it is not open.
func (l *Later[T]) Get() (value T, err error) {
	if err := l.Err(); err != nil {
		return value, err
	}
	return l.value, nil
}

// Start is that of [Opening]. There is nothing to open if l is nil.
func (l *Later[T]) Start(ctx context.Context, opened func(context.Context)) {
	if l != nil {
		l.Opening.Start(ctx, opened)
	}
}

// Close stops what Start began, and closes what is open. It waits for an attempt in progress, and then for the closing,
// until ctx ends. What is opened after that is closed at once; a closing that has not returned is abandoned.
func (l *Later[T]) Close(ctx context.Context) error {
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
	return Within(ctx, closing)
}

// Within calls something that cannot be interrupted, and returns at the latest when ctx ends.
func Within(ctx context.Context, closing func() error) error {
	result := make(chan error, 1)
	go func() { result <- closing() }() // ends when closing returns
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return errors.New("Close did not return in time")
	}
}
