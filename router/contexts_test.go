package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

type valueKey struct{}

// A handler's own context ends when the handler returns. What it made is published all
// the same, in the delivery's context, with the values of the handler's.
func TestHandlersContextEndsWithTheHandler(t *testing.T) {
	passOn := func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil }
	ownContext := func(parent func(*message.Message) context.Context) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithTimeoutCause(context.WithValue(parent(msg), valueKey{}, "handler"), time.Hour, errHandler)
			defer cancel()
			return []*message.Message{message.NewMessageWithContext(ctx, "made", msg.Payload)}, nil
		}
	}
	timeout := []message.HandlerMiddleware{middleware.Timeout(time.Hour)}
	tests := map[string]struct {
		route router.Route
		value any
	}{
		"Watermill's Timeout":               {route: router.Route{Middleware: timeout}},
		"Watermill's Timeout and a handler": {route: router.Route{Middleware: timeout, Transform: passOn}},
		"a message made in a derived one":   {route: router.Route{Transform: ownContext((*message.Message).Context)}, value: "handler"},
		"a message made in another one":     {route: router.Route{Transform: ownContext(func(*message.Message) context.Context { return context.Background() })}, value: "handler"},
		"a message made without any context": {route: router.Route{Middleware: timeout, Transform: func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("made", msg.Payload)}, nil
		}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, poison := newGoChannel(), newSink(nil)
				to := newSink(func(_ string, msg *message.Message) error {
					ctx := msg.Context()
					if cause := context.Cause(ctx); cause != nil {
						t.Errorf("cause = %v, want none", cause)
					}
					if got := ctx.Value(valueKey{}); got != test.value {
						t.Errorf("value = %v, want %v", got, test.value)
					}
					if got := message.HandlerNameFromCtx(ctx); got != "farm" {
						t.Errorf("handler name = %q, want farm", got)
					}
					if _, ok := router.DedupID(ctx); !ok {
						t.Error("no dedup ID in the context of a published message")
					}
					return nil
				})
				test.route.Name, test.route.From, test.route.Topic, test.route.To = "farm", in, "in", to
				start(t, router.Config{Poison: poison}, test.route)
				publish(t, in, farmMessage("1", "endpoint", "context", "payload"))
				synctest.Wait()
				to.wantStored(t, 1)
			})
		})
	}
}

// What is published ends with the delivery, not with the handler, and not before.
func TestPublishEndsWithTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, ended := newSource(), make(chan error, 1)
		to := newSink(func(_ string, msg *message.Message) error {
			<-msg.Context().Done()
			ended <- context.Cause(msg.Context())
			return msg.Context().Err()
		})
		r := start(t, router.Config{Poison: newSink(nil)}, router.Route{
			Name: "farm", From: in, Topic: "in", To: to, Middleware: []message.HandlerMiddleware{middleware.Timeout(time.Second)},
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		msg := farmMessage("1", "endpoint", "context", "payload")
		msg.SetContext(ctx)
		in.messages <- msg
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(ended) != 0 {
			t.Fatalf("ended with %v, want it to go on", <-ended)
		}
		lost := errors.New("partition lost")
		cancel(lost)
		if err := <-ended; !errors.Is(err, lost) {
			t.Errorf("ended with %v, want %v", err, lost)
		}
		wantNack(t, msg)
		health := r.Health()[0]
		if health.State != router.StateRunning {
			t.Errorf("state = %q, want %q: the sink is not to blame", health.State, router.StateRunning)
		}
		testkit.Contains(t, health.LastError, "context has ended: partition lost")
	})
}

