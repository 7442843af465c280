// Package dedupstoretest is the conformance suite for implementations of
// router.DedupStore.
package dedupstoretest

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// Suite says how to test a store.
type Suite struct {
	// In runs one of the tests, e.g. in a bubble of testing/synctest. Nil means that it is called.
	In func(t *testing.T, test func(*testing.T))
	// New returns a store that knows no key. It is called once per test, and
	// closes what it opens by t.Cleanup.
	New func(t *testing.T) router.DedupStore
	// Reopen returns a store that knows what the given one knows, as a new
	// process would see it: the old store was closed properly or its process
	// died. Nil for stores that forget.
	Reopen func(t *testing.T, old router.DedupStore) router.DedupStore
	// Lease is a lease, and a TTL, that the store keeps well enough to be tested
	// with: the tests wait for about that long. 0 means 200 ms.
	Lease time.Duration
	// Peer returns a store that shares what the given one knows, as another process
	// that runs beside it would. Nil for stores that one process has alone.
	Peer func(t *testing.T, store router.DedupStore) router.DedupStore
	// Kill makes the process of a store die, as far as others can see. Required with
	// Peer.
	Kill func(t *testing.T, store router.DedupStore)
	// Session is how long a process that was killed holds its reservations, roughly.
	// Required with Peer.
	Session time.Duration
	// NoTTL skips the test that committed keys are forgotten after their TTL,
	// for stores whose TTL is a setting of the store.
	NoTTL bool
}

// long is a lease or TTL that no test outlives.
const long = time.Hour

// Run tests a store.
func Run(t *testing.T, s Suite) {
	if s.Lease == 0 {
		s.Lease = 200 * time.Millisecond
	}
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			if s.In != nil {
				s.In(t, test)
				return
			}
			test(t)
		})
	}
	run("Commit", s.commit)
	run("Release", s.release)
	run("LeaseExpires", s.leaseExpires)
	run("LateHolder", s.lateHolder)
	run("LateCommit", s.lateCommit)
	run("OneOfMany", s.oneOfMany)
	run("Context", s.context)
	run("EitherKeyIsEnough", s.eitherKeyIsEnough)
	run("BothKeysOrNone", s.bothKeysOrNone)
	run("CommittedCountsForMore", s.committedCountsForMore)
	run("ReleaseEndsBoth", s.releaseEndsBoth)
	run("OneNamespace", s.oneNamespace)
	run("Holder", s.holder)
	run("NoTakeover", s.noTakeover)
	run("OneOfManyPairs", s.oneOfManyPairs)
	run("NoKeys", s.noKeys)
	if !s.NoTTL {
		run("TTL", s.ttl)
	}
	if s.Reopen != nil {
		run("Reopen", s.reopen)
		run("TheSuccessorTakesOver", s.theSuccessorTakesOver)
	}
	if s.Peer != nil {
		run("LivingPeer", s.livingPeer)
		run("KilledPeer", s.killedPeer)
		run("ClosedPeer", s.closedPeer)
	}
}

// owner is who makes all claims but those of [claimOf].
var owner = router.Owner{Instance: "mill", Session: "1"}

// claim is one with a delivery key alone.
func claim(delivery string) router.Claim { return claimOf(owner, delivery, "") }

// pair is a claim with two keys, or one if the other is empty.
func pair(delivery, content string) router.Claim { return claimOf(owner, delivery, content) }

func claimOf(owner router.Owner, delivery, content string) router.Claim {
	c := router.Claim{Owner: owner}
	if delivery != "" {
		c.Keys.Delivery = router.KeyOf("dedupstoretest", delivery)
	}
	if content != "" {
		c.Keys.Content = router.KeyOf("dedupstoretest", content)
	}
	return c
}

// reserve reserves and checks the answer.
func reserve(t *testing.T, store router.DedupStore, c router.Claim, lease time.Duration, want router.ReserveState) router.Token {
	t.Helper()
	return answer(t, store, c, lease, want, 0).Token
}

