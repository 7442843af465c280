package router_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

func newRetry(t *testing.T, config router.RetryConfig) *router.Retry {
	t.Helper()
	retry := testkit.Must(router.NewRetry(config, nil))(t)
	return retry
}

var down = sinks.NewError("s", "t", sinks.ErrUnavailable, nil)

func TestRetryCountsHandlerFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		h := newRetry(t, router.RetryConfig{RetrySettings: router.RetrySettings{MaxAttempts: 4, InitialBackoff: time.Second, MaxBackoff: 2 * time.Second}}).
			Middleware(func(*message.Message) ([]*message.Message, error) {
				times = append(times, time.Now())
				return nil, errHandler
			})
		_, err := h(message.NewMessage("1", nil))
		var failure *router.RetryError
		if !errors.As(err, &failure) || len(times) != 4 {
			t.Fatalf("err = %v after %d attempts, want a %T after 4", err, len(times), failure)
		}
		testkit.ErrorIs(t, err, errHandler)
		wantClass(t, err, router.ClassHandler)
		if failure.Attempts != 4 || !failure.First.Equal(times[0]) || !failure.Last.Equal(times[3]) {
			t.Errorf("%d attempts from %v to %v, want 4 at %v", failure.Attempts, failure.First, failure.Last, times)
		}
		for i, limit := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			if wait := times[i+1].Sub(times[i]); wait < limit/2 || wait > limit {
				t.Errorf("wait %d took %v, want between %v and %v", i, wait, limit/2, limit)
			}
		}
	})
}

// A sink that is just being connected is waited for; once it was there, its failures are
// an outage, also to the message that has waited from the beginning.
func TestRetryWaitsForTheFirstConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := []error{
			sinks.NewError("s", "t", sinks.ErrUnavailable, sinks.ErrNotConnected), sinks.NewError("s", "t", sinks.ErrUnavailable, sinks.ErrNotConnected),
			down, down, down, nil, down, nil,
		}
		logger := testkit.NewLog()
		var events []router.EventKind
		retry := testkit.Must(router.NewRetry(router.RetryConfig{Observer: router.ObserverFunc(func(e router.Event) {
			if e.Kind != router.EventRetry {
				events = append(events, e.Kind)
			}
		})}, logger))(t)
		h := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
			failure := failures[0]
			failures = failures[1:]
			return nil, failure
		})
		lines := func(level watermill.LogLevel) (list []string) {
			for _, line := range logger.Lines(level) {
				list = append(list, line.Msg)
			}
			return list
		}
		handle(t, h, message.NewMessage("1", nil))
		const began = "outage began; messages wait until it ends"
		testkit.Equal(t, lines(watermill.ErrorLogLevel), []string{began})
		testkit.Equal(t, lines(watermill.InfoLogLevel), []string{"waiting for the first connection; messages wait until then", "outage ended"})
		if got, want := events, []router.EventKind{router.EventOutageBegan, router.EventOutageEnded}; !reflect.DeepEqual(got, want) {
			t.Errorf("events = %+v, want %+v: one outage to observers", got, want)
		}
		handle(t, h, message.NewMessage("2", nil))
		testkit.Equal(t, lines(watermill.ErrorLogLevel), []string{began, began})
	})
}

// recoveringSink tells when it is back. It is wrapped, as sinks are that are measured.
type recoveringSink struct {
	*memorySink
	wakeup.Signal
}

func (s *recoveringSink) Recovered() <-chan struct{} { return s.Next() }

type wrappedSink struct{ sinks.Sink }

func (s wrappedSink) Unwrap() sinks.Sink { return s.Sink }

// A route resumes when its sink reports its recovery, not only with the next attempt.
// If the sink is not completely back yet, the backoff starts again.
func TestRouteGoesOnWhenItsSinkIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		to := &recoveringSink{memorySink: newSink(func(string, *message.Message) error {
			if isDown.Load() {
				return down
			}
			return nil
		})}
		in := newGoChannel()
		start(t, router.Config{Poison: newSink(nil), Retry: router.RetrySettings{InitialBackoff: time.Minute, MaxBackoff: 24 * time.Hour}},
			farmRoute(in, wrappedSink{wrappedSink{to}}))
		isDown.Store(true)
		for i := range 10 {
			publish(t, in, farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), "p"))
		}
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		calls := to.callCount()
		to.Raise() // too early
		synctest.Wait()
		if got, want := to.callCount(), calls+1; got != want {
			t.Fatalf("to.callCount() = %d, want %d: one message probes, and no more", got, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, want := to.callCount(), calls+2; got != want {
			t.Fatalf("to.callCount() = %d, want %d: the waits begin anew", got, want)
		}

		isDown.Store(false)
		before := time.Now()
		to.Raise()
		synctest.Wait()
		to.wantStored(t, 10)
		testkit.Equal(t, time.Now(), before)
	})
}

