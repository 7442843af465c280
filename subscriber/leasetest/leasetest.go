// Package leasetest is the conformance suite for implementations of subscriber.Lease. It has a
// store in memory, too, for tests of programs that use a lease.
package leasetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// Suite says how to test a lease.
type Suite struct {
	// In runs one of the tests, e.g. in a bubble of testing/synctest. Nil means that it is called, beside the others.
	In func(t *testing.T, test func(*testing.T))
	// New makes a lease that nobody has, for one of several tests at a time, and returns a function that opens it as one more
	// process would. What it opens it closes by t.Cleanup. All have the same TTL; the tests
	// wait for a few of it.
	New func(t *testing.T) (open func() subscriber.Lease)
	// Cut cuts a process off from the store until heal is called. Nil if that cannot be done;
	// then the test of it is left out.
	Cut func(t *testing.T, lease subscriber.Lease) (heal func())
	// Outage makes the store of a lease unreachable for everybody until back is called; it keeps what it
	// knows. Nil if that cannot be done.
	Outage func(t *testing.T, lease subscriber.Lease) (back func())
	// Forget makes the store of a lease lose everything. Nil if that cannot be done.
	Forget func(t *testing.T, lease subscriber.Lease)
}

// Run tests a lease.
func Run(t *testing.T, s Suite) {
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			if s.In != nil {
				s.In(t, test)
				return
			}
			t.Parallel() // they wait most of the time
			test(t)
		})
	}
	run("Acquire", s.acquire)
	run("Release", s.release)
	run("TheHolderKeepsIt", s.theHolderKeepsIt)
	run("NotRenewed", s.notRenewed)
	run("LateHolder", s.lateHolder)
	run("AcquireAgain", s.acquireAgain)
	run("Context", s.context)
	run("OneOfMany", s.oneOfMany)
	if s.Cut != nil {
		run("CutOff", s.cutOff)
	}
	if s.Outage != nil {
		run("Outage", s.outage)
	}
	if s.Forget != nil {
		run("Forgets", s.forgets)
	}
}

// acquire acquires a lease, which has to succeed.
func acquire(t *testing.T, lease subscriber.Lease) subscriber.LeaseTerm {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	before := time.Now()
	term, err := lease.Acquire(ctx)
	after := time.Now()
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	if renewed := term.Renewed(); renewed.Before(before) || renewed.After(after) {
		t.Errorf("Renewed = %v, want between the beginning of Acquire, %v, and its end, %v", renewed, before, after)
	}
	if term.Epoch() == 0 {
		t.Error("the epoch is 0")
	}
	return term
}

