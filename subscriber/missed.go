package subscriber

import (
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// seen is what subscriptions that are made later have missed.
type seen struct {
	untaken kindCounts     // that nobody has accepted
	acked   kindCounts     // that were acked by all on this connection
	before  map[string]int // what of acked came before the end of a topic's latest subscription, or was acked by one that ended
}

// catchUp gives sub, which is new, its place, and makes the service send again what it has missed and is not
// confirmed. The rest is counted in sub.missed. Only what nobody took is asked for at once: a subscription that is made
// again and again would have everybody reconnect all the time. s.mu is held.
func (s *Subscriber) catchUp(sub *subscription) {
	sub.route, _ = s.core.Add(s.now(), sub.name, sub.takes, sub.pipelines)
	sub.route.Owner = sub
	untaken, gone := s.seen.untaken.take(sub.topic)
	sub.missed = gone + s.seen.acked.of(sub.topic) - s.seen.before[sub.topic]
	switch {
	case untaken:
		s.recall()
	case sub.missed > 0 || s.core.Counts().Left > 0:
		s.core.Want(s.now())
	}
}

// errMissed is what is logged for a subscription that came late.
var errMissed = errors.New("subscriber: events that were acked before this subscription, or the route that a reload has added, was there do not come again; " +
	"to miss none, make it before the stream is opened")

// untaken records an event that no subscription accepts. It stays unconfirmed and is logged once per type.
func (s *Subscriber) untaken(d *delivery) {
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	s.stats.untaken.Add(1)
	s.mu.Lock()
	first := s.seen.untaken.count(event, messageType) == 1
	s.mu.Unlock()
	if first {
		s.logger.Info("no subscription accepts this kind of event; it stays unconfirmed until one has exactly its type as topic, or takes all", watermill.LogFields{
			"event_type": string(event), "message_type": messageType,
		})
	}
	if len(d.IDs) > 0 {
		s.progress(ProgressUntaken, d.event, 0)
	}
}

// ackedByEnded records that subscriptions that have ended have d nevertheless: one that is made again has not missed it.
func (s *Subscriber) ackedByEnded(d *delivery) {
	var topics []string
	for r := range d.AckedBy {
		if sub := r.Owner.(*subscription); wakeup.Raised(sub.stop) && !slices.Contains(topics, sub.topic) {
			topics = append(topics, sub.topic)
			s.seen.before[sub.topic]++
		}
	}
}

// maxUntakenKinds bounds how many kinds the subscriber remembers, since tenants
// choose the message types.
const maxUntakenKinds = 1000

type untakenKind struct {
	event       gateway.EventType
	messageType string
}

// kindCounts counts events by kind. Beyond maxUntakenKinds, those of a type count together.
type kindCounts map[untakenKind]int

func (c kindCounts) count(event gateway.EventType, messageType string) int {
	kind := untakenKind{event, messageType}
	if _, known := c[kind]; !known && len(c) >= maxUntakenKinds {
		kind = untakenKind{event, ""}
	}
	c[kind]++
	return c[kind]
}

// take forgets the kinds for topic and reports whether there were any, and how many events do not come again.
func (c kindCounts) take(topic string) (some bool, gone int) {
	for kind, n := range c {
		data := Takes(AllData, kind.event, "")
		if Takes(topic, kind.event, kind.messageType) || data && kind.messageType == "" {
			delete(c, kind)
			some = true
			if !data {
				gone += n
			}
		}
	}
	return some, gone
}

// of counts the events for topic.
func (c kindCounts) of(topic string) (n int) {
	for kind, count := range c {
		if Takes(topic, kind.event, kind.messageType) {
			n += count
		}
	}
	return n
}
