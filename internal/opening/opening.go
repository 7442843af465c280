// Package opening opens in the background what may be away when a program starts.
package opening

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// Policy is how long to wait between attempts.
func Policy() backoff.Policy {
	return backoff.Policy{Initial: 250 * time.Millisecond, Max: 15 * time.Second}
}

// overdue is how long opening something may take before it is logged as an error:
// everything may be starting at the same time.
const overdue = time.Minute

// notOpen says that something has not been opened since the start, and why. It hides a context
// error, which would be taken for the end of the message's own context.
type notOpen struct{ cause error }

// Error implements error.
func (e *notOpen) Error() string {
	if e.cause == nil {
		return sinks.ErrNotConnected.Error()
	}
	return sinks.ErrNotConnected.Error() + ": " + redact.Addresses(e.cause.Error())
}

// Is matches [sinks.ErrNotConnected], which tells routes that they only have to wait, and the cause.
func (e *notOpen) Is(target error) bool {
	return target == sinks.ErrNotConnected ||
		target != context.Canceled && target != context.DeadlineExceeded && errors.Is(e.cause, target)
}

// Opening is an attempt to open something, which is made again until it succeeds. All methods are safe for
// concurrent use.
type Opening struct {
	attempt func(context.Context) error
	logger  watermill.LoggerAdapter

	failure atomic.Pointer[notOpen] // nil: it is open; read for every message
	once    sync.Once
	tried   chan struct{}      // closed after the first attempt
	now     chan struct{}      // holds a token when the next attempt need not wait
	stop    context.CancelFunc // stops what Start began; nil before
	done    chan struct{}      // closed when that has ended
}

// New returns what Try or Start opens by attempt, which is not called again after it has succeeded.
func New(attempt func(context.Context) error, logger watermill.LoggerAdapter) *Opening {
	o := &Opening{attempt: attempt, logger: logger, tried: make(chan struct{}), now: make(chan struct{}, 1), done: make(chan struct{})}
	o.failure.Store(&notOpen{})
	return o
}

// Err returns why it is not open; nil if it is, or there is nothing to open, because o is nil.
func (o *Opening) Err() error {
	if o == nil {
		return nil
	}
	if failure := o.failure.Load(); failure != nil {
		return failure
	}
	return nil
}

// Tried is closed when the first attempt has ended.
func (o *Opening) Tried() <-chan struct{} { return o.tried }

// Try makes an attempt, and returns why that failed. It may not be called after Start.
func (o *Opening) Try(ctx context.Context) error {
	err := o.attempt(ctx)
	switch {
	case err == nil:
		o.failure.Store(nil)
	case ctx.Err() == nil: // otherwise the attempt was given up
		o.failure.Store(&notOpen{err})
	}
	o.once.Do(func() { close(o.tried) })
	return err
}

// Start makes attempts in the background until one succeeds, ctx ends, or Stop is called. It
// calls opened, unless that is nil, on success, also if that was before; its context ends with ctx, or Stop, which
// waits for it. It may be called once.
func (o *Opening) Start(ctx context.Context, opened func(context.Context)) {
	ctx, o.stop = context.WithCancel(ctx)
	go func() { // ends with ctx, and an attempt that is under way
		defer close(o.done)
		o.run(ctx)
		if o.Err() == nil && opened != nil {
			opened(ctx)
		}
	}()
}

// Stop ends what Start began, and waits for an attempt that is under way until ctx ends.
func (o *Opening) Stop(ctx context.Context) {
	if o.stop == nil {
		return
	}
	o.stop()
	select {
	case <-o.done:
	case <-ctx.Done():
	}
}

// Health is that of a sink of this name, whose broker look asks once it is open. It returns when ctx or background
// ends; look may go on, and is counted in life.
func (o *Opening) Health(ctx, background context.Context, name string, life *lifecycle.Life, look func() error) error {
	if !life.Enter() {
		return sinks.NewError(name, "", sinks.ErrClosed, nil)
	}
	if err := o.Err(); err != nil {
		life.Leave()
		return sinks.NewError(name, "", sinks.ErrUnavailable, err)
	}
	result := make(chan error, 1)
	go func() { // ends with look
		defer life.Leave()
		result <- look()
	}()
	select {
	case err := <-result:
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		return sinks.NewError(name, "", sinks.ErrUnavailable, err)
	case <-ctx.Done():
		return ctx.Err()
	case <-background.Done():
		return sinks.NewError(name, "", sinks.ErrClosed, nil)
	}
}

// Now has the next attempt made at once: something has changed.
func (o *Opening) Now() { wakeup.Token(o.now) }

// run makes attempts until it is open.
func (o *Opening) run(ctx context.Context) {
	began, reported := time.Now(), false
	for n := 0; o.Err() != nil && ctx.Err() == nil; n++ {
		err := o.Try(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case n == 0:
			warnlog.Warn(o.logger, "unavailable; retrying", watermill.LogFields{"error": redact.Addresses(err.Error())})
		case !reported && time.Since(began) >= overdue:
			reported = true
			o.logger.Error("still unavailable; retrying", o.Err(), watermill.LogFields{"since": began})
		}
		select {
		case <-time.After(Policy().Delay(n)):
		case <-o.now:
		case <-ctx.Done():
		}
	}
}