// wanting acquires a lease in the background.
func wanting(t *testing.T, lease subscriber.Lease) <-chan subscriber.LeaseTerm {
	t.Helper()
	got := make(chan subscriber.LeaseTerm, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wanting sync.WaitGroup
	wanting.Go(func() {
		if term, err := lease.Acquire(ctx); err == nil {
			got <- term
		}
	})
	t.Cleanup(func() {
		cancel()
		wanting.Wait()
	})
	return got
}

// arrives waits for a term.
func arrives(t *testing.T, terms <-chan subscriber.LeaseTerm) subscriber.LeaseTerm {
	t.Helper()
	select {
	case term := <-terms:
		return term
	case <-time.After(testkit.Patience):
		t.Fatal("the lease is not acquired")
		return nil
	}
}

// keep renews a term until stop is called.
func keep(t *testing.T, term subscriber.LeaseTerm, ttl time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var keeping sync.WaitGroup
	keeping.Go(func() {
		ticker := time.NewTicker(ttl / 4)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_ = term.Renew(ctx) // another one follows
			case <-ctx.Done():
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		keeping.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func renew(t *testing.T, term subscriber.LeaseTerm) {
	t.Helper()
	before := time.Now()
	tryAgain(t, "Renew", term.Renew)
	if renewed := term.Renewed(); renewed.Before(before) || renewed.After(time.Now()) {
		t.Errorf("Renewed = %v, want between the beginning of Renew, %v, and its end", renewed, before)
	}
}

func release(t *testing.T, term subscriber.LeaseTerm) {
	t.Helper()
	tryAgain(t, "Release", term.Release)
}

// tryAgain makes a request until it succeeds: on a machine that is busy, a request may take longer
// than an implementation waits.
func tryAgain(t *testing.T, name string, request func(context.Context) error) {
	t.Helper()
	for began := time.Now(); ; {
		err := request(t.Context())
		switch {
		case err == nil:
			return
		case errors.Is(err, subscriber.ErrLeaseLost), time.Since(began) > testkit.Patience:
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// notYet checks that nobody acquires the lease for a while from the holder, which keeps it. It
// reports whether the test can go on: on a machine that stands still, the holder may be late.
func notYet(t *testing.T, terms <-chan subscriber.LeaseTerm, holder subscriber.LeaseTerm, ttl, while time.Duration) bool {
	t.Helper()
	select {
	case term := <-terms:
		later(t, term, holder, ttl)
		return false
	case <-time.After(while):
		return true
	}
}

// contest is a lease that one process holds, which renews it until stop, and another one wants.
type contest struct {
	open          func() subscriber.Lease
	holder, other subscriber.Lease
	first         subscriber.LeaseTerm // of holder
	stop          func()
	wanted        <-chan subscriber.LeaseTerm // of other
	ttl           time.Duration
}

// contest begins one. If it is not ok, the machine stood still and the test cannot go on.
func (s Suite) contest(t *testing.T) (c contest, ok bool) {
	t.Helper()
	c.open = s.New(t)
	c.holder, c.other = c.open(), c.open()
	c.ttl = c.holder.TTL()
	c.first = acquire(t, c.holder)
	c.stop = keep(t, c.first, c.ttl)
	c.wanted = wanting(t, c.other)
	return c, notYet(t, c.wanted, c.first, c.ttl, c.ttl/2)
}

// later checks that a term follows another one that was not released: it has a higher epoch and
// begins when the other one is over.
func later(t *testing.T, term, former subscriber.LeaseTerm, ttl time.Duration) {
	t.Helper()
	grows(t, term, former)
	if over := former.Renewed().Add(ttl); term.Renewed().Before(over) {
		t.Errorf("the next term began %v before the end of the one before it", over.Sub(term.Renewed()))
	}
}

func grows(t *testing.T, term, former subscriber.LeaseTerm) {
	t.Helper()
	if term.Epoch() <= former.Epoch() {
		t.Errorf("epoch %d after %d, want a higher one", term.Epoch(), former.Epoch())
	}
}

func (s Suite) acquire(t *testing.T) {
	lease := s.New(t)()
	if lease.TTL() <= 0 {
		t.Fatalf("TTL = %v", lease.TTL())
	}
	term := acquire(t, lease)
	for range 3 {
		renew(t, term)
	}
	select {
	case <-term.Lost():
		t.Error("the term is lost")
	default:
	}
	release(t, term)
	release(t, term) // has no effect
	if err := term.Renew(t.Context()); !errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew after Release = %v, want ErrLeaseLost", err)
	}
}

func (s Suite) release(t *testing.T) {
	c, ok := s.contest(t)
	if !ok {
		return
	}
	a, b, first, wanted := c.holder, c.other, c.first, c.wanted
	c.stop()
	renew(t, first) // so that its time is long
	release(t, first)
	second := arrives(t, wanted)
	grows(t, second, first)
	release(t, first) // leaves the second one alone
	renew(t, second)

	// It goes to and fro at once. A machine that is busy has several tries.
	took := second.Renewed().Sub(first.Renewed())
	for n := 0; took >= a.TTL() && n < 5; n++ {
		a, b = b, a
		first, wanted = second, wanting(t, b)
		renew(t, first)
		release(t, first)
		second = arrives(t, wanted)
		took = second.Renewed().Sub(first.Renewed())
	}
	if took >= a.TTL() {
		t.Errorf("acquired %v after the last renewal of a lease that was released, want at once", took)
	}
	release(t, second)
}

func (s Suite) theHolderKeepsIt(t *testing.T) {
	open := s.New(t)
	a, b := open(), open()
	first := acquire(t, a)
	keep(t, first, a.TTL())
	if !notYet(t, wanting(t, b), first, a.TTL(), 3*a.TTL()) {
		return
	}
	select {
	case <-first.Lost():
		t.Error("the term is lost although it was renewed")
	default:
	}
}

func (s Suite) notRenewed(t *testing.T) {
	open := s.New(t)
	a, b := open(), open()
	first := acquire(t, a)
	wanted := wanting(t, b)
	renew(t, first)
	later(t, arrives(t, wanted), first, a.TTL())
}

func (s Suite) lateHolder(t *testing.T) {
	open := s.New(t)
	a, b := open(), open()
	first := acquire(t, a)
	second := arrives(t, wanting(t, b))
	stop := keep(t, second, b.TTL())
	before := first.Renewed()
	if err := first.Renew(t.Context()); !errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew after another process has the lease = %v, want ErrLeaseLost", err)
	}
	if first.Renewed() != before {
		t.Error("Renewed has changed although the term is lost")
	}
	select {
	case <-first.Lost():
	case <-time.After(testkit.Patience):
		t.Error("Lost is not closed although Renew said so")
	}
	release(t, first)
	stop()
	renew(t, second)
	later(t, arrives(t, wanting(t, a)), second, b.TTL())
}

func (s Suite) acquireAgain(t *testing.T) {
	open := s.New(t)
	a, b := open(), open()
	first := acquire(t, a)
	second := acquire(t, a) // without a release
	grows(t, second, first)
	if err := first.Renew(t.Context()); !errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew of a term that another one has replaced = %v, want ErrLeaseLost", err)
	}
	release(t, first)
	stop := keep(t, second, b.TTL())
	notYet(t, wanting(t, b), second, a.TTL(), a.TTL()*3/2)
	stop()
}

func (s Suite) context(t *testing.T) {
	open := s.New(t)
	a, b, c := open(), open(), open()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Acquire(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire with a context that has ended = %v, want its error", err)
	}
	first := acquire(t, a)
	if err := first.Renew(over); err == nil {
		t.Error("Renew with a context that has ended returns nil")
	}
	keep(t, first, a.TTL())
	ctx, cancel := context.WithTimeout(t.Context(), a.TTL()/2)
	defer cancel()
	switch term, err := b.Acquire(ctx); {
	case err == nil: // the holder was late
		later(t, term, first, a.TTL())
		return
	case !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("Acquire until the context ends = %v, want its error", err)
	}
	release(t, first)
	grows(t, acquire(t, c), first) // who has given up is not in the way
}

// Several processes hold the lease for a short time each, and die, release it or are cut off by
// their own clock: never do two have it.
func (s Suite) oneOfMany(t *testing.T) {
	const processes, terms = 4, 3
	open := s.New(t)
	type span struct {
		epoch    uint64
		from, to time.Time
	}
	var mu sync.Mutex
	var spans []span
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var all sync.WaitGroup
	for i := range processes {
		lease := open()
		all.Go(func() {
			for n := range terms {
				term, err := lease.Acquire(ctx)
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				from := time.Now()
				to := term.Renewed().Add(lease.TTL())
				if (i+n)%4 != 0 { // else it is gone, and works to the end of its time
					if err := term.Renew(ctx); errors.Is(err, subscriber.ErrLeaseLost) && time.Now().Before(to) {
						t.Errorf("Renew: %v", err)
					}
					to = time.Now()
					_ = term.Release(ctx) // if it fails, the others wait
				}
				mu.Lock()
				spans = append(spans, span{term.Epoch(), from, to})
				mu.Unlock()
				select {
				case <-time.After(time.Until(to)):
				case <-ctx.Done():
				}
			}
		})
	}
	all.Wait()
	for i, a := range spans {
		for _, b := range spans[:i] {
			if a.epoch == b.epoch {
				t.Errorf("epoch %d twice", a.epoch)
			}
			if a.epoch < b.epoch && a.from.After(b.from) || a.epoch > b.epoch && a.from.Before(b.from) {
				t.Errorf("epoch %d began at %v, epoch %d at %v", a.epoch, a.from, b.epoch, b.from)
			}
			if a.from.Before(b.to) && b.from.Before(a.to) {
				t.Errorf("epochs %d and %d at the same time: %v to %v, %v to %v", a.epoch, b.epoch, a.from, a.to, b.from, b.to)
			}
		}
	}
}

func (s Suite) cutOff(t *testing.T) {
	c, ok := s.contest(t)
	if !ok {
		return
	}
	heal := s.Cut(t, c.holder)
	second := arrives(t, c.wanted)
	later(t, second, c.first, c.ttl)
	keep(t, second, c.ttl)
	heal()
	select {
	case <-c.first.Lost():
	case <-time.After(testkit.Patience):
		t.Error("Lost is not closed although the store can be reached, and somebody else has the lease")
	}
	c.stop()
	if err := c.first.Renew(t.Context()); !errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew = %v, want ErrLeaseLost", err)
	}
}

func (s Suite) outage(t *testing.T) {
	c, ok := s.contest(t)
	if !ok {
		return
	}
	back := s.Outage(t, c.holder)
	if !notYet(t, c.wanted, c.first, c.ttl, 2*c.ttl) {
		t.Fatal("acquired while the store was away")
	}
	c.stop()
	ctx, cancel := context.WithTimeout(t.Context(), c.ttl/4)
	defer cancel()
	if err := c.first.Renew(ctx); err == nil || errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew while the store is away = %v, want another error", err)
	}
	if time.Since(c.first.Renewed()) < c.ttl {
		t.Errorf("Renewed = %v although the store was away", c.first.Renewed())
	}
	back()
	c.stop = keep(t, c.first, c.ttl)
	defer c.stop()
	if second := c.either(t); second != nil {
		later(t, second, c.first, c.ttl)
	}
}

// either waits until one of the two has the lease; it returns the term of the one who wants it, or nil.
func (c *contest) either(t *testing.T) (second subscriber.LeaseTerm) {
	t.Helper()
	testkit.Eventually(t, "somebody has the lease", func() bool {
		select {
		case second = <-c.wanted:
			return true
		default:
			return time.Since(c.first.Renewed()) < c.ttl
		}
	})
	return second
}

func (s Suite) forgets(t *testing.T) {
	c, ok := s.contest(t)
	if !ok {
		return
	}
	s.Forget(t, c.holder)
	// Who holds it keeps it, or stops in time; nobody gets it early.
	if !notYet(t, c.wanted, c.first, c.ttl, 3*c.ttl) {
		return
	}
	if second := c.either(t); second != nil {
		later(t, second, c.first, c.ttl)
		return
	}
	c.stop()
	s.Forget(t, c.holder)
	second := arrives(t, c.wanted)
	later(t, second, c.first, c.ttl)
	release(t, second)
	grows(t, acquire(t, c.open()), second)
}
