package pipeline

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sources/kafka"
	"github.com/agrimill/agrimill/sources/nats"
)

// newNATSSource creates the subscriber of a route from JetStream, which connects when the router subscribes.
func newNATSSource(route string, cfg config.NATSSource, timeouts budget, logger watermill.LoggerAdapter) (*nats.Subscriber, error) {
	settings, err := cfg.SourceConfig()
	if err != nil {
		return nil, err
	}
	settings.Name, settings.CloseTimeout = "agrimill "+route, timeouts.router/20
	return nats.New(settings, logger)
}

// newKafkaSource creates the subscriber of a route from Kafka, which connects when the router subscribes.
func newKafkaSource(cfg config.KafkaSource, timeouts budget, logger watermill.LoggerAdapter) (*kafka.Subscriber, error) {
	settings, err := cfg.SourceConfig()
	if err != nil {
		return nil, err
	}
	settings.CloseTimeout = min(timeouts.router/20, kafka.DefaultCloseTimeout)
	return kafka.New(settings, logger)
}

// backlog is how many messages are waiting, in the source of a route or in the poison
// queue.
type backlog struct {
	ask  func(context.Context) (int64, error)
	one  sync.Mutex            // is held while it is asked: the later answer counts
	last atomic.Pointer[int64] // nil: unknown
	// failure is why it is unknown, redacted; nil if it is known or was not asked for yet.
	failure atomic.Pointer[string]
}

// look queries it. It returns at the latest when ctx ends.
func (b *backlog) look(ctx context.Context) {
	b.one.Lock()
	defer b.one.Unlock()
	n, err := b.ask(ctx)
	if err != nil {
		text := router.RedactError(err, nil)
		b.last.Store(nil)
		b.failure.Store(&text)
		return
	}
	b.failure.Store(nil)
	b.last.Store(&n)
}
