package router

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
)

// The state of a route does not change with each message that passes while nearly all are poisoned, and it ends
// soon after the repair, however many messages come.
func TestFailingDoesNotFlap(t *testing.T) {
	const after = 3
	type outcomes struct {
		n     int
		kind  EventKind
		every time.Duration
	}
	poisoned := outcomes{after, EventPoisoned, time.Second}
	delivered := outcomes{1, EventDelivered, time.Second}
	for name, test := range map[string]struct {
		come   []outcomes
		wait   time.Duration // afterwards
		states string        // after each; r running, f failing
	}{
		"too few in a row":                   {[]outcomes{{2, EventPoisoned, 0}, delivered, {2, EventPoisoned, 0}}, 0, "rrr"},
		"nearly all":                         {[]outcomes{poisoned, delivered, poisoned, delivered, {1, EventPoisoned, 0}, delivered}, 0, "ffffff"},
		"half of all":                        {[]outcomes{poisoned, delivered, {1, EventPoisoned, 0}, delivered, {1, EventPoisoned, 0}, delivered}, 0, "ffffff"},
		"none delivered":                     {[]outcomes{poisoned, {1, EventFiltered, time.Hour}}, 0, "ff"},
		"repaired, many come":                {[]outcomes{poisoned, {58, EventDelivered, time.Second}, delivered, delivered}, 0, "fffr"},
		"repaired, one comes later":          {[]outcomes{poisoned, {1, EventDelivered, time.Hour}}, 0, "fr"},
		"repaired, one comes, then nothing":  {[]outcomes{poisoned, delivered}, time.Minute, "fr"},
		"one is poisoned after the repair":   {[]outcomes{poisoned, {70, EventDelivered, time.Second}, {1, EventPoisoned, 0}, delivered}, 0, "frrr"},
		"all are poisoned after the repair":  {[]outcomes{poisoned, {70, EventDelivered, time.Second}, poisoned}, 0, "frf"},
		"each is poisoned long after others": {[]outcomes{{after, EventPoisoned, time.Hour}, {1, EventPoisoned, time.Hour}}, 0, "ff"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &health{state: StateRunning, failingAfter: after}
				got := ""
				for i, o := range test.come {
					for range o.n {
						time.Sleep(o.every)
						h.Observe(Event{Kind: o.kind})
					}
					if i == len(test.come)-1 {
						time.Sleep(test.wait)
					}
					got += string(h.report().State[0])
				}
				if got != test.states {
					t.Errorf("got states %s, want %s", got, test.states)
				}
			})
		})
	}
}

// A clock that is set back does not make a route fail, or its last success recent, until it has caught up.
func TestClockIsSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &health{state: StateRunning, failingAfter: 1}
		h.Observe(Event{Kind: EventPoisoned})
		h.Observe(Event{Kind: EventDelivered})
		if got := h.report().State; got != StateFailing {
			t.Errorf("after a poisoned message the state is %s", got)
		}
		ahead := time.Now().Add(2 * time.Hour)
		h.poisonedAt.Store(ahead.UnixNano())
		if got := h.report().State; got != StateRunning {
			t.Errorf("two hours before the last poisoned message the state is %s", got)
		}

		r := testkit.Must(NewRetry(RetryConfig{lastSuccess: func() time.Time { return ahead }}, nil))(t)
		ctx, cancel := context.WithCancel(t.Context())
		msg := message.NewMessage("1", nil)
		msg.SetContext(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, WithClass(errors.New("the bucket is down"), ClassOutage)
			})(msg)
		}()
		time.Sleep(time.Minute)
		if _, is := r.OutageSince(); !is {
			t.Error("what fails for a minute is no outage two hours before the last success")
		}
		cancel()
		<-done
	})
}
