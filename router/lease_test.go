package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/router"
)

// leasedContext is the context of a message that may be handled until over, which is known before
// Done is closed.
type leasedContext struct {
	context.Context
	over atomic.Bool
}

func (c *leasedContext) Err() error {
	if c.over.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// eagerSink looks at no context.
type eagerSink struct{ *memorySink }

func (s eagerSink) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		fresh := msg.Copy()
		fresh.SetContext(context.Background())
		if err := s.memorySink.Publish(topic, fresh); err != nil {
			return err
		}
	}
	return nil
}

// When the lease of a message is over, a route publishes nothing, to its sink or to the poison
// queue, and returns the message.
func TestNothingIsPublishedAfterTheLease(t *testing.T) {
	errHandler := errors.New("the handler fails")
	for name, test := range map[string]struct {
		leased, over    bool
		fails           error
		stored, poisons int
		acked           bool
	}{
		"in the lease":                      {leased: true, stored: 1, acked: true},
		"over while it is handled":          {leased: true, over: true},
		"over while it is handled in vain":  {leased: true, over: true, fails: router.Permanent(errHandler)},
		"in the lease, and handled in vain": {leased: true, fails: router.Permanent(errHandler), poisons: 1, acked: true},
		"without a lease":                   {stored: 1, acked: true},
	} {
		t.Run(name, func(t *testing.T) {
			in, to, poison := newSource(), newSink(nil), newSink(nil)
			nack := &msgctx.Nack{Leased: test.leased}
			ctx := &leasedContext{Context: msgctx.With(t.Context(), msgctx.Value{Nack: nack})}
			start(t, router.Config{Poison: eagerSink{poison}}, router.Route{
				Name: "farm", From: in, Topic: "in", To: eagerSink{to},
				Transform: func(msg *message.Message) ([]*message.Message, error) {
					ctx.over.Store(test.over)
					return []*message.Message{msg}, test.fails
				},
			})
			msg := farmMessage("1", "endpoint", "context", "payload")
			msg.SetContext(ctx)
			in.messages <- msg
			if test.acked {
				wantAck(t, msg)
			} else {
				wantNack(t, msg)
			}
			to.wantStored(t, test.stored)
			poison.wantStored(t, test.poisons)
		})
	}
}
