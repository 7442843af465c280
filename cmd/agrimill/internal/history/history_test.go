package history_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// farm is a process whose routes a test plays. It lives in a bubble.
type farm struct {
	*history.History
	t       *testing.T
	journal *journal.Journal
	counts  map[string]*history.Counts
	age     time.Duration
}

func newFarm(t *testing.T, cfg journal.Config) *farm {
	j := testkit.Must(journal.New(cfg))(t)
	return &farm{History: history.New(nil), t: t, journal: j, counts: map[string]*history.Counts{}, age: -1}
}

// update is what the process does every other second.
func (f *farm) update() {
	var samples []history.Sample
	for name, counts := range f.counts {
		samples = append(samples, history.Sample{Route: name, FromGateway: name != "back", Counts: *counts, Backlog: -1, Age: f.age})
	}
	f.Update(samples, f.journal)
}

func (f *farm) receive(id string) {
	f.journal.Event(&gateway.MessageReceived{ID: id, TenantID: "tenant", ReceivingEndpointID: "endpoint", Payload: []byte("1")})
}

func (f *farm) fetch(id string) {
	f.journal.Progress(subscriber.Progress{Kind: subscriber.ProgressFetched, Event: &gateway.MessageReceived{ID: id}, Bytes: 7})
}

func (f *farm) on(route string, kind router.EventKind, metadata message.Metadata, took time.Duration) {
	msg := message.NewMessage("uuid", []byte("1"))
	msg.Metadata = metadata
	f.journal.Observer(nil).Observe(router.Event{Route: route, Kind: kind, Message: msg, Context: context.Background(), Delay: took, Err: errors.New("e"), Text: "e"})
	counts := f.counts[route]
	switch kind {
	case router.EventDelivered:
		counts.Delivered++
	case router.EventPoisoned:
		counts.Poisoned++
	}
}

func (f *farm) confirm(id string) {
	f.journal.Confirmed("tenant", []gateway.MessageConfirmation{{EndpointID: "endpoint", MessageID: id}})
}

func named(id string) message.Metadata { return message.Metadata{gateway.KeyMessageID: id} }

func (f *farm) route(r history.Range, name string) history.RouteRecord {
	f.t.Helper()
	record := f.Record(r, history.Selection{Route: name})
	if len(record.Routes) != 1 {
		f.t.Fatalf("%d routes of the name %s", len(record.Routes), name)
	}
	return record.Routes[0]
}

// latency fails unless so many messages took the time; what is shown may be half as long again.
func latency(t *testing.T, p history.Period, step string, count uint64, want time.Duration) {
	t.Helper()
	got := p.Latency[step]
	if least := max(want.Seconds(), 0); got.Count != count || got.P50Seconds < least || got.P50Seconds > max(1.5*least, 0.00014) {
		t.Errorf("%s: %d messages, half of them in %gs, want %d, %v", step, got.Count, got.P50Seconds, count, want)
	}
}

// What waited for a file that did not come, and then for its payload, took its time for each.
func TestHoldIsNoFetch(t *testing.T) {
	for name, fetch := range map[string]time.Duration{"embedded": 0, "downloaded": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFarm(t, journal.Config{})
				f.counts["farm"] = &history.Counts{}
				f.update()
				f.receive("m")
				time.Sleep(2 * time.Second)
				f.journal.Progress(subscriber.Progress{Kind: subscriber.ProgressUnclaimed, Event: &gateway.MessageReceived{ID: "m"}})
				if time.Sleep(fetch); fetch > 0 {
					f.fetch("m")
				}
				time.Sleep(20 * time.Millisecond)
				f.on("farm", router.EventStarted, named("m"), 0)
				f.on("farm", router.EventDelivered, named("m"), 0)
				f.update()
				total := f.route(history.RangeHour, "farm").Total
				latency(t, total, "hold", 1, 2*time.Second)
				latency(t, total, "wait", 1, 20*time.Millisecond)
				latency(t, total, "end_to_end", 1, 2020*time.Millisecond+fetch)
				if _, fetched := total.Latency["fetch"]; fetched != (fetch > 0) {
					t.Errorf("its download is timed: %v", fetched)
				} else if fetched {
					latency(t, total, "fetch", 1, fetch)
				}
			})
		})
	}
}

