package history

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// Reloads that rename a route leave what happened on each of them, and no room for what did not.
func TestRenamedRoutesTakeWhatTheyHad(t *testing.T) {
	const routes, endpoints = 100, 5
	now := time.Date(2026, 4, 1, 0, 0, 30, 0, time.UTC)
	j := testkit.Must(journal.New(journal.Config{Now: func() time.Time { return now }}))(t)
	h := New(func() time.Time { return now })
	for r := range routes {
		now = now.Add(time.Second)
		name := fmt.Sprint("r", r)
		h.Update([]Sample{{Route: name, FromGateway: true, Backlog: -1}}, j)
		for e := range endpoints {
			id, tenant, endpoint := fmt.Sprint("m", r, " ", e), "T", fmt.Sprint("E", e)
			j.Event(&gateway.MessageReceived{ID: id, TenantID: tenant, ReceivingEndpointID: endpoint})
			msg := message.NewMessage("uuid", nil)
			msg.Metadata = message.Metadata{gateway.KeyMessageID: id, gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint}
			for _, kind := range []router.EventKind{router.EventStarted, router.EventStored, router.EventDelivered} {
				j.Observer(nil).Observe(router.Event{Route: name, Kind: kind, Message: msg})
			}
		}
		h.Update([]Sample{{Route: name, FromGateway: true, Backlog: -1}}, j)
	}
	kept := 0
	count := func(s *series) {
		for _, ring := range s.periods {
			kept += len(ring)
		}
	}
	for _, s := range h.routes {
		count(s)
		for _, share := range s.shares {
			count(share)
		}
	}
	// By the minute and by the quarter of an hour. A route may be there in two minutes.
	if most := 2 * routes * (2 + endpoints*2); kept > most || kept < routes {
		t.Errorf("there is room for %d periods of %d routes with %d endpoints, want at most %d", kept, routes, endpoints, most)
	}
}

// A ring has the periods of its range, however it grew and in whatever order they came.
func TestRingGrows(t *testing.T) {
	for seed := range uint64(50) {
		chance := rand.New(rand.NewPCG(seed, 1))
		var r ring
		want := map[int64]int64{} // what was counted, by number
		newest := int64(30_000_000)
		for range 400 {
			newest += int64(chance.IntN(4)) * int64(chance.IntN(20)) / 10
			number := newest - int64(chance.IntN(8))
			if p := r.at(RangeHour, number*int64(RangeHour.Step())); p != nil {
				p.inFlight++
				want[number]++
			}
			if p := r.at(RangeHour, newest*int64(RangeHour.Step())); p == nil || p.number != newest {
				t.Fatalf("seed %d: the newest period is %+v, want %d", seed, p, newest)
			}
		}
		step := int64(RangeHour.Step())
		r.each(RangeHour, (newest-int64(RangeHour.Periods())+1)*step, newest*step, func(p *period) {
			if p.inFlight != want[p.number] {
				t.Errorf("seed %d: %d in period %d, want %d", seed, p.inFlight, p.number, want[p.number])
			}
			delete(want, p.number)
		})
		for number := range want {
			if number > newest-int64(RangeHour.Periods()) {
				t.Errorf("seed %d: period %d of %d is missing", seed, number, newest)
			}
		}
	}
}

// The clock of the process tells that it was set back: times with the reading of the monotonic clock are compared by that.
func TestClockOfTheProcess(t *testing.T) {
	t.Parallel()
	if h := New(nil); h.began != h.began.Round(0) {
		t.Errorf("%v has the reading of the monotonic clock", h.began)
	}
}
