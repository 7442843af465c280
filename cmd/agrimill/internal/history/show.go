package history

import (
	"slices"
	"strings"
	"time"
)

// Record is a History as JSON, the response to GET /api/history.
type Record struct {
	// Range is hour or day, and StepSeconds how long a period is.
	Range       string `json:"range"`
	StepSeconds int    `json:"step_seconds"`
	// From is when the first period begins, To is now.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Since is when the history began: nothing is known of what was before.
	Since time.Time `json:"since"`
	// Timed says that there are latencies: there is a journal.
	Timed bool `json:"timed"`
	// TimedIncompletelyUntil is when the journal was last too small for what happened, so that latencies are missing, and some
	// of what is of a tenant or endpoint; zero if it never was.
	TimedIncompletelyUntil time.Time `json:"timed_incompletely_until,omitzero"`
	// Tenant and Endpoint are what was selected; empty: all.
	Tenant   string `json:"tenant,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	// Others says that the tenant [Others] has something, Crowded that there have been more endpoints than have a history of
	// their own, so that some of what is selected may be with it.
	Others  bool          `json:"others,omitempty"`
	Crowded bool          `json:"crowded,omitempty"`
	Routes  []RouteRecord `json:"routes"`
}

// RouteRecord is the history of a route.
type RouteRecord struct {
	Name        string `json:"name"`
	FromGateway bool   `json:"from_gateway"`
	Total       Period `json:"total"`
	// Periods are those in which the route was there, oldest first.
	Periods []Period `json:"periods"`
}

// Period is what happened in some time.
type Period struct {
	Time time.Time `json:"time"`
	Counts
	// InFlight is the most that were in flight, Backlog the most that waited in the source of a route from a broker, and
	// AgeSeconds how long the oldest message waited at most that a route from the gateway was not done with. What is unknown is
	// left out.
	InFlight   int64    `json:"in_flight"`
	Backlog    *int64   `json:"backlog,omitempty"`
	AgeSeconds *float64 `json:"age_seconds,omitempty"`
	// Latency is by step: end_to_end, hold, fetch, wait, handle, store, confirm. Steps that nothing took are left out. Of a tenant or
	// endpoint there is end_to_end alone.
	Latency map[string]Latency `json:"latency,omitempty"`
}

// Latency is how long a step took.
type Latency struct {
	Count uint64 `json:"count"`
	// P50Seconds is what half of them did not exceed, P99Seconds what 99 of 100 did not; at most 50 per cent too long.
	P50Seconds float64 `json:"p50_seconds"`
	P99Seconds float64 `json:"p99_seconds"`
}

// Record returns the history over a range of what is selected.
func (h *History) Record(r Range, selection Selection) Record {
	record := Record{
		Range: r.String(), StepSeconds: int(r.Step() / time.Second), Routes: []RouteRecord{},
		Tenant: selection.Tenant, Endpoint: selection.Endpoint,
	}
	if h == nil {
		return record
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	from := start(r, r.number(now.UnixNano())-int64(r.Periods())+1)
	record.From, record.To = from, now.UTC()
	record.Since, record.Timed, record.Others, record.Crowded = h.began.UTC(), h.timed, h.hasOthers(), h.crowded
	if !h.lost.IsZero() {
		record.TimedIncompletelyUntil = h.lost.UTC()
	}
	owners := h.selected(selection)
	for name, s := range h.routes {
		if selection.Route != "" && name != selection.Route {
			continue
		}
		of := []*series{s}
		if !selection.all() {
			of = nil
			for _, o := range owners {
				if share := s.shares[o]; share != nil {
					of = append(of, share)
				}
			}
		}
		record.Routes = append(record.Routes, s.record(r, from, now, of))
	}
	slices.SortFunc(record.Routes, func(a, b RouteRecord) int { return strings.Compare(a.Name, b.Name) })
	return record
}

func start(r Range, number int64) time.Time { return time.Unix(0, number*int64(r.Step())).UTC() }

// record returns the sum of series of the route s from one time to another one.
func (s *series) record(r Range, from, to time.Time, of []*series) RouteRecord {
	record := RouteRecord{Name: s.name, FromGateway: s.inward, Periods: []Period{}}
	all := period{number: r.number(from.UnixNano()), backlog: -1, age: -1}
	var sum ring
	for _, share := range of {
		share.periods[r].each(r, from.UnixNano(), to.UnixNano(), func(p *period) { sum.place(r, p.number).add(p) })
	}
	for _, p := range sum {
		record.Periods = append(record.Periods, p.show(r))
		all.add(p)
	}
	record.Total = all.show(r)
	return record
}

func (p *period) show(r Range) Period {
	shown := Period{Time: start(r, p.number), Counts: p.counts, InFlight: p.inFlight}
	if p.backlog >= 0 {
		shown.Backlog = new(p.backlog)
	}
	if p.age >= 0 {
		shown.AgeSeconds = new(p.age.Seconds())
	}
	for step, h := range p.latency {
		if h == nil {
			continue
		}
		half, n := h.quantile(50)
		most, _ := h.quantile(99)
		if shown.Latency == nil {
			shown.Latency = map[string]Latency{}
		}
		shown.Latency[Step(step).String()] = Latency{Count: n, P50Seconds: half.Seconds(), P99Seconds: most.Seconds()}
	}
	return shown
}
