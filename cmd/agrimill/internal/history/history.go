// Package history remembers for a day, in the process, what the routes did: throughput, lag, errors and latency, by the minute
// for the last hour and by the quarter of an hour for the last day.
//
// Counts are those of the routes. Latencies, and what there is of a tenant or endpoint, are made of what the journal knows, so
// that they cost nothing where messages are handled; without a journal there are none.
package history

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
)

// What a History keeps, whatever happens.
const (
	// MaxRoutes is how many routes have a history; later ones have none. A route that has not been there for a day is
	// forgotten. Each takes 230 KiB at most.
	MaxRoutes = 256
	// MaxEndpoints is how many endpoints have figures of their own, each of a tenant; what is for the tenant alone, as on
	// the way to the gateway, counts as one. MaxShares is how many of them have a history on a route: those that came
	// first. Each takes 70 KiB at most. What is beyond either is summed, as [Others], which has a history on each route as
	// well. An endpoint for which nothing happened for a day is forgotten.
	MaxEndpoints = 1024
	MaxShares    = 256
	// MaxOpen is how many unfinished messages are timed, and how often one is timed by a route, twice each. They take 8 MiB at
	// most. Beyond it the oldest are forgotten, so they do not count in the latencies.
	MaxOpen = 16_384
)

// Others is the tenant that stands for what has no figures of its own: for endpoints that came after MaxEndpoints and
// MaxShares were reached, and messages to the gateway that name no tenant.
const Others = "other"

// Step is a part of the way of a message.
type Step int

// The steps. Those before StepHandle and after StepStore are of messages from the gateway.
const (
	// StepEndToEnd: from the arrival of the event until the route was done with the message, retries and waits included; of a
	// message from a broker, from when the route began with it.
	StepEndToEnd Step = iota
	// StepHold: from the arrival until the message no longer waited for a file that it may be a part of, if it did.
	StepHold
	// StepFetch: from then, or from the arrival, until the payload was downloaded, if it was.
	StepFetch
	// StepWait: from then, or from the arrival, until the route began with it.
	StepWait
	// StepHandle: what the last attempt took without the sink: filter, transformation, deduplication.
	StepHandle
	// StepStore: from when the last attempt began to publish until the sink had stored everything.
	StepStore
	// StepConfirm: from when the last route was done with it until the gateway accepted the confirmation.
	StepConfirm
	numSteps
)

// String returns the name of a step in the API, e.g. "end_to_end".
func (s Step) String() string {
	names := [...]string{"end_to_end", "hold", "fetch", "wait", "handle", "store", "confirm"}
	if s < 0 || s >= numSteps {
		return "unknown"
	}
	return names[s]
}

// Sample is the state of a route at one moment.
type Sample struct {
	Route string
	// FromGateway says that its messages come from the gateway, not from a broker.
	FromGateway bool
	// Counts are from the start of the process.
	Counts   Counts
	InFlight int64
	// Backlog is how many wait in the source, -1 if unknown.
	Backlog int64
	// Age is how long the oldest message waits, -1 if unknown.
	Age time.Duration
	// Open is what the route has not finished, by endpoint, of a route from the gateway.
	Open []Open
}

// Open is what a route has not finished for an endpoint.
type Open struct {
	Tenant, Endpoint string
	Count            int64
	Age              time.Duration // of the oldest
}

// Counts are how messages ended on a route, and how often one was tried again.
type Counts struct {
	Delivered  uint64 `json:"delivered"`
	Filtered   uint64 `json:"filtered"`
	Duplicates uint64 `json:"duplicates"`
	Poisoned   uint64 `json:"poisoned"`
	Returned   uint64 `json:"returned"`
	Retries    uint64 `json:"retries"`
}

func (c *Counts) add(d Counts) {
	c.Delivered += d.Delivered
	c.Filtered += d.Filtered
	c.Duplicates += d.Duplicates
	c.Poisoned += d.Poisoned
	c.Returned += d.Returned
	c.Retries += d.Retries
}

// since returns what was added to before. A count that is smaller began anew.
func (c Counts) since(before Counts) Counts {
	less := func(now, then uint64) uint64 {
		if now < then {
			return now
		}
		return now - then
	}
	return Counts{
		less(c.Delivered, before.Delivered), less(c.Filtered, before.Filtered), less(c.Duplicates, before.Duplicates),
		less(c.Poisoned, before.Poisoned), less(c.Returned, before.Returned), less(c.Retries, before.Retries),
	}
}

