package subscriber

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

func TestWaitWatchReportsOnce(t *testing.T) {
	var w waitWatch
	began := time.Now()
	waits := func(whats ...string) []Waits {
		all := []Wait{}
		for _, what := range whats {
			all = append(all, Wait{What: what, Since: began})
		}
		keys, _ := newWaits(WaitKey, all)
		nacks, _ := newWaits(WaitNack, all)
		return []Waits{keys, nacks}
	}
	for _, c := range []struct {
		after       time.Duration
		waits       []Waits
		begun, over int
	}{
		{waitReported - 1, waits("a"), 0, 0},
		{waitReported, waits("a"), 1, 0},
		{waitReported + 1, waits("a", "b"), 1, 0},
		{time.Hour, waits("a", "b"), 0, 0},
		{time.Hour, waits("b"), 0, 1},
		{time.Hour, nil, 0, 1},
		{time.Hour, nil, 0, 0},
	} {
		begun, over := w.look(began.Add(c.after), c.waits)
		if len(begun) != c.begun || len(over) != c.over {
			t.Errorf("after %v: %d begun, %d over; want %d and %d", c.after, len(begun), len(over), c.begun, c.over)
		}
	}
}

// Of 100,000 that wait, those that have waited longest have details.
func TestWaitsAreBounded(t *testing.T) {
	now := time.Now()
	var all []Wait
	for i := range 100_000 {
		all = append(all, Wait{What: strconv.Itoa(i), Since: now.Add(-time.Duration(i))})
	}
	w, _ := newWaits(WaitKey, all)
	if w.Count != 100_000 || len(w.Longest) != maxWaits || w.Longest[0].What != "99999" {
		t.Errorf("%d, %d with details, the longest is %s", w.Count, len(w.Longest), w.Longest[0].What)
	}
}

// A subscription that hangs, or of which messages are left with the service because it is slow, is
// visible, and logged once when it has lasted and once when it is over.
func TestSlowSubscriptionIsVisible(t *testing.T) {
	for name, shut := range map[string]bool{"hangs": false, "is shut": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newResyncWorld(t, Config{Order: Unordered})
				messages, err := w.Subscribe(t.Context(), AllData)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				w.connect()
				w.arrive(1)
				msg := w.next(messages)
				want := AllData
				w.mu.Lock()
				if shut {
					want += ", tenant tenant"
					g := stallGroup{sub: w.subscriptions[0], tenant: "tenant"}
					w.apart.shut[g], w.apart.stalled = shutGroup{n: 1, since: time.Now()}, map[stallGroup]int{g: 1}
				}
				w.mu.Unlock()
				began := time.Now()
				time.Sleep(stallAfter)
				seen := false
				for _, waits := range w.Stats().Waits {
					for _, wait := range waits.Longest {
						seen = seen || waits.Kind == WaitSubscription && wait.What == want && wait.Count == 1 && wait.Since.Equal(began)
					}
				}
				if !seen {
					t.Errorf("%q is not among %+v", want, w.Stats().Waits)
				}
				logged := func(level watermill.LogLevel, text string) (n int) {
					for _, line := range w.log.Lines(level) {
						if strings.Contains(line.Msg, text) && line.Fields["subscription"] == want {
							n++
						}
					}
					return n
				}
				time.Sleep(time.Minute)
				if n := logged(watermill.ErrorLogLevel, "Messages of a subscription wait"); n != 1 {
					t.Errorf("logged %d times", n)
				}
				msg.Ack()
				w.mu.Lock()
				clear(w.apart.shut)
				w.mu.Unlock()
				time.Sleep(time.Minute)
				if n := logged(watermill.InfoLogLevel, "Messages of the subscription no longer wait"); n != 1 {
					t.Errorf("that it is over is logged %d times", n)
				}
				for _, waits := range w.Stats().Waits {
					if waits.Kind == WaitSubscription {
						t.Errorf("it waits still: %+v", waits)
					}
				}
			})
		})
	}
}