// A handler that runs into a limit of its own each time is at fault, and one that is
// interrupted, too, while nothing stops.
func TestHandlerThatTimesOutIsPoisoned(t *testing.T) {
	waits := func(msg *message.Message) error {
		<-msg.Context().Done()
		return fmt.Errorf("parsing: %w", msg.Context().Err())
	}
	tests := map[string]struct {
		fail       func(*message.Message) error
		middleware []message.HandlerMiddleware
	}{
		"Watermill's Timeout": {waits, []message.HandlerMiddleware{middleware.Timeout(time.Second)}},
		"another deadline":    {func(*message.Message) error { return context.DeadlineExceeded }, nil},
		"cancellation":        {func(*message.Message) error { return fmt.Errorf("parsing: %w", context.Canceled) }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, to, poison := newSource(), newSink(nil), newSink(nil)
				start(t, router.Config{Poison: poison, Retry: router.RetrySettings{MaxAttempts: 3}}, router.Route{
					Name: "farm", From: in, Topic: "in", To: to, Middleware: test.middleware,
					Transform: func(msg *message.Message) ([]*message.Message, error) {
						if string(msg.Payload) == "good" {
							return []*message.Message{msg}, nil
						}
						return nil, test.fail(msg)
					},
				})
				bad, good := farmMessage("1", "endpoint", "context 1", "bad"), farmMessage("2", "endpoint", "context 2", "good")
				in.messages <- bad
				in.messages <- good
				wantAck(t, bad)
				wantAck(t, good)
				if got := poison.all()[0].msg.Metadata[router.KeyPoisonAttempts]; got != "3" {
					t.Errorf("attempts = %q, want 3", got)
				}
				if got := poison.all()[0].msg.Metadata[router.KeyPoisonClass]; got != "handler" {
					t.Errorf("class = %q, want handler", got)
				}
				to.wantStored(t, 1)
			})
		})
	}
}

// A sink that times out, is interrupted, or was closed by somebody else is an outage: it
// is shown, nothing is poisoned, and everything passes in the end.
func TestSinkThatTimesOutIsAnOutage(t *testing.T) {
	for _, failure := range []error{
		context.DeadlineExceeded, context.Canceled, fmt.Errorf("storing: %w", context.DeadlineExceeded),
		sinks.NewError("s", "t", sinks.ErrClosed, nil),
	} {
		t.Run(failure.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failing atomic.Bool
				failing.Store(true)
				in, poison := newSource(), newSink(nil)
				to := newSink(func(string, *message.Message) error {
					if failing.Load() {
						return failure
					}
					return nil
				})
				r := start(t, router.Config{Poison: poison, Retry: router.RetrySettings{MaxAttempts: 1, MaxBackoff: time.Second}}, farmRoute(in, to))
				msg := farmMessage("1", "endpoint", "context", "payload")
				in.messages <- msg
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := r.Health()[0].State; got != router.StateOutage {
					t.Errorf("state = %q, want %q", got, router.StateOutage)
				}
				failing.Store(false)
				wantAck(t, msg)
				poison.wantStored(t, 0)
			})
		})
	}
}

// slowContext is one of which [context.AfterFunc] learns late that it has ended.
type slowContext struct {
	context.Context
	tell chan func()
}

// Value hides the context behind it, or AfterFunc would not be asked.
func (c *slowContext) Value(any) any { return nil }

func (c *slowContext) AfterFunc(f func()) func() bool {
	c.tell <- f
	return func() bool { return true }
}

// Whatever a handler fails with once a shutdown has begun, nobody knows whether it would
// have failed without. The handler here uses the context that SIGTERM ends.
func TestShutdownPoisonsNothing(t *testing.T) {
	weather := errors.New("weather service: interrupted")
	for _, failure := range []error{weather, context.Canceled, context.DeadlineExceeded, &router.PanicError{Value: weather}} {
		for _, how := range []string{"Close", "context"} {
			for _, parts := range []string{"all", "without Retry"} {
				t.Run(failure.Error()+"/"+how+"/"+parts, func(t *testing.T) {
					in, poison := newSource(), newSink(nil)
					config := router.Config{Poison: poison, Retry: router.RetrySettings{MaxAttempts: 1}}
					if parts != "all" {
						config.Chain = func(_ string, standard router.Chain) []message.HandlerMiddleware {
							return []message.HandlerMiddleware{standard.Poison, standard.Dedup, standard.Recoverer}
						}
					}
					application, end := context.WithCancel(t.Context())
					entered := make(chan struct{})
					r := build(t, config, router.Route{
						Name: "farm", From: in, Topic: "in", To: newSink(nil),
						Transform: func(*message.Message) ([]*message.Message, error) {
							close(entered)
							<-application.Done()
							return nil, failure
						},
					})
					running := &slowContext{Context: t.Context(), tell: make(chan func(), 1)}
					if how == "context" {
						running.Context = application
					}
					result := make(chan error, 1)
					go func() { result <- r.Run(running) }()
					msg := farmMessage("1", "endpoint", "context", "payload")
					in.messages <- msg
					<-entered
					if how == "context" {
						end()
						wantNack(t, msg)
						go func() {
							select {
							case tell := <-running.tell:
								tell()
							case <-t.Context().Done(): // it had ended before Run asked, and Run knows
							}
						}()
					} else {
						go func() { _ = r.Close() }()
						testkit.Eventually(t, "the begin of the shutdown", func() bool { return r.Health()[0].State == router.StateStopped })
						end()
					}
					wantNack(t, msg)
					testkit.NoError(t, <-result)
					poison.wantStored(t, 0)
				})
			}
		}
	}
}

