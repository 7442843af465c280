package subscriber

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
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
		{waitReported, waits("a"), 2, 0},
		{waitReported + 1, waits("a", "b"), 2, 0},
		{time.Hour, waits("a", "b"), 0, 0},
		{time.Hour, waits("b"), 0, 2},
		{time.Hour, nil, 0, 2},
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

// A key whose first message is not finished and a host that is down are logged once when they have
// waited for ten seconds, and once when they no longer do.
func TestLongWaitsAreLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		kind        WaitKind
		what        string
		uri         string
		begun, over string
	}{
		"key":  {WaitKey, "66666666-7777-4888-8999-aaaaaaaaaaaa", "", "Messages of a key wait", "Messages of the key no longer wait"},
		"host": {WaitPayload, "payloads.example", "https://payloads.example/1?secret", "Payloads of a host wait", "Payloads of the host no longer wait"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newResyncWorld(t, Config{})
				ctx, end := context.WithCancel(t.Context())
				defer end()
				for topic, ctx := range map[string]context.Context{"type": ctx, "other": t.Context()} { // the latter keeps the stream
					if _, err := w.Subscribe(ctx, topic); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				w.connect()
				w.intake(t.Context(), &gateway.MessageReceived{ // without a payload, unless it has an address
					ID: "00000001-2222-4333-8444-555555555555", AppMessageID: "1", ReceivingEndpointID: "66666666-7777-4888-8999-aaaaaaaaaaaa",
					TenantID: "tenant", MessageType: "type", PayloadURI: c.uri,
				}, 0)
				logged := func(level watermill.LogLevel, text string) (n int) {
					for _, line := range w.log.Lines(level) {
						if strings.Contains(line.Msg, text) {
							n++
							if level == watermill.ErrorLogLevel && c.uri != "" && (line.Err == nil || line.Err.Error() == errWaits.Error() || errors.Is(line.Err, errNotDownloaded)) {
								t.Errorf("%s: it does not say why: %v", line.Msg, line.Err)
							}
							if got := line.Fields[string(c.kind)]; !strings.Contains(fmt.Sprint(got), c.what) || strings.Contains(fmt.Sprint(line.Fields), "secret") {
								t.Errorf("%s: %v", line.Msg, line.Fields)
							}
						}
					}
					return n
				}
				time.Sleep(waitReported - time.Second)
				if n := logged(watermill.ErrorLogLevel, c.begun); n != 0 {
					t.Errorf("logged %d times too early", n)
				}
				time.Sleep(time.Minute)
				if n := logged(watermill.ErrorLogLevel, c.begun); n != 1 {
					t.Errorf("logged %d times", n)
				}
				end()
				time.Sleep(time.Minute)
				if n := logged(watermill.InfoLogLevel, c.over); n != 1 {
					t.Errorf("that it is over is logged %d times", n)
				}
			})
		})
	}
}
