// Package devicestoretest is the conformance suite for implementations of farm.DeviceStore.
package devicestoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

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
}

// Run tests a store.
func Run(t *testing.T, s Suite) {
	t.Run("PutGet", s.putGet)
	t.Run("Same", s.same)
	t.Run("Concurrent", s.concurrent)
	t.Run("Context", s.context)
	if s.Peer != nil {
		t.Run("Peer", s.peer)
	}
}

// teamset returns a key as farm.Devices makes it.
func teamset(i int) string { return fmt.Sprintf("%032x", i) }

func get(t *testing.T, store farm.DeviceStore, teamset string) []farm.DeviceDescription {
	t.Helper()
	list, err := store.Get(t.Context(), teamset)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list, func(a, b farm.DeviceDescription) int { return bytes.Compare(a.Payload, b.Payload) })
	return list
}

func put(t *testing.T, store farm.DeviceStore, teamset string, d farm.DeviceDescription) {
	t.Helper()
	if err := store.Put(t.Context(), teamset, d); err != nil {
		t.Fatal(err)
	}
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

// The same payload is one description.
func (s Suite) same(t *testing.T) {
	store := s.New(t)
	first := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	put(t, store, teamset(1), first)
	put(t, store, teamset(1), farm.DeviceDescription{Sent: time.Unix(2000, 0), Payload: []byte("devices")})
	want(t, get(t, store, teamset(1)), first)
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