// History is a record of the last day. Its methods are safe for concurrent use, and do nothing if it is nil.
type History struct {
	now  func() time.Time
	seed maphash.Seed

	mu       sync.Mutex
	began    time.Time
	routes   map[string]*series
	mark     journal.Mark
	timed    bool // there is a journal
	lost     time.Time
	arrived  recent[arrival]
	running  recent[attempt]
	shares   int // but those of others
	others   owner
	crowded  bool // something is with others because there were too many endpoints
	owners   []*owner
	endpoint map[string]*owner
	tenant   map[string]*owner // what is for no endpoint

	unconfirmed ring // of RangeHour, in flight
}

// arrival is what is known of an unfinished message from the gateway. Times are Unix nanoseconds.
type arrival struct {
	received, released, fetched, done int64
	routes                            []*series // that were done with it
	owner                             *owner
}

// attempt is what is known of a message on a route.
type attempt struct {
	first, started int64 // the first attempt, and the last one
	took           time.Duration
	owner          *owner
	retries        int // that were counted
}

type series struct {
	name    string
	key     uint64
	inward  bool
	seen    time.Time
	last    Counts // of a share: since the start
	periods [numRanges]ring
	shares  map[*owner]*series // of a route; those that are missing are with the others
}

// New returns an empty History that begins now. now is the clock, which has to be that of the journal; nil means that of the system.
func New(now func() time.Time) *History {
	if now == nil {
		now = func() time.Time { return time.Now().Round(0) } // with the monotonic clock, nothing would be before h.began
	}
	h := &History{now: now, began: now(), seed: maphash.MakeSeed(), routes: map[string]*series{}, endpoint: map[string]*owner{}, tenant: map[string]*owner{}}
	h.others.Tenant = Others
	return h
}

// Update takes the state of the routes, and what the journal, which may be nil, has got since the last call. It is to be called
// every few seconds: what happened counts for the minute in which it is called, but for latencies and what is of an endpoint.
func (h *History) Update(samples []Sample, j *journal.Journal) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	h.setBack(now)
	for i := range samples {
		sample := &samples[i]
		s := h.series(sample.Route, now)
		if s == nil {
			continue
		}
		s.inward, s.seen = sample.FromGateway, now
		change := sample.Counts.since(s.last)
		s.last = sample.Counts
		s.sample(now.UnixNano(), change, sample)
	}
	h.forget(now) // the clock may just have been set: what is there now has been seen
	if h.timed = j != nil; !h.timed {
		return
	}
	mark, complete := j.Follow(h.mark, h.entry)
	if h.mark = mark; !complete {
		h.lost = now
	}
	for i := range samples {
		h.open(&samples[i], now.UnixNano())
	}
}

// AddUnconfirmed takes how many messages of the gateway are unconfirmed now.
func (h *History) AddUnconfirmed(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.unconfirmed.at(RangeHour, h.now().UnixNano()); p != nil {
		p.inFlight = max(p.inFlight, int64(n))
	}
}

// Unconfirmed are the most of each minute of the last hour, the present one last; fewer than 60 in the first hour.
func (h *History) Unconfirmed() (course []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	h.unconfirmed.each(RangeHour, now.Add(time.Minute-RangeHour.Duration()).UnixNano(), now.UnixNano(), func(p *period) { course = append(course, int(p.inFlight)) })
	return course
}

// setBack forgets what is later than now: the clock was set back, and a period is not to be that of two times. The caller holds mu.
func (h *History) setBack(now time.Time) {
	if now.Before(h.began) {
		h.began = now
	}
	for _, s := range h.routes {
		s.setBack(now.UnixNano())
	}
	h.unconfirmed.cut(RangeHour, now.UnixNano())
}

func (s *series) setBack(now int64) {
	for r := range numRanges {
		s.periods[r].cut(r, now)
	}
	for _, share := range s.shares {
		share.setBack(now)
	}
}

// forget forgets what was not there for a day. The caller holds mu.
func (h *History) forget(now time.Time) {
	for name, s := range h.routes {
		if now.Sub(s.seen) <= RangeDay.Duration() {
			continue
		}
		delete(h.routes, name)
		for o := range s.shares {
			h.unshare(o, s)
		}
	}
	h.owners = slices.DeleteFunc(h.owners, func(o *owner) bool {
		gone := now.UnixNano()-o.seen > int64(RangeDay.Duration())
		if gone {
			h.disown(o)
		}
		return gone
	})
}

// series returns the history of a route, nil if there are too many. The caller holds mu.
func (h *History) series(route string, now time.Time) *series {
	if s := h.routes[route]; s != nil {
		return s
	}
	if len(h.routes) == MaxRoutes {
		return nil
	}
	s := &series{name: route, key: maphash.String(h.seed, route), seen: now, shares: map[*owner]*series{}}
	h.routes[route] = s
	return s
}