// The application is asked first, about handlers, middlewares and sinks, and not about
// what the middlewares tell each other.
func TestApplicationClassifies(t *testing.T) {
	errHandlerDown, errSinkRefuses, errPanics := errors.New("handler down"), errors.New("sink refuses"), errors.New("panics")
	classify := func(err error) (router.Class, bool) {
		switch {
		case errors.Is(err, errHandlerDown):
			return router.ClassOutage, true
		case errors.Is(err, errSinkRefuses), errors.Is(err, router.ErrReserved), errors.Is(err, router.ErrStopped):
			return router.ClassPermanent, true
		case errors.Is(err, errPanics):
			panic("classify")
		}
		return router.ClassNone, true
	}
	synctest.Test(t, func(t *testing.T) {
		in, poison := newSource(), newSink(nil)
		failing := map[string]error{
			"handler down": errHandlerDown, "rejected, but down": fmt.Errorf("%w: %w", sinks.ErrRejected, errHandlerDown),
			"panics": errPanics, "unknown": errHandler,
		}
		attempts := make(map[string]int)
		to := newSink(func(_ string, msg *message.Message) error {
			if string(msg.Payload) == "sink refuses" {
				return errSinkRefuses
			}
			return nil
		})
		start(t, router.Config{Poison: poison, Classify: classify, Retry: router.RetrySettings{MaxAttempts: 2, MaxBackoff: time.Second}},
			router.Route{
				Name: "farm", From: in, Topic: "in", To: to,
				Transform: func(msg *message.Message) ([]*message.Message, error) {
					payload := string(msg.Payload)
					if attempts[payload]++; attempts[payload] < 10 && failing[payload] != nil {
						return nil, failing[payload]
					}
					return []*message.Message{msg}, nil
				},
			})
		for i, test := range []struct {
			payload, class string
			attempts       int
		}{
			{"handler down", "", 10}, {"rejected, but down", "", 10}, {"sink refuses", "permanent", 1},
			{"panics", "handler", 2}, {"unknown", "handler", 2},
		} {
			msg := farmMessage(fmt.Sprint(i), "endpoint", fmt.Sprint("context ", i), test.payload)
			in.deliver(t, msg)
			var class string
			if all := poison.all(); len(all) > 0 && all[len(all)-1].msg.UUID == msg.UUID {
				class = all[len(all)-1].msg.Metadata[router.KeyPoisonClass]
			}
			if class != test.class {
				t.Errorf("%s: poisoned as %q, want %q", test.payload, class, test.class)
			}
			if got := attempts[test.payload]; got != test.attempts {
				t.Errorf("%s: %d attempts, want %d", test.payload, got, test.attempts)
			}
		}
	})

	// A queue that stands alone asks too; of what is no verdict the next one is told.
	queue := newPoison(t, router.PoisonConfig{Publisher: newSink(nil), Classify: classify})
	for err, want := range map[error]router.Class{errHandlerDown: router.ClassOutage, router.ErrReserved: router.ClassOutage, router.ErrStopped: router.ClassShutdown} {
		_, got := queue.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, err })(message.NewMessage("1", nil))
		if class := router.ClassOf(got); class != want {
			t.Errorf("%v: %v, want %v", err, class, want)
		}
	}
}
