package subscriber

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// confirmWorld is a service in virtual time that answers the requests of a confirmQueue.
type confirmWorld struct {
	timeline
	t    *testing.T
	q    *confirmQueue
	rand *rand.Rand
	// answer decides what becomes of a request and how long it takes.
	answer func(f *confirmBatch) (confirmAnswer, time.Duration)

	added     map[confirmation]time.Time
	confirmed map[string]int           // by tenant
	slowest   map[string]time.Duration // by tenant, from add to confirmation
	rejected  []confirmation
	requests  map[string]int
	underWay  int
	most      int // requests under way
	reports   []Wait
	lasted    []time.Duration // of them
	serial    int
}

// unanswered is longer than any request is waited for.
const unanswered = time.Hour

func newConfirmWorld(t *testing.T, cfg ConfirmConfig) *confirmWorld {
	c := Config{Confirm: cfg}
	c = c.WithDefaults()
	w := &confirmWorld{
		t: t, q: newConfirmQueue(c.Confirm), timeline: newTimeline(), rand: rand.New(rand.NewPCG(1, 2)),
		added: make(map[confirmation]time.Time), confirmed: make(map[string]int), slowest: make(map[string]time.Duration), requests: make(map[string]int),
		answer: func(*confirmBatch) (confirmAnswer, time.Duration) { return answerOK, 20 * time.Millisecond },
	}
	return w
}

func (w *confirmWorld) add(tenant string, n int) {
	for range n {
		w.serial++
		item := confirmation{endpoint: tenant, message: fmt.Sprint(w.serial)}
		w.added[item] = w.now
		w.q.add(w.now, tenant, tenant, item)
	}
}

// load adds rate confirmations a second for each tenant, from now until end.
func (w *confirmWorld) load(rate int, end time.Duration, tenants ...string) {
	every := time.Second / time.Duration(rate)
	for i, tenant := range tenants {
		var step func()
		step = func() {
			w.add(tenant, 1)
			if next := w.now.Add(every); next.Before(w.began.Add(end)) {
				w.at(next, step)
			}
		}
		w.at(w.now.Add(every*time.Duration(i)/time.Duration(len(tenants))), step)
	}
}

// run runs until end.
func (w *confirmWorld) run(end time.Duration) {
	w.timeline.run(end, func() time.Time {
		for f := w.q.next(w.now); f != nil; f = w.q.next(w.now) {
			w.send(f)
		}
		return w.q.wake(w.now)
	}, func() {})
}

func (w *confirmWorld) send(f *confirmBatch) {
	w.requests[f.t.tenant]++
	w.underWay++
	w.most = max(w.most, w.underWay)
	if f.t.flight != f || len(f.items) == 0 || len(f.items) > w.q.cfg.MaxBatch {
		w.t.Fatalf("request of %s with %d confirmations, beside another one: %v", f.t.tenant, len(f.items), f.t.flight != f)
	}
	answer, took := w.answer(f)
	if took > f.t.patience {
		answer, took = answerTimeout, f.t.patience
	}
	w.at(w.now.Add(took), func() { w.answered(f, answer) })
}

func (w *confirmWorld) answered(f *confirmBatch, answer confirmAnswer) {
	w.underWay--
	confirmed, rejected, report := w.q.answered(w.now, f, answer, errors.New("failed"))
	for _, item := range confirmed {
		added, open := w.added[item]
		if !open {
			w.t.Fatalf("%v of %s confirmed twice", item, f.t.tenant)
		}
		delete(w.added, item)
		w.confirmed[f.t.tenant]++
		w.slowest[f.t.tenant] = max(w.slowest[f.t.tenant], w.now.Sub(added))
	}
	for _, item := range rejected {
		delete(w.added, item)
	}
	w.rejected = append(w.rejected, rejected...)
	if report != nil {
		w.reports, w.lasted = append(w.reports, *report), append(w.lasted, w.now.Sub(report.Since))
	}
}

// open counts the confirmations of a tenant that are not confirmed.
func (w *confirmWorld) open(tenant string) (n int) {
	for item := range w.added {
		if item.endpoint == tenant {
			n++
		}
	}
	return n
}

var fiveTenants = []string{"a", "b", "c", "d", "e"}

