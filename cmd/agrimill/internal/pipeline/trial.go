package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// Trial handles single messages as the routes of a configuration would, with neither its
// gateway nor its brokers and stores: filters, transforms, metadata and topics are those of the
// routes, and the sinks take everything. It is safe for concurrent use.
type Trial struct{ cfg *config.Config }

// NewTrial returns a trial of a configuration that [config.Load] has accepted.
func NewTrial(cfg *config.Config) *Trial { return &Trial{cfg} }

// TrialOutcome is what became of a message in a route.
type TrialOutcome string

// Outcomes of a trial.
const (
	TrialPublished TrialOutcome = "published"
	TrialFiltered  TrialOutcome = "filtered" // also by a transform that makes nothing of it
	TrialPoisoned  TrialOutcome = "poisoned"
)

// TrialResult is what became of a message in one route.
type TrialResult struct {
	Route   string
	Outcome TrialOutcome
	// Messages are what the route has published, in order.
	Messages []TrialMessage
	// Class and Reason are those of the error that poisoned the message: permanent or handler,
	// see [router.ClassOf], and the redacted text.
	Class, Reason string
}

// TrialMessage is a published message. Topic is as the route names it: a sink may have a prefix.
type TrialMessage struct {
	Topic   string
	Message *message.Message
}

// ErrNoRoute says that a trial names a route that the configuration does not have, or that has
// another source.
var ErrNoRoute = errors.New("no such route")

// Run handles copies of msg and returns the results in the order of the routes. With an empty
// route they are handled by all routes that are subscribed to such an event of the gateway,
// which the metadata tell (event type and message type); otherwise by the named route. A
// failing handler is not retried. The error is [ErrNoRoute] or that of ctx.
func (t *Trial) Run(ctx context.Context, route string, msg *message.Message) ([]TrialResult, error) {
	event, messageType := gateway.EventType(msg.Metadata[gateway.KeyEventType]), msg.Metadata[gateway.KeyMessageType]
	var results []TrialResult
	known := false
	for _, cfg := range t.cfg.Routes {
		known = known || cfg.Name == route
		if route != cfg.Name && (route != "" || cfg.From.Gateway == "" || !subscriber.Takes(cfg.From.GatewayTopic(), event, messageType)) {
			continue
		}
		result, err := t.run(ctx, cfg, msg)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", cfg.Name, err)
		}
		results = append(results, result)
	}
	if route != "" && !known {
		return nil, fmt.Errorf("%w: %q", ErrNoRoute, route)
	}
	return results, nil
}

// run handles a copy of msg in one route.
func (t *Trial) run(ctx context.Context, cfg config.Route, msg *message.Message) (TrialResult, error) {
	to, poison := &recorder{}, &recorder{}
	source := trialSource{messages: make(chan *message.Message)}
	route := router.Route{Name: cfg.Name, From: source, Topic: "trial"}
	if g := cfg.To.Gateway; g != nil {
		rules, err := config.Rules()
		if err != nil {
			return TrialResult{}, err
		}
		defer func() { _ = rules.Close() }() // nothing is open
		topics := t.cfg.PublisherConfig(*g)
		topics.Client = rules
		route.To, route.ToTopic = sinks.FromPublisher("gateway", to, sinks.PublisherConfig{Topics: topics}), g.Type
		route.Filter = newFilter(cfg.Filter, t.cfg.PublisherConfig(*g).EndpointID, true)
	} else {
		sink := t.cfg.Sinks[cfg.To.Sink]
		route.To, route.ToTopic = sinks.FromPublisher(cfg.To.Sink, to, sinks.PublisherConfig{Topics: sink.Topics(), Store: to.store(sink)}), cfg.To.Topic
		route.Filter = newFilter(cfg.Filter, "", false)
	}
	p := &Pipeline{} // without a memory of devices
	if err := errors.Join(p.setFarm(cfg, &route), p.setExpressions(cfg, &route)); err != nil {
		return TrialResult{}, err
	}
	routerConfig := t.cfg.RouterConfig()
	routerConfig.Poison = poison
	routerConfig.Retry.MaxAttempts = 1
	routerConfig.Dedup.KeyFunc = router.NoKeys // each trial is the first
	r, err := router.New(routerConfig, nil)
	if err != nil {
		return TrialResult{}, err
	}
	if err := r.Add(route); err != nil {
		return TrialResult{}, errors.Join(err, r.Close())
	}

	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(running) }() // ends with running
	err = handle(ctx, source.messages, msg.Copy())
	stop()
	if err := errors.Join(err, <-done); err != nil { // and everything is counted
		return TrialResult{}, err
	}

	result := TrialResult{Route: cfg.Name, Outcome: TrialPublished, Messages: to.all()}
	switch {
	case r.Health()[0].Poisoned > 0:
		result.Outcome = TrialPoisoned
		for _, poisoned := range poison.all() {
			result.Class, result.Reason = poisoned.Message.Metadata[router.KeyPoisonClass], poisoned.Message.Metadata[router.KeyPoisonReason]
		}
	case len(result.Messages) == 0:
		result.Outcome = TrialFiltered
	}
	return result, nil
}

// handle waits until a message was handled.
func handle(ctx context.Context, to chan<- *message.Message, msg *message.Message) error {
	select {
	case to <- msg:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-msg.Acked():
		return nil
	case <-msg.Nacked():
		return errors.New("the message was returned to its source")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// trialSource is a source that hands out what is sent to it.
type trialSource struct{ messages chan *message.Message }

// Subscribe returns a channel that is never closed: the Router stops by its own.
func (s trialSource) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() { // ends with ctx
		defer close(out)
		for {
			select {
			case msg := <-s.messages:
				select {
				case out <- msg:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Close does nothing: the goroutine ends with the subscription.
func (trialSource) Close() error { return nil }

// recorder keeps what is published.
type recorder struct {
	mu       sync.Mutex
	messages []TrialMessage
}

// Publish keeps copies.
func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, msg := range messages {
		r.messages = append(r.messages, TrialMessage{topic, msg.Copy()})
	}
	return nil
}

// store returns Publish for messages that the sink can store.
func (r *recorder) store(sink config.Sink) func(string, *message.Message) (sinks.Receipt, error) {
	return func(topic string, msg *message.Message) (sinks.Receipt, error) {
		if sink.Blob != nil {
			if _, err := sink.Blob.Key(topic, msg); err != nil {
				return sinks.Receipt{}, err
			}
		}
		return sinks.Receipt{}, r.Publish(topic, msg)
	}
}

// Close does nothing.
func (r *recorder) Close() error { return nil }

func (r *recorder) all() []TrialMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.messages
}
