//go:build faults

package faulttest

import (
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// refusingSink takes no messages of the sick tenant during a fault. It refuses them at once,
// or when it has not answered for some time.
type refusingSink struct {
	sinks.Sink
	w     *partialWorld
	after time.Duration
	all   bool // whoever they are of
}

func (s *refusingSink) Publish(topic string, messages ...*message.Message) error {
	fault := s.w.faultNow()
	if len(messages) == 0 || !s.w.hit(fault != nil && (s.all || s.w.isSick(messages[0]))) {
		return s.Sink.Publish(topic, messages...)
	}
	if s.after > 0 {
		<-time.After(s.after)
	}
	return sinks.NewError("broker", topic, sinks.ErrUnavailable, errors.New("refused by the test"))
}

// topicOfTenant gives each tenant a topic, which the sink refuses that is the sick one's.
func topicOfTenant(after time.Duration) func(*partialWorld, *parts) {
	return func(w *partialWorld, p *parts) {
		p.Route.ToTopic = dataTopic + ".{tenant}"
		watch := p.Sink
		p.Sink = func(s sinks.Sink) sinks.Sink { return watch(&refusingSink{Sink: s, w: w, after: after}) }
	}
}

// twoRoutes gives the sick tenant a route of its own. Both routes get everything and drop
// what is the other one's.
func twoRoutes(w *partialWorld, p *parts) {
	p.Route.Filter = func(msg *message.Message) bool { return !w.isSick(msg) }
	p.More = func(from message.Subscriber, to sinks.Sink) []router.Route {
		second := p.Route
		second.Name, second.Filter = "sick", w.isSick
		second.From, second.To = from, &refusingSink{Sink: to, w: w, all: true}
		return []router.Route{second}
	}
}

// manyKeys lets every message be a key, and fails those of the sick tenant: every other one
// as long as the fault lasts, the rest once.
func manyKeys(w *partialWorld, p *parts) {
	p.Subscriber.Order = subscriber.OrderByKey
	p.Subscriber.OrderKey = func(event gateway.Event) string {
		if e, ok := event.(*gateway.MessageReceived); ok {
			return e.ID
		}
		return ""
	}
	var failed sync.Map
	p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		id := msg.Metadata[gateway.KeyMessageID]
		if w.faultNow() != nil && w.isSick(msg) && id != "" {
			if id[len(id)-1]%2 == 0 {
				w.hit(true)
				return nil, router.Outage(errors.New("as long as the fault lasts"))
			}
			if _, again := failed.LoadOrStore(id, true); w.hit(!again) {
				return nil, errors.New("once")
			}
		}
		return []*message.Message{msg}, nil
	}
}

// routerRows are the partial faults of routes and their sinks.
func routerRows() []partialRow {
	return []partialRow{
		{name: "P16 the sink refuses one tenant's topic", change: topicOfTenant(0)},
		{name: "P17 the sink does not answer for one tenant's topic", change: topicOfTenant(brokerTimeout)},
		{name: "P18 the sink of one of two routes is down", change: twoRoutes},
		{name: "P19 1,000 keys have one failing message each", change: manyKeys, sick: 4, atLeast: 1000},
	}
}