// answer is reserve that checks also which key was found, unless want is 0.
func answer(
	t *testing.T, store router.DedupStore, c router.Claim, lease time.Duration, want router.ReserveState, key router.KeyKind,
) router.Reservation {
	t.Helper()
	got := testkit.Must(store.Reserve(t.Context(), c, lease))(t)
	if got.State != want || key != 0 && got.Key != key {
		t.Fatalf("Reserve = state %d by key %d, want %d by %d", got.State, got.Key, want, key)
	}
	return got
}

// eventually reserves until it gets the reservation, which somebody has for a lease. On the clock of the machine that only
// has to happen; in a bubble it does soon.
func (s Suite) eventually(t *testing.T, store router.DedupStore, c router.Claim, lease time.Duration) router.Token {
	t.Helper()
	limit := testkit.Patience
	if s.In != nil {
		limit = 50 * lease
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	tick := time.NewTicker(lease / 4)
	defer tick.Stop()
	for {
		got := testkit.Must(store.Reserve(t.Context(), c, long))(t)
		if got.State == router.Reserved {
			return got.Token
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("Reserve = %d after %v", got.State, limit)
		}
	}
}

func commit(t *testing.T, store router.DedupStore, c router.Claim, token router.Token, ttl time.Duration) {
	t.Helper()
	testkit.NoError(t, store.Commit(t.Context(), c, token, ttl))
}

func release(t *testing.T, store router.DedupStore, c router.Claim, token router.Token) {
	t.Helper()
	testkit.NoError(t, store.Release(t.Context(), c, token))
}

func (s Suite) release(t *testing.T) {
	store, c := s.New(t), claim("a")
	token := reserve(t, store, c, long, router.Reserved)
	release(t, store, c, token)
	token = reserve(t, store, c, long, router.Reserved)
	commit(t, store, c, token, long)
	// Too late: what is committed stays so.
	release(t, store, c, token)
	reserve(t, store, c, long, router.Committed)
	// Never reserved: nothing to do.
	release(t, store, claim("b"), token)
}

func (s Suite) leaseExpires(t *testing.T) {
	store, c := s.New(t), claim("a")
	reserve(t, store, c, s.Lease, router.Reserved)
	reserve(t, store, c, s.Lease, router.Busy)
	s.eventually(t, store, c, s.Lease)
	reserve(t, store, c, s.Lease, router.Busy)
}

// lateHolder: who has lost the reservation cannot release that of the next one.
func (s Suite) lateHolder(t *testing.T) {
	store := s.New(t)
	for _, c := range []router.Claim{claim("a"), pair("b", "c")} {
		old := reserve(t, store, c, s.Lease, router.Reserved)
		token := s.eventually(t, store, c, s.Lease)
		release(t, store, c, old)
		reserve(t, store, c, long, router.Busy)
		commit(t, store, c, token, long)
		reserve(t, store, c, long, router.Committed)
	}
}

// lateCommit: a message is handled, whoever holds the reservation now.
func (s Suite) lateCommit(t *testing.T) {
	store := s.New(t)
	for _, c := range []router.Claim{claim("a"), pair("b", "c")} {
		old := reserve(t, store, c, s.Lease, router.Reserved)
		token := s.eventually(t, store, c, s.Lease)
		commit(t, store, c, old, long)
		reserve(t, store, c, long, router.Committed)
		release(t, store, c, token)
		reserve(t, store, c, long, router.Committed)
	}
}

func (s Suite) commit(t *testing.T) {
	store, c := s.New(t), claim("a")
	token := reserve(t, store, c, long, router.Reserved)
	reserve(t, store, c, long, router.Busy)
	for _, c := range []router.Claim{c, c, pair("b", "c")} { // again, and when nobody has the reservation
		commit(t, store, c, token, long)
		reserve(t, store, c, long, router.Committed)
	}
}

func (s Suite) ttl(t *testing.T) {
	store, c := s.New(t), pair("a", "b")
	again := pair("c", "d") // the last TTL counts
	commit(t, store, again, router.Token{}, s.Lease)
	commit(t, store, again, router.Token{}, long)
	commit(t, store, c, reserve(t, store, c, long, router.Reserved), s.Lease)
	s.eventually(t, store, c, s.Lease)
	reserve(t, store, again, long, router.Committed)
}

// oneOfMany: of all that reserve at the same time, one gets the reservation.
func (s Suite) oneOfMany(t *testing.T) {
	store := s.New(t)
	for round := range 5 {
		c := claim("round " + string(rune('a'+round)))
		if n := winners(t, store, 16, func(int) router.Claim { return c }); n != 1 {
			t.Fatalf("%d reservations of one key", n)
		}
	}
}

// winners reserves n claims at the same time and returns how many of them succeed.
func winners(t *testing.T, store router.DedupStore, n int, claim func(int) router.Claim) int64 {
	t.Helper()
	var won atomic.Int64
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			got, err := store.Reserve(t.Context(), claim(i), long)
			switch {
			case err != nil:
				t.Errorf("Reserve: %v", err)
			case got.State == router.Reserved:
				won.Add(1)
			case got.State != router.Busy:
				t.Errorf("Reserve = %d", got.State)
			}
		})
	}
	group.Wait()
	return won.Load()
}

