package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/semaphore"

	"github.com/agrimill/agrimill/sinks"
)

// errClosed ends a wait when Close has stopped waiting.
var errClosed = errors.New("closed")

// wait ends the waiting of one call until its messages are with a producer: by their
// contexts, by PublishTimeout, or by Close. The messages are no field: that would allocate memory.
type wait struct {
	sink     *Sink
	topic    string
	deadline time.Time // for the result as well
}

// block calls f with the context that ends first, and returns why that ended if f returns an error.
func (w *wait) block(messages []*message.Message, f func(context.Context) error) error {
	timed, stopTimer := context.WithDeadlineCause(w.sink.background, w.deadline, errTimeout)
	defer stopTimer()
	ctx, cancel := context.WithCancelCause(timed)
	defer cancel(nil)
	for i, msg := range messages {
		if of := msg.Context(); i == 0 || of != messages[i-1].Context() {
			defer context.AfterFunc(of, func() { cancel(of.Err()) })()
		}
	}
	if f(ctx) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// until waits for done.
func (w *wait) until(messages []*message.Message, done <-chan struct{}) error {
	return w.block(messages, func(ctx context.Context) error {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// put waits for room in a producer's queue.
func (w *wait) put(messages []*message.Message, input chan<- *sarama.ProducerMessage, record *sarama.ProducerMessage) error {
	select {
	case input <- record:
		return nil
	default:
	}
	return w.block(messages, func(ctx context.Context) error {
		select {
		case input <- record:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// acquire waits for room.
func (w *wait) acquire(messages []*message.Message, room *semaphore.Weighted, n int64) error {
	if room.TryAcquire(n) { // few messages have to wait
		return nil
	}
	return w.block(messages, func(ctx context.Context) error { return room.Acquire(ctx, n) })
}

// err makes the error of Publish.
func (w *wait) err(messages []*message.Message, err error) error {
	for _, msg := range messages {
		// A context of a message, and not one inside the client: that is a
		// time-out of its own.
		if ended := msg.Context().Err(); ended != nil && errors.Is(err, ended) && w.sink.background.Err() == nil {
			return ended
		}
	}
	return w.sink.classed(w.topic, err)
}

// classed gives an error its class.
func (s *Sink) classed(topic string, err error) error {
	if errors.Is(err, errClosed) || s.background.Err() != nil {
		return sinks.NewError(s.config.Name, topic, sinks.ErrClosed, nil)
	}
	var typed *sinks.Error
	if errors.As(err, &typed) {
		return &sinks.Error{Sink: s.config.Name, Topic: topic, Kind: typed.Kind, Cause: typed.Cause}
	}
	return sinks.NewError(s.config.Name, topic, classify(err), err)
}
