package gateway

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// tenantService answers requests through a limiter.
type tenantService struct {
	*testing.T
	limiter
	refuse           func(tenant int) bool
	retryAfter       time.Duration
	mu               sync.Mutex
	served, rejected int
}

func newTenantService(t *testing.T, refuse func(int) bool) *tenantService {
	return &tenantService{T: t, limiter: limiter{cfg: RateLimitConfig{}.WithDefaults()}, refuse: refuse}
}

func tenantID(tenant int) string { return fmt.Sprintf("%08x-3a5e-4a6c-9b57-1d2f4bb1a001", tenant) }

// request sends one of a tenant and reports whether it was served.
func (s *tenantService) request(tenant int) bool {
	started, err := s.wait(s.Context())
	if err != nil {
		s.Error(err)
		return false
	}
	s.mu.Lock()
	refused := s.refuse(tenant)
	if refused {
		s.rejected++
	} else {
		s.served++
	}
	s.mu.Unlock()
	if refused {
		s.reject(started, tenantID(tenant), s.retryAfter)
	} else {
		s.accept(started, tenantID(tenant))
	}
	return !refused
}

// sharedLimit is that of a service which serves perSecond requests of all tenants together.
func sharedLimit(perSecond int) func(int) bool {
	var second time.Time
	n := 0
	return func(int) bool {
		if now := time.Now(); now.Sub(second) >= time.Second {
			second, n = now, 0
		}
		n++
		return n > perSecond
	}
}

// load lets each tenant send a request every so often, and try those again that are refused, a second later
// and then less often, for d.
func (s *tenantService) load(tenants int, every func(tenant int) time.Duration, d time.Duration) {
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for tenant := range tenants {
		wg.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(int64(every(tenant))))) // they do not begin together
			refused := 0
			for time.Now().Before(end) {
				if s.request(tenant) {
					refused = 0
					time.Sleep(every(tenant))
				} else {
					refused = min(refused+1, 5)
					time.Sleep(time.Second << (refused - 1))
				}
			}
		})
	}
	wg.Wait()
}

// A minority of tenants that get 429 from the same moment on costs the others nothing, however many they
// are, and whatever they are told to wait.
func TestFew429sAreTheirOwn(t *testing.T) {
	for _, c := range []struct{ sick, of int }{{1, 2}, {2, 5}, {24, 50}, {49, 100}, {2, 300}} {
		testkit.RunBubble(t, fmt.Sprintf("%d of %d", c.sick, c.of), func(t *testing.T) {
			struck := false
			s := newTenantService(t, func(tenant int) bool { return struck && tenant < c.sick })
			s.retryAfter = time.Minute
			for tenant := range c.of {
				s.request(tenant)
			}
			struck = true
			began := time.Now()
			for tenant := range c.of {
				s.request(tenant)
			}
			if took := time.Since(began); took != 0 || s.state().Limited {
				t.Fatalf("after %v: %+v", took, s.state())
			}
			s.load(c.of, func(int) time.Duration { return 200 * time.Millisecond }, time.Minute)
			// Each of the healthy ones sends its five a second.
			if want := (c.of - c.sick) * 5 * 59; s.served < want || s.state().Limited {
				t.Errorf("%d are served, want %d, %+v", s.served, want, s.state())
			}
		})
	}
}

// When half of the tenants get 429, and more than one, it is everybody's.
func TestMany429sAreEverybodys(t *testing.T) {
	for _, c := range []struct{ sick, of int }{{2, 2}, {2, 3}, {2, 4}, {3, 5}, {50, 100}} {
		testkit.RunBubble(t, fmt.Sprintf("%d of %d", c.sick, c.of), func(t *testing.T) {
			struck := false
			s := newTenantService(t, func(tenant int) bool { return struck && tenant < c.sick })
			for tenant := range c.of {
				s.request(tenant)
			}
			struck = true
			for tenant := range c.sick {
				if s.state().Limited {
					t.Fatalf("%d 429s count for all", tenant)
				}
				s.request(tenant)
			}
			if !s.state().Limited {
				t.Error("it counts for nobody")
			}
		})
	}
	testkit.RunBubble(t, "later", func(t *testing.T) {
		struck := -1
		s := newTenantService(t, func(tenant int) bool { return tenant == struck })
		s.request(3)
		for struck = range 4 { // whoever was refused a while ago does not count
			for tenant := range 4 {
				s.request(tenant)
			}
			time.Sleep(recentFor)
		}
		if s.state().Limited {
			t.Errorf("%+v", s.state())
		}
	})
}

// A limit that the service has for all requests together is everybody's, however many tenants
// share it: they pause, and few are refused. That holds as well when most requests are those of one tenant.
func TestLimitOfAllTenants(t *testing.T) {
	const allowed, minutes = 20, 3
	even := func(tenants int) func(int) time.Duration {
		return func(int) time.Duration { return time.Second * time.Duration(tenants) / (2 * allowed) }
	}
	for name, c := range map[string]struct {
		tenants int
		every   func(int) time.Duration
	}{
		"1": {1, even(1)}, "5": {5, even(5)}, "50": {50, even(50)}, "300": {300, even(300)},
		"5, one of them sends nearly all": {5, func(tenant int) time.Duration {
			if tenant == 0 {
				return time.Second / (2 * allowed)
			}
			return 3 * time.Second
		}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			s := newTenantService(t, sharedLimit(allowed))
			s.load(c.tenants, c.every, minutes*time.Minute)
			t.Logf("%s: %d served, %d refused", name, s.served, s.rejected)
			if s.rejected > s.served/10 || s.served < minutes*60*allowed/2 || !s.state().Limited {
				t.Errorf("%d served, %d refused, %+v", s.served, s.rejected, s.state())
			}
		})
	}
}

