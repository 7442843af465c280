package router_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
)

// A message that is in the queue by mistake is kept, one whose route is missing
// ends the replay, and either is still there afterwards.
func TestReplayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &poisonqueue.Queue{}
		r := build(t, router.Config{Poison: q}, farmRoute(newSource(), newSink(nil)))
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, poisonRecord("0", 0), poisonRecord("1", 1), message.NewMessage("foreign", nil)))
		missing := router.PoisonSelection{All: true, Route: func(router.Poisoned) string { return "missing" }}
		_, err := r.Replay(t.Context(), q, missing)
		testkit.ErrorIs(t, err, router.ErrNoRoute)
		testkit.Equal(t, q.UUIDs(), []string{"0", "1", "foreign"})

		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 2, Kept: 1})
		testkit.Equal(t, q.UUIDs(), []string{"foreign"})
	})
}

// rolledBack is a queue whose server comes back, in the middle of a replay, without its latest record, and takes another one in its place.
type rolledBack struct {
	*poisonqueue.Queue
	to atomic.Pointer[poisonqueue.Queue]
}

func (q *rolledBack) now() *poisonqueue.Queue {
	if to := q.to.Load(); to != nil {
		return to
	}
	return q.Queue
}

func (q *rolledBack) Get(ctx context.Context, id string) (router.Poisoned, error) {
	return q.now().Get(ctx, id)
}
func (q *rolledBack) Delete(ctx context.Context, id string) error { return q.now().Delete(ctx, id) }

// A record that has got the place of the one that was replayed stays.
func TestReplayDeletesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, other := &rolledBack{Queue: &poisonqueue.Queue{}}, &poisonqueue.Queue{}
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, poisonRecord("1", 0)))
		testkit.NoError(t, other.Publish(router.DefaultPoisonTopic, poisonRecord("2", 0)))
		to := newSink(func(string, *message.Message) error {
			q.to.Store(other)
			return nil
		})
		r := build(t, router.Config{Poison: q}, farmRoute(newSource(), to))
		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 1})
		testkit.Equal(t, other.UUIDs(), []string{"2"})
	})
}

// A message that the route's filter does not want any more is in the queue and
// nowhere else: it stays there, and is not remembered as handled.
func TestReplayKeepsWhatTheFilterDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, to := &poisonqueue.Queue{}, newSink(nil)
		route := farmRoute(newSource(), to)
		var wanted atomic.Bool
		route.Filter = func(*message.Message) (bool, error) { return wanted.Load(), nil }
		r := build(t, router.Config{Poison: q}, route)
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, poisonRecord("1", 0)))
		_, err := r.Replay(t.Context(), q, everything)
		testkit.ErrorIs(t, err, router.ErrFiltered)
		wantClass(t, err, router.ClassPermanent)
		testkit.Equal(t, q.UUIDs(), []string{"1"})
		wanted.Store(true)
		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 1})
		testkit.Equal(t, to.uuids(), map[string]int{"1": 1})
		testkit.NoError(t, r.Close())
	})
}

// An outage is waited for, and ctx ends the wait; the message stays.
func TestReplayDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &poisonqueue.Queue{}
		to := newSink(func(string, *message.Message) error { return down })
		r := build(t, router.Config{Poison: q}, farmRoute(newSource(), to))
		record := poisonRecord("1", 0)
		record.Metadata[gateway.KeyDedupID] = "of the poison queue"
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, record))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := r.Replay(ctx, q, everything); err == nil {
			t.Fatal("no error")
		}
		if got := to.callCount(); got <= 10 {
			t.Errorf("%d attempts in an hour, want more than 10", got)
		}
		testkit.Equal(t, q.UUIDs(), []string{"1"})
		testkit.NoError(t, r.Close())
		_, err := r.Replay(t.Context(), q, everything)
		testkit.ErrorIs(t, err, router.ErrClosed)
	})
}

// A replay may meet an outage before Run. Afterwards, too, messages stay where they are while nothing passes at any route,
// so that they hold their source back.
func TestReplayInAnOutageBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		q, from := &poisonqueue.Queue{}, newSource()
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, poisonRecord("0", 0)))
		to := newSink(func(string, *message.Message) error {
			if isDown.Load() {
				return down
			}
			return nil
		})
		r := build(t, router.Config{Poison: q, Retry: router.RetrySettings{MaxBackoff: time.Second}}, farmRoute(from, to))
		isDown.Store(true)
		replayed := make(chan struct{})
		go func() { replayAll(t, r, q); close(replayed) }()
		time.Sleep(time.Minute)
		go func() { _ = r.Run(t.Context()) }()
		<-r.Running()
		defer func() { _ = r.Close() }()
		isDown.Store(false)
		<-replayed
		isDown.Store(true)
		msg := farmMessage("1", "e", "1", "p")
		msg.SetContext(msgctx.With(t.Context(), msgctx.Value{Nack: &msgctx.Nack{}}))
		from.messages <- msg
		time.Sleep(time.Minute)
		synctest.Wait()
		if !isOpen(msg) {
			t.Error("the message has left its place, although nothing passes")
		}
		isDown.Store(false)
		wantAck(t, msg)
	})
}