// A message from the gateway: each step takes the time that it took, on each of its routes.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"], f.counts["copy"] = &history.Counts{}, &history.Counts{}
		f.update()
		f.receive("m")
		time.Sleep(2 * time.Second)
		f.fetch("m")
		time.Sleep(200 * time.Millisecond)
		f.on("farm", router.EventStarted, named("m"), 0)
		f.on("copy", router.EventStarted, named("m"), 0)
		time.Sleep(40 * time.Millisecond)
		f.on("farm", router.EventStored, named("m"), 30*time.Millisecond)
		f.on("farm", router.EventDelivered, named("m"), 0)
		f.update() // in the middle: what is open is known next time
		time.Sleep(time.Second)
		f.on("copy", router.EventFiltered, named("m"), 0)
		time.Sleep(8 * time.Second)
		f.confirm("m")
		f.update()

		for _, r := range []history.Range{history.RangeHour, history.RangeDay} {
			total := f.route(r, "farm").Total
			latency(t, total, "end_to_end", 1, 2240*time.Millisecond)
			latency(t, total, "fetch", 1, 2*time.Second)
			latency(t, total, "wait", 1, 200*time.Millisecond)
			latency(t, total, "handle", 1, 10*time.Millisecond)
			latency(t, total, "store", 1, 30*time.Millisecond)
			latency(t, total, "confirm", 1, 8*time.Second)
			if total.Delivered != 1 {
				t.Errorf("%v: %d delivered", r, total.Delivered)
			}
		}
		// What was filtered waits for its confirmation as well, and is not delivered.
		total := f.route(history.RangeHour, "copy").Total
		latency(t, total, "confirm", 1, 8*time.Second)
		if _, timed := total.Latency["end_to_end"]; timed {
			t.Error("what was filtered counts as delivered")
		}
	})
}

// Attempts that failed are a part of the way, and not of the last attempt.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"] = &history.Counts{}
		f.update()
		f.receive("m")
		f.on("farm", router.EventStarted, named("m"), 0)
		time.Sleep(time.Minute)
		f.on("farm", router.EventReturned, named("m"), 0)
		f.receive("m") // again
		f.on("farm", router.EventStarted, named("m"), 0)
		time.Sleep(20 * time.Millisecond)
		f.on("farm", router.EventDelivered, named("m"), 0)
		f.update()
		total := f.route(history.RangeHour, "farm").Total
		latency(t, total, "end_to_end", 1, time.Minute+20*time.Millisecond)
		latency(t, total, "wait", 1, 0)
		latency(t, total, "handle", 1, 20*time.Millisecond)
	})
}

// A message from a broker has no arrival and no confirmation. A file is timed by its first message.
func TestOtherMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"], f.counts["back"] = &history.Counts{}, &history.Counts{}
		f.update()
		f.on("back", router.EventStarted, nil, 0)
		time.Sleep(100 * time.Millisecond)
		f.on("back", router.EventStored, nil, 90*time.Millisecond)
		f.on("back", router.EventDelivered, nil, 0)

		f.receive("part 1")
		time.Sleep(time.Second)
		f.receive("part 2")
		f.journal.Event(&gateway.FileReceived{MessageIDs: []string{"part 1", "part 2"}, TenantID: "tenant"})
		both := message.Metadata{gateway.KeyMessageIDs: "part 1,part 2"}
		f.on("farm", router.EventStarted, both, 0)
		f.on("farm", router.EventDelivered, both, 0)
		time.Sleep(4 * time.Second)
		f.confirm("part 1")
		f.confirm("part 2")
		f.update()

		total := f.route(history.RangeHour, "back").Total
		latency(t, total, "end_to_end", 1, 100*time.Millisecond)
		latency(t, total, "store", 1, 90*time.Millisecond)
		if len(total.Latency) != 3 {
			t.Errorf("steps of a message from a broker: %v", total.Latency)
		}
		total = f.route(history.RangeHour, "farm").Total
		latency(t, total, "end_to_end", 1, time.Second)
		latency(t, total, "confirm", 1, 4*time.Second)
	})
}

