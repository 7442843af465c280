package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

func farmRoute(from message.Subscriber, to sinks.Sink) router.Route {
	return router.Route{Name: "farm", From: from, Topic: "in", To: to}
}

// notes are what happened, in its order.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) add(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, s)
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// middleware notes when it is called, and how that ends.
func (n *notes) middleware(name string) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			n.add(name)
			out, err := h(msg)
			verdict := "ok"
			var caught *router.PanicError
			var retried *router.RetryError
			switch {
			case errors.As(err, &retried):
				verdict = "given up"
			case errors.As(err, &caught):
				verdict = "caught"
			case err != nil:
				verdict = "failed"
			}
			n.add("/" + name + " " + verdict)
			return out, err
		}
	}
}

// The order of the chain: poison → retry → dedup → recoverer → handler → sink.
func TestChainOrder(t *testing.T) {
	in, order := newGoChannel(), &notes{}
	poison := newSink(func(string, *message.Message) error { order.add("poison"); return nil })
	to := newSink(func(string, *message.Message) error { order.add("sink"); panic("x") })
	route := farmRoute(in, to)
	route.Middleware = []message.HandlerMiddleware{order.middleware("route")}
	r := start(t, router.Config{
		Poison:     poison,
		Retry:      router.RetrySettings{MaxAttempts: 2, InitialBackoff: time.Millisecond},
		Dedup:      router.DedupSettings{Store: &notingStore{newStore(t, 0), order.add}},
		Middleware: []message.HandlerMiddleware{order.middleware("outside")},
		Chain: func(_ string, c router.Chain) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{
				c.Poison, order.middleware("in poison"), c.Retry, order.middleware("in retry"),
				c.Dedup, order.middleware("in dedup"), c.Recoverer, nil,
			}
		},
	}, route)
	publish(t, in, farmMessage("1", "e", "c", "p"))
	poison.wait(t, 1)
	if err := in.Close(); err != nil { // ends the route, so that everything has been noted
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		testkit.ErrorIs(t, err, router.ErrRoutesEnded)
	}

	want := []string{
		"outside", "in poison",
		"in retry", "reserve", "in dedup", "route", "/route ok", "sink", "/in dedup caught", "release", "/in retry caught",
		// The sink may have what the handler made, so it is not asked again.
		"in retry", "reserve", "in dedup", "sink", "/in dedup caught", "release", "/in retry caught",
		"/in poison given up", "poison",
	}
	got := order.all()
	testkit.Equal(t, got[:min(len(got), len(want))], want)
}

type notingStore struct {
	router.DedupStore
	note func(string)
}

func (s *notingStore) Reserve(ctx context.Context, c router.Claim, l time.Duration) (router.Reservation, error) {
	s.note("reserve")
	return s.DedupStore.Reserve(ctx, c, l)
}

func (s *notingStore) Release(ctx context.Context, c router.Claim, token router.Token) error {
	s.note("release")
	return s.DedupStore.Release(ctx, c, token)
}

func TestFailedOnceIsDeliveredNotDropped(t *testing.T) {
	for name, failure := range map[string]error{"outage": down, "handler": router.WithClass(errHandler, router.ClassHandler)} {
		t.Run(name, func(t *testing.T) {
			in, to, poison := newGoChannel(), newSink(failTimes(1, failure)), newSink(nil)
			r := start(t, router.Config{Poison: poison, Retry: fastRetry}, farmRoute(in, to))
			publish(t, in, farmMessage("1", "e", "c", "p"))
			to.wait(t, 1)
			r.wantStop(t)
			to.wantStored(t, 1)
			poison.wantStored(t, 0)
		})
	}
}

func TestChunksAndCopiesForTwoEndpointsAreKept(t *testing.T) {
	from, to := newSource(), newSink(nil)
	r := start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, to))
	for chunk := range 20 {
		for _, endpoint := range []string{"endpoint 1", "endpoint 2"} {
			id := fmt.Sprintf("%d for %s", chunk, endpoint)
			from.deliver(t, farmMessage(id, endpoint, "one context", fmt.Sprint("chunk ", chunk)))
		}
	}
	if stored, health := to.uuids(), r.Health()[0]; len(stored) != 40 || health.Duplicates != 0 {
		t.Errorf("stored %v, %d duplicates, want 40 messages and no duplicate", stored, health.Duplicates)
	}
}

