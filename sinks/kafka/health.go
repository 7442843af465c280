package kafka

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
)

// Health asks the brokers for the topics written to so far. It returns nil when all their partitions have a leader and enough
// replicas in sync, or a broker answers when there are none; sinks.ErrUnavailable when not, sinks.ErrClosed after Close.
func (s *Sink) Health(ctx context.Context) error {
	return s.opening.Health(ctx, s.background, s.config.Name, s.life, s.look)
}

func (s *Sink) look() error {
	topics := s.allTopics()
	var names []string
	for _, t := range topics {
		names = append(names, t.name)
	}
	have, err := s.cluster.brokers(names...)
	if err != nil {
		return err
	}
	s.brokers.Store(&have)
	for _, t := range topics {
		err := s.cluster.writable(t.name, max(1, t.settings.minInSync))
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) && s.config.Provision == ProvisionCreate {
			s.forget(t) // it will be created again
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
