package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// newGateway creates the client, the directory of tenants and the one subscriber that all
// routes from the gateway share. They live as long as the pipeline.
func (p *Pipeline) newGateway(cfg *config.Config) error {
	clientConfig, err := cfg.Gateway.ClientConfig()
	if err != nil {
		return err
	}
	clientConfig.Logger = p.logger.With("part", "gateway")
	p.secret = &secret{logger: clientConfig.Logger, from: cfg, latest: cfg.Gateway.ClientSecret}
	clientConfig.ClientSecret, clientConfig.ClientSecretFunc = "", p.secret.get
	if p.client, err = gateway.New(clientConfig); err != nil {
		return err
	}
	p.directory = gateway.NewDirectory(p.client)
	p.names = newNames(p.directory, func(found bool) {
		if g := p.now(); !found || g != nil && !g.receives() { // no event tells that another one has taken its place
			wakeup.Token(p.looked)
		}
	})

	subscriberConfig := cfg.SubscriberConfig()
	subscriberConfig.Client, subscriberConfig.Payload.ClaimCheck = p.client, p.claims
	subscriberConfig.Tenants = p.directory // kept up to date by events
	subscriberConfig.Hooks = p.tracing.Hooks(subscriber.Hooks{
		Connected: p.endpoints.connected,
		Event: func(event gateway.Event) {
			p.journal.Event(event)
			p.endpoints.event(event)
		},
		Undeliverable: p.journal.Undeliverable, Progress: p.journal.Progress, Confirmed: p.journal.Confirmed, ConfirmationRejected: p.journal.Rejected,
	})
	if p.lease != nil {
		subscriberConfig.Lease, subscriberConfig.Hooks.Holding = p.lease, p.turns.hold
	}
	subscriberConfig.Quarantine = subscriber.QuarantineConfig{Publisher: quarantine{p}}
	// The subscriptions of a router have to end before the next one subscribes: what is open in them would be delivered to it later.
	budget := budgetOf(cfg)
	subscriberConfig.DrainTimeout, subscriberConfig.CloseTimeout = budget.router/20, budget.subscriber
	p.subscriber, err = subscriber.New(subscriberConfig, p.libraryLogger(p.logger.With("part", "subscriber")))
	return err
}

// budget divides config.Shutdown.Timeout. What the router does not need of its part is the subscriber's, whose
// confirmations may take longer.
type budget struct{ router, subscriber, sinks, spans time.Duration }

func budgetOf(cfg *config.Config) budget {
	whole := cfg.Shutdown.Timeout
	return budget{router: whole / 20 * 14, subscriber: whole / 20 * 3, sinks: whole / 20 * 2, spans: whole / 20}
}

// shared is the subscriber as routers see it: a router must not close it, nor end its intake,
// because the next one continues with it.
type shared struct {
	*subscriber.Subscriber
	p *Pipeline
}

// Subscribe implements [message.Subscriber].
func (s shared) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	msgctx.SubscriptionOf(ctx).HandOn(s, s.Subscriber)
	return s.Subscriber.Subscribe(ctx, topic)
}

// Drain drains it when the pipeline stops.
func (s shared) Drain(ctx context.Context) {
	s.p.mu.Lock()
	draining := s.p.phase == phaseDraining
	s.p.mu.Unlock()
	if draining {
		s.Subscriber.Drain(ctx)
	}
}

// Close does nothing.
func (shared) Close() error { return nil }

type quarantine struct{ *Pipeline }

// Publish implements message.Publisher.
func (q quarantine) Publish(_ string, messages ...*message.Message) error {
	g := q.now()
	return g.poison.Publish(g.config.Poison.Topic, messages...)
}

// Close does nothing: the sink is not the subscriber's.
func (quarantine) Close() error { return nil }

// authorize asks until the gateway accepts the credentials; a refusal (401) ends the pipeline. Later ones are an outage: what was
// accepted once, here or for the stream, is no mistake in the configuration. So is any other response, which may come from
// something in between.
func (p *Pipeline) authorize(ctx context.Context) {
	policy := opening.Policy()
	var outage reminders.Log
	for n := 0; ; n++ {
		err := p.directory.Sync(ctx)
		stream := p.subscriber.Stats().Stream
		opened := stream.Connects > 0 && !stream.AwaitingHead
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if n > 0 {
				p.logger.Info("list of tenants available")
			}
			close(p.authorized)
			return
		case errors.Is(err, gateway.ErrUnauthorized) && !opened:
			p.fail(refused("the credentials", err))
			return
		case n == 0:
			p.logger.Warn("list of tenants unavailable; retrying", "error", router.RedactError(err, nil))
		}
		if lasted, due := outage.Failed(); due {
			p.logger.Error("list of tenants still unavailable; retrying", "lasted", lasted, "error", router.RedactError(err, nil))
		}
		if policy.Wait(ctx, n) != nil {
			return
		}
	}
}

// refreshTenants lists the tenants again when they are displayed, for changes that no event
// reports. It returns when ctx ends.
func (p *Pipeline) refreshTenants(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.looked:
		}
		if err := p.names.list(ctx); err != nil && ctx.Err() == nil {
			p.logger.Debug("the list of tenants could not be refreshed", "error", router.RedactError(err, nil))
		}
		if backoff.Sleep(ctx, p.options.TenantsInterval) != nil {
			return
		}
	}
}