func TestSendersRepetitionIsDroppedAndAcked(t *testing.T) {
	from, to := newSource(), newSink(nil)
	r := start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, to))
	from.deliver(t, farmMessage("1", "e", "c", "p"))
	from.deliver(t, farmMessage("2", "e", "c", "p")) // a new message ID, the same payload
	r.wantStop(t)
	to.wantStored(t, 1)
	if health := r.Health()[0]; health.Delivered != 1 || health.Duplicates != 1 {
		t.Errorf("%d delivered and %d duplicates, want 1 and 1", health.Delivered, health.Duplicates)
	}
}

func TestOutageOfThousandMessagesPoisonsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		began := time.Now()
		book := testkit.NewLog()
		from, poison := newSource(), newSink(nil)
		to := newSink(func(string, *message.Message) error {
			if time.Since(began) < 10*time.Minute {
				return down
			}
			return nil
		})
		r := startLogged(t, book, router.Config{Poison: poison}, farmRoute(from, to))
		if got := r.Health()[0].State; got != router.StateRunning {
			t.Errorf("the state is %q, want %q", got, router.StateRunning)
		}
		sent := make([]*message.Message, n)
		for i := range sent {
			sent[i] = farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), "p")
			from.messages <- sent[i]
		}
		time.Sleep(9 * time.Minute)
		if !slices.ContainsFunc(sent, isOpen) || slices.ContainsFunc(sent, func(msg *message.Message) bool { return !isOpen(msg) }) {
			t.Error("a message has ended, want all of them open")
		}
		health := r.Health()[0]
		if health.State != router.StateOutage || health.Since.Sub(began).Abs() > time.Minute || !strings.Contains(health.LastError, "unavailable") {
			t.Errorf("health is %+v, want an outage since %v, of something unavailable", health, began)
		}
		if health.InFlight != n || health.Waiting != n || !health.LastSuccess.IsZero() {
			t.Errorf("health is %+v, want all in flight, all waiting, and no success", health)
		}
		if got, want := to.callCount(), n+100; got >= want {
			t.Errorf("the sink was called %d times, want less than %d", got, want)
		}
		for _, msg := range sent {
			wantAck(t, msg)
		}
		synctest.Wait() // a message is acked before its handler has returned
		if got, want := time.Since(began), 11*time.Minute; got >= want {
			t.Errorf("it took %v, want less than %v", got, want)
		}
		if got := to.uuids(); len(got) != n {
			t.Errorf("%d messages are stored, want %d", len(got), n)
		}
		poison.wantStored(t, 0)
		if health = r.Health()[0]; health.State != router.StateRunning || health.Delivered != n || health.InFlight != 0 {
			t.Errorf("health is %+v, want it running, all delivered, and none in flight", health)
		}
		r.wantStop(t)
		if got := len(slices.DeleteFunc(book.Texts(), func(line string) bool { return !strings.Contains(line, "outage") })); got != 2 {
			t.Errorf("%d lines of an outage, want 2: the beginning and the end", got)
		}
	})
}

func TestOneUndecodableAmongThousand(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if !json.Valid(msg.Payload) {
			return nil, router.Permanent(errors.New("not JSON"))
		}
		return []*message.Message{msg}, nil
	}
	// An hour of backoff: whoever waited would not be done in time.
	r := start(t, router.Config{Poison: poison, Retry: router.RetrySettings{InitialBackoff: time.Hour}}, route)
	for i := range 1000 {
		payload := `{"n":1}`
		if i == 500 {
			payload = `{"n":`
		}
		from.deliver(t, farmMessage(fmt.Sprint(i), "e", fmt.Sprint(i), payload))
	}
	if got := to.uuids(); len(got) != 999 {
		t.Errorf("%d messages are stored, want 999", len(got))
	}
	poison.wantStored(t, 1)
	poisoned := poison.all()[0].msg
	if got, want := string(poisoned.Payload), `{"n":`; poisoned.UUID != "500" || got != want {
		t.Errorf("message %s with %q was poisoned, want 500 with %q", poisoned.UUID, got, want)
	}
	wantMetadata(t, poisoned, map[string]string{
		router.KeyPoisonReason: "not JSON", router.KeyPoisonClass: "permanent", router.KeyPoisonRoute: "farm",
		router.KeyPoisonTopic: "in", router.KeyPoisonSubscriber: "*router_test.source",
	})
	if poisoned.Metadata[gateway.KeyDedupID] == "" {
		t.Error("the record has no name")
	}
	if got := r.Health()[0].Poisoned; got != 1 {
		t.Errorf("%d messages were poisoned, want 1", got)
	}
}

