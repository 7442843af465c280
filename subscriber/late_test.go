package subscriber

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The stream is opened once nothing has subscribed for StartAfter, at once if that is negative, and
// whatever the pace when Ready is closed.
func TestStreamWaitsForTheLastSubscription(t *testing.T) {
	for name, test := range map[string]struct {
		cfg   Config
		ready bool          // Ready is closed at want
		want  time.Duration // when it is requested; subscriptions are made at 0 s, 0.9 s and 1.8 s
	}{
		"default": {Config{}, false, 2800 * time.Millisecond},
		"shorter": {Config{StartAfter: 500 * time.Millisecond}, false, 500 * time.Millisecond},
		"at once": {Config{StartAfter: -1}, false, 0},
		"ready":   {Config{}, true, 4 * time.Second},
		"longer":  {Config{StartAfter: time.Hour}, false, 1800*time.Millisecond + time.Hour},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			client := &silentClient{}
			test.cfg.Client = client
			if test.ready {
				ready := make(chan struct{})
				test.cfg.Ready = ready
				time.AfterFunc(test.want, func() { close(ready) })
			}
			sub := testkit.Must(New(test.cfg, nil))(t)
			defer func() { _ = sub.Close() }()
			for i := range 3 {
				at := time.Duration(i) * 900 * time.Millisecond
				time.AfterFunc(at, func() {
					if _, err := sub.Subscribe(t.Context(), AllData); err != nil {
						t.Error(err)
					}
				})
			}
			if test.want > 0 {
				time.Sleep(test.want - time.Nanosecond)
				synctest.Wait()
				if got := client.streams.Load(); got != 0 {
					t.Errorf("%d streams are requested before %v", got, test.want)
				}
				time.Sleep(time.Nanosecond)
			}
			synctest.Wait()
			if got := client.streams.Load(); got != 1 {
				t.Errorf("%d streams are requested after %v, want 1", got, test.want)
			}
			time.Sleep(3 * time.Second) // the other subscriptions
		})
	}
}

// oneReconnect is longer than it takes until a reconnect is asked for: there is at most one every four seconds.
const oneReconnect = 5 * time.Second

// late subscribes and returns what comes.
func (w *resyncWorld) late(ctx context.Context, topic string) <-chan *message.Message {
	w.Helper()
	messages := testkit.Must(w.Subscribe(ctx, topic))(w)
	synctest.Wait()
	return messages
}

// missed returns how many events subscriptions have missed according to the log.
func (w *resyncWorld) missed() (counts []any) {
	for _, line := range w.log.Lines(watermill.ErrorLogLevel) {
		if strings.Contains(line.Msg, "too late") {
			counts = append(counts, line.Fields["count"])
		}
	}
	return counts
}

// A subscription that is made while the stream is open gets, after one reconnect and in order, what is
// not acked yet, and the log says how much it has missed.
func TestLateSubscriptionGetsWhatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{})
		first := w.late(t.Context(), AllData)
		w.connect()
		w.arrive(1, 2, 3)
		w.next(first).Ack()
		open := w.next(first)
		late := w.late(t.Context(), "type")
		time.Sleep(oneReconnect)
		if got := w.reconnects(); len(got) != 1 {
			t.Fatalf("reconnects are asked for after %v, want 1", got)
		}
		if got := w.missed(); len(got) != 1 || got[0] != 1 {
			t.Errorf("it has missed %v, want 1", got)
		}
		open.Ack()
		w.next(first).Ack()
		time.Sleep(time.Second)
		if got := w.client.confirmed.Load(); got != 1 {
			t.Errorf("%d are confirmed, want only the one before the late subscription", got)
		}
		w.connect()
		w.arrive(2, 3, 4)
		for _, want := range []string{"2", "3", "4"} {
			msg := w.next(late)
			if got := msg.Metadata.Get(gateway.KeyContextID); got != want {
				t.Errorf("the late one got %s, want %s", got, want)
			}
			msg.Ack()
		}
		if got := w.next(first).Metadata.Get(gateway.KeyContextID); got != "4" {
			t.Errorf("the first one got %s again", got)
		}
		if got := w.reconnects(); len(got) != 1 {
			t.Errorf("reconnects are asked for after %v, want 1", got)
		}
	})
}