// What is older than the range is forgotten, period by period; what was never sampled is missing.
func TestPeriodsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		counts := &history.Counts{Delivered: 5, Poisoned: 1}
		f.counts["farm"] = counts
		f.update()
		began := time.Now().UTC()
		time.Sleep(30 * time.Minute)
		counts.Delivered, counts.Retries, f.age = 8, 2, 3*time.Second
		f.update()
		time.Sleep(time.Second)
		f.age = time.Second
		f.update()

		hour := f.route(history.RangeHour, "farm")
		if len(hour.Periods) != 2 || hour.Periods[0].Delivered != 5 || hour.Periods[1].Delivered != 3 || hour.Periods[1].Retries != 2 {
			t.Errorf("periods %+v", hour.Periods)
		}
		if !hour.Periods[0].Time.Equal(began.Truncate(time.Minute)) || hour.Periods[0].AgeSeconds != nil || *hour.Periods[1].AgeSeconds != 3 {
			t.Errorf("periods %+v", hour.Periods)
		}
		if hour.Total.Delivered != 8 || hour.Total.Poisoned != 1 || *hour.Total.AgeSeconds != 3 {
			t.Errorf("total %+v", hour.Total)
		}
		time.Sleep(31 * time.Minute)
		if hour := f.route(history.RangeHour, "farm"); hour.Total.Delivered != 3 {
			t.Errorf("after an hour: %+v", hour.Total)
		}
		if day := f.route(history.RangeDay, "farm"); day.Total.Delivered != 8 || len(day.Periods) != 2 {
			t.Errorf("of the day: %+v", day)
		}
		// The same place in the ring, an hour later, begins anew.
		time.Sleep(29 * time.Minute)
		counts.Delivered++
		f.update()
		if hour := f.route(history.RangeHour, "farm"); hour.Total.Delivered != 1 || len(hour.Periods) != 1 {
			t.Errorf("after another half hour: %+v", hour)
		}
		// A route that is gone is forgotten after a day.
		delete(f.counts, "farm")
		time.Sleep(23 * time.Hour)
		f.update()
		f.route(history.RangeDay, "farm")
		time.Sleep(2 * time.Hour)
		f.update()
		if record := f.Record(history.RangeDay, history.Selection{}); len(record.Routes) != 0 {
			t.Errorf("after two days: %+v", record.Routes)
		}
	})
}

// A route that comes once another one is forgotten has nothing of it: neither its messages that nobody has confirmed, nor
// those that it has begun with.
func TestRouteAfterAForgottenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["former"] = &history.Counts{}
		f.update()
		for _, id := range []string{"delivered", "begun"} {
			f.receive(id)
			f.on("former", router.EventStarted, named(id), 0)
		}
		f.on("former", router.EventDelivered, named("delivered"), 0)
		f.update()
		delete(f.counts, "former")
		time.Sleep(25 * time.Hour)
		f.update()
		f.counts["next"] = &history.Counts{}
		f.update()
		f.confirm("delivered")
		f.on("next", router.EventDelivered, named("begun"), 0)
		f.update()
		if total := f.route(history.RangeHour, "next").Total; len(total.Latency) != 0 || total.Delivered != 1 {
			t.Errorf("the next route has %+v", total)
		}
	})
}

// What is unconfirmed has its most in each minute, for an hour.
func TestUnconfirmed(t *testing.T) {
	start := time.Date(2026, 4, 1, 6, 0, 0, 0, time.UTC)
	now := start
	h := history.New(func() time.Time { return now })
	add := func(seconds, n int) []int {
		now = start.Add(time.Duration(seconds) * time.Second)
		h.AddUnconfirmed(n)
		return h.Unconfirmed()
	}
	add(0, 1)
	add(30, 5)
	add(50, 2)
	add(60, 2)
	testkit.Equal(t, add(61, 3), []int{5, 3})
	for minute := 2; minute < 99; minute++ {
		add(60*minute, minute)
	}
	if got := add(60*99, 99); len(got) != 60 || got[0] != 40 || got[59] != 99 {
		t.Errorf("got %v", got)
	}
	if got := add(24*60*60, 7); !slices.Equal(got, []int{7}) {
		t.Errorf("after a day: %v", got)
	}
}

// A route that counts anew, because it was removed and added, does not count backward.
func TestCountsBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"] = &history.Counts{Delivered: 100}
		f.update()
		f.counts["farm"] = &history.Counts{Delivered: 7}
		f.update()
		if total := f.route(history.RangeHour, "farm").Total; total.Delivered != 107 {
			t.Errorf("%d delivered, want 107", total.Delivered)
		}
	})
}