func (s Suite) context(t *testing.T) {
	store := s.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Reserve(ctx, claim("a"), long); err == nil {
		t.Fatal("Reserve with a canceled context succeeded")
	}
	reserve(t, store, claim("a"), long, router.Reserved)
}

// eitherKeyIsEnough: a message is recognized by the key that it has in common with
// another one, and the answer names that key.
func (s Suite) eitherKeyIsEnough(t *testing.T) {
	store := s.New(t)
	token := reserve(t, store, pair("d", "c"), long, router.Reserved)
	for _, want := range []router.ReserveState{router.Busy, router.Committed} {
		answer(t, store, pair("d", "c"), long, want, router.DeliveryKey)
		answer(t, store, pair("d", ""), long, want, router.DeliveryKey)
		answer(t, store, pair("d", "other"), long, want, router.DeliveryKey)
		answer(t, store, pair("", "c"), long, want, router.ContentKey)
		answer(t, store, pair("other", "c"), long, want, router.ContentKey)
		if want == router.Busy {
			commit(t, store, pair("d", "c"), token, long)
		}
	}
	// A content key alone goes the same way.
	token = reserve(t, store, pair("", "alone"), long, router.Reserved)
	release(t, store, pair("", "alone"), token)
	token = reserve(t, store, pair("", "alone"), long, router.Reserved)
	commit(t, store, pair("", "alone"), token, long)
	answer(t, store, pair("new", "alone"), long, router.Committed, router.ContentKey)
}

// bothKeysOrNone: who does not get one of the keys does not keep the other one.
func (s Suite) bothKeysOrNone(t *testing.T) {
	store := s.New(t)
	content := reserve(t, store, pair("first", "shared"), long, router.Reserved)
	answer(t, store, pair("second", "shared"), long, router.Busy, router.ContentKey)
	release(t, store, claim("second"), reserve(t, store, claim("second"), long, router.Reserved))
	commit(t, store, pair("first", "shared"), content, long)
	answer(t, store, pair("second", "shared"), long, router.Committed, router.ContentKey)
	reserve(t, store, claim("second"), long, router.Reserved)
	answer(t, store, pair("second", "free"), long, router.Busy, router.DeliveryKey)
	reserve(t, store, pair("", "free"), long, router.Reserved)
}

func (s Suite) committedCountsForMore(t *testing.T) {
	store := s.New(t)
	reserve(t, store, claim("busy"), long, router.Reserved)
	commit(t, store, claim("done"), reserve(t, store, claim("done"), long, router.Reserved), long)
	answer(t, store, pair("busy", "done"), long, router.Committed, router.ContentKey)
	answer(t, store, pair("done", "busy"), long, router.Committed, router.DeliveryKey)
}

