package pipeline

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/subscriber"
)

// Confirmations of some tenants that fail do not count while the gateway accepts those of others, and do when it
// accepts none.
func TestConfirmationsOfSomeTenants(t *testing.T) {
	const never = -1
	type failing []int // per tenant, after how many seconds its confirmations began to fail
	for name, test := range map[string]struct {
		tenants   failing
		confirmed []int // after how many seconds others were confirmed
		at        int   // seconds
		ok        bool
		since     int
		said      bool
	}{
		"none fails":                              {nil, []int{5}, 60, true, never, false},
		"none fails and none comes":               {nil, nil, 60, true, never, false},
		"one fails, and no other one has any":     {failing{10}, []int{5}, 60, false, 10, true},
		"one fails, others are accepted":          {failing{10}, []int{5, 30, 58}, 60, true, never, true},
		"one fails, others were accepted, idle":   {failing{10}, []int{5, 30}, 600, true, never, true},
		"one has failed for a moment":             {failing{57}, []int{5}, 60, true, never, false},
		"all fail at once":                        {failing{10, 11, 12}, []int{5}, 60, false, 10, true},
		"first one, then all":                     {failing{10, 90}, []int{5, 30, 60}, 120, false, 90, true},
		"first one, then another, not all":        {failing{10, 90}, []int{5, 30, 60, 110}, 120, true, never, true},
		"first one, then another for a moment":    {failing{10, 118}, []int{5, 30, 60, 117}, 120, true, never, true},
		"an answer on its way when they began":    {failing{10}, []int{5, 11}, 60, false, 10, true},
		"nothing was ever accepted":               {failing{10}, nil, 60, false, 10, true},
		"many, then all, more than are told":      {failing{10, 11, 12, 13, 90}, []int{5, 30, 60}, 120, false, 90, true},
		"many, more than are told, not all":       {failing{10, 11, 12, 13, 20}, []int{5, 30, 60}, 120, true, never, true},
		"it was over, and fails again, all of it": {failing{100}, []int{5, 50}, 130, false, 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				p := &Pipeline{options: Options{CheckInterval: 2 * time.Second}}
				stats := subscriber.Stats{}
				for second := 0; ; second++ {
					if slices.Contains(test.confirmed, second) {
						stats.Confirmed++
					}
					stats.Waits = nil
					var waits []subscriber.Wait
					for _, since := range test.tenants {
						if since <= second {
							waits = append(waits, subscriber.Wait{What: "tenant", Count: 1, Since: start.Add(time.Duration(since) * time.Second)})
						}
					}
					if len(waits) > 0 {
						stats.Waits = []subscriber.Waits{{
							Kind: subscriber.WaitTenant, Count: len(waits), Longest: waits[:min(len(waits), 3)], Total: len(waits), Newest: waits[len(waits)-1].Since,
						}}
					}
					got := p.checkConfirmations(stats)
					if second < test.at {
						time.Sleep(time.Second)
						continue
					}
					since := never
					if !got.Since.IsZero() {
						since = int(got.Since.Sub(start).Seconds())
					}
					if got.OK != test.ok || since != test.since || (got.Message != "") != test.said {
						t.Errorf("got ok %v since %d (%q), want %v since %d", got.OK, since, got.Message, test.ok, test.since)
					}
					return
				}
			})
		})
	}
}
