package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// newGateway makes the client, the directory of tenants and the one subscriber
// that all routes from the gateway share. They live as long as the pipeline.
func (p *Pipeline) newGateway(cfg *config.Config) error {
	clientConfig, err := cfg.Gateway.ClientConfig()
	if err != nil {
		return err
	}
	clientConfig.Logger = p.logger.With("part", "gateway")
	if p.client, err = gateway.New(clientConfig); err != nil {
		return err
	}
	p.directory = gateway.NewDirectory(p.client)

	subscriberConfig := cfg.SubscriberConfig()
	subscriberConfig.Client = p.client
	subscriberConfig.Tenants = p.directory // kept current with every event
	subscriberConfig.Hooks = p.tracing.Hooks(subscriber.Hooks{Connected: p.endpoints.connected, Event: p.endpoints.event})
	subscriberConfig.Quarantine = subscriber.QuarantineConfig{Publisher: quarantine{p}}
	if p.claimCheck != nil {
		subscriberConfig.Payload.ClaimCheck = p.claimCheck
	}
	// A router gives its subscriptions up when their messages are done, or when it
	// has no more time for them. They have to be over before the next router
	// subscribes, or it would be given what is still open in them later.
	budget := budgetOf(cfg)
	subscriberConfig.DrainTimeout, subscriberConfig.CloseTimeout = budget.router/20, budget.subscriber
	p.subscriber, err = subscriber.New(subscriberConfig, p.libraryLogger(p.logger.With("part", "subscriber")))
	return err
}

// budget is how config.Shutdown.Timeout is spent.
type budget struct{ router, subscriber, sinks, spans time.Duration }

func budgetOf(cfg *config.Config) budget {
	whole := cfg.Shutdown.Timeout
	return budget{router: whole / 20 * 14, subscriber: whole / 20 * 3, sinks: whole / 20 * 2, spans: whole / 20}
}

// shared is the subscriber as a router gets it: the router may not close it,
// because the next one goes on with it. Hold, by which a router keeps the stream
// closed until all of its routes are subscribed, is that of the subscriber.
type shared struct{ *subscriber.Subscriber }

var _ interface{ Hold() (release func()) } = shared{}

// Close does nothing.
func (shared) Close() error { return nil }

// quarantine stores events that cannot be decoded in the poison queue, wherever
// that is now.
type quarantine struct{ *Pipeline }

// Publish implements message.Publisher.
func (q quarantine) Publish(_ string, messages ...*message.Message) error {
	g := q.now()
	return g.poison.Publish(g.config.Poison.Topic, messages...)
}

// Close does nothing: the sink is not the subscriber's.
func (quarantine) Close() error { return nil }

// authorize finds out whether the gateway takes the credentials. It asks until
// there is an answer; a refusal ends the pipeline. Later refusals do not: they are
// an outage, for what was accepted once is not a mistake in the configuration.
func (p *Pipeline) authorize(ctx context.Context) {
	policy := backoff.Policy{Min: minOpenWait, Max: maxOpenWait}
	for n := 0; ; n++ {
		err := p.directory.Sync(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			close(p.authorized)
			return
		case errors.Is(err, gateway.ErrUnauthorized), errors.Is(err, gateway.ErrForbidden):
			p.fail(&RefusedError{What: "the credentials", Err: err})
			return
		case n == 0:
			p.logger.Warn("the gateway cannot be asked for the tenants, trying until it can", "error", router.RedactError(err, nil))
		}
		if policy.Wait(ctx, n) != nil {
			return
		}
	}
}

// isAuthorized reports whether the gateway has accepted the credentials.
func (p *Pipeline) isAuthorized() bool {
	select {
	case <-p.authorized:
		return true
	default:
		return false
	}
}