func (s Suite) releaseEndsBoth(t *testing.T) {
	store := s.New(t)
	token := reserve(t, store, pair("d", "c"), long, router.Reserved)
	release(t, store, pair("d", "c"), token)
	reserve(t, store, claim("d"), long, router.Reserved)
	token = reserve(t, store, pair("", "c"), long, router.Reserved)
	release(t, store, pair("d", "c"), token) // one key is somebody else's, which keeps that one alone
	reserve(t, store, claim("d"), long, router.Busy)
	reserve(t, store, pair("", "c"), long, router.Reserved)
}

// oneNamespace: it does not matter as which of the two a key was recorded, and a claim
// whose keys are equal has one.
func (s Suite) oneNamespace(t *testing.T) {
	store := s.New(t)
	token := reserve(t, store, pair("k", "k"), long, router.Reserved)
	answer(t, store, pair("", "k"), long, router.Busy, router.ContentKey)
	commit(t, store, pair("k", "k"), token, long)
	answer(t, store, pair("", "k"), long, router.Committed, router.ContentKey)
	answer(t, store, pair("k", "k"), long, router.Committed, router.DeliveryKey)
}

// holder: the answer says who handles the message, and until when at the latest.
func (s Suite) holder(t *testing.T) {
	store := s.New(t)
	reserve(t, store, claim("a"), long, router.Reserved)
	reserve(t, store, claimOf(other, "b", "c"), 2*long, router.Reserved)
	reserve(t, store, claimOf(router.Owner{}, "d", ""), long, router.Reserved)
	for _, check := range []struct {
		claim router.Claim
		owner router.Owner
		lease time.Duration
	}{
		{claimOf(other, "a", ""), owner, long},
		{pair("x", "c"), other, 2 * long},
		{claim("d"), router.Owner{}, long},
	} {
		got := answer(t, store, check.claim, long, router.Busy, 0)
		if got.Holder != check.owner {
			t.Errorf("Holder = %+v, want %+v", got.Holder, check.owner)
		}
		if left := time.Until(got.Until); left < check.lease-time.Minute || left > check.lease+time.Minute {
			t.Errorf("Until is in %v, want about %v", left, check.lease)
		}
	}
}

// noTakeover: a store that is open does not take over what was reserved through it, neither
// for the same owner nor for the next session of the same instance.
func (s Suite) noTakeover(t *testing.T) {
	store := s.New(t)
	reserve(t, store, claim("a"), long, router.Reserved)
	reserve(t, store, claim("a"), long, router.Busy)
	reserve(t, store, claimOf(next, "a", ""), long, router.Busy)
}

// oneOfManyPairs: of messages that have one key in common, one at most is handled at
// the same time, and those that are not leave nothing reserved behind.
func (s Suite) oneOfManyPairs(t *testing.T) {
	const n = 16
	store := s.New(t)
	deliveries := func(i int) string { return "delivery " + string(rune('a'+i)) }
	if won := winners(t, store, n, func(i int) router.Claim { return pair(deliveries(i), "content") }); won > 1 {
		t.Fatalf("%d reservations of one content key", won)
	}
	left := int64(0)
	for i := range n {
		got := testkit.Must(store.Reserve(t.Context(), claim(deliveries(i)), long))(t)
		if got.State == router.Busy {
			left++
		}
	}
	if left > 1 {
		t.Fatalf("%d delivery keys are still reserved", left)
	}
}

func (s Suite) noKeys(t *testing.T) {
	store := s.New(t)
	if _, err := store.Reserve(t.Context(), router.Claim{Owner: owner}, long); !errors.Is(err, router.ErrNoKeys) {
		t.Errorf("Reserve: %v", err)
	}
	if err := store.Commit(t.Context(), router.Claim{Owner: owner}, router.Token{}, long); !errors.Is(err, router.ErrNoKeys) {
		t.Errorf("Commit: %v", err)
	}
	if err := store.Release(t.Context(), router.Claim{Owner: owner}, router.Token{}); !errors.Is(err, router.ErrNoKeys) {
		t.Errorf("Release: %v", err)
	}
}