// Shutdown with messages in every state: being written, waiting in an outage,
// waiting after a failure. None is poisoned; what is being written is
// acked; the rest is returned.
func TestShutdownInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, poison := newSource(), newSink(nil)
		proceed := make(chan struct{})
		to := newSink(func(_ string, msg *message.Message) error {
			switch msg.UUID[0] {
			case 'w':
				select {
				case <-proceed:
					return nil
				case <-msg.Context().Done():
					return msg.Context().Err()
				}
			case 'f':
				panic("handler failure")
			default:
				return down
			}
		})
		r := build(t, router.Config{Poison: poison, Retry: router.RetrySettings{InitialBackoff: time.Hour}}, farmRoute(from, to))
		type ctxKey struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), ctxKey{}, "value"))
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-r.Running()

		sent := map[string][]*message.Message{}
		for i := range 300 {
			kind := string("wfo"[i/100])
			msg := farmMessage(fmt.Sprint(kind, i), "e", fmt.Sprint(i), "p")
			sent[kind] = append(sent[kind], msg)
			from.messages <- msg
			if kind == "w" {
				synctest.Wait() // it is with the sink before an outage could hold it up
			}
		}
		time.Sleep(time.Minute)
		from.onClose = func() {
			for _, msg := range sent["w"] {
				if isOpen(msg) {
					t.Error("isOpen(msg) = true, want false: the subscriber is closed after the messages are done")
				}
			}
			if got := to.n.Load(); got != 0 {
				t.Errorf("to.n.Load() = %d, want 0: the sink is closed after the subscriber", got)
			}
		}
		cancel()
		for _, kind := range []string{"f", "o"} {
			for _, msg := range sent[kind] {
				wantNack(t, msg)
			}
		}
		if len(result) != 0 {
			t.Errorf("result has %d values, want none", len(result))
		}
		for _, msg := range sent["w"] {
			if !isOpen(msg) {
				t.Error("isOpen(msg) = false, want true: attempts under way are waited for")
			}
		}
		close(proceed)
		for _, msg := range sent["w"] {
			wantAck(t, msg)
		}
		testkit.NoError(t, <-result)
		poison.wantStored(t, 0)
		from.wantClosed(t)
		to.wantClosed(t)
		if health := r.Health()[0]; health.State != router.StateStopped || health.Delivered != 100 || health.Returned != 200 {
			t.Errorf("health is %+v, want it stopped, 100 delivered, and 200 returned", health)
		}
	})
}

func TestPoisonStoreDownKeepsTheMessageOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		in, to := newGoChannel(), newSink(func(string, *message.Message) error { return sinks.NewError("s", "t", sinks.ErrTooLarge, nil) })
		poison := newSink(func(string, *message.Message) error {
			if broken.Load() {
				return down
			}
			return nil
		})
		r := start(t, router.Config{Poison: poison}, farmRoute(in, to))
		publish(t, in, farmMessage("1", "e", "c", "p"))
		time.Sleep(time.Minute)
		synctest.Wait()
		poison.wantStored(t, 0)
		if got := r.Health()[0].Returned; got <= 50 {
			t.Errorf("r.Health()[0].Returned = %d, want more than 50", got)
		}
		if got := poison.callCount(); got >= 150 {
			t.Errorf("poison.callCount() = %d, want less than 150: not in a tight loop", got)
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		poison.wantStored(t, 1)
		if got := r.Health()[0].Poisoned; got != 1 {
			t.Errorf("r.Health()[0].Poisoned = %d, want 1", got)
		}
	})
}

