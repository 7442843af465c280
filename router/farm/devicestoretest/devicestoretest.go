// Package devicestoretest is the conformance suite for implementations of farm.DeviceStore.
package devicestoretest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router/farm"
)

// Suite says how to test a store.
type Suite struct {
	// New returns a store without descriptions. It is called once per test, and closes what it
	// opens by t.Cleanup.
	New func(t *testing.T) farm.DeviceStore
	// Peer returns a store that shares what the given one has, as another process would that runs
	// beside it or after it. Nil for stores that one process has alone.
	Peer func(t *testing.T, store farm.DeviceStore) farm.DeviceStore
	// Left returns a store with what is left in the end of what the given one has, such as after compaction, for
	// stores with a Peer. Nil means that Peer returns it.
	Left func(t *testing.T, store farm.DeviceStore) farm.DeviceStore
}

// Run tests a store.
func Run(t *testing.T, s Suite) {
	t.Run("PutGet", s.putGet)
	t.Run("Same", s.same)
	t.Run("Repeated", s.repeated)
	t.Run("Concurrent", s.concurrent)
	t.Run("ConcurrentTimes", s.concurrentTimes)
	t.Run("Context", s.context)
	if s.Peer != nil {
		t.Run("Peer", s.peer)
		t.Run("PeersAtOnce", s.peersAtOnce)
	}
}

// teamset returns a key as farm.Devices makes it.
func teamset(i int) string { return fmt.Sprintf("%032x", i) }

func get(t *testing.T, store farm.DeviceStore, teamset string) []farm.DeviceDescription {
	t.Helper()
	list := testkit.Must(store.Get(t.Context(), teamset))(t)
	slices.SortFunc(list, func(a, b farm.DeviceDescription) int {
		return cmp.Or(bytes.Compare(a.Payload, b.Payload), a.Sent.Compare(b.Sent))
	})
	return list
}

func put(t *testing.T, store farm.DeviceStore, teamset string, d farm.DeviceDescription) {
	t.Helper()
	testkit.NoError(t, store.Put(t.Context(), teamset, d))
}

func want(t *testing.T, got []farm.DeviceDescription, want ...farm.DeviceDescription) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b farm.DeviceDescription) bool {
		return a.Sent.Equal(b.Sent) && bytes.Equal(a.Payload, b.Payload)
	}) {
		t.Errorf("%d descriptions, want %d, or they differ", len(got), len(want))
	}
}

// What was put is there, for its teamset only, with the time that it was sent.
func (s Suite) putGet(t *testing.T) {
	store := s.New(t)
	want(t, get(t, store, teamset(1)))
	first := farm.DeviceDescription{Sent: time.Date(2026, 5, 4, 6, 30, 0, 123_456_789, time.UTC), Payload: []byte("first")}
	second := farm.DeviceDescription{Payload: bytes.Repeat([]byte("second"), 10_000)} // sent at an unknown time
	put(t, store, teamset(1), first)
	put(t, store, teamset(1), second)
	put(t, store, teamset(2), second)
	want(t, get(t, store, teamset(1)), first, second)
	want(t, get(t, store, teamset(2)), second)
	want(t, get(t, store, teamset(3)))
}

// The same payload of the same time is one description. At another time it is another one: what was described in
// between holds no longer. Each is told in any order.
func (s Suite) same(t *testing.T) {
	store := s.New(t)
	at := func(seconds int64, payload string) farm.DeviceDescription {
		return farm.DeviceDescription{Sent: time.Unix(seconds, 0), Payload: []byte(payload), Tenant: "tenant"}
	}
	mower, sprayer, again := at(1000, "mower"), at(2000, "sprayer"), at(3000, "mower")
	for _, d := range []farm.DeviceDescription{again, mower, mower, sprayer, again} {
		put(t, store, teamset(1), d)
	}
	want(t, get(t, store, teamset(1)), mower, again, sprayer)
	if s.Peer != nil {
		want(t, get(t, s.Peer(t, store), teamset(1)), mower, again, sprayer)
	}
}

