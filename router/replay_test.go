package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
)

// Of two made messages one was sent before the other was poisoned: with UUIDs that are derived from the received
// one, a replay sends it again as the same message, and not as another one.
func TestReplayKeepsDerivedUUIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fixed atomic.Bool
		derived := func(received string, i int) string {
			return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%s/%d", received, i)).String()
		}
		first, second := derived("0", 0), derived("0", 1)
		q, from := &poisonqueue.Queue{}, newSource()
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

// A message that is in the queue by mistake is kept, one whose route is missing
// ends the replay, and either is still there afterwards.
func TestReplayLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &poisonqueue.Queue{}
		r := build(t, router.Config{Poison: q}, farmRoute(newSource(), newSink(nil)))
		testkit.NoError(t, q.Publish(router.DefaultPoisonTopic, poisonRecord("0", 0), poisonRecord("1", 1), message.NewMessage("foreign", nil)))
		missing := router.PoisonSelection{All: true, Route: func(router.Poisoned) string { return "missing" }}
		_, err := r.Replay(t.Context(), q, missing)
		wantErr(t, err, router.ErrNoRoute)
		testkit.Equal(t, q.UUIDs(), []string{"0", "1", "foreign"})

		testkit.Equal(t, replayAll(t, r, q), router.ReplayReport{Sent: 2, Kept: 1})
		testkit.Equal(t, q.UUIDs(), []string{"foreign"})
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
		wantErr(t, err, router.ErrFiltered)
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
		wantErr(t, err, router.ErrClosed)
	})
}
