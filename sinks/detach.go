package sinks

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// DetachContexts is a message.PublisherDecorator for Watermill's Router, which publishes
// what a handler returned after the middlewares have ended. By then Watermill's
// middleware.Timeout has ended the context of the messages, and a [Sink] stores
// nothing for somebody who does not wait any longer: the message is nacked, and comes back,
// without end. The publisher that this returns gives pub copies of the messages, in contexts
// that have the same values and do not end; what bounds a call are the timeouts of pub.
//
// Close of the publisher closes pub. DetachContexts returns an error if pub is nil.
func DetachContexts(pub message.Publisher) (message.Publisher, error) {
	if pub == nil {
		return nil, errors.New("sinks: detaching contexts needs a publisher")
	}
	return detached{pub}, nil
}

type detached struct{ message.Publisher }

func (d detached) Publish(topic string, messages ...*message.Message) error {
	if err := msgctx.Missing(messages...); err != nil {
		return err
	}
	copies := make([]*message.Message, len(messages))
	for i, msg := range messages {
		copies[i] = msg.Copy()
		copies[i].SetContext(context.WithoutCancel(msg.Context()))
	}
	return d.Publisher.Publish(topic, copies...)
}
