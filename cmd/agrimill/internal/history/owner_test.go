package history_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// handle plays a message of an endpoint: it arrives, a route takes it, and it is confirmed.
func (f *farm) handle(id, tenant, endpoint, route string, end router.EventKind) {
	f.journal.Event(&gateway.MessageReceived{ID: id, TenantID: tenant, ReceivingEndpointID: endpoint, Payload: []byte("1")})
	metadata := message.Metadata{gateway.KeyMessageID: id, gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint}
	time.Sleep(10 * time.Millisecond)
	f.on(route, router.EventStarted, metadata, 0)
	f.on(route, router.EventStored, metadata, 5*time.Millisecond)
	f.on(route, end, metadata, 0)
	time.Sleep(time.Millisecond)
	f.journal.Confirmed(tenant, []gateway.MessageConfirmation{{EndpointID: endpoint, MessageID: id}})
}

// Figures and history are told by tenant and by endpoint; together they are those of all, also while they run and in any order.
func TestByTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"], f.counts["copy"], f.counts["back"] = &history.Counts{}, &history.Counts{}, &history.Counts{}
		f.update()
		chance := rand.New(rand.NewPCG(1, 2))
		type place struct{ tenant, endpoint, route string }
		delivered, poisoned, received := map[place]uint64{}, map[place]uint64{}, map[place]uint64{}
		for i := range 500 {
			p := place{fmt.Sprint("T", i%3), fmt.Sprintf("T%d-E%d", i%3, i%2), []string{"farm", "copy"}[chance.IntN(2)]}
			kind := router.EventDelivered
			if chance.IntN(4) == 0 {
				kind = router.EventPoisoned
				poisoned[p]++
			} else {
				delivered[p]++
			}
			received[place{p.tenant, p.endpoint, ""}]++
			f.handle(fmt.Sprint("m", i), p.tenant, p.endpoint, p.route, kind)
			if i%7 == 0 {
				f.update()
			}
		}
		// To the gateway: what names a tenant is its, and the rest is that of the others.
		for _, tenant := range []string{"T1", ""} {
			msg := message.Metadata{}
			if tenant != "" {
				msg[gateway.KeyTenantID] = tenant
			}
			f.on("back", router.EventStarted, msg, 0)
			f.on("back", router.EventDelivered, msg, 0)
		}
		f.update()
		sum := func(of map[place]uint64, tenant, endpoint, route string) (n uint64) {
			for p, k := range of {
				if (tenant == "" || p.tenant == tenant) && (endpoint == "" || p.endpoint == endpoint) && (route == "" || p.route == route) {
					n += k
				}
			}
			return n
		}
		for _, c := range []history.Selection{{Tenant: "t0"}, {Tenant: "T1"}, {Tenant: "T2", Endpoint: "t2-e1"}, {Endpoint: "T0-E0"}} {
			tenant, endpoint := map[string]string{"t0": "T0"}[c.Tenant], map[string]string{"t2-e1": "T2-E1"}[c.Endpoint]
			if tenant == "" {
				tenant = c.Tenant
			}
			if endpoint == "" {
				endpoint = c.Endpoint
			}
			got := f.Selected(c)
			want := history.Counts{Delivered: sum(delivered, tenant, endpoint, ""), Poisoned: sum(poisoned, tenant, endpoint, "")}
			n := sum(received, tenant, endpoint, "")
			if got.Figures.Received != n || got.Figures.Confirmed != n || got.Figures.Routes != want || !got.Timed || got.Incomplete {
				t.Errorf("%+v: got %+v, want %d received and confirmed, %+v", c, got, n, want)
			}
			for _, r := range []history.Range{history.RangeHour, history.RangeDay} {
				for _, route := range f.Record(r, c).Routes {
					if route.Name == "back" {
						continue
					}
					d := sum(delivered, tenant, endpoint, route.Name)
					if route.Total.Delivered != d || route.Total.Poisoned != sum(poisoned, tenant, endpoint, route.Name) || got.Routes[route.Name].Delivered != d {
						t.Errorf("%+v on %s: %+v and %+v, want %d delivered", c, route.Name, route.Total, got.Routes[route.Name], d)
					}
					var periods uint64
					for _, p := range route.Periods {
						periods += p.Delivered
						if p.Delivered > 0 && p.Latency["end_to_end"].Count != p.Delivered {
							t.Errorf("%+v on %s: %+v", c, route.Name, p)
						}
					}
					if periods != d {
						t.Errorf("%+v on %s: %d delivered in the periods, want %d", c, route.Name, periods, d)
					}
					latency(t, route.Total, "end_to_end", d, 10*time.Millisecond)
					if len(route.Total.Latency) > 1 {
						t.Errorf("%+v on %s: %+v, want end_to_end alone", c, route.Name, route.Total.Latency)
					}
				}
			}
		}
		if got := f.Selected(history.Selection{Tenant: "T1"}).Figures.Outward.Delivered; got != 1 {
			t.Errorf("%d to the gateway, want 1", got)
		}
		if got := f.Selected(history.Selection{Tenant: history.Others}); got.Figures.Outward.Delivered != 1 || got.Routes["back"].Delivered != 1 || !got.Others {
			t.Errorf("without a tenant: %+v", got)
		}
		if record := f.Record(history.RangeHour, history.Selection{Tenant: "nobody"}); len(record.Routes) != 3 || len(record.Routes[0].Periods) != 0 {
			t.Errorf("of nobody: %+v", record)
		}
	})
}

