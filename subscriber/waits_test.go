package subscriber

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Of 100,000 that wait, those that have waited longest have details.
func TestWaitsAreBounded(t *testing.T) {
	now := time.Now()
	var all []Wait
	for i := range 100_000 {
		all = append(all, Wait{What: strconv.Itoa(i), Since: now.Add(-time.Duration(i))})
	}
	w := appendWaits(nil, WaitKey, all)[0]
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
		"key":  {WaitKey, "66666666-7777-4888-8999-aaaaaaaaaaaa", "", "messages of a key wait", "messages of the key no longer wait"},
		"host": {WaitPayload, "payloads.example", "https://payloads.example/1?secret", "payloads of a host wait", "payloads of the host no longer wait"},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newResyncWorld(t, Config{})
			ctx, end := context.WithCancel(t.Context())
			defer end()
			for topic, ctx := range map[string]context.Context{"type": ctx, "other": t.Context()} { // the latter keeps the stream
				testkit.Must(w.Subscribe(ctx, topic))(t)
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
						if level == watermill.ErrorLogLevel && c.uri != "" && (line.Err == nil || line.Err.Error() == errWaits.Error()) {
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
	}
}

// A download that nobody wants anymore is not why others of its host wait.
func TestDownloadThatIsNoLongerWanted(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{})
		ctx, end := context.WithCancel(t.Context())
		testkit.Must(w.Subscribe(ctx, "hangs"))(t)
		testkit.Must(w.Subscribe(t.Context(), "fails"))(t)
		synctest.Wait()
		w.connect()
		for i, name := range []string{"fails", "hangs"} {
			w.intake(t.Context(), &gateway.MessageReceived{
				ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", i),
				AppMessageID: name, TenantID: "tenant", MessageType: name, PayloadURI: "https://payloads.example/" + name,
			}, 0)
		}
		synctest.Wait()
		before := waitOf(w.Stats(), WaitPayload, "payloads.example")
		end()
		synctest.Wait()
		after := waitOf(w.Stats(), WaitPayload, "payloads.example")
		if before.Count != 1 || before.Err == nil || after != before {
			t.Errorf("it waits for %+v, and then for %+v", before, after)
		}
	})
}

// A subscription that hangs, or of which messages are left with the service because it is slow, is
// visible, and logged once when it has lasted and once when it is over.
func TestSlowSubscriptionIsVisible(t *testing.T) {
	for name, c := range map[string]struct {
		order Order
		more  bool // of the others come, so that the window is full
		what  string
	}{
		"hangs": {Unordered, false, AllData}, "is left": {OrderByKey, true, AllData + ", tenant bad"}, "is left, unordered": {Unordered, true, AllData + ", tenant bad"},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			const window = 8
			w := newResyncWorld(t, Config{Order: c.order, MaxInFlight: window})
			messages := testkit.Must(w.Subscribe(t.Context(), AllData))(t)
			hang := make(chan struct{})
			go func() { // ends with the subscription
				for msg := range messages {
					if msg.Metadata[gateway.KeyTenantID] == "good" {
						msg.Ack()
					} else {
						go func() { <-hang; msg.Ack() }()
					}
				}
			}()
			synctest.Wait()
			w.connect()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			time.Sleep(time.Minute)
			began := time.Now()
			go func() {
				for i := range window {
					w.arriveOf(ctx, i, "bad")
				}
				for i := window; c.more && ctx.Err() == nil; i++ {
					w.arriveOf(ctx, i, "good")
					time.Sleep(100 * time.Millisecond)
				}
			}()
			time.Sleep(4 * time.Second)
			if wait := waitOf(w.Stats(), WaitSubscription, c.what); !wait.Since.Equal(began) || wait.Count != window {
				t.Errorf("waits: %+v, want %d since %v", wait, window, began)
			}
			if n := w.logged(watermill.ErrorLogLevel, "messages of a subscription wait", c.what); n != 0 {
				t.Error("logged too early")
			}
			time.Sleep(time.Minute)
			if n := w.logged(watermill.ErrorLogLevel, "messages of a subscription wait", c.what); n != 1 {
				t.Errorf("logged %d times", n)
			}
			close(hang)
			time.Sleep(time.Minute)
			end()
			w.connect()
			time.Sleep(time.Minute)
			if n := w.logged(watermill.InfoLogLevel, "messages of the subscription no longer wait", c.what); n != 1 {
				t.Errorf("that it is over is logged %d times", n)
			}
			if wait := waitOf(w.Stats(), WaitSubscription, c.what); wait.Count > 0 {
				t.Errorf("it waits still: %+v", wait)
			}
		})
	}
}

// arriveOf lets message i arrive, which is of a tenant and has an endpoint of its own. It blocks while there is no room.
func (w *resyncWorld) arriveOf(ctx context.Context, i int, tenant string) {
	w.intake(ctx, &gateway.MessageReceived{
		ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", i),
		AppMessageID: fmt.Sprint(i), TenantID: tenant, MessageType: "type", Payload: []byte("small"),
	}, 0)
}

