package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// queue is a broker's topic with one durable consumer: first in first out, one
// message at a time, gone when acknowledged.
type queue struct {
	mu      sync.Mutex
	items   []*message.Message
	changed chan struct{}
}

func newQueue() *queue { return &queue{changed: make(chan struct{}, 1)} }

func (q *queue) notify() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

func (q *queue) Publish(_ string, msgs ...*message.Message) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, msg := range msgs {
		q.items = append(q.items, msg.Copy())
	}
	q.notify()
	return nil
}

func (q *queue) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			q.mu.Lock()
			var msg *message.Message
			if len(q.items) > 0 {
				msg = q.items[0].Copy()
			}
			q.mu.Unlock()
			if msg == nil {
				select {
				case <-q.changed:
				case <-ctx.Done():
					return
				}
				continue
			}
			msg.SetContext(ctx)
			select {
			case out <- msg:
			case <-ctx.Done():
				return
			}
			select {
			case <-msg.Acked():
				q.mu.Lock()
				q.items = q.items[1:]
				q.mu.Unlock()
			case <-msg.Nacked():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (q *queue) Close() error { return nil }

func (q *queue) uuids() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var uuids []string
	for _, msg := range q.items {
		uuids = append(uuids, msg.UUID)
	}
	return uuids
}

// poisonedQueue is a queue into which a route has put n messages, and the route's
// Router, whose handler works again as soon as fixed is set.
func poisonedQueue(t *testing.T, n int, fixed *atomic.Bool) (*queue, *memorySink, *router.Router) {
	t.Helper()
	q, from, to := newQueue(), newSource(), newSink(nil)
	route := farmRoute(from, to)
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if !fixed.Load() {
			return nil, router.Permanent(errors.New("broken"))
		}
		return []*message.Message{msg}, nil
	}
	r := start(t, router.Config{Poison: q}, route)
	for i := range n {
		from.deliver(t, farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), "payload"))
	}
	if got := q.uuids(); len(got) != n {
		t.Fatalf("%d messages are poisoned, want %d", len(got), n)
	}
	return q, to, r.Router
}

func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		q, to, r := poisonedQueue(t, 6, &fixed)
		decide := func(p router.Poisoned) router.ReplayAction {
			if p.Route != "farm" || p.Reason != "broken" || p.Class != "permanent" || p.Topic != "in" {
				t.Errorf("got %+v, want what the route has told", p)
			}
			switch p.Message.UUID {
			case "0", "1":
				return router.ReplaySend
			case "2":
				return router.ReplayDelete
			default:
				return router.ReplayKeep
			}
		}
		// It is still broken: the messages come back, with their history.
		report, err := r.Replay(t.Context(), router.ReplayConfig{From: q, Decide: decide})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Equal(t, report, router.ReplayReport{Poisoned: 2, Deleted: 1, Kept: 3, Reason: "broken"})
		testkit.Equal(t, slices.Sorted(slices.Values(q.uuids())), []string{"0", "1", "3", "4", "5"})
		counts := map[string]int{}
		if err := router.ListPoisoned(t.Context(), router.ReplayConfig{From: copyOf(q)}, func(p router.Poisoned) error {
			counts[p.Message.UUID] = p.Count
			if p.Attempts != p.Count {
				t.Errorf("%d attempts, want %d", p.Attempts, p.Count)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		testkit.Equal(t, counts, map[string]int{"0": 2, "1": 2, "3": 1, "4": 1, "5": 1})

		fixed.Store(true)
		report, err = r.Replay(t.Context(), router.ReplayConfig{From: q, Decide: decide})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Equal(t, report, router.ReplayReport{Sent: 2, Kept: 3})
		testkit.Equal(t, slices.Sorted(slices.Values(q.uuids())), []string{"3", "4", "5"})
		for _, m := range to.all() {
			if string(m.msg.Payload) != "payload" {
				t.Errorf("the payload is %q, want %q", m.msg.Payload, "payload")
			}
			wantNoPoison(t, m.msg)
		}
		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 3})
		testkit.Equal(t, q.uuids(), nil)
		testkit.Equal(t, to.uuids(), map[string]int{"0": 1, "1": 1, "3": 1, "4": 1, "5": 1})
	})
}

func copyOf(q *queue) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := newQueue()
	c.items = append(c.items, q.items...)
	return c
}

