package subscriber

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// Open is what is open of one endpoint: received, and not confirmed yet.
type Open struct {
	// TenantID and EndpointID are as the service wrote them, once if it did so in several ways. The tenant is empty where only the service knows it: of messages that are
	// held back without their event, and of confirmations whose tenant was not looked up yet.
	TenantID   string `json:"tenant"`
	EndpointID string `json:"endpoint"`
	// InFlight counts the events that are not acked by all, those that wait included; Held the messages that
	// wait for their file; Pending the confirmations that the service has not accepted yet.
	InFlight int `json:"in_flight"`
	Held     int `json:"held"`
	Pending  int `json:"pending_confirmations"`
	// Oldest is when the oldest event in flight or held arrived, or the oldest pending confirmation was added, with those
	// that it is sent with; zero without any.
	Oldest time.Time `json:"oldest,omitzero"`
	// Routes are those that have not acked events in flight, by name.
	Routes []OpenRoute `json:"-"`
}

// OpenRoute is what one route has of the events of an endpoint.
type OpenRoute struct {
	// Name is that of the route of the Router that subscribed, or else the topic.
	Name string
	// Count is how many events it has not acked, Oldest when the oldest of them arrived.
	Count  int
	Oldest time.Time
}

// Open returns what is open by tenant and endpoint, in their order. It looks at everything that is open, so it is made
// for status pages: call it every few seconds at most for each of them.
func (s *Subscriber) Open() []Open {
	s = s.working()
	all := openSet{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for it := range s.items {
		all.add(it, s.clock.time(ownerOf(it.Message).arrived))
	}
	s.core.Waiters(s.now(), func(m *core.Message, held bool, since, _ time.Duration) {
		if d := ownerOf(m); held {
			o := all.of(d.tenant, d.endpoint)
			o.Held++
			o.Oldest = earlier(o.Oldest, s.clock.time(since))
		}
	})
	for b := range s.confirmer.queue.all {
		var o *Open
		for i, item := range b.items {
			if i == 0 || item.endpoint != b.items[i-1].endpoint { // neighbors are often of the same one
				o = all.of(b.t.tenant, item.endpoint)
				o.Oldest = earlier(o.Oldest, b.since)
			}
			o.Pending++
		}
	}
	return all.list()
}

// openSet is what is open, by endpoint and tenant in lower case.
type openSet map[[2]string]*Open

func (all openSet) of(tenant, endpoint string) *Open {
	key := [2]string{strings.ToLower(tenant), strings.ToLower(endpoint)}
	o := all[key]
	if o == nil {
		o = &Open{TenantID: tenant, EndpointID: endpoint}
		all[key] = o
	}
	return o
}

// add counts an event of a route, which arrived then. Subscriber.mu is held.
func (all openSet) add(it *core.Item, arrived time.Time) {
	d, name := ownerOf(it.Message), it.Lane.Route.Name
	o := all.of(d.tenant, d.endpoint)
	if o.Oldest.IsZero() || arrived.Before(o.Oldest) {
		o.TenantID, o.EndpointID, o.Oldest = d.tenant, d.endpoint, arrived
	}
	if it.Principal() {
		o.InFlight++
	}
	i := slices.IndexFunc(o.Routes, func(r OpenRoute) bool { return r.Name == name })
	if i < 0 {
		i = len(o.Routes)
		o.Routes = append(o.Routes, OpenRoute{Name: name})
	}
	r := &o.Routes[i]
	r.Count++
	r.Oldest = earlier(r.Oldest, arrived)
}

// list returns all of them, ordered.
func (all openSet) list() []Open {
	list := make([]Open, 0, len(all))
	for _, o := range all {
		slices.SortFunc(o.Routes, func(a, b OpenRoute) int { return cmp.Compare(a.Name, b.Name) })
		list = append(list, *o)
	}
	slices.SortFunc(list, func(a, b Open) int {
		return cmp.Or(
			cmp.Compare(strings.ToLower(a.TenantID), strings.ToLower(b.TenantID)), cmp.Compare(strings.ToLower(a.EndpointID), strings.ToLower(b.EndpointID)),
		)
	})
	return list
}

// earlier returns the earlier of two times; the other one, if one is zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
