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
// contexts, by PublishTimeout, or by Close.
type wait struct {
	sink     *Sink
	topic    string
	timer    *time.Timer     // nil before it is needed
	deadline time.Time       // for the result as well
	ctx      context.Context // ends when one of a message does
	stops    []func() bool   // not nil if ctx is that of several messages
}

// begin returns the error of a context that has ended already.
func (w *wait) begin(messages []*message.Message) error {
	first := messages[0].Context()
	same := true
	for _, msg := range messages {
		ctx := msg.Context()
		if err := ctx.Err(); err != nil {
			return err
		}
		same = same && ctx == first
	}
	if w.ctx = first; !same {
		w.watch(messages)
	}
	w.deadline = time.Now().Add(w.sink.config.PublishTimeout)
	return nil
}

// cause is the error of the context that has ended, nil while none has.
func (w *wait) cause() error {
	if w.stops != nil {
		return context.Cause(w.ctx)
	}
	return w.ctx.Err()
}

// watch makes the end of any of several contexts the end of the wait.
func (w *wait) watch(messages []*message.Message) {
	first, cancel := context.WithCancelCause(context.Background())
	w.ctx = first
	for i, msg := range messages {
		ctx := msg.Context()
		if ctx.Done() == nil || i > 0 && ctx == messages[i-1].Context() {
			continue
		}
		w.stops = append(w.stops, context.AfterFunc(ctx, func() { cancel(ctx.Err()) }))
	}
	w.stops = append(w.stops, func() bool { cancel(nil); return true })
}

// end releases what the wait holds.
func (w *wait) end() {
	if w.timer != nil {
		w.timer.Stop()
	}
	for _, stop := range w.stops {
		stop()
	}
}

// timeout is where the end of the time comes. Few messages have to wait, so the timer
// is made when one does.
func (w *wait) timeout() <-chan time.Time {
	if w.timer == nil {
		w.timer = time.NewTimer(time.Until(w.deadline))
	}
	return w.timer.C
}

// expire resets the timeout for the next waiter.
func (w *wait) expire() error {
	w.timer.Reset(0)
	return errTimeout
}

// until waits for done.
func (w *wait) until(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-w.ctx.Done():
		return w.cause()
	case <-w.timeout():
		return w.expire()
	case <-w.sink.background.Done():
		return errClosed
	}
}

// put waits for room in a producer's queue.
func (w *wait) put(input chan<- *sarama.ProducerMessage, record *sarama.ProducerMessage) error {
	select {
	case input <- record:
		return nil
	default:
	}
	select {
	case input <- record:
		return nil
	case <-w.ctx.Done():
		return w.cause()
	case <-w.timeout():
		return w.expire()
	case <-w.sink.background.Done():
		return errClosed
	}
}

// acquire waits for room.
func (w *wait) acquire(room *semaphore.Weighted, n int64) error {
	if room.TryAcquire(n) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	acquired := make(chan error, 1)
	// Ends when there is room, or when ctx is cancelled below.
	go func() { acquired <- room.Acquire(ctx, n) }()
	select {
	case err := <-acquired:
		cancel()
		return err
	case <-w.ctx.Done():
	case <-w.timeout():
		_ = w.expire()
	case <-w.sink.background.Done():
	}
	cancel()
	if err := <-acquired; err == nil {
		return nil // there was room at last; the next wait ends at once
	}
	return w.until(nil)
}

// err makes the error of Publish.
func (w *wait) err(err error) error {
	// A context of a message, and not one inside the client: that is a
	// time-out of its own.
	if ctxErr := w.cause(); ctxErr != nil && errors.Is(err, ctxErr) && w.sink.background.Err() == nil {
		return ctxErr
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