// Everything shared is closed once.
func TestSharedPartsAreClosedOnce(t *testing.T) {
	from, to := newSource(), newSink(nil)
	a, b := farmRoute(from, to), farmRoute(from, to)
	b.Name = "b"
	r := start(t, router.Config{Poison: to}, a, b)
	r.wantStop(t)
	testkit.NoError(t, r.Close())
	from.wantClosed(t)
	to.wantClosed(t)
}

type closingStore struct {
	router.DedupStore
	closes
}

func TestCloseWithoutRun(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	store := &closingStore{DedupStore: newStore(t, 0)}
	r := build(t, router.Config{Poison: poison, Dedup: router.DedupSettings{Store: store}}, farmRoute(from, to))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	from.wantClosed(t)
	to.wantClosed(t)
	poison.wantClosed(t)
	store.wantClosed(t)
	testkit.ErrorIs(t, r.Run(t.Context()), router.ErrClosed)
	if err := r.Add(farmRoute(from, to)); !errors.Is(err, router.ErrClosed) {
		t.Errorf("r.Add(farmRoute(from, to)) = %v, want ErrClosed", err)
	}
}

func TestRunLifecycle(t *testing.T) {
	r := build(t, router.Config{Poison: newSink(nil)})
	testkit.ErrorIs(t, r.Run(t.Context()), router.ErrNoRoutes)

	running := start(t, router.Config{Poison: newSink(nil)}, farmRoute(newSource(), newSink(nil)))
	testkit.ErrorIs(t, running.Run(t.Context()), router.ErrStarted)
	other := farmRoute(newSource(), newSink(nil))
	other.Name = "other"
	testkit.ErrorIs(t, running.Add(other), router.ErrStarted)

	// A context that has ended before Run is a clean end, too.
	r = build(t, router.Config{Poison: newSink(nil)}, farmRoute(newSource(), newSink(nil)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.NoError(t, r.Run(ctx))
}

// Whatever Run and Close do to each other, both return and nothing hangs.
func TestCloseRacesWithRun(t *testing.T) {
	for range 100 {
		from, to := newSource(), newSink(nil)
		r := build(t, router.Config{Poison: to}, farmRoute(from, to))
		var group sync.WaitGroup
		group.Go(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := r.Run(context.Background()); err != nil {
				testkit.ErrorIs(t, err, router.ErrClosed)
			}
		})
		group.Wait()
		from.wantClosed(t)
	}
}

func TestOneRouteDoesNotStopOthers(t *testing.T) {
	ending, refused, healthy, to := newSource(), newSource(), newSource(), newSink(nil)
	refused.subErr = func(int) error { return router.Permanent(errors.New("no such topic")) }
	a, b, c := farmRoute(ending, to), farmRoute(refused, to), farmRoute(healthy, to)
	b.Name, c.Name = "refused", "healthy"
	r := start(t, router.Config{Poison: to}, a, b, c)
	close(ending.messages)
	healthy.deliver(t, farmMessage("1", "e", "c", "p"))
	testkit.Eventually(t, "the end of the first route", func() bool { return r.Health()[0].State == router.StateEnded })
	health := r.Health()
	if health[1].State != router.StateFailed || health[1].LastError != "no such topic" || health[2].State != router.StateRunning {
		t.Errorf("health is %+v, want the second route failed, and the third one running", health)
	}
	var failure *router.RouteError
	err := r.stop()
	if want := `route "refused": no such topic`; !errors.As(err, &failure) || failure.Route != "refused" || err.Error() != want {
		t.Errorf("err = %v, want %s", err, want)
	}
}

// A subscription that can never be made is not tried for ever: Run ends with its error
// when nothing else is left.
func TestRunReturnsTheErrorOfARefusedSubscription(t *testing.T) {
	for name, refused := range map[string]error{
		"configuration of a source":    fmt.Errorf("%w: it reads another subject", final.New("bad configuration")),
		"subscriber of the gateway":    subscriber.ErrConfig,
		"closed subscriber":            fmt.Errorf("source: %w", subscriber.ErrClosed),
		"an error that says so itself": router.Permanent(errors.New("no such topic")),
	} {
		t.Run(name, func(t *testing.T) {
			from := newSource()
			from.subErr = func(int) error { return refused }
			r := build(t, router.Config{Poison: newSink(nil)}, farmRoute(from, newSink(nil)))
			err := r.Run(t.Context())
			testkit.ErrorIs(t, err, refused)
			testkit.ErrorIs(t, err, router.ErrRoutesEnded)
			var failure *router.RouteError
			if !errors.As(err, &failure) || r.Health()[0].LastError == "" || from.subs != 1 {
				t.Errorf("got %v after %d subscriptions, and health %+v, want a %T after one, and the error", err, from.subs, r.Health()[0], failure)
			}
		})
	}
}

// failingSource is a source whose subscriptions end for a reason.
type failingSource struct {
	*source
	err error
}

func (s *failingSource) Err() error { return s.err }

// unreadSource says so in the way of a source whose subscriptions usually last.
type unreadSource struct {
	*source
	err error
}

func (s *unreadSource) ReadError() (since time.Time, err error) { return time.Now(), s.err }

// standIn stands before another subscriber, as for tracing.
type standIn struct{ message.Subscriber }

func (s standIn) Unwrap() message.Subscriber { return s.Subscriber }

func TestRunTellsWhyTheRoutesEnded(t *testing.T) {
	refused, gone := errors.New("the stream is refused"), errors.New("no such topic")
	from := &failingSource{newSource(), refused}
	unread := &unreadSource{newSource(), refused}
	hopeless := newSource()
	hopeless.subErr = func(int) error { return router.Permanent(gone) }
	r := build(t, router.Config{Poison: newSink(nil)})
	for name, source := range map[string]message.Subscriber{"one": from, "two": standIn{from}, "three": hopeless, "four": unread} {
		route := farmRoute(newSource(), newSink(nil))
		route.Name, route.From = name, source
		testkit.NoError(t, r.Add(route))
	}
	close(from.messages)
	close(unread.messages)
	err := r.Run(t.Context())
	for _, want := range []error{router.ErrRoutesEnded, refused, gone} {
		testkit.ErrorIs(t, err, want)
	}
	if got := strings.Count(err.Error(), refused.Error()); got != 1 {
		t.Errorf("the reason is there %d times, want once: two routes share the source, and one has the same: %v", got, err)
	}
	for _, h := range r.Health() {
		if want := "subscription ended: the stream is refused"; h.Name != "three" && !strings.Contains(h.LastError, want) {
			t.Errorf("route %s tells %q, want %q in it", h.Name, h.LastError, want)
		}
	}
}

func TestFilterAndTransform(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.Filter = func(msg *message.Message) (bool, error) { return msg.UUID != "filtered", nil }
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		switch msg.UUID {
		case "none":
			return nil, nil
		case "nil":
			return []*message.Message{nil}, nil
		}
		msg.Metadata["changed"] = "yes"
		msg.Payload = bytes.ToUpper(msg.Payload)
		second := &message.Message{UUID: "second"}
		return []*message.Message{msg, second}, nil
	}
	route.TopicFunc = func(msg *message.Message) (string, error) {
		if msg.Metadata["changed"] != "" {
			return "first", nil
		}
		return "second", nil
	}
	r := start(t, router.Config{Poison: poison}, route)
	for _, id := range []string{"filtered", "none", "nil", "1"} {
		msg := farmMessage(id, "e", id, "payload")
		msg.Metadata[gateway.KeyDedupID] = "of the source"
		from.deliver(t, msg)
		if msg.Metadata["changed"] != "" {
			t.Errorf("changed = %q, want none: the received message is not changed", msg.Metadata["changed"])
		}
		if got, want := msg.Metadata[gateway.KeyDedupID], "of the source"; got != want {
			t.Errorf("msg.Metadata[gateway.KeyDedupID] = %q, want %q", got, want)
		}
		if string(msg.Payload) != "payload" {
			t.Errorf("msg.Payload = %q, want payload", msg.Payload)
		}
	}
	r.wantStop(t)
	to.wantStored(t, 2)
	first, second := to.all()[0], to.all()[1]
	if first.topic != "first" || string(first.msg.Payload) != "PAYLOAD" || second.topic != "second" {
		t.Errorf("stored %q in %s and %q in %s, want PAYLOAD in first, and another one in second", first.msg.Payload, first.topic, second.msg.Payload, second.topic)
	}
	if a, b := first.msg.Metadata[gateway.KeyDedupID], second.msg.Metadata[gateway.KeyDedupID]; a == "" || a == b {
		t.Errorf("names are %q and %q, want two", a, b)
	}
	poison.wantStored(t, 1)
	wantMetadata(t, poison.all()[0].msg, map[string]string{router.KeyPoisonReason: router.ErrNilMessage.Error()})
	if h := r.Health()[0]; h.Filtered != 2 || h.Delivered != 1 || h.Poisoned != 1 {
		t.Errorf("health is %+v, want 2 filtered, 1 delivered and 1 poisoned", h)
	}
}

