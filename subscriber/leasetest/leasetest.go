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
	if err := term.Renew(t.Context()); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	if renewed := term.Renewed(); renewed.Before(before) || renewed.After(time.Now()) {
		t.Errorf("Renewed = %v, want between the beginning of Renew, %v, and its end", renewed, before)
	}
}

func release(t *testing.T, term subscriber.LeaseTerm) {
	t.Helper()
	if err := term.Release(t.Context()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// notYet checks that nobody acquires the lease for a while.
func notYet(t *testing.T, terms <-chan subscriber.LeaseTerm, while time.Duration) {
	t.Helper()
	select {
	case term := <-terms:
		t.Fatalf("acquired, with epoch %d, although another one has it", term.Epoch())
	case <-time.After(while):
	}
}

// isLost checks that a term is known to be over once Renew has said so.
func isLost(t *testing.T, term subscriber.LeaseTerm) {
	t.Helper()
	if err := term.Renew(t.Context()); !errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew = %v, want ErrLeaseLost", err)
	}
	select {
	case <-term.Lost():
	case <-time.After(testkit.Patience):
		t.Error("Lost is not closed although Renew said so")
	}
}

// contest is a lease that one process holds, which renews it until stop, and another one wants.
type contest struct {
	open   func() subscriber.Lease
	holder subscriber.Lease
	first  subscriber.LeaseTerm // of holder
	stop   func()
	wanted <-chan subscriber.LeaseTerm // of the other one
	ttl    time.Duration
}

// contest begins one.
func (s Suite) contest(t *testing.T) (c contest) {
	t.Helper()
	c.open = s.New(t)
	c.holder = c.open()
	c.ttl = c.holder.TTL()
	c.first = acquire(t, c.holder)
	c.stop = keep(t, c.first, c.ttl)
	c.wanted = wanting(t, c.open())
	notYet(t, c.wanted, c.ttl/2)
	return c
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
	isLost(t, term)
}

func (s Suite) release(t *testing.T) {
	c := s.contest(t)
	c.stop()
	renew(t, c.first) // so that its time is long
	release(t, c.first)
	second := arrives(t, c.wanted)
	grows(t, second, c.first)
	if took := second.Renewed().Sub(c.first.Renewed()); took >= c.ttl {
		t.Errorf("acquired %v after the last renewal of a lease that was released, want at once", took)
	}
	release(t, c.first) // leaves the second one alone
	renew(t, second)
	release(t, second)
}

func (s Suite) theHolderKeepsIt(t *testing.T) {
	c := s.contest(t)
	notYet(t, c.wanted, 3*c.ttl)
	select {
	case <-c.first.Lost():
		t.Error("the term is lost although it was renewed")
	default:
	}
}

func (s Suite) lateHolder(t *testing.T) {
	c := s.contest(t)
	c.stop()
	renew(t, c.first)
	second := arrives(t, c.wanted)
	later(t, second, c.first, c.ttl)
	stop := keep(t, second, c.ttl)
	before := c.first.Renewed()
	isLost(t, c.first)
	if c.first.Renewed() != before {
		t.Error("Renewed has changed although the term is lost")
	}
	release(t, c.first)
	stop()
	renew(t, second)
	later(t, arrives(t, wanting(t, c.holder)), second, c.ttl)
}

func (s Suite) acquireAgain(t *testing.T) {
	open := s.New(t)
	a, b := open(), open()
	first := acquire(t, a)
	second := acquire(t, a) // without a release
	grows(t, second, first)
	isLost(t, first)
	release(t, first)
	stop := keep(t, second, b.TTL())
	notYet(t, wanting(t, b), a.TTL()*3/2)
	stop()
}

func (s Suite) context(t *testing.T) {
	c := s.contest(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	another := c.open()
	if _, err := another.Acquire(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire with a context that has ended = %v, want its error", err)
	}
	if err := c.first.Renew(over); err == nil || errors.Is(err, subscriber.ErrLeaseLost) {
		t.Errorf("Renew with a context that has ended = %v, want that it is not known", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), c.ttl/2)
	defer cancel()
	if _, err := another.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Acquire until the context ends = %v, want its error", err)
	}
	c.stop()
	release(t, c.first)
	grows(t, arrives(t, c.wanted), c.first) // who has given up is not in the way
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
	c := s.contest(t)
	heal := s.Cut(t, c.holder)
	second := arrives(t, c.wanted)
	later(t, second, c.first, c.ttl)
	keep(t, second, c.ttl)
	heal()
	c.stop()
	isLost(t, c.first)
}

func (s Suite) outage(t *testing.T) {
	c := s.contest(t)
	back := s.Outage(t, c.holder)
	notYet(t, c.wanted, 2*c.ttl)
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
	c.either(t)
}

// either waits until one of the two has the lease, and reports whether that is still the first term.
func (c *contest) either(t *testing.T) (still bool) {
	t.Helper()
	testkit.Eventually(t, "somebody has the lease", func() bool {
		select {
		case second := <-c.wanted:
			later(t, second, c.first, c.ttl)
			return true
		default:
			still = time.Since(c.first.Renewed()) < c.ttl
			return still
		}
	})
	return still
}

func (s Suite) forgets(t *testing.T) {
	c := s.contest(t)
	s.Forget(t, c.holder)
	// Who holds it keeps it, or stops in time; nobody gets it early. A store may swallow a renewal together with all that it had.
	select {
	case second := <-c.wanted:
		later(t, second, c.first, c.ttl)
		return
	case <-time.After(3 * c.ttl):
	}
	if !c.either(t) {
		return
	}
	c.stop()
	s.Forget(t, c.holder)
	second := arrives(t, c.wanted)
	later(t, second, c.first, c.ttl)
	release(t, second)
	grows(t, acquire(t, c.open()), second)
}