// Of two made messages one was sent before the other was poisoned: with UUIDs that are derived from the received
// one, a replay sends it again as the same message, and not as another one.
func TestReplayKeepsDerivedUUIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		derived := func(received string, i int) string {
			return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%s/%d", received, i)).String()
		}
		first, second := derived("0", 0), derived("0", 1)
		q, from := newQueue(), newSource()
		to := newSink(func(_ string, msg *message.Message) error {
			if msg.UUID == second && !fixed.Load() {
				return router.Permanent(errors.New("refused"))
			}
			return nil
		})
		route := farmRoute(from, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{
				message.NewMessage(derived(msg.UUID, 0), msg.Payload), message.NewMessage(derived(msg.UUID, 1), msg.Payload),
			}, nil
		}
		r := start(t, router.Config{Poison: q}, route)
		from.deliver(t, farmMessage("0", "e", "0", "payload"))
		testkit.Equal(t, to.uuids(), map[string]int{first: 1})
		fixed.Store(true)
		replayAll(t, r.Router, q)
		if got := to.uuids(); len(got) != 2 || got[first] == 0 || got[second] != 1 {
			t.Errorf("to.uuids() = %v, want only %s and, once, %s", got, first, second)
		}
	})
}

// A queue that is read twice, because the broker keeps what was replayed, or the
// replay was killed before it could acknowledge: the message arrives once.
func TestReplayTwiceArrivesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		q, to, r := poisonedQueue(t, 3, &fixed)
		fixed.Store(true)
		again := copyOf(q)
		replayAll(t, r, q)
		testkit.Equal(t, replayAll(t, r, again), router.ReplayReport{Sent: 3, Duplicates: 3})
		testkit.Equal(t, to.uuids(), map[string]int{"0": 1, "1": 1, "2": 1})
	})
}

// A message that is in the queue by mistake is kept, one whose route is missing
// ends the replay, and either is still there afterwards.
func TestReplayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		q, _, r := poisonedQueue(t, 2, &fixed)
		if err := q.Publish("", message.NewMessage("foreign", nil)); err != nil {
			t.Fatal(err)
		}
		missing := sendAll(q)
		missing.Route = func(router.Poisoned) string { return "missing" }
		_, err := r.Replay(t.Context(), missing)
		wantErr(t, err, router.ErrNoRoute)
		testkit.Equal(t, q.uuids(), []string{"0", "1", "foreign"})

		fixed.Store(true)
		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 2, Kept: 1})
		testkit.Equal(t, q.uuids(), []string{"foreign"})
	})
}

// A message that the route's filter does not want any more is in the queue and
// nowhere else: it stays there, and is not remembered as handled.
func TestReplayKeepsWhatTheFilterDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, to := newQueue(), newSink(nil)
		route := farmRoute(newSource(), to)
		var wanted atomic.Bool
		route.Filter = func(*message.Message) bool { return wanted.Load() }
		r := build(t, router.Config{Poison: q}, route)
		if err := q.Publish("", poisonRecord("1", 0)); err != nil {
			t.Fatal(err)
		}
		_, err := r.Replay(t.Context(), sendAll(q))
		wantErr(t, err, router.ErrFiltered)
		wantClass(t, err, router.ClassPermanent)
		testkit.Equal(t, q.uuids(), []string{"1"})
		wanted.Store(true)
		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 1})
		testkit.Equal(t, to.uuids(), map[string]int{"1": 1})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// An outage is waited for, and ctx ends the wait; the message stays.
func TestReplayDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		to := newSink(func(string, *message.Message) error { return down })
		r := build(t, router.Config{Poison: q}, farmRoute(newSource(), to))
		record := poisonRecord("1", 0)
		record.Metadata[gateway.KeyDedupID] = "of the poison queue"
		if err := q.Publish("", record); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := r.Replay(ctx, sendAll(q)); err == nil {
			t.Fatal("no error")
		}
		if got := to.callCount(); got <= 10 {
			t.Errorf("%d attempts in an hour, want more than 10", got)
		}
		testkit.Equal(t, q.uuids(), []string{"1"})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := r.Replay(t.Context(), sendAll(q))
		wantErr(t, err, router.ErrClosed)
	})
}

func TestReplayConfig(t *testing.T) {
	r := build(t, router.Config{Poison: newSink(nil)})
	for name, config := range map[string]router.ReplayConfig{
		"from": {}, "idle": {From: newQueue(), Idle: -1}, "decide": {From: newQueue()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.Replay(t.Context(), config)
			wantErr(t, err, router.ErrConfig)
		})
	}
	wantErr(t, router.ListPoisoned(t.Context(), router.ReplayConfig{}, nil), router.ErrConfig)
}
