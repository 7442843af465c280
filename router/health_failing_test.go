package router

import (
	"testing"
	"testing/synctest"
	"time"
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
