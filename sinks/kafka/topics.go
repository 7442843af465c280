package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

const (
	// staleAfter is how old a topic's limit is when a message above it makes the
	// sink look again.
	staleAfter = 5 * time.Second
	// aloneFor is how long a topic's messages go one per request after a broker
	// refused a batch of several.
	aloneFor = time.Minute
)

// topic is what the sink knows about a Kafka topic. It does not change.
type topic struct {
	name     string
	settings settings
	limit    int // for messages; known settings only
	looked   time.Time
	lane     *lane
}

// lane is the way of a topic's messages through a producer. Calls enter it, and each
// message is in it until the producer is done with it, whether or not its sender still
// waits.
type lane struct {
	producer *producer
	limits   producerKey
	life     *lifecycle.Life
	drained  chan struct{} // nil until it is closed; then closed with its last message
}

// drain closes the lane, and waits until nothing is in it.
func (l *lane) drain(ctx context.Context) error {
	if l.drained == nil {
		l.life.Close(func() {})
		drained := make(chan struct{})
		go func() { // ends with the last message, at the latest when the producer is closed
			defer close(drained)
			<-l.life.Idle()
		}()
		l.drained = drained
	}
	select {
	case <-l.drained:
		return nil
	case <-ctx.Done():
		return errDraining
	}
}

// errDraining is the cause of ErrUnavailable while messages of the topic are with the
// producer before this one.
var errDraining = errors.New("earlier messages are still being sent, with other limits")

// flight is a look at a topic under way.
type flight struct {
	done  chan struct{} // closed when topic and err are set
	topic *topic
	err   error
}

// lookUp returns what is known about a topic, or the look at it that has to be
// waited for.
func (s *Sink) lookUp(name string) (*topic, *flight) {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	if t := s.topics[name]; t != nil {
		return t, nil
	}
	f := s.flights[name]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		s.flights[name] = f
		s.life.Fork()
		go func() { // ends by its time-out or by Close
			defer s.life.Leave()
			s.fly(name, f)
		}()
	}
	return nil, f
}

// fly prepares a topic and hands it to those who wait.
func (s *Sink) fly(name string, f *flight) {
	ctx, cancel := context.WithTimeout(s.background, s.config.ConnectTimeout)
	defer cancel()
	f.topic, f.err = s.prepareTopic(ctx, name)
	s.topicsMu.Lock()
	delete(s.flights, name)
	if f.err == nil {
		s.topics[name] = f.topic
		s.names[s.config.sinkTopic(name)] = name
	}
	s.topicsMu.Unlock()
	close(f.done)
	if f.err == nil {
		s.assess(f.topic)
	}
}

// forget makes the next message of a topic look at it again.
func (s *Sink) forget(t *topic) {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	if s.topics[t.name] == t {
		delete(s.topics, t.name)
	}
}

// sendAlone makes the messages of a topic go one per request for a while.
func (s *Sink) sendAlone(t *topic) {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	s.alone[t.name] = time.Now().Add(aloneFor)
	if s.topics[t.name] == t {
		delete(s.topics, t.name)
	}
}

// isAlone reports whether sendAlone was called lately.
func (s *Sink) isAlone(name string) bool {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	until, ok := s.alone[name]
	if ok && !time.Now().Before(until) {
		delete(s.alone, name)
		return false
	}
	return ok
}

// prepareTopic makes sure that a topic exists, and that there is a producer for
// its limit.
func (s *Sink) prepareTopic(ctx context.Context, name string) (*topic, error) {
	err := s.cluster.refresh(name)
	if errors.Is(err, errNoTopic) {
		if s.config.Provision == ProvisionNone {
			return nil, fmt.Errorf("%w; create it, or use ProvisionCreate", err)
		}
		if err = s.cluster.create(ctx, name, &s.config, s.brokers.Load().maxMessageBytes); err == nil {
			s.logger.Info("Kafka topic created", watermill.LogFields{"kafka_topic": name})
		}
	}
	if err != nil {
		return nil, err
	}
	t := &topic{name: name, looked: time.Now()}
	if t.settings, err = s.cluster.topic(name); err != nil {
		return nil, err
	}
	t.limit = s.maxMessageSize(&t.settings)
	limits := producerKey{limit: recordLimit(t.limit, s.config.Compression), alone: !t.settings.known || s.isAlone(name)}
	if t.lane, err = s.lane(ctx, name, limits); err != nil {
		return nil, err
	}
	return t, nil
}

