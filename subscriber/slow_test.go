package subscriber_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// A subscription that is slow, without failing, leaves another one alone, whether they get the same
// messages or not. When it is faster again, it gets what was left, and the other one no copies.
func TestSlowSubscriptionLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	for name, topics := range map[string][2]string{
		"of its own": {typeOther, typeJSON}, "of all": {subscriber.AllData, subscriber.AllData},
	} {
		for orderName, order := range bothOrders {
			t.Run(name+" "+orderName, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, gatewaytest.Config{})
				cfg := f.config()
				cfg.MaxInFlight, cfg.Order = 20, order
				sub, release := f.held(cfg)
				slow, quick := f.subscribe(sub, topics[0]), f.subscribe(sub, topics[1])
				release()
				healed := make(chan struct{})
				const ofSlow, ofQuick = 100, 300
				go func() { // ends with the subscription
					acked := 0
					for msg := range slow {
						pause := time.After(700 * time.Millisecond)
						if acked == ofSlow/4 {
							pause = nil // it stays the slow one, however slow the others are on this machine
						}
						select {
						case <-healed:
						case <-pause:
							acked++
						}
						msg.Ack()
					}
				}()
				var n atomic.Int64
				go func() {
					for msg := range quick {
						n.Add(1)
						msg.Ack()
					}
				}()
				all, want := ofSlow+ofQuick, int64(ofQuick)
				if topics[0] == topics[1] {
					want = int64(all)
				}
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for range ofSlow {
					f.send(typeOther, []byte("slow"), f.receiver)
					for range ofQuick / ofSlow {
						f.send(typeJSON, []byte("quick"), f.receiver2)
					}
					<-tick.C
				}
				testkit.Eventually(t, "the other one gets everything", func() bool { return n.Load() == want })
				s := sub.Stats()
				if s.InFlight+s.Stalled > cfg.MaxInFlight+cfg.MaxInFlight/2 {
					t.Errorf("%d in flight, %d set apart", s.InFlight, s.Stalled)
				}
				if order == subscriber.Unordered && !slices.ContainsFunc(s.Waits, func(w subscriber.Waits) bool {
					return w.Kind == subscriber.WaitSubscription && w.Longest[0].What == topics[0]
				}) {
					t.Errorf("nothing tells that %s waits: %+v", topics[0], s.Waits)
				}
				if left := all - f.confirmed(); left < ofSlow/2 {
					t.Errorf("%d are open: the slow one was not slow", left)
				}
				close(healed)
				f.waitConfirmed(all)
				if n.Load() != want {
					t.Errorf("%d copies", n.Load()-want)
				}
			})
		}
	}
}
