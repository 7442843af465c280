package router

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/internal/workers"
	"github.com/agrimill/agrimill/sinks"
)

// ErrSubscriptionEnded says that a subscriber closed its channel while the
// Router was running.
var ErrSubscriptionEnded = errors.New("subscription ended")

// subscribePolicy is how often a subscription that failed is tried again.
var subscribePolicy = backoff.Policy{Initial: 500 * time.Millisecond, Max: 30 * time.Second}

// subscribeOverdue is how long a source may take to come up. It is waited for without
// an error until then: everything may be starting at the same time.
const subscribeOverdue = time.Minute

// intake reads the subscription of a route and handles each message at once, in the goroutine of a subscriber that calls for
// that, see [msgctx.Subscription], or else in one that has nothing else to do. Watermill's own Router would take each
// message through more goroutines, and cancel the subscription, and with it, for most subscribers, the contexts of
// messages that it then waits for. The intake stops reading, and gives the subscription up when the messages in flight
// are done and acknowledged. And a subscription that fails does not fail the other routes.
type intake struct {
	*route

	ctx     context.Context // of the subscription; cancelled when the messages in flight are done
	start   <-chan struct{} // closed: every route has tried to subscribe
	stop    <-chan struct{} // closed: take no more messages; what the source has is drained before
	abandon <-chan struct{} // closed: the time is over

	running   *sync.WaitGroup // counts all goroutines
	attempted func()          // called after the first attempt
}

// run reads until the subscriber has closed its channel, or Close has no more time
// for that.
func (in *intake) run() {
	messages := in.subscribe(in.Topic)
	if messages == nil {
		return
	}
	closed := make(chan struct{})
	workers.Read(messages, workers.Config[*message.Message]{
		Do:    func(msg *message.Message) { in.take(msg) },
		Go:    in.running.Go,
		Stop:  in.stop,
		Ended: func() { close(closed) },
	})
	select {
	case <-closed:
		in.ended()
		return
	case <-in.stop:
	}
	<-in.ctx.Done()
	// A subscriber that is just handing over a message must not hang.
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				return
			}
			msg.Nack()
		case <-in.abandon:
			return
		}
	}
}

// take handles a message, and reports whether it is acked.
func (in *intake) take(msg *message.Message) (acked bool) {
	in.health.inFlight.Add(1)
	// Only now: what is counted before stop is closed is waited for, and nothing else is
	// handled.
	select {
	case <-in.stop:
		msg.Nack()
		in.done()
		return false
	default:
		return in.handle(msg)
	}
}

// subscribe retries until it succeeds; it returns nil if it gave up.
func (in *intake) subscribe(topic string) <-chan *message.Message {
	attempted := sync.OnceFunc(in.attempted)
	defer attempted()
	began, overdue := time.Now(), false
	for n := 0; ; n++ {
		if wakeup.Raised(in.stop) {
			return nil
		}
		messages, err := in.attempt(topic)
		if err == nil {
			in.health.setState(StateRunning)
			if n > 0 {
				in.logger.Info("subscription established", nil)
			}
			return messages
		}
		if wakeup.Raised(in.stop) { // Close may have closed the subscriber before it was asked
			return nil
		}
		text := RedactError(err, nil)
		in.health.fail(text)
		refused := final.Is(err) || ClassOf(err) == ClassPermanent
		if refused {
			in.health.end(StateFailed, err)
		}
		attempted()
		if refused {
			in.logger.Error("subscription refused; route not running", redacted(text), nil)
			return nil
		}
		switch {
		case n == 0:
			warnlog.Warn(in.logger, "source unavailable; retrying the subscription", watermill.LogFields{"reason": text})
		case !overdue && time.Since(began) >= subscribeOverdue:
			overdue = true
			in.logger.Error("source still unavailable; retrying the subscription", redacted(text),
				watermill.LogFields{"since": began.UTC().Format(time.RFC3339)})
		}
		sleep(in.ctx, in.stop, subscribePolicy.Delay(n))
	}
}

// attempt subscribes.
func (in *intake) attempt(topic string) (messages <-chan *message.Message, err error) {
	var sink sinks.Description
	if in.To != nil {
		sink = in.To.Describe()
	}
	in.pipelined.Store(sink.Pipelined)
	asked := &msgctx.Subscription{Route: in.Name, Start: in.start, Pipelines: sink.Pipelined, Handler: in.take}
	if reflect.TypeOf(in.From).Comparable() {
		asked.To = in.From
	}
	ctx, cancel := context.WithCancel(msgctx.WithSubscription(in.ctx, asked))
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	err = guarded(func() (err error) {
		messages, err = in.From.Subscribe(ctx, topic)
		return err
	})
	in.gives.Store(in.alone && asked.Given)
	// The subscription lives until in.ctx ends, which it does with the Router.
	return messages, err
}

func (in *intake) ended() {
	if wakeup.Raised(in.stop) {
		return // not by itself
	}
	cause := subscriptionError(in.From)
	err := ErrSubscriptionEnded
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	text := RedactError(err, nil)
	in.health.end(StateEnded, cause)
	in.health.fail(text)
	in.logger.Error("route ended", redacted(text), nil)
}

// subscriptionError asks a subscriber, or the one that it wraps, why its
// subscriptions have ended; nil when it does not say.
func subscriptionError(sub message.Subscriber) error {
	if s, ok := unwrapTo[interface{ Err() error }](sub); ok {
		return s.Err()
	}
	if s, ok := unwrapTo[reader](sub); ok {
		_, err := s.ReadError()
		return err
	}
	return nil
}

// reader is a subscriber that knows why it cannot read although its subscription lasts, and since when.
type reader interface {
	ReadError() (since time.Time, err error)
}

// unread makes a route that runs one in an outage if its source cannot be read.
func (h *RouteHealth) unread(from message.Subscriber) {
	source, ok := unwrapTo[reader](from)
	if !ok || h.State != StateRunning && h.State != StateFailing {
		return
	}
	if since, err := source.ReadError(); err != nil {
		h.State, h.Since, h.LastError, h.LastErrorAt = StateOutage, since, RedactError(err, nil), since
	}
}

// unwrapTo returns a subscriber, or the first one that it wraps, that is a T.
func unwrapTo[T any](sub message.Subscriber) (T, bool) {
	for sub != nil {
		if s, ok := sub.(T); ok {
			return s, true
		}
		wrapper, ok := sub.(interface{ Unwrap() message.Subscriber })
		if !ok {
			break
		}
		sub = wrapper.Unwrap()
	}
	var none T
	return none, false
}
