package core

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"
)

// byHand is a Core that is told everything one by one.
type byHand struct {
	*testing.T
	*Core
	now        time.Duration
	handed     []*Item // that handlers have
	confirms   []int   // numbers of the messages that are to be confirmed, and were not asked for yet
	flying     []Confirmation
	unclaimed  int
	reconnects int
	goods      int // see goesOn
}

func newByHand(t *testing.T, cfg Config) *byHand {
	h := &byHand{T: t, Core: New(Config{
		MaxInFlight: 100, MaxBytes: 1000, MaxUnconfirmed: 1000, Ordered: true, Recent: 100, RecentFor: time.Hour,
		Hold: time.Minute, HoldWhole: 2 * time.Second, MaxHeld: 100, FileTaken: true,
	}), now: time.Second}
	if cfg.MaxInFlight > 0 {
		h.Core = New(cfg)
	}
	return h
}

// add adds a route of this name, which takes what has it as its tenant, or everything if that is empty.
func (h *byHand) add(takes func(*Message) bool) *Route {
	r, _ := h.Add(h.now, "route", takes, false)
	h.do()
	return r
}

func everything(*Message) bool { return true }

// numbered returns the message n of a tenant, with an order key of its own.
func numbered(n int, tenant string) *Message {
	return &Message{Tenant: tenant, Key: string(rune('a' + n)), IDs: []ID{numberedID(n)}, Family: uint64(n)}
}

func numberedID(n int) (id ID) {
	binary.BigEndian.PutUint64(id[24:], uint64(n))
	return id
}

// partOf returns message n, which may be a part of a file.
func partOf(n int) *Message {
	m := numbered(n, "t")
	m.Large = true
	return m
}

// fileOf returns the file of messages.
func fileOf(numbers ...int) *Message {
	m := &Message{Tenant: "t", Key: "file", File: new(File)}
	for _, n := range numbers {
		m.IDs = append(m.IDs, numberedID(n))
		m.File.ID[n/8] |= 1 << (n % 8)
	}
	return m
}

// do carries out the effects.
func (h *byHand) do() {
	e := h.Effects()
	h.handed = append(h.handed, e.Start...)
	for _, m := range slices.Concat(e.Closed, e.Confirm) {
		for _, c := range m.Confirm {
			id := m.IDs[c.Index]
			h.confirms = append(h.confirms, int(binary.BigEndian.Uint64(id[24:])))
			h.flying = append(h.flying, c)
		}
	}
	h.unclaimed += len(e.Unclaimed)
	if e.Reconnect {
		h.reconnects++
	}
	e.Reset()
}

func (h *byHand) takes(want Taken, messages ...*Message) {
	h.Helper()
	for _, m := range messages {
		if got := h.Take(h.now, m); got != want {
			h.Errorf("message %v of %q: %d, want %d", m.IDs, m.Tenant, got, want)
		}
		h.do()
	}
}

// settles ends the work on m in r, which has it.
func (h *byHand) settles(r *Route, m *Message, outcome Outcome) {
	h.Helper()
	i := slices.IndexFunc(h.handed, func(it *Item) bool { return it.Message == m && it.Lane.Route == r })
	if i < 0 {
		h.Fatalf("message %v of %q is not handed out", m.IDs, m.Tenant)
	}
	it := h.handed[i]
	h.handed = slices.Delete(h.handed, i, i+1)
	if next := h.Done(h.now, it, outcome, time.Second); next != nil {
		h.handed = append(h.handed, next)
	}
	h.do()
}

// acks acks messages, which come first.
func (h *byHand) acks(r *Route, messages ...*Message) {
	h.Helper()
	for _, m := range messages {
		h.takes(Opened, m)
		h.settles(r, m, Acked)
	}
}

// pass lets time pass, and returns how often a reconnect was asked for.
func (h *byHand) pass(d time.Duration) int {
	for end := h.now + d; ; {
		at := h.NextWake()
		if at == 0 || at > end {
			h.now = end
			return h.reconnects
		}
		h.now = max(h.now, at)
		h.Wake(h.now)
		h.do()
	}
}

// connects opens the stream again.
func (h *byHand) connects() {
	h.Disconnected(h.now)
	h.Connected(h.now)
	h.do()
}

// confirmed takes in that the service has accepted everything so far.
func (h *byHand) confirmed() {
	for _, c := range h.flying {
		h.Confirmed(h.now, c)
	}
	h.flying = nil
	h.do()
}

// wants checks which messages are to be confirmed since it was called last.
func (h *byHand) wants(what string, want ...int) {
	h.Helper()
	if !slices.Equal(h.confirms, want) {
		h.Errorf("%s: to be confirmed are %v, want %v", what, h.confirms, want)
	}
	h.confirms = nil
}

// has reports whether r is handed m.
func (h *byHand) has(r *Route, m *Message) bool {
	return slices.ContainsFunc(h.handed, func(it *Item) bool { return it.Message == m && it.Lane.Route == r })
}
