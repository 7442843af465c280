package kafka

import (
	"context"
	"errors"

	"github.com/agrimill/agrimill/sinks"
)

// Health asks the brokers for the topics written to so far. It returns nil when
// all their partitions have a leader and enough replicas in sync, or a broker
// answers when there are none; sinks.ErrUnavailable when not, sinks.ErrClosed
// after Close.
func (s *Sink) Health(ctx context.Context) error {
	if !s.life.Enter() {
		return sinks.NewError(s.config.Name, "", sinks.ErrClosed, nil)
	}
	if err := s.opening.Err(); err != nil {
		s.life.Leave()
		return sinks.NewError(s.config.Name, "", sinks.ErrUnavailable, err)
	}
	result := make(chan error, 1)
	// sarama knows no contexts; it ends by its time-outs or by Close.
	go func() {
		defer s.life.Leave()
		result <- s.look()
	}()
	select {
	case err := <-result:
		if err == nil {
			return nil
		}
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		return sinks.NewError(s.config.Name, "", sinks.ErrUnavailable, err)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.background.Done():
		return sinks.NewError(s.config.Name, "", sinks.ErrClosed, nil)
	}
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
