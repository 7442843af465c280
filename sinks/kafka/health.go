package kafka

import (
	"context"
	"errors"
)

// Health asks the brokers for the topics written to so far. It returns nil when
// all their partitions have a leader and enough replicas in sync, or a broker
// answers when there are none; sinks.ErrUnavailable when not, sinks.ErrClosed
// after Close.
func (s *Sink) Health(ctx context.Context) error {
	// sarama knows no contexts; it ends by its time-outs or by Close.
	return s.opening.Health(ctx, s.background, s.config.Name, s.life, s.look)
}

func (s *Sink) look() error {
	have, err := s.cluster.brokers()
	if err != nil {
		return err
	}
	s.brokers.Store(&have)
	topics := s.allTopics()
	fresh := s.cluster.refreshAll(topics) == nil // otherwise one by one, to know which
	for _, t := range topics {
		var err error
		if !fresh {
			err = s.cluster.refresh(t.name)
		}
		if err == nil {
			err = s.cluster.writable(t.name, max(1, t.settings.minInSync))
		}
		if errors.Is(err, errNoTopic) && s.config.Provision == ProvisionCreate {
			s.forget(t) // it will be created again
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
