package admin

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/subscriber"
)

// history returns what the routes did in the last hour or day.
func (s *Server) history(r *http.Request) (any, error) {
	query := r.URL.Query()
	span := history.RangeHour
	switch query.Get("range") {
	case "", history.RangeHour.String():
	case history.RangeDay.String():
		span = history.RangeDay
	default:
		return nil, badRequest("range must be hour or day")
	}
	return s.source.History().Record(span, selection(query)), nil
}

func selection(query url.Values) history.Selection {
	return history.Selection{Route: query.Get("route"), Tenant: query.Get("tenant"), Endpoint: query.Get("endpoint")}
}

// selected returns the figures of what a request selects; nil if it selects nothing.
func selected(source Source, of history.Selection) *SelectedStatus {
	if of.Tenant == "" && of.Endpoint == "" {
		return nil
	}
	answer := &SelectedStatus{Selected: source.History().Selected(of), Waiting: map[string]OpenOnRoute{}}
	for _, o := range source.Open() {
		// What is open is always told apart, so the others have nothing of their own here.
		if !isOf(o, of) {
			continue
		}
		answer.InFlight += o.InFlight
		answer.Held += o.Held
		answer.Pending += o.Pending
		answer.OldestUnconfirmed = earlier(answer.OldestUnconfirmed, o.Oldest)
		for _, r := range o.Routes {
			on := answer.Waiting[r.Name]
			answer.Waiting[r.Name] = OpenOnRoute{on.Open + r.Count, earlier(on.Oldest, r.Oldest)}
		}
	}
	return answer
}

func isOf(o subscriber.Open, of history.Selection) bool {
	return (of.Tenant == "" || strings.EqualFold(o.TenantID, of.Tenant)) && (of.Endpoint == "" || strings.EqualFold(o.EndpointID, of.Endpoint))
}

// earlier returns the earlier of two times; the other one, if one is zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// AddOpen adds to the routes what of the gateway they are not done with.
func (s *Snapshot) AddOpen(open []subscriber.Open) {
	for i := range s.Routes {
		r := &s.Routes[i]
		for _, on := range onRoute(r, open) {
			r.Open += int(on.Count)
			r.Oldest = earlier(r.Oldest, on.oldest)
		}
	}
}

type openOn struct {
	history.Open
	oldest time.Time
}

func onRoute(route *Route, open []subscriber.Open) (list []openOn) {
	if route.Direction != FromGateway {
		return nil
	}
	for _, o := range open {
		for _, on := range o.Routes {
			if on.Name == route.Name {
				list = append(list, openOn{history.Open{Tenant: o.TenantID, Endpoint: o.EndpointID, Count: int64(on.Count), Age: age(on.Oldest)}, on.Oldest})
			}
		}
	}
	return list
}

// SamplesFrom returns what a history remembers of a snapshot, and of what is open.
func SamplesFrom(s Snapshot, open []subscriber.Open) []history.Sample {
	samples := make([]history.Sample, 0, len(s.Routes))
	for _, r := range s.Routes {
		retries := r.RetriesByClass
		sample := history.Sample{
			Route: r.Name, FromGateway: r.Direction == FromGateway, InFlight: int64(r.InFlight), Backlog: -1, Age: -1,
			Counts: history.Counts{
				Delivered: r.Delivered, Filtered: r.Filtered, Duplicates: r.Duplicates, Poisoned: r.Poisoned, Returned: r.Returned,
				Retries: retries.Handler + retries.Outage + retries.Shutdown,
			},
		}
		if r.Backlog != nil {
			sample.Backlog = *r.Backlog
		}
		if sample.FromGateway {
			sample.Age, sample.InFlight = age(r.Oldest), int64(r.Open)
			for _, on := range onRoute(&r, open) {
				sample.Open = append(sample.Open, on.Open)
			}
		}
		samples = append(samples, sample)
	}
	return samples
}

// age returns how long ago a time was; 0 if it is zero.
func age(since time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return max(time.Since(since), 0)
}

// maxWaiting is how many endpoints GET /api/waiting names.
const maxWaiting = 12

// WaitingList is the response to GET /api/waiting: of which endpoints messages wait, those first that have waited longest.
type WaitingList struct {
	Waiting []subscriber.Open `json:"waiting"`
	// More is how many endpoints are left out.
	More int `json:"more"`
}

func (s *Server) waiting(r *http.Request) (any, error) {
	of := selection(r.URL.Query())
	open := []subscriber.Open{} // never null in JSON
	for _, o := range s.source.Open() {
		if isOf(o, of) && o.InFlight+o.Held+o.Pending > 0 {
			open = append(open, o)
		}
	}
	slices.SortFunc(open, func(a, b subscriber.Open) int {
		return cmp.Or(a.Oldest.Compare(b.Oldest), cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.EndpointID, b.EndpointID))
	})
	shown := open[:min(len(open), maxWaiting)]
	return WaitingList{Waiting: shown, More: len(open) - len(shown)}, nil
}