// A tenant of which it is known that it has a limit of its own keeps it when everybody is limited, too, and
// the limit of all is not lifted for it.
func TestOwnLimitBesideThatOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := sharedLimit(20)
		s := newTenantService(t, func(tenant int) bool { return tenant == 0 || all(tenant) })
		every := func(int) time.Duration { return time.Second / 10 } // twice as much as is allowed
		s.load(5, every, 3*time.Minute)
		if s.rejected > s.served/10 || s.served < 3*60*20/3 || !s.state().Limited {
			t.Errorf("%d served, %d refused, %+v", s.served, s.rejected, s.state())
		}
	})
}

// A limit that some tenants alone have caused is lifted once that is known of each of them; any other
// one grows until it is not needed.
func TestLimitOfFewIsLifted(t *testing.T) {
	const bad, worse, good, nobody = 0, 1, 2, -1
	for name, c := range map[string]struct {
		first   []int // who gets 429 first
		served  int   // who gets it no more then
		want    bool  // whether the limit is there when the bad one has got it twice again
		atWorse bool  // and when a worse one has, if there is one
	}{
		"one":                       {first: []int{bad}, served: nobody, want: false},
		"two":                       {first: []int{bad, worse}, served: nobody, want: true, atWorse: false},
		"one of two is served":      {first: []int{bad, worse}, served: worse, want: true, atWorse: true},
		"no tenant's":               {first: []int{nobody, bad}, served: nobody, want: true},
		"no tenant's, after others": {first: []int{bad, nobody}, served: nobody, want: true},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			served := map[int]bool{good: true}
			s := newTenantService(t, func(tenant int) bool { return !served[tenant] })
			for _, tenant := range c.first {
				if tenant == nobody {
					started := testkit.Must(s.wait(t.Context()))(t)
					s.reject(started, "", 0)
					continue
				}
				s.request(tenant)
			}
			served[c.served] = true
			if !s.state().Limited {
				t.Fatal("there is no limit")
			}
			again := func(tenant int) {
				for range ownAccepted {
					s.request(good)
				}
				s.request(tenant)
			}
			if again(bad); !s.state().Limited {
				t.Error("two 429s are enough")
			}
			if slices.Contains(c.first, worse) {
				again(worse)
			}
			if again(bad); s.state().Limited != c.want {
				t.Errorf("%+v, want a limit: %t", s.state(), c.want)
			}
			if slices.Contains(c.first, worse) {
				again(worse)
				if s.state().Limited != c.atWorse {
					t.Errorf("%+v, want a limit: %t", s.state(), c.atWorse)
				}
			}
		})
	}
}

// What was served before the limit says nothing about those that get 429 under it.
func TestServedBeforeTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := false
		s := newTenantService(t, func(tenant int) bool { return limited || tenant == 0 })
		for range ownAccepted {
			s.request(1)
		}
		s.request(0)
		for range ownAccepted {
			s.request(1)
		}
		limited = true
		for range ownRun {
			s.request(1)
			s.request(0)
		}
		if l := s.state(); !l.Limited || s.tenants.of(tenantID(0)).own {
			t.Errorf("%+v, %+v", l, s.tenants.known)
		}
	})
}

// A request that was sent before a tenant got 429, and is accepted after it, says nothing about the next one.
func TestAcceptedLateBesideA429(t *testing.T) {
	var l limitedTenants
	now := time.Now()
	refuse := func() bool {
		now = now.Add(time.Second)
		return l.refuse(now, "bad", true)
	}
	for range ownRun {
		if refuse() {
			t.Fatal("nobody else was served")
		}
	}
	for range ownAccepted {
		l.accept(now, "good")
	}
	l.accept(now.Add(-time.Millisecond), "bad")
	if !refuse() {
		t.Error("a late answer has made it forgotten")
	}
	l.accept(now, "bad")
	for range ownAccepted {
		l.accept(now, "good")
	}
	if refuse() {
		t.Error("one 429 after it was served is enough")
	}
	if l.refuse(now, "worse", false); l.of("worse").run != 0 {
		t.Error("a 429 from before the limit is news")
	}
}

// What is remembered of tenants is bounded.
func TestLimitedTenantsAreBounded(t *testing.T) {
	var l limitedTenants
	now := time.Now()
	for i := range 3 * knownTenants {
		l.accept(now, tenantID(i))
		l.refuse(now, tenantID(i), true)
	}
	if len(l.index) > knownTenants || len(l.known) > knownTenants {
		t.Errorf("%d and %d", len(l.index), len(l.known))
	}
	// Whoever comes replaces the one that came first.
	if l.refuse(now, "late", true); l.of("late").run != 1 || len(l.known) > knownTenants {
		t.Errorf("%+v of %d", l.of("late"), len(l.known))
	}
}
