package kafka

import (
	"sync"
	"time"
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
	done  chan struct{} // closed when topic and err are set
	topic *topic
	err   error
}

// find returns what is known of a topic, or the look at it that is under way; first means that the
// caller has to take that look, with what the last one has found.
func (k *knownTopics) find(called string) (t *topic, f *flight, first bool) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	known := k.byTopic[called]
	switch {
	case known == nil:
		known = &knownTopic{}
		k.byTopic[called] = known
	case known.flight != nil:
		return nil, known.flight, false
	case !known.stale:
		return known.topic, nil, false
	}
	known.flight = &flight{done: make(chan struct{})}
	return known.topic, known.flight, true
}

// landed hands what a look has found to those who wait.
func (k *knownTopics) landed(called string, f *flight) {
	k.topicsMu.Lock()
	known := k.byTopic[called]
	known.flight = nil
	switch {
	case f.err == nil:
		known.topic, known.stale = f.topic, false
	case known.topic == nil:
		delete(k.byTopic, called)
	}
	k.topicsMu.Unlock()
	close(f.done)
}

// nameOf returns the Kafka topic for a topic that was found, else "".
func (k *knownTopics) nameOf(called string) string {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	if known := k.byTopic[called]; known != nil && known.topic != nil {
		return known.topic.name
	}
	return ""
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
