package history

import (
	"strings"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
)

// Figures are what happened to the messages of an endpoint since the start, as far as the journal knew when it was asked.
type Figures struct {
	// Received counts the events that the event stream delivered, InFiles the messages that were joined to their file,
	// Untaken those that no route takes, Confirmed and Rejected the confirmations that the service accepted, or never will.
	Received  uint64 `json:"received"`
	InFiles   uint64 `json:"in_files"`
	Untaken   uint64 `json:"untaken"`
	Confirmed uint64 `json:"confirmed"`
	Rejected  uint64 `json:"rejected"`
	// Routes counts how they ended on the routes from the gateway, Outward on those to it.
	Routes  Counts `json:"routes"`
	Outward Counts `json:"outward"`
}

func (f *Figures) add(g Figures) {
	f.Received += g.Received
	f.InFiles += g.InFiles
	f.Untaken += g.Untaken
	f.Confirmed += g.Confirmed
	f.Rejected += g.Rejected
	f.Routes.add(g.Routes)
	f.Outward.add(g.Outward)
}

// owner is an endpoint of a tenant, or what is for the tenant alone.
type owner struct {
	Tenant, Endpoint string // as the journal has them
	gone             bool   // it was forgotten
	seen             int64  // when something happened, Unix nanoseconds
	figures          Figures
}

// ownerOn returns whose message it is that a route has. The caller holds mu.
func (h *History) ownerOn(p *journal.Entry, run *attempt) *owner {
	if run == nil {
		return h.ownerOf(p, nil)
	}
	return h.ownerOf(p, run.owner)
}

// ownerOf returns whose message an entry is about: that of an earlier entry if it is known and was not forgotten, or else who
// the entry names, if need be as a new owner. The caller holds mu.
func (h *History) ownerOf(p *journal.Entry, known *owner) *owner {
	if known != nil && !known.gone {
		return known
	}
	return ownerNamed(h, p.Tenant(), p.Endpoint())
}

// ownerNamed is ownerOf for names; the endpoint may be empty. The caller holds mu.
func ownerNamed[T []byte | string](h *History, tenant, endpoint T) *owner {
	of, name := h.endpoint, endpoint
	if len(name) == 0 {
		of, name = h.tenant, tenant
	}
	if o := of[string(name)]; o != nil {
		return o
	}
	if len(tenant) == 0 {
		return &h.others // nobody says
	}
	if len(h.owners) == MaxEndpoints {
		h.crowded = true
		return &h.others
	}
	o := &owner{Tenant: string(tenant), Endpoint: string(endpoint)}
	h.owners, of[string(name)] = append(h.owners, o), o
	return o
}

// disown forgets an owner, which the caller takes from the list. The caller holds mu.
func (h *History) disown(o *owner) {
	o.gone = true
	if o.Endpoint == "" {
		delete(h.tenant, o.Tenant)
	} else {
		delete(h.endpoint, o.Endpoint)
	}
	for _, s := range h.routes {
		h.unshare(o, s)
	}
}

// unshare forgets the share of an owner in a route, if there is one. The caller holds mu.
func (h *History) unshare(o *owner, route *series) {
	if route.shares[o] != nil && o != &h.others {
		h.shares--
	}
	delete(route.shares, o)
}

// share returns the share of an owner in a route; that of the others, if there are too many. The caller holds mu.
func (h *History) share(o *owner, route *series) *series {
	if s := route.shares[o]; s != nil {
		return s
	}
	if o != &h.others {
		if h.shares >= MaxShares {
			h.crowded = true
			return h.share(&h.others, route)
		}
		h.shares++
	}
	route.shares[o] = new(series)
	return route.shares[o]
}

// open takes what a route has not finished by endpoint: those that are not named have nothing open. The caller holds mu.
func (h *History) open(sample *Sample, now int64) {
	route := h.routes[sample.Route]
	if route == nil || !sample.FromGateway {
		return
	}
	none := &Sample{Backlog: -1}
	for _, s := range route.shares {
		s.sample(now, Counts{}, none)
	}
	for _, open := range sample.Open {
		o := ownerNamed(h, open.Tenant, open.Endpoint)
		o.seen = now
		h.share(o, route).sample(now, Counts{}, &Sample{InFlight: open.Count, Backlog: -1, Age: open.Age})
	}
}

// sample adds to the periods of a time what happened then, and the state.
func (s *series) sample(at int64, change Counts, state *Sample) {
	for r := range numRanges {
		if p := s.periods[r].at(r, at); p != nil {
			p.sample(change, state)
		}
	}
}

// Selection says what of a History is wanted. Empty fields are no restriction; case does not matter in IDs. The tenant
// [Others] stands for what is not told apart.
type Selection struct {
	Route, Tenant, Endpoint string
}

func (s Selection) all() bool { return s.Tenant == "" && s.Endpoint == "" }

// owners returns those that are wanted. The caller holds mu.
func (h *History) selected(s Selection) (list []*owner) {
	if s.Tenant == Others {
		return []*owner{&h.others}
	}
	for _, o := range h.owners {
		if (s.Tenant == "" || strings.EqualFold(o.Tenant, s.Tenant)) && (s.Endpoint == "" || strings.EqualFold(o.Endpoint, s.Endpoint)) {
			list = append(list, o)
		}
	}
	return list
}

// Selected are the figures of a tenant or endpoint.
type Selected struct {
	Tenant   string `json:"tenant,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	// Timed says that there is a journal: without one, nothing is known by tenant.
	Timed bool `json:"timed"`
	// Incomplete says that entries of the journal were dropped before they were counted.
	Incomplete bool `json:"incomplete,omitempty"`
	// Others says that the tenant [Others] has something, Crowded that there have been more endpoints than have figures of
	// their own, so that some of this may be with it.
	Others  bool `json:"others,omitempty"`
	Crowded bool `json:"crowded,omitempty"`
	// Figures are since the start.
	Figures Figures `json:"figures"`
	// Routes are the same for each route, by name, as far as they are told apart by route.
	Routes map[string]Counts `json:"routes"`
}

// Selected returns the figures of what is selected; Selection.Route does not matter.
func (h *History) Selected(s Selection) Selected {
	answer := Selected{Tenant: s.Tenant, Endpoint: s.Endpoint, Routes: map[string]Counts{}}
	if h == nil {
		return answer
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	answer.Timed, answer.Incomplete, answer.Others, answer.Crowded = h.timed, !h.lost.IsZero(), h.hasOthers(), h.crowded
	for _, o := range h.selected(s) {
		answer.Figures.add(o.figures)
		for name, route := range h.routes {
			if share := route.shares[o]; share != nil {
				c := answer.Routes[name]
				c.add(share.last)
				answer.Routes[name] = c
			}
		}
	}
	return answer
}

// hasOthers reports whether something is not told apart. The caller holds mu.
func (h *History) hasOthers() bool {
	for _, route := range h.routes {
		if route.shares[&h.others] != nil {
			return true
		}
	}
	return h.others.figures != Figures{}
}
