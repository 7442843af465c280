package router_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// yard is a subscriber with room for a few messages. What is put off takes no room until it is
// delivered again, in its own goroutine, as many as there are.
type yard struct {
	room chan struct{} // a token for each place that is taken

	mu      sync.Mutex
	out     map[string]chan *message.Message
	putOff  atomic.Int64 // how often
	nacked  atomic.Int64 // how often for good
	waiting atomic.Int64 // put off now
	group   sync.WaitGroup
}

func newYard(room int) *yard {
	return &yard{room: make(chan struct{}, room), out: map[string]chan *message.Message{}}
}

func (y *yard) Subscribe(_ context.Context, topic string) (<-chan *message.Message, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.out[topic] == nil {
		y.out[topic] = make(chan *message.Message)
	}
	return y.out[topic], nil
}

func (y *yard) Close() error {
	y.group.Wait()
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, out := range y.out {
		close(out)
	}
	y.out = nil
	return nil
}

// send waits for room, and delivers the message until it is acked, or nacked for good.
func (y *yard) send(topic string, newMessage func() *message.Message) <-chan time.Time {
	y.mu.Lock()
	out := y.out[topic]
	y.mu.Unlock()
	done := make(chan time.Time, 1)
	y.room <- struct{}{}
	y.group.Go(func() {
		nack := &msgctx.Nack{}
		for {
			msg := newMessage()
			kept := nack.Kept()
			nack = &msgctx.Nack{}
			if kept != nil {
				nack.Keep(kept)
			}
			msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: nack}))
			out <- msg
			select {
			case <-msg.Acked():
				<-y.room
				done <- time.Now()
				return
			case <-msg.Nacked():
			}
			<-y.room
			if nack.Delay() == 0 {
				y.nacked.Add(1)
				return
			}
			y.putOff.Add(1)
			y.waiting.Add(1)
			time.Sleep(nack.Delay())
			y.waiting.Add(-1)
			y.room <- struct{}{}
		}
	})
	return done
}

// tenantMessage is one of a tenant, which is in its topic.
func tenantMessage(tenant string, i int) func() *message.Message {
	return func() *message.Message {
		msg := farmMessage(fmt.Sprint(tenant, i), tenant, fmt.Sprint(tenant, i), "p")
		msg.Metadata[gateway.KeyTenantID] = tenant
		return msg
	}
}

// topicSink refuses what broken says.
type topicSink struct {
	*memorySink
	tries atomic.Int64 // of refused messages
}

func newTopicSink(broken func(topic string) error) *topicSink {
	s := &topicSink{}
	s.memorySink = newSink(func(topic string, _ *message.Message) error {
		time.Sleep(time.Millisecond)
		err := broken(topic)
		if err != nil {
			s.tries.Add(1)
		}
		return err
	})
	return s
}

func startYard(t *testing.T, config router.Config, log *testkit.Log, routes ...router.Route) *running {
	t.Helper()
	config.Poison = newSink(nil)
	return startLogged(t, log, config, routes...)
}

