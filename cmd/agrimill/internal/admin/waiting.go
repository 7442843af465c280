package admin

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/agrimill/agrimill/subscriber"
)

// maxWaiting is how many endpoints GET /api/waiting names.
const maxWaiting = 12

// WaitingList is the response to GET /api/waiting: of which endpoints messages wait, those first that have waited longest.
type WaitingList struct {
	Waiting []subscriber.Open `json:"waiting"`
	// More is how many endpoints are left out.
	More int `json:"more"`
}

func (s *Server) serveWaiting(w http.ResponseWriter, r *http.Request) {
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
	respond(w, r, WaitingList{Waiting: shown, More: len(open) - len(shown)})
}