// Quantiles are never too short, and at most half too long.
func TestQuantiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{})
		f.counts["farm"] = &history.Counts{}
		f.update()
		var all []time.Duration
		for i := range 1000 {
			took := time.Duration(i*i) * 7 * time.Microsecond
			all = append(all, took)
			f.on("farm", router.EventStarted, named(fmt.Sprint(i)), 0)
			f.on("farm", router.EventStored, named(fmt.Sprint(i)), took)
			f.on("farm", router.EventDelivered, named(fmt.Sprint(i)), 0)
		}
		f.update()
		store := f.route(history.RangeHour, "farm").Total.Latency["store"]
		slices.Sort(all)
		for want, got := range map[time.Duration]float64{all[499]: store.P50Seconds, all[989]: store.P99Seconds} {
			if got < want.Seconds() || got > 1.5*want.Seconds() {
				t.Errorf("%gs, want %v to half as much again", got, want)
			}
		}
	})
}

// Neither routes nor messages that are never finished take more than their bound, and a journal that is too small is told.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(t, journal.Config{MaxBytes: 8 << 10})
		f.update()
		for i := range 200 {
			f.receive(fmt.Sprint("never finished ", i))
		}
		f.update()
		record := f.Record(history.RangeHour, history.Selection{})
		if record.TimedIncompletelyUntil.IsZero() || !record.Timed {
			t.Errorf("nothing says that entries were lost: %+v", record)
		}
		// What is dropped because it is old was read.
		time.Sleep(25 * time.Hour)
		f.update()
		if lost := f.Record(history.RangeHour, history.Selection{}).TimedIncompletelyUntil; !lost.Equal(record.TimedIncompletelyUntil) {
			t.Errorf("what was read counts as lost, at %v", lost)
		}
		for i := range history.MaxRoutes + 10 {
			f.counts[fmt.Sprint("route ", i)] = &history.Counts{}
		}
		f.update()
		if n := len(f.Record(history.RangeDay, history.Selection{}).Routes); n != history.MaxRoutes {
			t.Errorf("%d routes", n)
		}
	})
}