// Without dedup key, an ID that the message brought along is not passed on: it
// named the message somewhere else.
func TestDedupIDOfTheSourceIsNotPassedOn(t *testing.T) {
	from, to := newSource(), newSink(nil)
	start(t, router.Config{Poison: to}, farmRoute(from, to))
	msg := message.NewMessage("1", nil)
	msg.Metadata[gateway.KeyDedupID] = "x"
	from.deliver(t, msg)
	got := to.wait(t, 1)[0]
	if id, ok := got.msg.Metadata[gateway.KeyDedupID]; ok || got.topic != "none.none" {
		t.Errorf("published as %q to %q, want no ID, and none.none", id, got.topic)
	}
}

// A route without sink: the handler does all the work, outages included.
func TestRouteWithoutSink(t *testing.T) {
	from, poison := newSource(), newSink(nil)
	fail := failTimes(3, down)
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
		Name: "own", From: from, Topic: "in",
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "returns" {
				return []*message.Message{msg}, nil
			}
			return nil, fail("", msg)
		},
	})
	for _, id := range []string{"1", "2", "returns"} {
		from.deliver(t, farmMessage(id, "e", id, "p"))
	}
	r.wantStop(t)
	if got := r.Health()[0].Delivered; got != 2 {
		t.Errorf("%d messages were delivered, want 2", got)
	}
	poison.wantStored(t, 1)
	wantMetadata(t, poison.all()[0].msg, map[string]string{router.KeyPoisonReason: router.ErrNoSink.Error()})
}

