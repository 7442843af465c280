package kafka

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/sinks"
)

// wait ends the waiting of one call until its messages are with a producer: by their
// contexts, by PublishTimeout, or by Close. The messages are no field: that would allocate memory.
type wait struct {
	sink     *Sink
	topic    string
	deadline time.Time // for the result as well
	in       *lane     // nil before and after
}

// leave leaves the lane that waitForTopic entered.
func (w *wait) leave() {
	if w.in != nil {
		w.in.life.Leave()
		w.in = nil
	}
}

// block calls f with the context that ends first, and returns why that ended if f returns an error.
func (w *wait) block(messages []*message.Message, f func(context.Context) error) error {
	ended, stop := msgctx.FirstEnd(messages)
	defer stop()
	ctx, cancel := context.WithDeadline(ended, w.deadline)
	defer cancel()
	defer context.AfterFunc(w.sink.background, cancel)()
	if f(ctx) == nil {
		return nil
	}
	return cmp.Or(endOf(messages, nil), errTimeout)
}

// endOf returns the error of the first context of messages that has ended, if it is why err came: one of a context
// inside of the client is a time-out of its own.
func endOf(messages []*message.Message, err error) error {
	for _, msg := range messages {
		if ended := msg.Context().Err(); ended != nil && (err == nil || errors.Is(err, ended)) {
			return ended
		}
	}
	return nil
}

// classed gives an error its class.
func (s *Sink) classed(topic string, err error) error {
	if s.background.Err() != nil {
		return sinks.NewError(s.config.Name, topic, sinks.ErrClosed, nil)
	}
	var typed *sinks.Error
	if errors.As(err, &typed) {
		return &sinks.Error{Sink: s.config.Name, Topic: topic, Kind: typed.Kind, Cause: typed.Cause}
	}
	return sinks.NewError(s.config.Name, topic, classify(err), err)
}