// entry takes an entry of the journal. The caller holds mu.
func (h *History) entry(p *journal.Entry) {
	id := p.ID()
	if len(id) == 0 {
		return
	}
	key := maphash.Bytes(h.seed, id)
	if route := p.Route(); len(route) > 0 {
		if s := h.routes[string(route)]; s != nil {
			h.onRoute(p, s, key)
		}
		return
	}
	a := h.arrived.get(key)
	var o *owner
	if a != nil {
		o = a.owner
	}
	o = h.ownerOf(p, o)
	o.seen = p.At
	switch p.Step {
	case journal.StepReceived:
		o.figures.Received++
		if a == nil {
			*h.arrived.add(key) = arrival{received: p.At, owner: o}
		}
	case journal.StepUnclaimed:
		if a != nil && a.released == 0 {
			a.released = p.At
		}
	case journal.StepFetched:
		if a != nil && a.fetched == 0 {
			a.fetched = p.At
		}
	case journal.StepJoined:
		o.figures.InFiles++
	case journal.StepUntaken:
		o.figures.Untaken++
	case journal.StepConfirmed:
		o.figures.Confirmed++
		if a != nil {
			for _, s := range a.routes {
				s.took(p.At, StepConfirm, p.At-a.done)
			}
			h.arrived.remove(key)
		}
	case journal.StepRejected:
		o.figures.Rejected++
		h.arrived.remove(key)
	}
}

// onRoute takes an entry of a route. The caller holds mu.
func (h *History) onRoute(p *journal.Entry, s *series, message uint64) {
	key := message ^ s.key
	at, run := p.At, h.running.get(key)
	switch p.Step {
	case journal.StepStarted:
		if run == nil {
			var o *owner
			if a := h.arrived.get(message); a != nil {
				o = a.owner
			}
			run = h.running.add(key)
			run.first, run.owner = at, h.ownerOf(p, o)
		}
		run.started, run.took = at, 0
	case journal.StepStored:
		if run != nil {
			run.took = max(run.took, p.Delay())
		}
	case journal.StepRetry, journal.StepReturned:
		h.ended(p, s, run, h.ownerOn(p, run))
	case journal.StepDelivered, journal.StepFiltered, journal.StepDuplicate, journal.StepPoisoned:
		o := h.ownerOn(p, run)
		share := h.ended(p, s, run, o)
		a := h.arrived.get(message)
		if a != nil {
			if a.done = at; !slices.Contains(a.routes, s) {
				a.routes = append(a.routes, s)
			}
		}
		if run == nil {
			return
		}
		if p.Step == journal.StepDelivered {
			from := run.first
			if a != nil && s.inward {
				from = a.received
				ready := a.received
				if a.released != 0 && a.released <= run.first {
					s.took(at, StepHold, a.released-ready)
					ready = a.released
				}
				if a.fetched >= ready && a.fetched <= run.first {
					s.took(at, StepFetch, a.fetched-ready)
					ready = a.fetched
				}
				s.took(at, StepWait, run.first-ready)
			}
			s.took(at, StepEndToEnd, at-from)
			share.took(at, StepEndToEnd, at-from)
			s.took(at, StepHandle, at-run.started-int64(run.took))
			s.took(at, StepStore, int64(run.took))
		}
		h.running.remove(key)
	}
}

// ended counts how a message ended on a route, and its retries, for its owner, and returns the share of that in the route.
// The caller holds mu.
func (h *History) ended(p *journal.Entry, s *series, run *attempt, o *owner) *series {
	o.seen = p.At
	var c Counts
	retries := p.Attempt() // so far; the journal has fewer entries of them the more there are
	switch p.Step {
	case journal.StepDelivered:
		c.Delivered = 1
	case journal.StepFiltered:
		c.Filtered = 1
	case journal.StepDuplicate:
		c.Duplicates = 1
	case journal.StepPoisoned:
		c.Poisoned = 1
	case journal.StepReturned:
		c.Returned = 1
	}
	if run != nil {
		if retries > run.retries {
			c.Retries = uint64(retries - run.retries)
			run.retries = retries
		}
		if p.Step == journal.StepReturned {
			run.retries = 0 // it is counted anew when it comes again
		}
	}
	if s.inward {
		o.figures.Routes.add(c)
	} else {
		o.figures.Outward.add(c)
	}
	share := h.share(o, s)
	share.last.add(c)
	share.sample(p.At, c, &Sample{Backlog: -1, Age: -1})
	return share
}

// took counts how long a step took, for the time in which it ended.
func (s *series) took(at int64, step Step, nanoseconds int64) {
	class := classOf(time.Duration(nanoseconds))
	for r := range numRanges {
		s.periods[r].at(r, at).took(step, class)
	}
}