// partialFaults are what the service may do to the confirmations of one tenant.
var partialFaults = map[string]func(w *confirmWorld) (confirmAnswer, time.Duration){
	"500":   func(*confirmWorld) (confirmAnswer, time.Duration) { return answerFailed, 20 * time.Millisecond },
	"403":   func(*confirmWorld) (confirmAnswer, time.Duration) { return answerRefused, 20 * time.Millisecond },
	"hangs": func(*confirmWorld) (confirmAnswer, time.Duration) { return answerOK, unanswered },
	"slow":  func(*confirmWorld) (confirmAnswer, time.Duration) { return answerOK, 10 * time.Second },
	"mixed": func(w *confirmWorld) (confirmAnswer, time.Duration) {
		return confirmAnswer(1 + w.rand.IntN(2)), time.Duration(w.rand.Int64N(int64(3 * time.Second)))
	},
}

// What one tenant's confirmations wait for costs the others nothing, and the tenant gets
// its own confirmed within seconds of the end of the fault.
func TestOneTenantsFaultIsItsOwn(t *testing.T) {
	for name, fault := range partialFaults {
		t.Run(name, func(t *testing.T) {
			w := newConfirmWorld(t, ConfirmConfig{})
			const begins, ends = 5 * time.Second, 65 * time.Second
			w.answer = func(f *confirmBatch) (confirmAnswer, time.Duration) {
				since := w.now.Sub(w.began)
				if f.t.tenant == "a" && since >= begins && since < ends {
					return fault(w)
				}
				return answerOK, 20 * time.Millisecond
			}
			w.load(100, 70*time.Second, fiveTenants...)
			w.run(ends)
			if n := w.requests["a"]; n > 5*10+60*10 {
				t.Errorf("%d requests of the tenant that fails", n)
			}
			over := ends + 5*time.Second
			if name == "slow" || name == "hangs" {
				over += maxPatience // the request that is under way is waited for
			}
			w.run(over)
			for _, tenant := range fiveTenants {
				if n := w.open(tenant); n > 100 {
					t.Errorf("%s has %d open", tenant, n)
				}
				// Aged for a batch, and answered; a full batch of 100 needs no more.
				if slowest := w.slowest[tenant]; tenant != "a" && slowest > 150*time.Millisecond {
					t.Errorf("%s waited %v", tenant, slowest)
				}
			}
			if len(w.rejected) > 0 {
				t.Errorf("%d rejected", len(w.rejected))
			}
			if name == "slow" {
				return // its patience has grown, so some succeed
			}
			last := len(w.reports) - 1
			if last < 1 || last > 2 || w.reports[0].Err == nil || w.lasted[0] < 10*time.Second || w.lasted[0] > 20*time.Second ||
				w.reports[last].Err != nil || w.reports[0].What != "a" {
				t.Errorf("reports %+v after %v", w.reports, w.lasted)
			}
		})
	}
}

// Two hundred tenants that hang leave the others their slots.
func TestManyHangingTenants(t *testing.T) {
	w := newConfirmWorld(t, ConfirmConfig{})
	var hanging []string
	for i := range 200 {
		hanging = append(hanging, fmt.Sprint("hanging ", i))
	}
	w.answer = func(f *confirmBatch) (confirmAnswer, time.Duration) {
		if slices.Contains(fiveTenants, f.t.tenant) {
			return answerOK, 20 * time.Millisecond
		}
		return answerOK, unanswered
	}
	w.load(scaled(10), time.Minute, hanging...)
	w.run(time.Second)
	w.load(100, time.Minute, fiveTenants...)
	w.run(2 * time.Minute)
	for _, tenant := range fiveTenants {
		if n := w.open(tenant); n > 0 || w.slowest[tenant] > 2*time.Second {
			t.Errorf("%s has %d open and waited %v", tenant, n, w.slowest[tenant])
		}
	}
	if w.most > 4*64 {
		t.Errorf("%d requests at a time", w.most)
	}
}

