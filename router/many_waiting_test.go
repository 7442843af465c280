package router_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// 20,000 messages wait with their subscriber: for another attempt, for a copy that is being
// handled elsewhere, for a topic that is refused. They hold no goroutine and no place, and little
// memory; others pass.
func TestManyMessagesWait(t *testing.T) {
	const room = 100
	n := 20_000
	if raceDetector {
		n /= 10
	}
	synctest.Test(t, func(t *testing.T) {
		sink := newTopicSink(func(topic string) error {
			if strings.HasPrefix(topic, "sick") {
				return sinks.NewError("s", topic, sinks.ErrUnavailable, errHandler)
			}
			return nil
		})
		store, from := newStore(t, 2*n), newSource()
		r := startYard(t, router.Config{Dedup: router.DedupSettings{Store: store}}, testkit.NewLog(), router.Route{
			Name: "farm", From: from, Topic: "in", To: sink, ToTopic: "{tenant}",
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				if strings.HasPrefix(msg.UUID, "fails") {
					return nil, errHandler
				}
				return []*message.Message{msg}, nil
			},
		})
		heap := func() int64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		for i := range n {
			if i%4 == 1 {
				reserveFor(t, store, barn, tenantMessage("copy", i)())
			}
		}
		nacks := make([]*msgctx.Nack, n)
		places := make(chan struct{}, room)
		var acked, putOff atomic.Int64
		var handled sync.WaitGroup
		before, goroutines, most := heap(), runtime.NumGoroutine(), 0
		for i := range n {
			msg := tenantMessage([...]string{"fails", "copy", fmt.Sprint("sick", i%40), "well"}[i%4], i)()
			nacks[i] = &msgctx.Nack{}
			msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: nacks[i]}))
			places <- struct{}{}
			from.messages <- msg
			handled.Go(func() {
				select {
				case <-msg.Acked():
					acked.Add(1)
				case <-msg.Nacked():
					if nacks[i].Delay() > 0 {
						putOff.Add(1)
					}
				}
				<-places
			})
			most = max(most, runtime.NumGoroutine())
		}
		handled.Wait()
		synctest.Wait()
		if acked.Load() != int64(n/4) || putOff.Load() != int64(n/4*3) {
			t.Errorf("%d are acked and %d put off, want %d and %d", acked.Load(), putOff.Load(), n/4, n/4*3)
		}
		health := r.Health()[0]
		if health.InFlight != 0 || health.Waiting != 0 || health.Returned != 0 || health.Poisoned != 0 {
			t.Errorf("health %+v, want nothing in flight, waiting in place, returned or poisoned", health)
		}
		if after := runtime.NumGoroutine(); after > goroutines+100 || most > goroutines+5*room {
			t.Errorf("%d goroutines, and up to %d, with %d before", after, most, goroutines)
		}
		grown := heap() - before
		t.Logf("%d goroutines at most, %d bytes for each message", most, grown/int64(n))
		if grown/int64(n) > 2000 {
			t.Errorf("%d bytes are kept for each message", grown/int64(n))
		}
		runtime.KeepAlive(nacks)
	})
}
