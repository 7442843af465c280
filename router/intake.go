package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
)

// ErrSubscriptionEnded says that a subscriber closed its channel while the
// Router was running.
var ErrSubscriptionEnded = errors.New("subscription ended")

// subscribePolicy is how often a subscription that failed is tried again.
var subscribePolicy = backoff.Policy{Min: 500 * time.Millisecond, Max: 30 * time.Second}

// intake stands between a subscriber and Watermill's Router, for three reasons.
// Watermill cancels the subscription when it starts to close, and with it, for
// most subscribers, the contexts of the messages that it then waits for; and it
// closes the subscriber or does not, as the scheduler likes. intake instead
// stops reading, keeps the subscription until the messages in flight are done
// and acknowledged, and gives it up then. And a subscription that fails does not
// fail the other routes.
type intake struct {
	from   message.Subscriber
	health *health
	logger watermill.LoggerAdapter

	ctx     context.Context // of the subscription; cancelled after the drain
	stop    <-chan struct{} // closed: take no more messages
	release <-chan struct{} // closed: the messages in flight are done
	abandon <-chan struct{} // closed: the time is over

	running   *sync.WaitGroup // counts the goroutine of Subscribe
	attempted func()          // called after the first attempt
	done      func()          // called for a message that goes no further
}

// String makes the subscriber's type visible in Watermill's message context.
func (in *intake) String() string { return fmt.Sprintf("%T", in.from) }

// Subscribe implements message.Subscriber. It does not use the context that
// Watermill gives it, and neither blocks nor fails.
func (in *intake) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	in.running.Add(1)
	// Ends when the subscriber has closed its channel, or when Close has no
	// more time for that.
	go func() {
		defer in.running.Done()
		in.run(topic, out)
	}()
	return out, nil
}

// Close implements message.Subscriber. The Router closes in.from itself, later.
func (in *intake) Close() error { return nil }

func (in *intake) run(topic string, out chan<- *message.Message) {
	messages := in.subscribe(topic)
	in.forward(messages, out)
	close(out)
	if messages == nil {
		return
	}
	// A subscriber that is just handing over a message must not hang.
	select {
	case <-in.release:
	case <-in.abandon:
		return
	}
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
	messages, err := in.from.Subscribe(ctx, topic)
	if err != nil {
		cancel()
	}
	// The subscription lives until in.ctx ends, which it does with the Router.
	return messages, err
}

// forward hands messages on until told to stop or the subscription ends.
func (in *intake) forward(messages <-chan *message.Message, out chan<- *message.Message) {
	if messages == nil {
		return
	}
	for {
		select {
		case <-in.stop:
			return
		case msg, ok := <-messages:
			if !ok {
				in.ended()
				return
			}
			in.health.inFlight.Add(1)
			select {
			case out <- msg:
			case <-in.stop:
				msg.Nack()
				in.done()
				return
			}
		}
	}
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
