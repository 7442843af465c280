package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/lifecycle"
)

const (
	// staleAfter is how old a topic's limit is when a message above it makes the sink look again.
	staleAfter = 5 * time.Second
	// freshFor is for how long a topic is not looked at again: somebody may have it compacted, or let one replica acknowledge.
	freshFor = 5 * time.Minute
	// aloneFor is how long a topic's messages go one per request after a broker refused a batch of several.
	aloneFor = time.Minute
)

// topic is what the sink knows about a Kafka topic. It does not change.
type topic struct {
	called   string // the topic of the calls
	name     string
	settings settings
	limit    int // for messages; known settings only
	looked   time.Time
	lane     *lane
}

// lane is the way of a topic's messages through a producer. Calls enter it, and each message is in it until the
// producer is done with it.
type lane struct {
	producer *producer
	limits   producerKey
	life     *lifecycle.Life
}

// errDraining is the cause of ErrUnavailable while messages of the topic are with the producer before this one.
var errDraining = errors.New("earlier messages are still being sent, with other limits")

// prepareTopic makes sure that a topic exists, and has a producer. last is what was known of it before, if anything was.
func (s *Sink) prepareTopic(ctx context.Context, called string, last *topic) (*topic, error) {
	name := TopicName(s.config.TopicPrefix, called)
	if err := cmp.Or(checkTopic(name), s.opening.Err()); err != nil {
		return nil, err
	}
	have, err := s.cluster.topic(name)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		if s.config.Provision == ProvisionNone {
			return nil, fmt.Errorf("no such topic: %s; create it, or set provision to create", name)
		}
		if have, err = s.cluster.create(ctx, name, &s.config, s.brokers.Load().maxMessageBytes); err == nil {
			s.logger.Info("Kafka topic created", watermill.LogFields{"kafka_topic": name})
		}
	}
	if err != nil {
		return nil, err
	}
	t := &topic{called: called, name: name, settings: have, looked: time.Now()}
	t.limit = s.maxMessageSize(&t.settings)
	limits := producerKey{limit: recordLimit(t.limit, s.config.Compression), alone: !t.settings.known || s.isAlone(called)}
	if t.lane, err = s.lane(ctx, last, limits); err != nil {
		return nil, err
	}
	return t, nil
}

// lane returns the lane of a topic to the producer with these limits. If the last one led to another producer, it waits
// until that has nothing left of the topic: what it sends again might be stored behind its successors. There is one call
// for a topic at a time.
func (s *Sink) lane(ctx context.Context, last *topic, limits producerKey) (*lane, error) {
	if last != nil {
		if last.lane.limits == limits && last.lane.life.Enter() {
			last.lane.life.Leave()
			return last.lane, nil
		}
		last.lane.life.Close(func() {})
		select {
		case <-last.lane.life.Idle(): // with the last message, at the latest when the producer is closed
		case <-ctx.Done():
			return nil, errDraining
		}
	}
	p, err := s.producer(limits)
	if err != nil {
		return nil, err
	}
	return &lane{producer: p, limits: limits, life: lifecycle.New()}, nil
}

// maxMessageSize returns the limit for messages by the settings of a topic, or of the brokers.
func (s *Sink) maxMessageSize(have *settings) int {
	limit := int(maxRequestSize())
	if have.known {
		limit = min(limit, have.maxMessageBytes)
	}
	if s.config.MaxMessageSize > 0 {
		limit = min(limit, s.config.MaxMessageSize)
	}
	return limit
}

// producer returns the producer for a limit, which it makes if there is none.
func (s *Sink) producer(key producerKey) (*producer, error) {
	config := s.config.sarama(s.dialer) // not under the lock: it calls Configure
	s.producersMu.Lock()
	defer s.producersMu.Unlock()
	if p := s.producers[key]; p != nil {
		return p, nil
	}
	p, err := newProducer(s.config.Brokers, config, key, s.config.MaxPending, s.finish)
	if err != nil {
		return nil, err
	}
	s.producers[key] = p
	return p, nil
}