// Neither Watermill's Router nor ours logs a payload, whatever happens.
func TestNoPayloadInLogs(t *testing.T) {
	const secret = "lat=52.123456789;lon=9.987654321"
	book := testkit.NewLog()
	from := newSource()
	var queueDown atomic.Bool
	poison := newSink(func(string, *message.Message) error {
		if queueDown.Load() {
			return errors.New("cannot write " + secret)
		}
		return nil
	})
	r := startLogged(t, book, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
		Name: "farm", From: from, Topic: "in", To: newSink(nil),
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			switch msg.UUID {
			case "error":
				return nil, fmt.Errorf("cannot parse %s", msg.Payload)
			case "panic":
				panic("cannot parse " + string(msg.Payload))
			case "shutdown":
				return nil, router.WithClass(fmt.Errorf("no new %s", msg.Payload), router.ClassRedeliver)
			}
			return []*message.Message{msg}, nil
		},
	})
	for _, id := range []string{"ok", "error", "panic", "shutdown"} {
		msg := farmMessage(id, "e", id, secret)
		from.messages <- msg
		verdict(t, msg)
	}
	queueDown.Store(true)
	msg := farmMessage("error", "e", "2", secret)
	from.messages <- msg
	wantNack(t, msg)
	r.wantStop(t)
	status := testkit.Must(json.Marshal(r.Health()))(t)
	for _, line := range append(book.Texts(), string(status)) {
		if strings.Contains(line, "52.1234") {
			t.Errorf("line = %q, want no %q in it", line, "52.1234")
		}
	}
	for _, poisoned := range poison.all() {
		if got := fmt.Sprint(poisoned.msg.Metadata); strings.Contains(got, "52.1234") {
			t.Errorf("poisoned.msg.Metadata = %q, want no %q in it", got, "52.1234")
		}
		if string(poisoned.msg.Payload) != secret {
			t.Errorf("poisoned.msg.Payload = %q, want %q", poisoned.msg.Payload, secret)
		}
	}
}