// lane returns the lane of a topic to the producer with these limits. If the last one
// led to another producer, it waits until that has nothing left of the topic: what it
// sends again might be stored behind its successors. There is one call for a topic at a
// time.
func (s *Sink) lane(ctx context.Context, name string, limits producerKey) (*lane, error) {
	s.topicsMu.Lock()
	last := s.lanes[name]
	s.topicsMu.Unlock()
	if last != nil {
		if last.limits == limits && last.drained == nil {
			return last, nil
		}
		if err := last.drain(ctx); err != nil {
			return nil, err
		}
	}
	p, err := s.producer(limits)
	if err != nil {
		return nil, err
	}
	next := &lane{producer: p, limits: limits, life: lifecycle.New()}
	s.topicsMu.Lock()
	s.lanes[name] = next
	s.topicsMu.Unlock()
	return next, nil
}

// maxMessageSize returns the limit for messages of a topic, or of topics in
// general when given the brokers' settings.
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

// assess warns where a topic promises less than "nothing is lost" needs, and
// lowers what Describe says if need be.
func (s *Sink) assess(t *topic) {
	have := t.settings
	level, note := durability(&have, "topic "+t.name)
	s.durabilityMu.Lock()
	if s.weakest == nil || level < s.weakest.Durability {
		s.weakest = &sinks.Description{Durability: level, DurabilityNote: note}
	}
	s.durabilityMu.Unlock()

	fields := watermill.LogFields{"kafka_topic": t.name}
	if !have.known {
		s.warn("not allowed to read the settings of topics, so messages go one per request, and their limit is not known; grant DescribeConfigs", fields)
		return
	}
	s.warnSettings(&have, fields)
}

// warnSettings warns about settings of a topic, or of topics yet to be created.
func (s *Sink) warnSettings(have *settings, fields watermill.LogFields) {
	switch {
	case have.replicationFactor == 1:
		s.warn("replication factor 1: the loss of one broker's disk loses acknowledged messages; use 3", fields)
	case have.minInSync < 2 && have.replicationFactor > 1:
		s.warn("min.insync.replicas 1: the leader alone may acknowledge, and its loss then loses messages; use 2 with replication factor 3", fields)
	}
	if have.uncleanElection {
		s.warn("unclean.leader.election.enable: a replica that lacks acknowledged messages may become the leader; set it to false", fields)
	}
	if have.compacted {
		s.warn("cleanup.policy compact: only the last message of each key is kept; use delete", fields)
	}
}

// warn logs a warning once, not for every topic.
func (s *Sink) warn(text string, fields watermill.LogFields) {
	s.durabilityMu.Lock()
	known := s.warned[text]
	s.warned[text] = true
	s.durabilityMu.Unlock()
	if known {
		s.logger.Debug("Warning, as before: "+text, fields)
		return
	}
	warnlog.Warn(s.logger, text, fields)
}

// synced returns when what is acknowledged survives a power cut, if the topics are what somebody has said it of.
func synced(level sinks.Durability, said sinks.Synced) sinks.Synced {
	if level < sinks.DurabilityDisk || said == sinks.SyncedReplicas && level != sinks.DurabilityReplicated {
		return sinks.SyncedUnknown
	}
	return said
}

// durability returns what the settings of a topic promise.
func durability(have *settings, what string) (sinks.Durability, string) {
	switch {
	case !have.known:
		return sinks.DurabilityUnknown, "the settings cannot be read; grant DescribeConfigs"
	case have.compacted:
		return sinks.DurabilityNone, what + " has cleanup.policy compact: only the last message of each key is kept; use delete"
	case have.replicationFactor > 1 && have.minInSync > 1 && !have.uncleanElection:
		return sinks.DurabilityReplicated, fmt.Sprintf("acknowledged by at least %d of %d replicas (acks=all)", have.minInSync, have.replicationFactor)
	case have.flushEveryMessage:
		return sinks.DurabilitySynced, what + " syncs every message before the acknowledgement (flush.messages 1), on one broker at least"
	case have.replicationFactor > 1:
		return sinks.DurabilityDisk, fmt.Sprintf("%s has %d replicas, but one alone may acknowledge, before it synced: use min.insync.replicas 2 with replication factor 3, without unclean leader election", what, have.replicationFactor)
	default:
		return sinks.DurabilityDisk, what + " has one copy, not synced before the acknowledgement: a power cut may lose acknowledged messages; use replication factor 3 with min.insync.replicas 2"
	}
}
