package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
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
	r, err := router.New(router.Config{Poison: q}, nil)
	require.NoError(t, err)
	route := farmRoute(from, to)
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if !fixed.Load() {
			return nil, router.Permanent(errors.New("broken"))
		}
		return []*message.Message{msg}, nil
	}
	require.NoError(t, r.Add(route))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-result)
	})
	<-r.Running()
	for i := range n {
		msg := farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), "payload")
		from.messages <- msg
		require.Equal(t, "ack", verdict(t, msg))
	}
	require.Len(t, q.uuids(), n)
	return q, to, r
}

func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		q, to, r := poisonedQueue(t, 6, &fixed)
		decide := func(p router.Poisoned) router.ReplayAction {
			assert.Equal(t, "farm", p.Route)
			assert.Equal(t, "broken", p.Reason)
			assert.Equal(t, "permanent", p.Class)
			assert.Equal(t, "in", p.Topic)
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
		require.NoError(t, err)
		assert.Equal(t, router.ReplayReport{Poisoned: 2, Deleted: 1, Kept: 3}, report)
		assert.ElementsMatch(t, []string{"0", "1", "3", "4", "5"}, q.uuids())
		counts := map[string]int{}
		require.NoError(t, router.ListPoisoned(t.Context(), router.ReplayConfig{From: copyOf(q)}, func(p router.Poisoned) error {
			counts[p.Message.UUID] = p.Count
			assert.Equal(t, p.Count, p.Attempts)
			return nil
		}))
		assert.Equal(t, map[string]int{"0": 2, "1": 2, "3": 1, "4": 1, "5": 1}, counts)

		fixed.Store(true)
		report, err = r.Replay(t.Context(), router.ReplayConfig{From: q, Decide: decide})
		require.NoError(t, err)
		assert.Equal(t, router.ReplayReport{Sent: 2, Kept: 3}, report)
		assert.ElementsMatch(t, []string{"3", "4", "5"}, q.uuids())
		for _, m := range to.all() {
			assert.Equal(t, message.Payload("payload"), m.msg.Payload)
			for key := range m.msg.Metadata {
				assert.NotContains(t, key, "poison")
			}
		}

		all := func(router.Poisoned) router.ReplayAction { return router.ReplaySend }
		report, err = r.Replay(t.Context(), router.ReplayConfig{From: q, Decide: all})
		require.NoError(t, err)
		assert.Equal(t, router.ReplayReport{Sent: 3}, report)
		assert.Empty(t, q.uuids())
		assert.Equal(t, map[string]int{"0": 1, "1": 1, "3": 1, "4": 1, "5": 1}, to.uuids())
	})
}

func copyOf(q *queue) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := newQueue()
	c.items = append(c.items, q.items...)
	return c
}

// A queue that is read twice, because the broker keeps what was replayed, or the
// replay was killed before it could acknowledge: the message arrives once.
func TestReplayTwiceArrivesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		q, to, r := poisonedQueue(t, 3, &fixed)
		fixed.Store(true)
		all := func(router.Poisoned) router.ReplayAction { return router.ReplaySend }
		again := copyOf(q)
		_, err := r.Replay(t.Context(), router.ReplayConfig{From: q, Decide: all})
		require.NoError(t, err)
		report, err := r.Replay(t.Context(), router.ReplayConfig{From: again, Decide: all})
		require.NoError(t, err)
		assert.Equal(t, router.ReplayReport{Sent: 3, Duplicates: 3}, report)
		assert.Equal(t, map[string]int{"0": 1, "1": 1, "2": 1}, to.uuids())
	})
}

// A message that is in the queue by mistake is kept, one whose route is missing
// ends the replay, and either is still there afterwards.
func TestReplayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		q, _, r := poisonedQueue(t, 2, &fixed)
		require.NoError(t, q.Publish("", message.NewMessage("foreign", nil)))
		all := func(router.Poisoned) router.ReplayAction { return router.ReplaySend }
		_, err := r.Replay(t.Context(), router.ReplayConfig{
			From: q, Decide: all, Route: func(router.Poisoned) string { return "missing" },
		})
		require.ErrorIs(t, err, router.ErrNoRoute)
		assert.Equal(t, []string{"0", "1", "foreign"}, q.uuids())

		fixed.Store(true)
		report, err := r.Replay(t.Context(), router.ReplayConfig{From: q, Decide: all})
		require.NoError(t, err)
		assert.Equal(t, router.ReplayReport{Sent: 2, Kept: 1}, report)
		assert.Equal(t, []string{"foreign"}, q.uuids())
	})
}

// An outage is waited for, and ctx ends the wait; the message stays.
func TestReplayDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		to := newSink(func(string, *message.Message) error { return down })
		r, err := router.New(router.Config{Poison: q}, nil)
		require.NoError(t, err)
		require.NoError(t, r.Add(farmRoute(newSource(), to)))
		msg := farmMessage("1", "e", "c", "p")
		for key, value := range map[string]string{
			router.KeyPoisonRoute: "farm", router.KeyPoisonCount: "1", router.KeyPoisonAttempts: "1",
			router.KeyPoisonFirst: "2026-01-01T00:00:00Z", router.KeyPoisonLast: "2026-01-01T00:00:00Z",
			sinks.KeyDedupID: "of the poison queue",
		} {
			msg.Metadata[key] = value
		}
		require.NoError(t, q.Publish("", msg))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = r.Replay(ctx, router.ReplayConfig{
			From: q, Decide: func(router.Poisoned) router.ReplayAction { return router.ReplaySend },
		})
		require.Error(t, err)
		assert.Greater(t, to.callCount(), 10)
		assert.Equal(t, []string{"1"}, q.uuids())
		require.NoError(t, r.Close())
		_, err = r.Replay(t.Context(), router.ReplayConfig{
			From: q, Decide: func(router.Poisoned) router.ReplayAction { return router.ReplaySend },
		})
		require.ErrorIs(t, err, router.ErrClosed)
	})
}

func TestReplayConfig(t *testing.T) {
	r, err := router.New(router.Config{Poison: newSink(nil)}, nil)
	require.NoError(t, err)
	for name, config := range map[string]router.ReplayConfig{
		"from": {}, "idle": {From: newQueue(), Idle: -1}, "decide": {From: newQueue()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.Replay(t.Context(), config)
			assert.ErrorIs(t, err, router.ErrConfig)
		})
	}
	assert.ErrorIs(t, router.ListPoisoned(t.Context(), router.ReplayConfig{}, nil), router.ErrConfig)
}