func TestMiddlewareOutsideOfTheChain(t *testing.T) {
	for name, middleware := range map[string]message.HandlerMiddleware{
		"panics": func(message.HandlerFunc) message.HandlerFunc {
			return func(*message.Message) ([]*message.Message, error) { panic("x") }
		},
		"produces": func(message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg}, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := newSource(), newSink(nil)
			start(t, router.Config{Poison: to, Middleware: []message.HandlerMiddleware{middleware}}, farmRoute(from, to))
			msg := farmMessage("1", "e", "c", "p")
			from.messages <- msg
			wantNack(t, msg)
			to.wantStored(t, 0)
		})
	}
}

func TestRouteMiddlewareMayPassTheMessageOn(t *testing.T) {
	from, to := newSource(), newSink(nil)
	route := farmRoute(from, to)
	route.Middleware = []message.HandlerMiddleware{func(message.HandlerFunc) message.HandlerFunc { return message.PassthroughHandler }}
	start(t, router.Config{Poison: to}, route)
	msg := farmMessage("1", "e", "c", "p")
	from.deliver(t, msg)
	to.wantStored(t, 1)
	if id, ok := msg.Metadata[gateway.KeyDedupID]; ok {
		t.Errorf("the received message got the ID %q", id)
	}
}

func TestDedupOff(t *testing.T) {
	from, to := newSource(), newSink(nil)
	start(t, router.Config{Poison: to, Dedup: router.DedupSettings{KeyFunc: router.NoKeys}}, farmRoute(from, to))
	for range 2 {
		from.deliver(t, farmMessage("1", "e", "c", "p"))
	}
	to.wantStored(t, 2)
	if id, ok := to.all()[0].msg.Metadata[gateway.KeyDedupID]; ok {
		t.Errorf("the stored message has the ID %q, want none", id)
	}
}

func TestObserverSeesEachMessageEndOnce(t *testing.T) {
	var mu sync.Mutex
	counts := map[router.EventKind]int{}
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	route.Filter = func(msg *message.Message) (bool, error) { return msg.UUID != "filtered", nil }
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		switch msg.UUID {
		case "poisoned":
			return nil, router.Permanent(errHandler)
		case "returned":
			return nil, router.WithClass(errHandler, router.ClassRedeliver)
		}
		return []*message.Message{msg}, nil
	}
	r := start(t, router.Config{Poison: poison, Observer: router.ObserverFunc(func(e router.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Route != "farm" {
			t.Errorf("e.Route = %q, want farm", e.Route)
		}
		counts[e.Kind]++
		if name, _ := e.Context.Value(nameKey{}).(string); name == "" {
			t.Errorf("event %s without the message's context", e.Kind)
		} else if e.Message == nil || e.Message.UUID != name {
			t.Errorf("%s of %s has the message %v", e.Kind, name, e.Message)
		} else if e.Kind != router.EventStarted && (e.Kind == router.EventPoisoned) != (name == "poisoned") {
			t.Errorf("%s has the context of %s", e.Kind, name)
		}
	})}, route)
	for _, id := range []string{"ok", "ok", "filtered", "poisoned", "returned"} {
		msg := farmMessage(id, "e", id, "p")
		msg.SetContext(context.WithValue(t.Context(), nameKey{}, id))
		from.messages <- msg
		verdict(t, msg)
	}
	r.wantStop(t)
	mu.Lock()
	defer mu.Unlock()
	testkit.Equal(t, counts, map[router.EventKind]int{
		router.EventStarted: 5, router.EventDelivered: 1, router.EventDuplicate: 1, router.EventFiltered: 1,
		router.EventPoisoned: 1, router.EventReturned: 1,
	})
}