// What waits is told by tenant, too, and ends when it does.
func TestLagByTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"] = &history.Counts{}
		f.update()
		f.handle("m1", "T1", "E1", "farm", router.EventDelivered)
		f.handle("m2", "T2", "E2", "farm", router.EventDelivered)
		sample := history.Sample{Route: "farm", FromGateway: true, Backlog: -1, Age: time.Minute, Open: []history.Open{{Tenant: "T1", Endpoint: "E1", Count: 3, Age: time.Minute}}}
		f.Update([]history.Sample{sample}, f.journal)
		lag := func(tenant string, r history.Range) (float64, int64) {
			p := f.Record(r, history.Selection{Tenant: tenant}).Routes[0].Periods
			return *p[len(p)-1].AgeSeconds, p[len(p)-1].InFlight
		}
		if age, n := lag("T1", history.RangeHour); age != 60 || n != 3 {
			t.Errorf("T1: %d wait for %g s", n, age)
		}
		if age, n := lag("T2", history.RangeHour); age != 0 || n != 0 {
			t.Errorf("T2: %d wait for %g s", n, age)
		}
		time.Sleep(2 * time.Minute)
		sample.Open, sample.Age = nil, 0
		f.Update([]history.Sample{sample}, f.journal)
		if age, n := lag("T1", history.RangeHour); age != 0 || n != 0 {
			t.Errorf("T1 later: %d wait for %g s", n, age)
		}
	})
}

// Few endpoints are never said to be too many, whatever of their messages names no tenant or was not heard of before.
func TestFewEndpointsAreNotTooMany(t *testing.T) {
	open := func(tenant, endpoint string) func(f *farm) {
		return func(f *farm) {
			f.Update([]history.Sample{{Route: "farm", FromGateway: true, Backlog: -1, Open: []history.Open{{Tenant: tenant, Endpoint: endpoint, Count: 1}}}}, f.journal)
		}
	}
	for name, test := range map[string]struct {
		happens func(f *farm)
		others  bool
	}{
		"nothing": {func(*farm) {}, false},
		"a message to the gateway without a tenant": {func(f *farm) {
			f.on("back", router.EventStarted, message.Metadata{}, 0)
			f.on("back", router.EventDelivered, message.Metadata{}, 0)
		}, true},
		"a message waits that the journal does not know": {open("T9", "E9"), false},
		"an event of a tenant waits":                     {open("T9", ""), false},
		"an event without a tenant waits":                {open("", ""), true},
		"an endpoint is silent for two days while a message of it waits": {func(f *farm) {
			for range 4 {
				time.Sleep(12 * time.Hour)
				open("T1", "E1")(f)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFarm(t, journal.Config{})
				f.counts["farm"], f.counts["back"] = &history.Counts{}, &history.Counts{}
				f.update()
				for i := range 5 {
					f.handle(fmt.Sprint("m", i), "T1", fmt.Sprint("E", i), "farm", router.EventDelivered)
				}
				test.happens(f)
				f.update()
				selected, record := f.Selected(history.Selection{Tenant: "T1"}), f.Record(history.RangeDay, history.Selection{Tenant: "T1"})
				if selected.Crowded || record.Crowded || selected.Others != test.others || record.Others != test.others {
					t.Errorf("too many: %v and %v, others: %v and %v, want %v", selected.Crowded, record.Crowded, selected.Others, record.Others, test.others)
				}
			})
		})
	}
}