// What a late subscription misses is said, and nothing else: not what its topic does not select, and not
// what it had itself before it was made again.
func TestWhatALateSubscriptionMisses(t *testing.T) {
	control := func(w *resyncWorld) {
		w.intake(w.Context(), &gateway.EndpointDeleted{ID: "66666666-7777-4888-8999-aaaaaaaaaaaa"}, 0)
		synctest.Wait()
	}
	for name, test := range map[string]struct {
		others, topic      string
		again              bool // a subscription to topic existed before
		missed, reconnects int
	}{
		"everything":                 {Everything, Everything, false, 3, 1},
		"data":                       {Everything, AllData, false, 2, 1},
		"control events":             {Everything, string(gateway.EventEndpointDeleted), false, 1, 1},
		"control events nobody took": {AllData, string(gateway.EventEndpointDeleted), false, 1, 1},
		"another type":               {Everything, "another", false, 0, 0},
		"another type, untaken left": {AllData, "another", false, 0, 0},
		"made again":                 {Everything, AllData, true, 0, 0},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newResyncWorld(t, Config{})
			ack := func(messages <-chan *message.Message) {
				for msg := range messages {
					msg.Ack()
				}
			}
			go ack(w.late(t.Context(), test.others))
			former, end := context.WithCancel(t.Context())
			defer end()
			if test.again {
				go ack(w.late(former, test.topic))
			}
			w.connect()
			w.arrive(1, 2)
			control(w)
			end()
			synctest.Wait()
			go ack(w.late(t.Context(), test.topic))
			time.Sleep(oneReconnect)
			got := w.missed()
			if test.missed == 0 && len(got) > 0 || test.missed > 0 && (len(got) != 1 || got[0] != test.missed) {
				t.Errorf("it has missed %v, want %d", got, test.missed)
			}
			if got := w.reconnects(); len(got) != test.reconnects {
				t.Errorf("reconnects are asked for after %v, want %d", got, test.reconnects)
			}
		})
	}
}

// What a subscription had when it ended, and acked before it was made again, is not missed.
func TestWhatEndsWithItsSubscriptionIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{})
		former, end := context.WithCancel(t.Context())
		first := w.late(former, AllData)
		w.late(t.Context(), "another") // keeps the stream open
		w.connect()
		w.arrive(1)
		msg := w.next(first)
		end()
		synctest.Wait()
		msg.Ack()
		synctest.Wait()
		w.late(t.Context(), AllData)
		if got := w.missed(); len(got) > 0 {
			t.Errorf("it has missed %v, want nothing", got)
		}
		if got := w.reconnects(); len(got) > 0 {
			t.Errorf("reconnects are asked for after %v, want none", got)
		}
	})
}

// A subscription that ends before its router has made the others, or Config.Ready is closed, keeps nobody waiting.
func TestSubscriptionThatEndsBeforeTheStartHoldsNobodyUp(t *testing.T) {
	never := func(ctx context.Context) context.Context {
		return msgctx.WithSubscription(ctx, &msgctx.Subscription{Start: make(chan struct{})})
	}
	for name, test := range map[string]struct {
		first  func(context.Context) context.Context
		second func(context.Context) context.Context // nil: none is made
		closes bool                                  // before StartAfter is over
		want   int64
	}{
		"router that failed": {never, func(ctx context.Context) context.Context { return ctx }, false, 1},
		"router that is run again": {never, func(ctx context.Context) context.Context {
			return msgctx.WithSubscription(ctx, &msgctx.Subscription{Start: closedChannel()})
		}, false, 1},
		"router that starts still": {never, never, false, 0},
		"nobody else":              {never, nil, false, 0},
		"closed":                   {never, func(ctx context.Context) context.Context { return ctx }, true, 0},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			client := &silentClient{}
			sub := testkit.Must(New(Config{Client: client}, nil))(t)
			defer func() { _ = sub.Close() }()
			former, end := context.WithCancel(t.Context())
			defer end()
			subscribe := func(ctx context.Context) {
				testkit.Must(sub.Subscribe(ctx, AllData))(t)
			}
			subscribe(test.first(former))
			time.Sleep(time.Minute)
			end()
			if test.second != nil {
				subscribe(test.second(t.Context()))
			}
			if test.closes {
				_ = sub.Close()
			}
			time.Sleep(time.Minute)
			if got := client.streams.Load(); got != test.want {
				t.Errorf("%d streams are requested, want %d", got, test.want)
			}
		})
	}
}

