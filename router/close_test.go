package router_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// hanging are calls that do not return before they are released, whatever their contexts say.
type hanging struct {
	calls   []string
	release chan struct{}
}

func (h *hanging) call(name string) {
	if slices.Contains(h.calls, name) {
		<-h.release
	}
}

// hangingSource delivers on, and leaves its subscriptions open, as long as "subscription" hangs.
type hangingSource struct {
	*source
	*hanging
	subscribed chan context.Context // that of the subscription
}

func (s *hangingSource) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.call("Subscribe")
	if slices.Contains(s.calls, "subscription") {
		ctx = context.WithoutCancel(ctx)
	}
	s.subscribed <- ctx
	return s.source.Subscribe(ctx, topic)
}

func (s *hangingSource) Drain(context.Context) { s.call("Drain") }

func (s *hangingSource) Close() error {
	s.call("Close of the source")
	if !slices.Contains(s.calls, "subscription") {
		return s.source.Close()
	}
	go func() { // ends with the test
		<-s.release
		_ = s.source.Close()
	}()
	return nil
}

type hangingSink struct {
	*memorySink
	*hanging
	name string
}

func (s *hangingSink) Close() error {
	s.call("Close of the " + s.name)
	return s.memorySink.Close()
}

type hangingStore struct {
	router.DedupStore
	*hanging
	closed bool
}

func (s *hangingStore) Reserve(ctx context.Context, claim router.Claim, lease time.Duration) (router.Reservation, error) {
	s.call("Reserve")
	return s.DedupStore.Reserve(ctx, claim, lease)
}

func (s *hangingStore) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	s.call("Commit")
	return s.DedupStore.Commit(ctx, claim, token, ttl)
}

func (s *hangingStore) Close() error {
	s.call("Close of the store")
	s.closed = true
	return nil
}

// Whatever hangs, alone or all at once, Close and Run return within CloseTimeout, the error says what was left behind, and
// the rest is closed. What listens to its context costs 80 % of it, and what does not hang no time.
func TestNothingWaitsLongerThanCloseTimeout(t *testing.T) {
	const limit = time.Minute
	const inFlight = "1 messages in flight"
	texts := map[string]string{
		"nothing":             "",
		"outage":              "",
		"context":             inFlight,
		"Transform":           inFlight,
		"Publish":             inFlight,
		"poison":              inFlight,
		"Reserve":             inFlight,
		"Commit":              inFlight,
		"Subscribe":           "",
		"subscription":        "",
		"Drain":               "",
		"Close of the source": `subscriber of route "farm" does not return from Close`,
		"Close of the sink":   `sink of route "farm" does not return from Close`,
		"Close of the queue":  "poison queue does not return from Close",
		"Close of the store":  "dedup store does not return from Close",
	}
	for what, text := range texts {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took := closeWhile(t, limit, []string{what}, text)
				switch {
				case (what == "nothing" || what == "outage") && took > 0:
					t.Errorf("it took %v, want no time", took)
				case what == "context" && took != limit/10*8:
					t.Errorf("it took %v, want %v", took, limit/10*8)
				}
			})
		})
	}
	for _, message := range []string{"Transform", "Publish", "Commit", ""} {
		t.Run("all, and "+message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := []string{message, "Drain", "subscription", "Close of the source", "Close of the sink", "Close of the queue", "Close of the store"}
				closeWhile(t, limit, all, texts[message])
			})
		})
	}
}

// closeWhile closes a Router within limit while calls hang, and returns how long that takes. text is in its error.
func closeWhile(t *testing.T, limit time.Duration, calls []string, text string) time.Duration {
	h := &hanging{calls: calls, release: make(chan struct{})}
	from := &hangingSource{newSource(), h, make(chan context.Context, 1)}
	to := &hangingSink{hanging: h, name: "sink", memorySink: newSink(func(_ string, msg *message.Message) error {
		switch h.call("Publish"); {
		case slices.Contains(calls, "outage"):
			return down
		case slices.Contains(calls, "context"):
			<-msg.Context().Done()
		}
		return msg.Context().Err()
	})}
	poison := &hangingSink{hanging: h, name: "queue", memorySink: newSink(func(string, *message.Message) error { h.call("poison"); return nil })}
	store := &hangingStore{DedupStore: newStore(t, 0), hanging: h}
	r := build(t, router.Config{Poison: poison, CloseTimeout: limit, Dedup: router.DedupSettings{Store: store}}, router.Route{
		Name: "farm", From: from, Topic: "in", To: to,
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if h.call("Transform"); slices.Contains(calls, "poison") {
				return broken(msg)
			}
			return []*message.Message{msg}, nil
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }() // ends with ctx
	go func() {                          // ends when the source is closed
		msg := farmMessage("1", "e", "c", "p")
		select {
		case subscription := <-from.subscribed:
			msg.SetContext(subscription)
			from.messages <- msg
		case <-from.closed:
		}
	}()
	time.Sleep(time.Second)

	began := time.Now()
	stop()
	err := <-result
	took := time.Since(began)
	if took > limit {
		t.Errorf("Run returned after %v, want at most %v", took, limit)
	}
	if again := r.Close(); !errors.Is(err, again) || time.Since(began) != took {
		t.Errorf("Close returned %v after %v, and Run %v after %v, want the same", again, time.Since(began), err, took)
	}
	if text == "" && len(calls) == 1 && err != nil || text != "" && (!errors.Is(err, router.ErrCloseTimeout) || !strings.Contains(err.Error(), text)) {
		t.Errorf("got %v, want %q", err, text)
	}
	for closer, closed := range map[string]bool{
		"source": from.n.Load() == 1, "sink": to.n.Load() == 1, "queue": poison.n.Load() == 1, "store": store.closed,
	} {
		hangs := slices.Contains(calls, "Close of the "+closer) || closer == "source" && slices.Contains(calls, "subscription")
		if closed == hangs {
			t.Errorf("the %s is closed: %t, want %t", closer, closed, !hangs)
		}
	}
	poison.wantStored(t, 0)
	close(h.release)
	synctest.Wait()
	return took
}

// lateSource makes a subscription when it is told to, whatever has happened meanwhile.
type lateSource struct {
	*source
	now chan struct{}
}

func (s *lateSource) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	<-s.now
	messages := make(chan *message.Message)
	close(messages)
	return messages, nil
}

// A route does not run because its subscription comes about during the shutdown.
func TestSubscriptionDuringTheShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := &lateSource{newSource(), make(chan struct{})}
		r := build(t, router.Config{Poison: newSink(nil)}, farmRoute(from, newSink(nil)))
		ended := make(chan error, 1)
		go func() { ended <- r.Run(t.Context()) }()
		synctest.Wait()
		go func() { _ = r.Close() }()
		synctest.Wait()
		close(from.now)
		testkit.NoError(t, <-ended)
		if got := r.Health()[0].State; got != router.StateStopped {
			t.Errorf("state %q after Close, want %q", got, router.StateStopped)
		}
	})
}
