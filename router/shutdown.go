package router

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// drainTimeout is the part of CloseTimeout for messages in flight. The rest is
// for confirmations and for closing.
func (r *Router) drainTimeout() time.Duration { return r.config.CloseTimeout - r.config.CloseTimeout/5 }

// Close shuts the Router down in this order, bounded by [Config.CloseTimeout]:
//
//  1. Intake stops. Waits between attempts end, and their messages are nacked; attempts in progress continue. The
//     gateway's Subscriber, or any other with a method Drain(context.Context), takes in nothing more and still delivers
//     what it has taken in, see [subscriber.Subscriber.Drain].
//  2. The messages in flight are finished and acknowledged.
//  3. The subscriptions are canceled and every subscriber is closed, which for the gateway's sends the confirmations.
//  4. Every sink, the poison queue and the dedup store are closed.
//
// Each one is closed once, even if several routes share it. A Close that does not return in time is abandoned and named in the
// error, which is a [*CloseError] or nil. Further calls wait for the first one and return the same.
//
// [subscriber.Subscriber.Drain]: https://pkg.go.dev/github.com/agrimill/agrimill/subscriber#Subscriber.Drain
func (r *Router) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.life.Close(func() { r.closeErr = r.shutdown() })
	return r.closeErr
}

// isStopping reports whether a shutdown is under way, of which ending, which may be nil, knows a moment earlier.
func isStopping(stop <-chan struct{}, ending func() bool) bool {
	return wakeup.Raised(stop) || ending != nil && ending()
}

// sleep waits for d; false means that ctx has ended before, or stop was closed.
func sleep(ctx context.Context, stop <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-stop:
	}
	return false
}

func (r *Router) shutdown() error {
	all, cancelAll := context.WithTimeout(context.Background(), r.config.CloseTimeout)
	defer cancelAll()
	subscribers, cancelSubscribers := context.WithTimeout(all, r.config.CloseTimeout/10*9)
	defer cancelSubscribers()
	drain, cancelDrain := context.WithTimeout(all, r.drainTimeout())
	defer cancelDrain()

	r.mu.Lock()
	routes, started, unhold := r.routes, r.started, r.unhold
	r.mu.Unlock()
	if unhold != nil {
		unhold()
	}

	failure := &CloseError{}
	close(r.stop)
	for _, rt := range routes {
		rt.health.setState(StateStopped)
	}
	if started {
		r.drainSources(drain)
	}
	close(r.drawn)
	if started {
		if !r.drained(drain.Done()) {
			failure.InFlight = r.inFlight()
			failure.Errs = append(failure.Errs, fmt.Errorf("%w: messages are still in flight", ErrCloseTimeout))
		}
		r.cancel()
	}

	var closing closer
	for _, rt := range routes {
		closing.close(fmt.Sprintf("subscriber of route %q", rt.Name), rt.From)
	}
	failure.Errs = append(failure.Errs, closing.wait(subscribers.Done())...)
	wait(&r.intakes, subscribers.Done())
	close(r.abandon)

	// Messages that were in flight when the time for them was over have lost
	// their context by now, and get a moment to notice.
	r.drained(subscribers.Done())
	for _, rt := range routes {
		rt.retry.end()
		if rt.To != nil {
			closing.close(fmt.Sprintf("sink of route %q", rt.Name), rt.To)
		}
	}
	closing.close("poison queue", r.config.Poison)
	store, closes := r.config.Dedup.Store.(io.Closer)
	for _, rt := range routes {
		rt.dedup.recorded(subscribers.Done(), !closes)
	}
	if closes {
		closing.close("dedup store", store)
	}
	failure.Errs = append(failure.Errs, closing.wait(all.Done())...)

	if failure.InFlight == 0 && len(failure.Errs) == 0 {
		return nil
	}
	return failure
}

// drainer is a subscriber that can stop its intake and still deliver what it has taken in, as
// that of the gateway does. Drain returns when that is done, or ctx ends.
type drainer interface{ Drain(ctx context.Context) }

// drainSources drains the sources that can, until ctx ends.
func (r *Router) drainSources(ctx context.Context) {
	var open sync.WaitGroup
	for _, rt := range r.routes {
		if source, ok := rt.From.(drainer); ok {
			open.Go(func() { source.Drain(ctx) }) // ends with ctx
		}
	}
	wait(&open, ctx.Done())
}

// drained waits until no message is in flight; false means that limit was first.
func (r *Router) drained(limit <-chan struct{}) bool {
	for r.inFlight() > 0 {
		select {
		case <-r.idle:
		case <-limit:
			return r.inFlight() == 0
		}
	}
	return true
}

func (r *Router) inFlight() int {
	n := 0
	for _, rt := range r.routes {
		n += int(rt.health.inFlight.Load())
	}
	return n
}

// closer closes things at the same time, each one once in its life.
type closer struct {
	known []io.Closer
	open  []closing
}

type closing struct {
	name string
	done chan error
}

// close begins to close what.
func (c *closer) close(name string, what io.Closer) {
	if slices.ContainsFunc(c.known, func(other io.Closer) bool { return same(other, what) }) {
		return
	}
	one := closing{name, make(chan error, 1)}
	c.known, c.open = append(c.known, what), append(c.open, one)
	go func() { one.done <- what.Close() }() // ends when Close returns. We have no means to end it.
}

// same reports whether a and b are one object. Values that cannot be compared
// are taken for different ones.
func same(a, b io.Closer) bool {
	return a != nil && reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}

// wait waits until limit for what is open.
func (c *closer) wait(limit <-chan struct{}) (errs []error) {
	for _, one := range c.open {
		var err error
		select {
		case err = <-one.done:
		case <-limit:
			select { // what is ready at the same time counts
			case err = <-one.done:
			default:
				errs = append(errs, fmt.Errorf("%w: %s does not return from Close", ErrCloseTimeout, one.name))
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", one.name, err))
		}
	}
	c.open = nil
	return errs
}

// wait waits for a group until limit. It ends at the latest after Router.abandon is closed, with the last handler.
func wait(group *sync.WaitGroup, limit <-chan struct{}) {
	select {
	case <-lifecycle.Ended(group):
	case <-limit:
	}
}