// Without a journal there are counts and no latencies.
func TestWithoutJournal(t *testing.T) {
	f := newFarm(t, journal.Config{MaxAge: -1})
	f.counts["farm"] = &history.Counts{Delivered: 1}
	f.update()
	record := f.Record(history.RangeHour, history.Selection{Route: "farm"})
	if record.Timed || record.Routes[0].Total.Delivered != 1 || record.Routes[0].Total.Latency != nil {
		t.Errorf("%+v", record)
	}
	var none *history.History
	none.Update(nil, nil)
	if text, err := json.Marshal(none.Record(history.RangeDay, history.Selection{})); err != nil || !strings.Contains(string(text), `"routes":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestConcurrently(t *testing.T) {
	f := newFarm(t, journal.Config{MaxBytes: 64 << 10})
	f.counts["farm"] = &history.Counts{}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range 300 {
				switch i {
				case 0:
					f.update()
				case 1:
					f.Record(history.RangeDay, history.Selection{})
				default:
					f.receive(fmt.Sprint(i, k))
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkEvent has what an event costs in all: its entry in the journal, and the history that follows it every 5,000
// entries, as it does behind the messages.
func BenchmarkEvent(b *testing.B) {
	const messages = 1000
	type sent struct {
		event    *gateway.MessageReceived
		msg      *message.Message
		accepted []gateway.MessageConfirmation
	}
	var all [messages]sent
	for i := range all {
		tenant, endpoint := fmt.Sprintf("33333333-cccc-4000-8000-%012d", i%20), fmt.Sprintf("22222222-bbbb-4000-8000-%012d", i%40)
		id := fmt.Sprintf("11111111-aaaa-4000-8000-%012d", i)
		msg := message.NewMessage("5b1b4a5a-9e11-4e3a-8f7e-5f010b9ee84b", []byte("1"))
		msg.Metadata = message.Metadata{
			gateway.KeyMessageID: id, gateway.KeyTenantID: tenant, gateway.KeyReceivingEndpointID: endpoint,
			gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyMessageType: "img:png", gateway.KeyPayloadSize: "1",
		}
		all[i] = sent{
			event:    &gateway.MessageReceived{ID: id, TenantID: tenant, ReceivingEndpointID: endpoint, MessageType: "img:png", Payload: []byte("1")},
			msg:      msg,
			accepted: []gateway.MessageConfirmation{{EndpointID: endpoint, MessageID: id}},
		}
	}
	// events records the five events of each message, and calls after when all are recorded.
	events := func(b *testing.B, j *journal.Journal, after func()) {
		o, ctx := j.Observer(nil), context.Background()
		b.ReportAllocs()
		n, kind := 0, 0
		for b.Loop() {
			s := &all[n]
			switch kind {
			case 0:
				j.Event(s.event)
			case 1:
				o.Observe(router.Event{Route: "farm", Kind: router.EventStarted, Message: s.msg, Context: ctx})
			case 2:
				o.Observe(router.Event{Route: "farm", Kind: router.EventStored, Message: s.msg, Context: ctx, Delay: time.Millisecond})
			case 3:
				o.Observe(router.Event{Route: "farm", Kind: router.EventDelivered, Message: s.msg, Context: ctx})
			case 4:
				j.Confirmed(s.event.TenantID, s.accepted)
			}
			if n++; n == messages {
				if n, kind = 0, kind+1; kind == 5 {
					kind = 0
					after()
				}
			}
		}
	}
	newJournal := func(b *testing.B) *journal.Journal {
		j := testkit.Must(journal.New(journal.Config{}))(b)
		return j
	}
	b.Run("journal and history", func(b *testing.B) {
		j, h, samples := newJournal(b), history.New(nil), []history.Sample{{Route: "farm", FromGateway: true}}
		h.Update(samples, j)
		events(b, j, func() { h.Update(samples, j) })
	})
	b.Run("journal alone", func(b *testing.B) { events(b, newJournal(b), func() {}) })
}

// Whatever the clock is set to, each message counts once, at the time of the new clock; what the file of the journal had does not.
func TestClockIsSet(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"back": -3 * time.Hour, "far back": -72 * time.Hour, "a little back": -time.Second, "forward": 26 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Date(2026, 4, 1, 6, 0, 30, 0, time.UTC)
			clock := func() time.Time { return now }
			cfg := journal.Config{Path: t.TempDir() + "/journal", Now: clock}
			handle := func(f *farm, id string) {
				f.receive(id)
				f.on("farm", router.EventStarted, named(id), 0)
				f.on("farm", router.EventDelivered, named(id), 0)
			}
			begin := func() *farm {
				j := testkit.Must(journal.New(cfg))(t)
				return &farm{History: history.New(clock), t: t, journal: j, counts: map[string]*history.Counts{"farm": {}}, age: -1}
			}
			before := begin()
			handle(before, "of an earlier process")
			testkit.NoError(t, before.journal.Close())
			f := begin()
			defer func() { testkit.NoError(t, f.journal.Close()) }()
			f.update()
			handle(f, "before")
			f.update()
			handle(f, "on its way")
			now = now.Add(by)
			f.update()
			now = now.Add(2 * time.Second)
			handle(f, "after")
			f.update()

			of := history.Selection{Tenant: "tenant"}
			want := uint64(3)
			if by > history.RangeDay.Duration() {
				want = 1 // what a day lies between is forgotten
			}
			if got := f.Selected(of).Figures; got.Received != want || got.Routes.Delivered != want {
				t.Errorf("the tenant has %+v, want %d received and delivered", got, want)
			}
			for _, r := range []history.Range{history.RangeHour, history.RangeDay} {
				all, share := f.Record(r, history.Selection{}).Routes[0].Total, f.Record(r, of).Routes[0].Total
				latest := f.route(r, "farm").Periods
				if len(latest) == 0 || latest[len(latest)-1].Delivered == 0 {
					t.Errorf("in the last %v the route has %+v", r, latest)
					continue
				}
				if share.Delivered == 0 || all.Delivered > 3 || share.Delivered > 3 || all.Delivered > 2 && by > time.Hour {
					t.Errorf("in the last %v the route delivered %d, %d of the tenant", r, all.Delivered, share.Delivered)
				}
			}
			if record := f.Record(history.RangeHour, of); record.Since.After(record.To) {
				t.Errorf("the history begins at %v, after %v", record.Since, record.To)
			}
		})
	}
}
