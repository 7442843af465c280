package admin

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/agrimill/agrimill/subscriber"
)

// maxWaiting is how many endpoints GET /api/waiting names.
const maxWaiting = 12

// WaitingList is the response to GET /api/waiting: of which endpoints messages wait, those first that have waited longest.
type WaitingList struct {
	Waiting []Waiting `json:"waiting"`
	// More is how many endpoints are left out.
	More int `json:"more"`
}

// Waiting is what waits of a receiving endpoint: [subscriber.Open] as JSON, without its routes.
type Waiting struct {
	Tenant   string    `json:"tenant"`
	Endpoint string    `json:"endpoint"`
	InFlight int       `json:"in_flight"`
	Held     int       `json:"held"`
	Pending  int       `json:"pending_confirmations"`
	Oldest   time.Time `json:"oldest,omitzero"`
}

func (s *Server) serveWaiting(w http.ResponseWriter, r *http.Request) {
	of := selection(r.URL.Query())
	var open []subscriber.Open
	for _, o := range s.source.Open() {
		if isOf(o, of) && o.InFlight+o.Held+o.Pending > 0 {
			open = append(open, o)
		}
	}
	slices.SortFunc(open, func(a, b subscriber.Open) int {
		return cmp.Or(a.Oldest.Compare(b.Oldest), cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.EndpointID, b.EndpointID))
	})
	shown := open[:min(len(open), maxWaiting)]
	list := WaitingList{Waiting: make([]Waiting, len(shown)), More: len(open) - len(shown)}
	for i, o := range shown {
		list.Waiting[i] = Waiting{Tenant: o.TenantID, Endpoint: o.EndpointID, InFlight: o.InFlight, Held: o.Held, Pending: o.Pending, Oldest: o.Oldest}
	}
	writeJSON(w, http.StatusOK, list)
}