// The sink refuses one tenant's topic for a long time: the others notice nothing, nothing of
// it stays in flight, and it is back soon after the fault's end.
func TestRefusedTopicCostsTheOthersNothing(t *testing.T) {
	for _, failure := range []string{"refuses", "hangs"} {
		t.Run(failure, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				broken.Store(true)
				sink := newTopicSink(func(topic string) error {
					if broken.Load() && strings.HasPrefix(topic, "sick.") {
						if failure == "hangs" {
							time.Sleep(4 * time.Second) // longer than a probe may; the last one begins at the fault's end
						}
						return sinks.NewError("s", topic, sinks.ErrUnavailable, errors.New("not authorized"))
					}
					return nil
				})
				yard, log := newYard(50), testkit.NewLog()
				r := startYard(t, router.Config{}, log, router.Route{Name: "farm", From: yard, Topic: "in", To: sink})
				var sick, well []<-chan time.Time
				for i := range 20 { // the one at a time that is known to be healthy
					<-yard.send("in", tenantMessage("well", -i))
				}
				slow := 0
				for i := range 3000 {
					if i%10 == 0 {
						sick = append(sick, yard.send("in", tenantMessage("sick", i)))
					}
					sent := time.Now()
					done := yard.send("in", tenantMessage("well", i))
					well = append(well, done)
					if time.Since(sent) > 0 {
						slow++
					}
					time.Sleep(20 * time.Millisecond)
				}
				if failure == "refuses" && slow > 0 {
					t.Errorf("%d of %d had to wait for room", slow, len(well))
				}
				if slow > len(well)/20 {
					t.Errorf("%d of %d had to wait for room", slow, len(well))
				}
				synctest.Wait()
				for _, done := range well {
					select {
					case <-done:
					default:
						t.Fatal("a message of the others is open")
					}
				}
				health := r.Health()[0]
				if health.State != router.StateRunning || len(health.Refused) != 1 || !strings.HasPrefix(health.Refused[0].Topic, "sick.") {
					t.Errorf("health %+v, want it running, with one refused topic", health)
				}
				if tries := sink.tries.Load(); tries > 150 {
					t.Errorf("%d tries in a minute, want few", tries)
				}
				if n := len(lines(log, "takes messages of the topic again")); n != 0 {
					t.Errorf("%d lines of an end", n)
				}
				broken.Store(false)
				ended := time.Now()
				for _, done := range sick {
					if at := <-done; at.Sub(ended) > 5*time.Second {
						t.Fatalf("recovered after %v, want 5 seconds", at.Sub(ended))
					}
				}
				synctest.Wait()
				if health := r.Health()[0]; len(health.Refused) != 0 || health.Poisoned != 0 || health.Returned != 0 {
					t.Errorf("health %+v, want nothing refused, poisoned or returned", health)
				}
				refused := 0
				for _, line := range log.Lines(watermill.ErrorLogLevel) {
					if strings.Contains(line.Msg, "refuses messages of the topic") {
						refused++
					}
				}
				if refused != 1 || len(log.Lines(watermill.ErrorLogLevel)) > 2 { // perhaps an outage, until the next one passed
					t.Errorf("%d lines that the topic is refused, want one: %v", refused, log.Lines(watermill.ErrorLogLevel))
				}
				if n := len(lines(log, "takes messages of the topic again")); n != 1 {
					t.Errorf("%d lines of an end, want one", n)
				}
			})
		})
	}
}

// One of two routes from one source has a sink that is down: the other one gets its messages,
// as if nothing was. When both are down, messages wait in place, which holds the source back.
func TestSinkOfOneRouteIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var downA, downB atomic.Bool
		sink := func(isDown *atomic.Bool) *topicSink {
			return newTopicSink(func(string) error {
				if isDown.Load() {
					return down
				}
				return nil
			})
		}
		yard := newYard(20)
		a, b := sink(&downA), sink(&downB)
		r := startYard(t, router.Config{}, testkit.NewLog(),
			router.Route{Name: "a", From: yard, Topic: "a", To: a}, router.Route{Name: "b", From: yard, Topic: "b", To: b})
		downA.Store(true)
		began := time.Now()
		for i := range 1000 {
			yard.send("a", tenantMessage("a", i))
			<-yard.send("b", tenantMessage("b", i))
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("1000 messages of the route that works took %v, want 11 seconds", took)
		}
		if got := len(b.all()); got != 1000 {
			t.Errorf("%d messages stored, want 1000", got)
		}
		if health := r.Health(); health[0].State != router.StateOutage || health[1].State != router.StateRunning {
			t.Errorf("states %s and %s, want an outage of one", health[0].State, health[1].State)
		}
		if tries := a.tries.Load(); tries > 50 {
			t.Errorf("%d tries, want few", tries)
		}

		downB.Store(true)
		go func() { // blocks when there is no more room
			for i := range 100 {
				yard.send("b", tenantMessage("b2 ", i))
			}
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before := yard.putOff.Load()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := yard.putOff.Load(); got != before {
			t.Errorf("%d messages were put off although nothing passes, want them to wait in place", got-before)
		}
		if len(yard.room) != cap(yard.room) {
			t.Errorf("%d messages in flight, want %d: they hold the source back", len(yard.room), cap(yard.room))
		}

		downB.Store(false)
		time.Sleep(router.DefaultRetryMaxBackoff + 10*time.Second)
		synctest.Wait()
		if got := len(b.all()); got != 1100 {
			t.Errorf("%d messages stored, want 1100", got)
		}
		downA.Store(false)
		time.Sleep(router.DefaultRetryMaxBackoff)
		synctest.Wait()
		if got := len(a.all()); got != 1000 {
			t.Errorf("%d messages stored, want 1000", got)
		}
	})
}