func closedChannel() <-chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}

// While the stream waits for Config.Ready, the log says so, once.
func TestReadyThatIsNotClosedIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := testkit.NewLog()
		ready := make(chan struct{})
		sub := testkit.Must(New(Config{Client: &silentClient{}, Ready: ready}, log))(t)
		defer func() { _ = sub.Close() }()
		lines := func(want int) {
			t.Helper()
			synctest.Wait()
			n := 0
			for _, line := range log.Lines(watermill.ErrorLogLevel) {
				if strings.Contains(line.Msg, "not opened") {
					n++
				}
			}
			if n != want {
				t.Errorf("got %d lines, want %d", n, want)
			}
		}
		for range 3 {
			testkit.Must(sub.Subscribe(t.Context(), AllData))(t)
		}
		time.Sleep(readyReported - time.Nanosecond)
		lines(0)
		time.Sleep(time.Hour)
		lines(1)
		close(ready)
		time.Sleep(time.Hour)
		lines(1)
	})
}

// What two subscriptions to one topic acked while they ended was not missed twice: what comes after them was.
func TestWhatEndsWithTwoSubscriptionsIsNotCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, Config{Order: Unordered})
		former, end := context.WithCancel(t.Context())
		first, second := w.late(former, AllData), w.late(former, AllData)
		others := w.late(t.Context(), Everything)
		w.connect()
		w.arrive(1)
		one, two := w.next(first), w.next(second)
		end()
		synctest.Wait()
		one.Ack()
		two.Ack()
		w.next(others).Ack()
		w.arrive(2)
		w.next(others).Ack()
		synctest.Wait()
		w.late(t.Context(), AllData)
		if got := w.missed(); len(got) != 1 || got[0] != 1 {
			t.Errorf("it has missed %v, want 1", got)
		}
	})
}

// A subscription that is made again and again keeps the others waiting for ten times StartAfter at most.
func TestSubscriptionThatIsMadeAgainAndAgainDelaysTheStreamShortly(t *testing.T) {
	for name, leased := range map[string]bool{"alone": false, "with a lease": true} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			client := &silentClient{}
			cfg := Config{Client: client, StreamDownFor: KeepLease}
			lease := &scriptedLease{grants: make(chan LeaseTerm), failed: make(chan error)}
			if leased {
				cfg.Lease = lease
			}
			sub := testkit.Must(New(cfg, nil))(t)
			defer func() { _ = sub.Close() }()
			subscribe := func(ctx context.Context) {
				testkit.Must(sub.Subscribe(ctx, AllData))(t)
			}
			began := time.Now()
			subscribe(t.Context())
			for client.streams.Load() == 0 && time.Since(began) < time.Minute {
				ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
				subscribe(ctx)
				time.Sleep(500 * time.Millisecond)
				select {
				case lease.grants <- newScriptedTerm(1):
					synctest.Wait()
				default:
				}
				end()
			}
			if got := time.Since(began); got < 5*time.Second || got > 11*time.Second {
				t.Errorf("the stream is opened after %v, want up to 10 s", got)
			}
		})
	}
}