// A recovery that is reported while an attempt is in progress, which then fails, is not missed.
func TestReturnDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &recoveringSink{}
		calls := 0
		to.memorySink = newSink(func(string, *message.Message) error {
			if calls++; calls == 1 {
				to.Raise()
				return down
			}
			return nil
		})
		in := newGoChannel()
		start(t, router.Config{Poison: newSink(nil), Retry: router.RetrySettings{InitialBackoff: time.Hour, MaxBackoff: time.Hour}}, farmRoute(in, to))
		publish(t, in, farmMessage("1", "e", "c", "p"))
		synctest.Wait()
		to.wantStored(t, 1)
	})
}

func TestRetryEndsWithContextOrStop(t *testing.T) {
	for _, failure := range []error{errHandler, down, context.Canceled, router.ErrReserved} {
		for _, how := range []string{"context", "stop"} {
			t.Run(failure.Error()+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stop := make(chan struct{})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					h := newRetry(t, router.RetryConfig{Stop: stop, RetrySettings: router.RetrySettings{InitialBackoff: time.Hour}}).
						Middleware(func(*message.Message) ([]*message.Message, error) { return nil, failure })
					results := make(chan error, 3)
					for range cap(results) {
						go func() { _, err := h(message.NewMessageWithContext(ctx, "1", nil)); results <- err }()
					}
					time.Sleep(time.Minute)
					if len(results) != 0 {
						t.Errorf("results has %d values, want none", len(results))
					}
					if how == "stop" {
						close(stop)
					} else {
						cancel()
					}
					want := router.ClassShutdown
					if how == "context" {
						want = router.ClassRedeliver // no shutdown is under way
					}
					for range cap(results) {
						err := <-results
						wantClass(t, err, want)
					}
					if how == "stop" {
						_, err := h(message.NewMessage("new", nil))
						wantClass(t, err, router.ClassShutdown)
					}
				})
			})
		}
	}
}

// A handler that answers an interruption with an error of its own is not at fault.
func TestRetryHandlerErrorAfterContextEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := newRetry(t, router.RetryConfig{RetrySettings: router.RetrySettings{MaxAttempts: 1}}).Middleware(func(*message.Message) ([]*message.Message, error) {
		cancel()
		return nil, errors.New("interrupted")
	})
	_, err := h(message.NewMessageWithContext(ctx, "1", nil))
	wantClass(t, err, router.ClassRedeliver)
}

// A panic between retry and recoverer does not take the turn of a probe along.
func TestRetryPanicWhileProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := newRetry(t, router.RetryConfig{RetrySettings: router.RetrySettings{MaxAttempts: 3}}).Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			switch calls {
			case 1:
				return nil, down
			case 2:
				panic("in between")
			}
			return nil, nil
		})
		handle(t, h, message.NewMessage("1", nil))
		if calls != 3 {
			t.Errorf("calls = %d, want 3", calls)
		}
	})
}

func TestRetryRestoresContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		h := newRetry(t, router.RetryConfig{}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
			calls++
			if err := msg.Context().Err(); err != nil {
				return nil, err
			}
			ctx, cancel := context.WithCancel(msg.Context())
			msg.SetContext(ctx)
			cancel()
			if calls == 1 {
				return nil, errHandler
			}
			return nil, nil
		})
		handle(t, h, message.NewMessage("1", nil))
		if calls != 2 {
			t.Errorf("calls = %d, want 2", calls)
		}
	})
}

// An outage in which the Router stops ends with it, so that what observers count of outages before and after a reload adds up.
func TestOutageEndsWithTheRouter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var events []router.Event
		observer := router.ObserverFunc(func(e router.Event) {
			if e.Kind == router.EventOutageBegan || e.Kind == router.EventOutageEnded {
				events = append(events, e)
			}
		})
		from := newSource()
		to := newSink(func(string, *message.Message) error { return down })
		r := start(t, router.Config{Poison: newSink(nil), Observer: observer}, farmRoute(from, to))
		msg := farmMessage("1", "e", "1", "p")
		from.messages <- msg
		time.Sleep(3 * time.Minute)
		r.wantStop(t)
		wantNack(t, msg)
		if len(events) != 2 || events[1].Kind != router.EventOutageEnded || events[1].Class != router.ClassShutdown || events[1].Delay != 3*time.Minute || events[1].Context == nil {
			t.Errorf("got %+v, want an outage of 3 minutes that ends with the shutdown", events)
		}
	})
}
