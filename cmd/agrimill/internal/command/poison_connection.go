package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
	kafkaqueue "github.com/agrimill/agrimill/stores/kafka/poisonqueue"
	natsqueue "github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

const connectionHelp = `--config FILE is agrimill's configuration, whose poison queue must be in a sink of kind nats
or kafka. agrimill need not be running.`

type connection struct {
	configPath string
	// loaded is what is in the file, once use has read it.
	loaded *config.Config
}

func (c *connection) define(cmd *cobra.Command) { configFlag(cmd, &c.configPath) }

// use calls f with the poison queue, and closes it afterwards. Streams and topics are never created or changed, whatever the
// configuration says.
func (c *connection) use(ctx context.Context, p *program, f func(router.PoisonStore) error) (err error) {
	if c.configPath == "" {
		return usagef("--config is required: it says where the poison queue is")
	}
	if c.loaded, err = p.loadConfig(c.configPath); err != nil {
		return err
	}
	var queue router.PoisonStore
	var closing func() error
	if err := await(ctx, func() (err error) { queue, closing, err = c.open(); return err }); err != nil {
		return c.explain(err)
	}
	defer func() { err = errors.Join(err, closing()) }()
	return c.explain(f(queue))
}

func (c *connection) open() (router.PoisonStore, func() error, error) {
	name, topic := c.loaded.Poison.Sink, c.loaded.Poison.Topic
	switch sink := c.loaded.Sinks[name]; {
	case sink.Kafka != nil:
		settings, err := sink.Kafka.PoisonQueueConfig(topic)
		if err != nil {
			return nil, nil, invalid(err)
		}
		queue, err := kafkaqueue.New(settings)
		if err != nil {
			return nil, nil, invalid(err)
		}
		return queue, queue.Close, nil
	case sink.NATS != nil:
		settings, err := sink.NATS.SinkConfig(name)
		if err != nil {
			return nil, nil, invalid(err)
		}
		settings.Provision = nats.ProvisionNone
		opened, err := nats.New(settings, nil) // which finds out whether the stream has the topic
		if err != nil {
			return nil, nil, err
		}
		at := sink.NATS.PoisonQueueConfig(topic)
		at.Conn = opened.Conn()
		queue, err := natsqueue.New(at)
		if err != nil {
			return nil, nil, errors.Join(err, opened.Close())
		}
		return queue, opened.Close, nil
	default:
		return nil, nil, invalid(fmt.Errorf("%s: the poison queue is in sink %q of kind %s; these commands work only with a queue in NATS JetStream or Kafka",
			c.configPath, name, sink.Kind()))
	}
}

// explain adds what to do if the stream does not exist or does not contain the queue.
func (c *connection) explain(err error) error {
	where := fmt.Sprintf("see sinks.%s.nats in %s", c.loaded.Poison.Sink, c.configPath)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		sink := c.loaded.Sinks[c.loaded.Poison.Sink].NATS
		return fmt.Errorf("no poison queue: NATS at %s has no stream %s. Is it the right server and stream (%s)? agrimill creates the stream when it first runs",
			cmp.Or(config.Hosts(sink.URL), natsgo.DefaultURL), sink.Stream, where)
	case errors.Is(err, nats.ErrStream), errors.Is(err, sinks.ErrUnavailable):
		return fmt.Errorf("%w (%s)", err, where)
	}
	return err
}