// TestHealthCountsRetriesByClass checks that retries are counted by class.
func TestHealthCountsRetriesByClass(t *testing.T) {
	from, to, poison := newSource(), newSink(nil), newSink(nil)
	route := farmRoute(from, to)
	failures := []error{errHandler, router.Outage(errHandler), router.Outage(errHandler), router.WithClass(errHandler, router.ClassShutdown)}
	route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		if len(failures) > 0 {
			err := failures[0]
			failures = failures[1:]
			return nil, err
		}
		return []*message.Message{msg}, nil
	}
	r := start(t, router.Config{Poison: poison, Retry: router.RetrySettings{InitialBackoff: time.Millisecond}}, route)
	from.deliver(t, farmMessage("1", "e", "c", "p"))
	health := r.Health()[0]
	testkit.Equal(t, health.RetriesByClass, router.RetryCounts{Handler: 1, Outage: 2, Shutdown: 1})
}

// nameKey is the key of a context value.
type nameKey struct{}

func TestConfigErrors(t *testing.T) {
	to := newSink(nil)
	for name, change := range map[string]func(*router.Route){
		"name":     func(r *router.Route) { r.Name = "" },
		"from":     func(r *router.Route) { r.From = nil },
		"topic":    func(r *router.Route) { r.Topic = "" },
		"to":       func(r *router.Route) { r.To = nil },
		"template": func(r *router.Route) { r.ToTopic = "{unknown}" },
		"both": func(r *router.Route) {
			r.ToTopic, r.TopicFunc = "x", func(*message.Message) (string, error) { return "", nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := build(t, router.Config{Poison: to})
			route := farmRoute(newSource(), to)
			change(&route)
			testkit.ErrorIs(t, r.Add(route), router.ErrConfig)
		})
	}
	r := build(t, router.Config{Poison: to}, farmRoute(newSource(), to))
	testkit.ErrorIs(t, r.Add(farmRoute(newSource(), to)), router.ErrConfig)
}

// A route whose last messages were all poisoned is failing, until one is delivered. An
// outage comes first, for then nothing moves.
func TestRouteFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newGoChannel()
		var broken, isDown atomic.Bool
		route := farmRoute(in, newSink(func(string, *message.Message) error {
			if isDown.Load() {
				return down
			}
			return nil
		}))
		route.Filter = func(msg *message.Message) (bool, error) { return msg.UUID != "unwanted", nil }
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			if broken.Load() {
				return nil, router.Permanent(errors.New("cannot be read"))
			}
			return []*message.Message{msg}, nil
		}
		r := start(t, router.Config{Poison: newSink(nil), FailingAfter: 3}, route)
		n := 0
		send := func(id string) router.RouteHealth {
			t.Helper()
			time.Sleep(time.Second)
			n++
			publish(t, in, farmMessage(id, "e", fmt.Sprint(n), fmt.Sprint(n)))
			synctest.Wait()
			return r.Health()[0]
		}
		send("0")
		broken.Store(true)
		send("1")
		if h := send("2"); h.State != router.StateRunning || h.PoisonedInARow != 2 {
			t.Errorf("health is %+v, want it running, with 2 poisoned in a row", h)
		}
		send("unwanted") // says nothing
		h := send("3")
		if h.State != router.StateFailing || !h.Since.Equal(time.Now()) {
			t.Errorf("health is %+v, want it failing since now", h)
		}
		if again := send("4"); again.State != router.StateFailing || !again.Since.Equal(h.Since) || again.PoisonedInARow != 4 {
			t.Errorf("health is %+v, want it failing since %v, with 4 poisoned in a row", again, h.Since)
		}

		broken.Store(false)
		isDown.Store(true)
		if got := send("5").State; got != router.StateOutage {
			t.Errorf("State = %q, want %q", got, router.StateOutage)
		}
		isDown.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if h = r.Health()[0]; h.State != router.StateRunning || h.PoisonedInARow != 0 || h.Poisoned != 4 {
			t.Errorf("health is %+v, want it running, none poisoned in a row, and 4 in all", h)
		}
	})
}
