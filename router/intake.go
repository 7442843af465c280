package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
)

// ErrSubscriptionEnded says that a subscriber closed its channel while the
// Router was running.
var ErrSubscriptionEnded = errors.New("subscription ended")

// subscribePolicy is how often a subscription that failed is tried again.
var subscribePolicy = backoff.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second}

// maxIdle is how many goroutines of a route wait for messages at most. More are
// started when as many messages are in flight, and end with their messages.
const maxIdle = 64

// intake is a route as a handler of Watermill's Router. That Router gives it one
// message, and the intake handles it as long as the route lives: it reads the
// subscription itself and handles each message at once, in a goroutine that has
// nothing else to do meanwhile. If each message went through Watermill's Router,
// it would pass three more goroutines, start a fourth, and Watermill would cancel
// the subscription when it begins to close, and with it, for most subscribers, the
// contexts of the messages that it then waits for. The intake instead stops
// reading, keeps the subscription until the messages in flight are done and
// acknowledged, and gives it up then. And a subscription that fails does not fail
// the other routes.
type intake struct {
	*route

	ctx     context.Context // of the subscription; cancelled after the drain
	stop    <-chan struct{} // closed: take no more messages
	release <-chan struct{} // closed: the messages in flight are done
	abandon <-chan struct{} // closed: the time is over

	running   *sync.WaitGroup // counts all goroutines
	attempted func()          // called after the first attempt

	shift chan *message.Message // the one message for Watermill; closed when the route has ended
	// names has what Watermill puts into the context of a message, for
	// message.HandlerNameFromCtx and its like, which middlewares of others use.
	names context.Context
	idle  atomic.Int64 // goroutines that wait for a message
}

// String makes the subscriber's type visible in Watermill's message context.
func (in *intake) String() string { return fmt.Sprintf("%T", in.From) }

// Subscribe implements message.Subscriber. It neither blocks nor fails.
func (in *intake) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	in.shift <- message.NewMessage("", nil)
	return in.shift, nil
}

// Close implements message.Subscriber. The Router closes the route's subscriber
// itself, later.
func (in *intake) Close() error { return nil }

// run reads until the subscriber has closed its channel, or Close has no more time
// for that.
func (in *intake) run(shift *message.Message) error {
	defer in.running.Done()
	defer close(in.shift)
	in.names = shift.Context()
	messages := in.subscribe(in.Topic)
	if messages == nil {
		return nil
	}
	closed := make(chan struct{})
	in.startReading(messages, sync.OnceFunc(func() { close(closed) }))
	select {
	case <-closed:
		in.ended()
		return nil
	case <-in.stop:
	}
	// A subscriber that is just handing over a message must not hang.
	select {
	case <-in.release:
	case <-in.abandon:
		return nil
	}
	for {
		select {
		case msg, ok := <-messages:
			if !ok {
				return nil
			}
			msg.Nack()
		case <-in.abandon:
			return nil
		}
	}
}

// startReading starts one more goroutine that reads. It ends when in.stop or the
// channel is closed, or when there are enough of them, and then with its message.
func (in *intake) startReading(messages <-chan *message.Message, closed func()) {
	in.idle.Add(1)
	in.running.Go(func() {
		growStack(len(in.Topic))
		in.read(messages, closed)
	})
}

// read handles messages. Another goroutine always waits for the next one.
func (in *intake) read(messages <-chan *message.Message, closed func()) {
	for {
		select {
		case <-in.stop:
			return
		case msg, ok := <-messages:
			if !ok {
				closed()
				return
			}
			in.health.inFlight.Add(1)
			// Only now, and again: what is counted before stop is closed is waited
			// for, and nothing else is handled.
			select {
			case <-in.stop:
				msg.Nack()
				in.done()
				return
			default:
			}
			if in.idle.Add(-1) == 0 {
				in.startReading(messages, closed)
			}
			in.handle(in.names, msg)
			if in.idle.Load() >= maxIdle {
				return
			}
			in.idle.Add(1)
		}
	}
}

// growStack makes the stack of the goroutine large enough for the chain, at once
// and while there is little on it to copy. Growing it step by step, deep within
// the chain, costs more.
//
//go:noinline
func growStack(n int) byte {
	var frame [4 << 10]byte
	frame[n%len(frame)] = 1 // or the compiler would do without a frame
	return frame[(n+1)%len(frame)]
}

// subscribe tries until it works; nil means that it was given up.
func (in *intake) subscribe(topic string) <-chan *message.Message {
	attempted := in.attempted
	for n := 0; ; n++ {
		select {
		case <-in.stop:
			attempted()
			return nil
		default:
		}
		messages, err := in.attempt(topic)
		if err == nil {
			in.health.setState(StateRunning)
			if n > 0 {
				in.logger.Info("subscribed at last", nil)
			}
			attempted()
			return messages
		}
		text := RedactError(err, nil)
		in.health.fail(text)
		refused := Classify(err) == ClassPermanent
		if refused {
			in.health.setState(StateFailed)
		}
		attempted()
		attempted = func() {}
		if refused {
			in.logger.Error("subscription refused, the route does not run", redacted(text), nil)
			return nil
		}
		if n == 0 {
			in.logger.Error("cannot subscribe yet, trying until it works", redacted(text), nil)
		}
		timer := time.NewTimer(subscribePolicy.Delay(n))
		select {
		case <-timer.C:
		case <-in.stop:
			timer.Stop()
			return nil
		}
	}
}

// attempt subscribes. While it does, and only then, stopping cancels the
// subscription.
func (in *intake) attempt(topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(in.ctx)
	subscribed := make(chan struct{})
	defer close(subscribed)
	// Ends when this function does.
	go func() {
		select {
		case <-in.stop:
			select {
			case <-subscribed:
			default:
				cancel()
			}
		case <-subscribed:
		}
	}()
	messages, err := in.From.Subscribe(ctx, topic)
	if err != nil {
		cancel()
	}
	// The subscription lives until in.ctx ends, which it does with the Router.
	return messages, err
}

func (in *intake) ended() {
	select {
	case <-in.stop:
		return // not by itself
	default:
	}
	in.health.setState(StateEnded)
	in.health.fail(ErrSubscriptionEnded.Error())
	in.logger.Error("the route has ended", ErrSubscriptionEnded, nil)
}