// What is described again and again does not push out what held in between.
func (s Suite) repeated(t *testing.T) {
	store := s.New(t)
	for i := range int64(60) {
		payload := "mower"
		if i == 10 || i == 11 {
			payload = "sprayer"
		}
		put(t, store, teamset(1), farm.DeviceDescription{Sent: time.Unix(i, 0), Payload: []byte(payload)})
	}
	list := get(t, store, teamset(1))
	holds := func(at int64) (payload string) {
		slices.SortFunc(list, func(a, b farm.DeviceDescription) int { return a.Sent.Compare(b.Sent) })
		for _, d := range list {
			if d.Sent.Unix() <= at {
				payload = string(d.Payload)
			}
		}
		return payload
	}
	for at, want := range map[int64]string{0: "mower", 9: "mower", 10: "sprayer", 11: "sprayer", 12: "mower", 59: "mower", 100: "mower"} {
		if got := holds(at); got != want {
			t.Errorf("a %s at second %d, want a %s; %d descriptions", got, at, want, len(list))
		}
	}
}

// What many put at the same time is all there.
func (s Suite) concurrent(t *testing.T) {
	store := s.New(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if err := store.Put(t.Context(), teamset(i%4), farm.DeviceDescription{Sent: time.Unix(1, 0), Payload: fmt.Appendf(nil, "%02d", i%20)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for team := range 4 {
		if got := len(get(t, store, teamset(team))); got != 5 {
			t.Errorf("%d descriptions, want 5", got)
		}
	}
}

// One payload that many put at the same time was sent at all of these times.
func (s Suite) concurrentTimes(t *testing.T) {
	store := s.New(t)
	var wg sync.WaitGroup
	var sent []farm.DeviceDescription
	for i := range int64(8) {
		d := farm.DeviceDescription{Sent: time.Unix(i, 0), Payload: []byte("mower")}
		sent = append(sent, d)
		wg.Go(func() {
			if err := store.Put(t.Context(), teamset(1), d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want(t, get(t, store, teamset(1)), sent...)
	if s.Peer != nil {
		want(t, get(t, s.Peer(t, store), teamset(1)), sent...)
	}
	if s.Left != nil {
		want(t, get(t, s.Left(t, store), teamset(1)), sent...)
	}
}

// A call ends with its context, or does not need it.
func (s Suite) context(t *testing.T) {
	store := s.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Put(ctx, teamset(1), farm.DeviceDescription{Payload: []byte("x")}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Put returns %v", err)
	}
	if _, err := store.Get(ctx, teamset(1)); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Get returns %v", err)
	}
}

// What one process has put, another one gets.
func (s Suite) peer(t *testing.T) {
	store := s.New(t)
	d := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	put(t, store, teamset(1), d)
	want(t, get(t, s.Peer(t, store), teamset(1)), d)
}

// What processes that run beside each other put at the same moment is all there in the end, also the times of one payload. A store
// may need a moment for it.
func (s Suite) peersAtOnce(t *testing.T) {
	const teamsets = 5
	store := s.New(t)
	stores := []farm.DeviceStore{store, s.Peer(t, store), s.Peer(t, store)}
	sent := make([]farm.DeviceDescription, len(stores))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, one := range stores {
		sent[i] = farm.DeviceDescription{Sent: time.Unix(int64(i), 0), Payload: []byte("mower"), Tenant: "tenant"}
		for team := range teamsets {
			wg.Go(func() {
				<-start
				if err := one.Put(t.Context(), teamset(team), sent[i]); err != nil {
					t.Error(err)
				}
			})
		}
	}
	close(start)
	wg.Wait()
	left := s.Left
	if left == nil {
		left = s.Peer
	}
	testkit.Eventually(t, "all of them are there", func() bool {
		one, missing := left(t, store), teamsets*len(sent)
		for team := range teamsets {
			missing -= len(get(t, one, teamset(team)))
		}
		return missing == 0
	})
	one := left(t, store)
	for team := range teamsets {
		want(t, get(t, one, teamset(team)), sent...)
	}
}
