// Package routertest takes messages through a route, without a broker and without a gateway, and returns what
// comes out:
//
//	got, err := routertest.Deliver(t.Context(), router.Config{}, route, msg)
//
// In a bubble of testing/synctest the waits between attempts pass at once.
package routertest

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// Result is what became of the messages.
type Result struct {
	// Published are the messages that were stored, in order.
	Published []Published
	// Poisoned are those in the poison queue. Their metadata say why (router.KeyPoisonReason and others).
	Poisoned []Published
	// Health has the counts: how messages ended, and how often they were tried again, by the class of the error.
	Health router.RouteHealth
}

// Published is a message that was published, and its topic, without a prefix of the sink.
type Published struct {
	Topic   string
	Message *message.Message
}

// Deliver runs a Router with one route, which gets copies of the messages, each when the one before it has ended,
// and returns when the last one has and the Router is closed. A message that is returned (nacked) does not come again.
//
// From is replaced. What Route.To and Config.Poison have stored is in the result; nil ones store everything. Give them
// a publisher that fails, to see what an outage does: Deliver then waits as a Router does, until ctx ends. Name and
// Topic have defaults. DurableSynced is DurableAcknowledged here: nothing has to wait for a sync.
//
// The error is that of New, Add or Run, or that of ctx, with what there is of the result.
func Deliver(ctx context.Context, config router.Config, route router.Route, messages ...*message.Message) (Result, error) {
	published, poisoned := &tee{to: route.To}, &tee{to: config.Poison}
	route.To = published.sink()
	if route.Durable == router.DurableSynced {
		route.Durable = router.DurableAcknowledged // neither this source nor a nil To could say what is synced
	}
	config.Poison = poisoned.sink()
	from := &source{messages: make(chan *message.Message)}
	route.Name, route.From, route.Topic = cmp.Or(route.Name, "test"), from, cmp.Or(route.Topic, "test")
	r, err := router.New(config, nil)
	if err != nil {
		return Result{}, err
	}
	if err := r.Add(route); err != nil {
		return Result{}, errors.Join(err, r.Close())
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // it closes the source when nothing is sent any more
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.Run(running) }() // ends with running
	for _, msg := range messages {
		if err = from.deliver(ctx, msg.Copy()); err != nil {
			break
		}
	}
	stop()
	err = errors.Join(err, <-done) // everything is counted
	return Result{Published: published.all(), Poisoned: poisoned.all(), Health: r.Health()[0]}, err
}

// source is a subscriber that hands out what it is sent.
type source struct {
	messages chan *message.Message
	close    sync.Once
}

// Subscribe returns a channel that Close closes.
func (s *source) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}

// Close is called when no message is delivered any more.
func (s *source) Close() error {
	s.close.Do(func() { close(s.messages) })
	return nil
}

// deliver returns when the message is acked or nacked.
func (s *source) deliver(ctx context.Context, msg *message.Message) error {
	select {
	case s.messages <- msg:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// tee keeps copies of what another publisher has stored.
type tee struct {
	to message.Publisher // nil: stores everything

	mu   sync.Mutex
	kept []Published
}

// sink returns a sink that is like to.
func (t *tee) sink() sinks.Sink {
	config, name := sinks.PublisherConfig{}, "test"
	if to, ok := t.to.(sinks.Sink); ok {
		config.Description, config.Topics, name = to.Describe(), to, to.Describe().Name
	}
	return sinks.FromPublisher(name, t, config)
}

// Publish publishes, and keeps copies.
func (t *tee) Publish(topic string, messages ...*message.Message) error {
	if t.to != nil {
		if err := t.to.Publish(topic, messages...); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, msg := range messages {
		t.kept = append(t.kept, Published{topic, msg.Copy()})
	}
	return nil
}

// Close closes the publisher.
func (t *tee) Close() error {
	if t.to == nil {
		return nil
	}
	return t.to.Close()
}

func (t *tee) all() []Published {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept
}