// waitOf returns the wait of this kind and name; zero if there is none.
func waitOf(stats Stats, kind WaitKind, what string) Wait {
	for _, waits := range stats.Waits {
		for _, wait := range waits.Longest {
			if waits.Kind == kind && wait.What == what {
				return wait
			}
		}
	}
	return Wait{}
}

// logged counts the lines with a text about a subscription.
func (w *resyncWorld) logged(level watermill.LogLevel, text, subscription string) (n int) {
	for _, line := range w.log.Lines(level) {
		if strings.Contains(line.Msg, text) && line.Fields["subscription"] == subscription {
			n++
		}
	}
	return n
}

// When messages are nacked again and again, of a thousand keys as well as of one, there is one line for their
// subscription once the first has been for ten seconds, and one when none is any longer. No matter how short the
// pauses between the nacks are, and whether others are acked.
func TestNacksAreLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		order  Order
		keys   int
		put    bool // off by the handler
		window int  // 0: all fit
	}{
		"one key": {order: OrderByKey, keys: 1}, "many keys": {order: OrderByKey, keys: 200}, "unordered": {order: Unordered, keys: 200},
		"put off": {order: OrderByKey, keys: 10, put: true}, "pipelined": {order: OrderByKey, keys: 200},
		"more than fit": {order: OrderByKey, keys: 300, window: 100}, "more than fit, unordered": {order: Unordered, keys: 300, window: 100},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newResyncWorld(t, Config{Order: c.order, MaxInFlight: c.window, Nack: Backoff{Initial: time.Second, Max: 2 * time.Second}})
			ctx := msgctx.WithSubscription(t.Context(), &msgctx.Subscription{Route: "a route", Pipelines: name == "pipelined"})
			messages := testkit.Must(w.Subscribe(ctx, AllData))(t)
			var healed atomic.Bool
			go func() { // ends with the subscription
				for msg := range messages {
					switch {
					case healed.Load() || msg.Metadata[gateway.KeyMessageType] == "good":
						msg.Ack()
					case c.window > 0: // meanwhile others take its room
						time.AfterFunc(500*time.Millisecond, func() { msg.Nack() })
					default:
						if c.put {
							msgctx.NackOf(msg.Context()).After(time.Second)
						}
						msg.Nack()
					}
				}
			}()
			synctest.Wait()
			w.connect()
			send := func(i int, kind string) {
				w.intake(t.Context(), &gateway.MessageReceived{
					ID: fmt.Sprintf("%08x-2222-4333-8444-555555555555", i), ReceivingEndpointID: fmt.Sprintf("%08x-7777-4888-8999-aaaaaaaaaaaa", i),
					TenantID: "tenant", MessageType: kind, Payload: []byte("small"),
				}, 0)
			}
			for i := range c.keys {
				send(i, "bad")
			}
			lines := func(level watermill.LogLevel) (all []string) {
				for _, line := range w.log.Lines(level) {
					if c.window > 0 && strings.HasPrefix(line.Msg, "messages of a subscription wait") {
						continue // others of it are left with the service meanwhile
					}
					all = append(all, fmt.Sprintf("%s %v %v", line.Msg, line.Fields["subscription"], line.Fields["count"]))
				}
				return all
			}
			beside := 0
			for range 60 {
				time.Sleep(time.Second)
				beside++
				send(1_000_000+beside, "good")
				if c.window > 0 {
					for i := range 10 {
						send(2_000_000+10*beside+i, "bad")
					}
				}
				if c.window == 0 && beside == int(waitReported/time.Second)-1 && len(lines(watermill.ErrorLogLevel)) != 0 {
					t.Errorf("too early: %q", lines(watermill.ErrorLogLevel))
				}
			}
			least, most := c.keys, c.keys
			if c.window > 0 {
				least, most = 1, 3*c.window // put off, and in handlers
			}
			var count int
			got := lines(watermill.ErrorLogLevel)
			if len(got) == 1 {
				_, _ = fmt.Sscanf(got[0], "messages wait to be redelivered after a nack a route %d", &count)
			}
			if count < least || count > most {
				t.Errorf("%q, want one line with a count from %d to %d", got[:min(len(got), 3)], least, most)
			}
			healed.Store(true)
			time.Sleep(time.Minute)
			n := 0
			for _, line := range lines(watermill.InfoLogLevel) {
				if strings.HasPrefix(line, "messages no longer wait to be redelivered after a nack a route") {
					n++
				}
			}
			if got := lines(watermill.ErrorLogLevel); n != 1 || len(got) != 1 {
				t.Errorf("that it is over is logged %d times, and errors %q", n, got)
			}
		})
	}
}
