package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// knownTopics is what a sink knows of topics, by the topics of the calls.
type knownTopics struct {
	topicsMu sync.Mutex
	byTopic  map[string]*knownTopic
}

// knownTopic is what a sink knows of one.
type knownTopic struct {
	topic  *topic    // as the last look found it; nil: none did
	stale  bool      // the next message looks at it again
	flight *flight   // nil: none is under way
	alone  time.Time // until when messages go one per request
}

// flight is a look at a topic under way.
type flight struct {
	done chan struct{} // closed when err is set, and knownTopics has the topic if that is nil
	err  error
}

// lookUp returns what is known about a topic, or the look at it that has to be waited for.
func (s *Sink) lookUp(called string) (*topic, *flight) {
	called = legalTopic(called) // of topics with one name only one is looked at
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	known := s.byTopic[called]
	switch {
	case known == nil:
		known = &knownTopic{}
		s.byTopic[called] = known
	case known.flight != nil:
		return nil, known.flight
	case !known.stale && time.Since(known.topic.looked) < freshFor:
		return known.topic, nil
	}
	known.flight = &flight{done: make(chan struct{})}
	s.life.Fork()
	go s.fly(called, known) // ends by its time-out or by Close
	return nil, known.flight
}

// fly prepares a topic for those who wait.
func (s *Sink) fly(called string, known *knownTopic) {
	defer s.life.Leave()
	ctx, cancel := context.WithTimeout(s.background, s.config.ConnectTimeout)
	defer cancel()
	t, err := s.prepareTopic(ctx, called, known.topic) // which nobody changes meanwhile
	s.topicsMu.Lock()
	f := known.flight
	f.err, known.flight = err, nil
	switch {
	case err == nil:
		known.topic, known.stale = t, false
		s.lower(t)
	case known.topic == nil:
		delete(s.byTopic, called)
	}
	s.topicsMu.Unlock()
	close(f.done)
	if err == nil {
		s.warn(watermill.LogFields{"kafka_topic": t.name}, t.settings.weaknesses()...)
	}
}

// allTopics returns the topics at which nobody has to look again.
func (k *knownTopics) allTopics() (topics []*topic) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	for _, known := range k.byTopic {
		if known.topic != nil && !known.stale {
			topics = append(topics, known.topic)
		}
	}
	return topics
}

// forget makes the next message of a topic look at it again.
func (k *knownTopics) forget(t *topic) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	if known := k.byTopic[t.called]; known.topic == t {
		known.stale = true
	}
}

// sendAlone makes the messages of a topic go one per request for a while.
func (k *knownTopics) sendAlone(t *topic) {
	k.forget(t)
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	k.byTopic[t.called].alone = time.Now().Add(aloneFor)
}

// isAlone reports whether sendAlone was called lately.
func (k *knownTopics) isAlone(called string) bool {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	return time.Now().Before(k.byTopic[called].alone)
}