// One confirmation that the service cannot process holds up itself only.
func TestOneConfirmationThatSpoilsItsBatch(t *testing.T) {
	for name, answer := range map[string]confirmAnswer{"500": answerFailed, "hangs": answerTimeout, "404": answerRefused, "400": answerInvalid} {
		for _, rate := range []int{0, 1, 200} { // 0: nothing else tells that the others would pass
			t.Run(fmt.Sprint(name, " at ", rate), func(t *testing.T) {
				w := newConfirmWorld(t, ConfirmConfig{})
				var bad confirmation
				w.answer = func(f *confirmBatch) (confirmAnswer, time.Duration) {
					switch {
					case !slices.Contains(f.items, bad):
						return answerOK, 20 * time.Millisecond
					case answer == answerTimeout:
						return answerOK, unanswered
					}
					return answer, 20 * time.Millisecond
				}
				w.add("a", 50)
				bad = confirmation{endpoint: "a", message: "51"}
				w.add("a", 1)
				w.add("a", 49)
				if rate > 0 {
					w.load(rate, time.Minute, "a")
				}
				w.run(70 * time.Second)
				if n := w.open("a"); n > 1 || n == 1 && answer == answerInvalid {
					t.Errorf("%d open", n)
				}
				if answer == answerInvalid && (len(w.rejected) != 1 || w.rejected[0] != bad) || answer != answerInvalid && len(w.rejected) > 0 {
					t.Errorf("rejected %v", w.rejected)
				}
				limit := 30 * time.Second
				if rate == 0 {
					limit = 40 * time.Second // a hanging request alone is given more and more time
				}
				if w.slowest["a"] > limit {
					t.Errorf("waited %v", w.slowest["a"])
				}
			})
		}
	}
}

// A service that fails most requests, or leaves many unanswered, still takes half of what
// comes.
func TestConfirmationsOfAnUnreliableService(t *testing.T) {
	for name, fault := range map[string]func(w *confirmWorld) (confirmAnswer, time.Duration){
		"30 % hang": func(w *confirmWorld) (confirmAnswer, time.Duration) {
			if w.rand.Float64() < 0.3 {
				return answerOK, unanswered
			}
			return answerOK, 20 * time.Millisecond
		},
		"70 % 500": func(w *confirmWorld) (confirmAnswer, time.Duration) {
			if w.rand.Float64() < 0.7 {
				return answerFailed, 20 * time.Millisecond
			}
			return answerOK, 20 * time.Millisecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newConfirmWorld(t, ConfirmConfig{})
			w.answer = func(*confirmBatch) (confirmAnswer, time.Duration) { return fault(w) }
			w.load(200, time.Minute, fiveTenants...)
			w.run(time.Minute)
			total := 0
			for _, n := range w.confirmed {
				total += n
			}
			if want := 5 * 200 * 60 / 2; total < want {
				t.Errorf("%d confirmed in a minute, want at least %d", total, want)
			} else {
				t.Logf("%d of %d", total, 2*want)
			}
		})
	}
}

// While the service takes nothing from anybody, one request at a time finds out when it does again; everything
// follows at once.
func TestOutageOfConfirmations(t *testing.T) {
	w := newConfirmWorld(t, ConfirmConfig{})
	const ends = 10 * time.Minute
	w.answer = func(*confirmBatch) (confirmAnswer, time.Duration) {
		if w.now.Sub(w.began) < ends {
			return answerFailed, 20 * time.Millisecond
		}
		return answerOK, 20 * time.Millisecond
	}
	for i := range 1000 {
		w.add(fmt.Sprint(i), 3)
	}
	w.run(ends)
	total := 0
	for _, n := range w.requests {
		total += n
	}
	if most := 500; total > most {
		t.Errorf("%d requests in ten minutes, want %d at most", total, most)
	}
	if most := w.q.cfg.MaxRequests * 3 / 2; w.most > most {
		t.Errorf("%d requests at a time, want %d at most", w.most, most)
	}
	w.run(ends + 10*time.Second)
	if len(w.added) > 0 {
		t.Errorf("%d of 3000 open ten seconds after the outage", len(w.added))
	}
}