// Of endpoints beyond what is told apart, nothing is lost: they are summed. An endpoint that is gone for a day makes room.
func TestOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"] = &history.Counts{}
		f.update()
		const all = history.MaxEndpoints + 50
		for i := range all {
			f.handle(fmt.Sprint("m", i), fmt.Sprint("T", i), fmt.Sprint("E", i), "farm", router.EventDelivered)
		}
		f.update()
		others := f.Selected(history.Selection{Tenant: history.Others})
		if others.Figures.Received != 50 || others.Figures.Routes.Delivered != 50 || others.Figures.Confirmed != 50 || !others.Others || !others.Crowded {
			t.Errorf("others: %+v", others)
		}
		if got := others.Routes["farm"].Delivered; got != all-history.MaxShares {
			t.Errorf("%d of others on the route, want %d", got, all-history.MaxShares)
		}
		first, late := f.Selected(history.Selection{Tenant: "T0"}), f.Selected(history.Selection{Tenant: fmt.Sprint("T", history.MaxShares)})
		if first.Figures.Routes.Delivered != 1 || first.Routes["farm"].Delivered != 1 || late.Figures.Routes.Delivered != 1 || len(late.Routes) != 0 || !late.Others || !late.Crowded {
			t.Errorf("the first is %+v, one with figures alone %+v", first, late)
		}
		var shown uint64
		for i := range history.MaxShares {
			shown += f.Record(history.RangeDay, history.Selection{Tenant: fmt.Sprint("T", i)}).Routes[0].Total.Delivered
		}
		shown += f.Record(history.RangeDay, history.Selection{Tenant: history.Others}).Routes[0].Total.Delivered
		if shown != all {
			t.Errorf("%d of %d in the history of tenants and others", shown, all)
		}
		time.Sleep(25 * time.Hour)
		f.update()
		f.handle("new", "New", "New", "farm", router.EventDelivered)
		f.update()
		if got := f.Selected(history.Selection{Tenant: "New"}); got.Figures.Routes.Delivered != 1 || got.Routes["farm"].Delivered != 1 {
			t.Errorf("after a day: %+v", got)
		}
		if got := f.Selected(history.Selection{Tenant: "T0"}); got.Figures.Received != 0 {
			t.Errorf("of the day before: %+v", got)
		}
	})
}

// Retries of a message count for its tenant as far as the journal tells, and no event twice.
func TestRetriesByTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"] = &history.Counts{}
		f.update()
		metadata := message.Metadata{gateway.KeyMessageID: "m", gateway.KeyTenantID: "T", gateway.KeyReceivingEndpointID: "E"}
		msg := message.NewMessage("uuid", nil)
		msg.Metadata = metadata
		f.on("farm", router.EventStarted, metadata, 0)
		for attempt := range 9 {
			f.journal.Observer(nil).Observe(router.Event{Route: "farm", Kind: router.EventRetry, Attempt: attempt + 1, Message: msg})
			f.update()
		}
		f.on("farm", router.EventDelivered, metadata, 0)
		f.update()
		if got := f.Selected(history.Selection{Tenant: "T"}).Figures.Routes; got != (history.Counts{Delivered: 1, Retries: 8}) {
			t.Errorf("got %+v, want 8 of 9 retries: the journal has the eighth, and not the ninth", got)
		}
	})
}

// With everything that is bounded at its bound, the history takes what it says at most.
func TestMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	now := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	// One route with one more share for each of many endpoints, each with all latencies in all periods.
	j := testkit.Must(journal.New(journal.Config{Now: clock}))(t)
	before := heap()
	h := history.New(clock)
	samples := []history.Sample{{Route: "farm", FromGateway: true, Backlog: -1}}
	h.Update(samples, j)
	o, n := j.Observer(nil), 0
	const endpoints = 20
	for range 24 * 60 / 5 {
		for range 5 {
			now = now.Add(time.Minute)
			for e := range endpoints {
				n++
				id, tenant, endpoint := fmt.Sprint("m", n), fmt.Sprint("T", e), fmt.Sprint("E", e)
				event := &gateway.MessageReceived{ID: id, TenantID: tenant, ReceivingEndpointID: endpoint}
				j.Event(event)
				msg := message.NewMessage("uuid", nil)
				msg.Metadata = message.Metadata{gateway.KeyMessageID: id, gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint}
				for _, kind := range []router.EventKind{router.EventStarted, router.EventStored, router.EventDelivered} {
					o.Observe(router.Event{Route: "farm", Kind: kind, Message: msg})
				}
				j.Confirmed(tenant, []gateway.MessageConfirmation{{EndpointID: endpoint, MessageID: id}})
			}
		}
		h.Update(samples, j)
	}
	j = nil
	per := (int64(heap()) - int64(before)) / endpoints
	runtime.KeepAlive(h)
	t.Logf("%d KiB for each endpoint on a route", per>>10)
	// The journal is gone, and the route itself has a part in it.
	if per > 70<<10+230<<10/endpoints {
		t.Errorf("%d bytes for each of %d endpoints on a route", per, endpoints)
	}
}