// The only message that waited for the end of an outage is poisoned: the route waits for nothing.
func TestOutageOfWhichNobodyWaitsForTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		sink := newTopicSink(func(topic string) error {
			if tries++; tries <= 3 {
				return down
			}
			return sinks.NewError("s", topic, sinks.ErrTooLarge, errors.New("100 bytes"))
		})
		yard := newYard(20)
		r := startYard(t, router.Config{}, testkit.NewLog(), router.Route{Name: "a", From: yard, Topic: "a", To: sink})
		done := yard.send("a", tenantMessage("a", 0))
		time.Sleep(10 * time.Millisecond) // of the bubble, as all here
		if got := r.Health()[0].State; got != router.StateOutage {
			t.Errorf("r.Health()[0].State = %q while the message waits, want %q", got, router.StateOutage)
		}
		<-done
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := r.Health()[0]; got.State != router.StateRunning || got.Poisoned != 1 {
			t.Errorf("state %q, %d poisoned; want %q, and 1", got.State, got.Poisoned, router.StateRunning)
		}
	})
}

// The shutdown while gates are closed gives back what waits, and confirms nothing.
func TestCloseWhileTopicsAreRefused(t *testing.T) {
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all ", all), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := newTopicSink(func(topic string) error {
					if all || !strings.HasPrefix(topic, "well.") {
						return down
					}
					return nil
				})
				yard := newYard(100)
				r := startYard(t, router.Config{}, testkit.NewLog(), router.Route{Name: "farm", From: yard, Topic: "in", To: sink})
				var open []<-chan time.Time
				for i := range 10 {
					yard.send("in", tenantMessage("well", i))
					open = append(open, yard.send("in", tenantMessage(fmt.Sprint("sick", i), i)))
				}
				time.Sleep(50 * time.Millisecond) // the waits have begun, in place
				began := time.Now()
				r.wantStop(t)
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("Close took %v", took)
				}
				for _, done := range open {
					select {
					case <-done:
						t.Error("a message was acked that is not stored")
					default:
					}
				}
				if health := r.Health()[0]; health.InFlight != 0 || health.Waiting != 0 {
					t.Errorf("health %+v, want nothing in flight", health)
				}
			})
		})
	}
}

// A message whose handler fails waits with its subscriber, too, and its attempts count on.
func TestHandlerFailuresCountWhileTheMessageIsPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, yard := newSink(nil), newYard(10)
		calls := map[string]int{}
		var mu sync.Mutex
		r := startYard(t, router.Config{}, testkit.NewLog(), router.Route{
			Name: "farm", From: yard, Topic: "in", To: sink,
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				calls[msg.UUID]++
				if strings.HasPrefix(msg.UUID, "never") || strings.HasPrefix(msg.UUID, "once") && calls[msg.UUID] == 1 {
					return nil, errHandler
				}
				return []*message.Message{msg}, nil
			},
		})
		before := runtime.NumGoroutine()
		var all []<-chan time.Time
		for i := range 1000 {
			sent := time.Now()
			all = append(all, yard.send("in", tenantMessage("never", i)), yard.send("in", tenantMessage("once", i)))
			if wait := time.Since(sent); wait > 300*time.Millisecond {
				t.Fatalf("message %d had to wait %v for room", i, wait)
			}
			time.Sleep(50 * time.Millisecond)
		}
		for _, done := range all {
			<-done
		}
		synctest.Wait()
		if got := runtime.NumGoroutine(); got > before+100 {
			t.Errorf("%d goroutines, want about %d", got, before)
		}
		health := r.Health()[0]
		if health.Poisoned != 1000 || health.Delivered != 1000 || health.Returned != 0 {
			t.Errorf("health %+v, want 1000 poisoned and 1000 delivered", health)
		}
		for id, n := range calls {
			if want := map[bool]int{true: router.DefaultRetryAttempts, false: 2}[strings.HasPrefix(id, "never")]; n != want {
				t.Fatalf("%s was handled %d times, want %d", id, n, want)
			}
		}
	})
}

// Only messages that fail for a reason of their own are in flight, and nothing has been delivered
// for some time. That looks like an outage of everything, but those that pass get in behind them
// nevertheless, soon, and what had failed is delivered soon after the fault's end.
func TestMessagesThatFailDoNotFillTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room, sick = 10, 15
		var broken atomic.Bool
		broken.Store(true)
		sink, yard := newSink(nil), newYard(room)
		startYard(t, router.Config{}, testkit.NewLog(), router.Route{
			Name: "farm", From: yard, Topic: "in", To: sink,
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				if broken.Load() && strings.HasPrefix(msg.UUID, "sick") {
					return nil, router.Outage(errHandler)
				}
				return []*message.Message{msg}, nil
			},
		})
		began := time.Now()
		var all []<-chan time.Time
		for i := range sick {
			all = append(all, yard.send("in", tenantMessage("sick", i)))
		}
		if at := <-yard.send("in", tenantMessage("well", 0)); at.Sub(began) > time.Minute {
			t.Errorf("the first message that passes was delivered after %v, want less than a minute", at.Sub(began))
		}
		for i := range 100 {
			sent := time.Now()
			if at := <-yard.send("in", tenantMessage("well", i+1)); i > 0 && at.Sub(sent) > time.Second {
				t.Errorf("message %d took %v, want no time", i+1, at.Sub(sent))
			}
		}
		broken.Store(false)
		ended := time.Now()
		for _, done := range all {
			if at := <-done; at.Sub(ended) > router.DefaultRetryMaxBackoff {
				t.Errorf("recovered after %v", at.Sub(ended))
			}
		}
	})
}

