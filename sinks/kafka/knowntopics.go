package kafka

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// knownTopics is what a sink knows of topics until it has to look again.
type knownTopics struct {
	topicsMu sync.Mutex
	topics   map[string]*topic
	names    map[string]string // of those that were found, by the topic of the call
	lanes    map[string]*lane  // the last ones
	flights  map[string]*flight
	alone    map[string]time.Time // until when messages go one per request
}

func newKnownTopics() knownTopics {
	return knownTopics{
		topics: map[string]*topic{}, names: map[string]string{}, lanes: map[string]*lane{},
		flights: map[string]*flight{}, alone: map[string]time.Time{},
	}
}

// find returns what is known of a topic, or the look at it that is under way; first means that the
// caller has to take that look.
func (k *knownTopics) find(name string) (t *topic, f *flight, first bool) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	if t := k.topics[name]; t != nil {
		return t, nil, false
	}
	if f := k.flights[name]; f != nil {
		return nil, f, false
	}
	f = &flight{done: make(chan struct{})}
	k.flights[name] = f
	return nil, f, true
}

// landed hands what a look has found to those who wait. called is the topic of the sink.
func (k *knownTopics) landed(name, called string, f *flight) {
	k.topicsMu.Lock()
	delete(k.flights, name)
	if f.err == nil {
		k.topics[name], k.names[called] = f.topic, name
	}
	k.topicsMu.Unlock()
	close(f.done)
}

func (k *knownTopics) knownName(called string) (name string, ok bool) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	name, ok = k.names[called]
	return name, ok
}

func (k *knownTopics) allTopics() []*topic {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	return slices.Collect(maps.Values(k.topics))
}

func (k *knownTopics) lastLane(name string) *lane {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	return k.lanes[name]
}

func (k *knownTopics) setLane(name string, to *lane) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	k.lanes[name] = to
}

// flight is a look at a topic under way.
type flight struct {
	done  chan struct{} // closed when topic and err are set
	topic *topic
	err   error
}

// forget makes the next message of a topic look at it again.
func (k *knownTopics) forget(t *topic) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	if k.topics[t.name] == t {
		delete(k.topics, t.name)
	}
}

// sendAlone makes the messages of a topic go one per request for a while.
func (k *knownTopics) sendAlone(t *topic) {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	k.alone[t.name] = time.Now().Add(aloneFor)
	if k.topics[t.name] == t {
		delete(k.topics, t.name)
	}
}

// isAlone reports whether sendAlone was called lately.
func (k *knownTopics) isAlone(name string) bool {
	k.topicsMu.Lock()
	defer k.topicsMu.Unlock()
	until, ok := k.alone[name]
	if ok && !time.Now().Before(until) {
		delete(k.alone, name)
		return false
	}
	return ok
}