// Whatever the service does, no confirmation is lost, doubled or forgotten.
func TestConfirmQueueKeepsEverything(t *testing.T) {
	for seed := range uint64(scaled(60)) {
		w := newConfirmWorld(t, ConfirmConfig{MaxBatch: 1 + int(seed%20), MaxRequests: 1 + int(seed%7), RefusedFor: time.Hour})
		w.rand = rand.New(rand.NewPCG(seed, 0))
		wild := true
		w.answer = func(f *confirmBatch) (confirmAnswer, time.Duration) {
			took := time.Duration(w.rand.Int64N(int64(400 * time.Millisecond)))
			if !wild || w.rand.IntN(4) == 0 {
				return answerOK, min(took, 100*time.Millisecond)
			}
			if w.rand.IntN(10) == 0 {
				took = unanswered
			}
			answers := []confirmAnswer{answerFailed, answerRefused, answerTooLarge}
			if len(f.items) > 1 {
				answers = append(answers, answerInvalid)
			}
			return answers[w.rand.IntN(len(answers))], took
		}
		for i := range 2 + w.rand.IntN(10) {
			w.load(1+w.rand.IntN(40), 20*time.Second, fmt.Sprint(i))
		}
		w.run(20 * time.Second)
		size := 0
		for _, tenant := range w.q.tenants {
			size += tenant.size
		}
		if size != len(w.added) {
			t.Fatalf("seed %d: %d in the queue, %d open", seed, size, len(w.added))
		}
		wild = false
		w.run(21 * time.Second) // the answers that are on their way
		w.q.drain(w.now)
		w.run(10 * time.Minute)
		if len(w.added) > 0 || len(w.rejected) > 0 || len(w.q.tenants) > 0 || len(w.q.flights) > 0 {
			t.Fatalf("seed %d: %d open, %d rejected, %d tenants", seed, len(w.added), len(w.rejected), len(w.q.tenants))
		}
	}
}

// A tenant that was refused stays refused when nobody else is served any more: the service then
// cannot be told from one that refuses everybody.
func TestRefusedTenantAlone(t *testing.T) {
	w := newConfirmWorld(t, ConfirmConfig{RefusedFor: time.Minute})
	answers := 0
	w.answer = func(*confirmBatch) (confirmAnswer, time.Duration) {
		if answers++; answers <= 3 {
			return answerRefused, time.Millisecond
		}
		return answerForbidden, time.Millisecond
	}
	w.add("a", 600)
	w.run(50 * time.Second)
	if len(w.rejected) > 0 {
		t.Errorf("%d rejected too early", len(w.rejected))
	}
	w.run(3 * time.Minute)
	if len(w.rejected) != 600 || len(w.q.tenants) > 0 {
		t.Errorf("%d rejected, %d tenants", len(w.rejected), len(w.q.tenants))
	}

	// One that was never refused by itself is kept: everybody may be refused.
	w = newConfirmWorld(t, ConfirmConfig{RefusedFor: time.Minute})
	w.answer = func(*confirmBatch) (confirmAnswer, time.Duration) { return answerForbidden, time.Millisecond }
	w.add("a", 600)
	w.run(time.Hour)
	if n := w.open("a"); n != 600 || len(w.rejected) > 0 {
		t.Errorf("%d open, %d rejected", n, len(w.rejected))
	}
}

// A tenant whose requests are limited, or fail, is left alone for as long as the service asks, and no other one is.
func TestTenantIsLeftAloneForAsLongAsTheServiceAsks(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		t.Run(strconv.Itoa(status), func(t *testing.T) { testTenantIsLeftAlone(t, status) })
	}
}

func testTenantIsLeftAlone(t *testing.T, status int) {
	w := newConfirmWorld(t, ConfirmConfig{})
	const asked = 40 * time.Second
	w.add("limited", 1)
	w.add("other", 1)
	at := w.now.Add(time.Second)
	for range 2 {
		b := w.q.next(at)
		if b.t.key == "other" {
			w.q.answered(at, b, answerOK, nil)
			continue
		}
		w.q.answered(at, b, answerFailed, &gateway.Error{StatusCode: status, RetryAfter: asked})
	}
	w.q.add(at, "other", "other", confirmation{endpoint: "other", message: "2"})
	for b := w.q.next(at.Add(asked - 1)); b != nil; b = w.q.next(at.Add(asked - 1)) {
		if b.t.key == "limited" {
			t.Error("the tenant is asked for before its time")
		}
	}
	if wake := w.q.wake(at.Add(asked - 1)); !wake.Equal(at.Add(asked)) {
		t.Errorf("the next request is due %v after the answer, want %v", wake.Sub(at), asked)
	}
	if b := w.q.next(at.Add(asked)); b == nil || b.t.key != "limited" {
		t.Errorf("got %v, want the request of the tenant", b)
	}
}