// While nothing passes at all, the messages of a handler that fails hold the source back: next to
// nothing is taken from it beyond what fits.
func TestFailingHandlerHoldsTheSourceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 10
		yard := newYard(room)
		var broken atomic.Bool
		broken.Store(true)
		r := startYard(t, router.Config{}, testkit.NewLog(), router.Route{
			Name: "farm", From: yard, Topic: "in", To: newSink(nil),
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				if broken.Load() {
					return nil, router.Outage(errHandler)
				}
				return []*message.Message{msg}, nil
			},
		})
		var sent atomic.Int64
		go func() { // ends when there is room for all
			for i := range 500 {
				yard.send("in", tenantMessage("sick", i))
				sent.Add(1)
			}
		}()
		const lasts = time.Hour
		time.Sleep(lasts)
		synctest.Wait()
		if most := int64(room + lasts/(router.DefaultRetryMaxBackoff/2) + 20); sent.Load() > most {
			t.Errorf("%d messages were taken in an hour, want at most %d", sent.Load(), most)
		}
		broken.Store(false)
		time.Sleep(router.DefaultRetryMaxBackoff + 10*time.Second)
		synctest.Wait()
		if health := r.Health()[0]; health.Delivered != 500 || health.Returned != 0 {
			t.Errorf("health %+v, want 500 delivered", health)
		}
	})
}

// Status tells when a sink or a topic that is refused is tried again, and so it is.
func TestWhenTheNextAttemptIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all atomic.Bool
		all.Store(true)
		sink := newTopicSink(func(topic string) error {
			if all.Load() || strings.HasPrefix(topic, "sick") {
				return sinks.NewError("s", topic, sinks.ErrUnavailable, errors.New("not authorized"))
			}
			return nil
		})
		yard := newYard(20)
		r := startYard(t, router.Config{}, testkit.NewLog(), router.Route{Name: "a", From: yard, Topic: "a", To: sink, ToTopic: "{tenant}"})
		sick := yard.send("a", tenantMessage("sick", 0))
		time.Sleep(time.Minute)
		synctest.Wait()
		health, now := r.Health()[0], time.Now()
		if health.State != router.StateOutage || !health.Until.After(now) || health.Until.After(now.Add(37500*time.Millisecond)) {
			t.Fatalf("%s, the next attempt is in %v; want an outage, and up to 37.5 s", health.State, health.Until.Sub(now))
		}
		tries := sink.tries.Load()
		time.Sleep(health.Until.Sub(now) - time.Millisecond)
		synctest.Wait()
		if got := sink.tries.Load(); got != tries {
			t.Errorf("%d attempts before it was due", got-tries)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if got := sink.tries.Load(); got != tries+1 {
			t.Errorf("%d attempts when it was due, want one", got-tries)
		}

		all.Store(false)
		for i := range 6000 {
			<-yard.send("a", tenantMessage("healthy", i))
			time.Sleep(10 * time.Millisecond)
		}
		health, now = r.Health()[0], time.Now()
		if health.State != router.StateRunning || !health.Until.IsZero() || len(health.Refused) != 1 {
			t.Fatalf("%+v, want one refused topic", health)
		}
		until := health.Refused[0].Until
		if until.Before(now) || until.After(now.Add(2*time.Second)) {
			t.Errorf("the topic is tried again in %v, want up to 2 s", until.Sub(now))
		}
		tries = sink.tries.Load()
		for i := 0; time.Since(until) < time.Second; i++ {
			<-yard.send("a", tenantMessage("other", i))
			time.Sleep(10 * time.Millisecond)
		}
		if got := sink.tries.Load(); got == tries {
			t.Error("no attempt when it was due")
		}
		select {
		case <-sick:
			t.Error("what is refused was acked")
		default:
		}
	})
}
