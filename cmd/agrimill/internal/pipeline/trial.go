package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/routertest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// Trial handles single messages as the routes of a configuration would, without its gateway, brokers and stores: the sinks take
// everything. It is safe for concurrent use.
type Trial struct {
	cfg   *config.Config
	names names // without a gateway
}

// NewTrial returns a trial of a configuration that [config.Load] has accepted.
func NewTrial(cfg *config.Config) *Trial { return &Trial{cfg: cfg} }

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
	// Their topics are as the route names them: a sink may have a prefix.
	Messages []routertest.Published
	// Class and Reason are those of the error that poisoned the message: permanent or handler,
	// see [router.ClassOf], and the redacted text.
	Class, Reason string
}

// ErrNoRoute says that a trial names a route that the configuration does not have, or that has
// another source.
var ErrNoRoute = errors.New("no such route")

// Run handles copies of msg and returns the results in the order of the routes. With an empty
// route they are handled by all routes that are subscribed to such an event of the gateway,
// which the metadata tell (event type and message type); otherwise by the named route. A
// failing handler is not retried. The error is [ErrNoRoute], [ErrOffline] or that of ctx.
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

func (t *Trial) run(ctx context.Context, cfg config.Route, msg *message.Message) (TrialResult, error) {
	route := router.Route{Name: cfg.Name}
	if g := cfg.To.Gateway; g != nil {
		rules, err := config.Rules()
		if err != nil {
			return TrialResult{}, err
		}
		defer func() { _ = rules.Close() }() // nothing is open
		to := t.cfg.PublisherConfig(*g)
		to.Client = rules
		route.To, route.ToTopic = sinks.FromPublisher("gateway", willing{}, sinks.PublisherConfig{Topics: to}), g.Type
		route.Filter = t.names.newFilter(cfg.Filter, &to)
	} else {
		sink := t.cfg.Sinks[cfg.To.Sink]
		route.To, route.ToTopic = sinks.FromPublisher(cfg.To.Sink, willing(sink), sinks.PublisherConfig{Topics: sink.Topics()}), cfg.To.Topic
		route.Filter = t.names.newFilter(cfg.Filter, nil)
	}
	if route.Filter != nil {
		if _, err := route.Filter(msg); errors.Is(err, ErrOffline) {
			return TrialResult{}, err
		}
	}
	p := &Pipeline{} // without a memory of devices
	if err := errors.Join(p.setExpressions(cfg, &route), p.setFarm(cfg, &route)); err != nil {
		return TrialResult{}, err
	}
	routerConfig := t.cfg.RouterConfig()
	routerConfig.Retry.MaxAttempts = 1
	routerConfig.Dedup.KeyFunc = router.NoKeys // each trial is the first
	got, err := routertest.Deliver(ctx, routerConfig, route, msg)
	if err == nil && got.Health.Returned > 0 {
		err = errors.New("the message was returned to its source")
	}
	if err != nil {
		return TrialResult{}, err
	}

	result := TrialResult{Route: cfg.Name, Outcome: TrialPublished, Messages: got.Published}
	switch {
	case len(got.Poisoned) > 0:
		result.Outcome = TrialPoisoned
		metadata := got.Poisoned[0].Message.Metadata
		result.Class, result.Reason = metadata[router.KeyPoisonClass], metadata[router.KeyPoisonReason]
	case len(result.Messages) == 0:
		result.Outcome = TrialFiltered
	}
	return result, nil
}

// willing takes everything that the sink can store.
type willing config.Sink

// Publish fails for what has no place in a bucket.
func (w willing) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if w.Blob == nil {
			continue
		}
		if _, err := w.Blob.Key(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing.
func (willing) Close() error { return nil }