// reopen: after a crash, what was committed is known by both keys, and what was reserved is free again after its lease.
func (s Suite) reopen(t *testing.T) {
	store := s.New(t)
	commit(t, store, pair("d", "c"), reserve(t, store, pair("d", "c"), long, router.Reserved), long)
	reserve(t, store, pair("begun", "begun too"), s.Lease, router.Reserved)
	store = s.Reopen(t, store)
	answer(t, store, claim("d"), long, router.Committed, router.DeliveryKey)
	answer(t, store, pair("other", "c"), long, router.Committed, router.ContentKey)
	s.eventually(t, store, pair("begun", "begun too"), s.Lease)
}

// next is the process that replaces that of owner, and other one that runs beside it.
var (
	next  = router.Owner{Instance: owner.Instance, Session: "next"}
	other = router.Owner{Instance: "barn", Session: "2"}
)

// theSuccessorTakesOver: a process takes over at once what the one that it replaces has
// reserved, however long the lease, and what it has committed stays committed.
func (s Suite) theSuccessorTakesOver(t *testing.T) {
	store := s.New(t)
	commit(t, store, claim("done"), reserve(t, store, claim("done"), long, router.Reserved), long)
	reserve(t, store, pair("begun", "content"), long, router.Reserved)
	store = s.Reopen(t, store)
	reserve(t, store, claimOf(next, "done", ""), long, router.Committed)
	c := claimOf(next, "begun", "content")
	token := reserve(t, store, c, long, router.Reserved)
	reserve(t, store, c, long, router.Busy)
	commit(t, store, c, token, long)
	reserve(t, store, claimOf(next, "", "content"), long, router.Committed)
}

// livingPeer: what a process has reserved is its own as long as it lives, much longer than a
// session.
func (s Suite) livingPeer(t *testing.T) {
	store := s.New(t)
	peer := s.Peer(t, store)
	token := reserve(t, store, pair("a", "b"), long, router.Reserved)
	tick := time.NewTicker(s.Session / 10)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 3*s.Session; <-tick.C {
		got := answer(t, peer, claimOf(other, "a", ""), long, router.Busy, router.DeliveryKey)
		if got.Holder != owner {
			t.Fatalf("Holder = %+v, want %+v", got.Holder, owner)
		}
		reserve(t, peer, claimOf(other, "x", "b"), long, router.Busy)
	}
	commit(t, store, pair("a", "b"), token, long)
	reserve(t, peer, claimOf(other, "a", ""), long, router.Committed)
	reserve(t, peer, claimOf(other, "", "b"), long, router.Committed)
}

// killedPeer: what a process has reserved that was killed is free when its session has ended.
func (s Suite) killedPeer(t *testing.T) {
	store := s.New(t)
	peer := s.Peer(t, store)
	done := reserve(t, store, claim("done"), long, router.Reserved)
	commit(t, store, claim("done"), done, long)
	reserve(t, store, pair("a", "b"), long, router.Reserved)
	reserve(t, peer, claimOf(other, "a", "b"), long, router.Busy)
	s.Kill(t, store)
	token := s.eventually(t, peer, claimOf(other, "a", "b"), s.Session)
	commit(t, peer, claimOf(other, "a", "b"), token, long)
	reserve(t, peer, claimOf(other, "done", ""), long, router.Committed)
}

// closedPeer: what a process leaves reserved when it closes its store is free at once.
func (s Suite) closedPeer(t *testing.T) {
	store := s.New(t)
	closer, ok := store.(io.Closer)
	if !ok {
		t.Log("the store needs no Close")
		return
	}
	peer := s.Peer(t, store)
	reserve(t, store, pair("a", "b"), long, router.Reserved)
	testkit.NoError(t, closer.Close())
	reserve(t, peer, claimOf(other, "a", "b"), long, router.Reserved)
	if _, err := store.Reserve(t.Context(), claim("c"), long); err == nil {
		t.Error("Reserve of a closed store succeeded")
	}
}
