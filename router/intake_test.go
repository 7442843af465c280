package router_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// TestSourceThatComesUpLate checks that a source that is not there yet is a warning, and
// an error only when that takes long; each is logged once.
func TestSourceThatComesUpLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := time.Now().Add(3 * time.Minute)
		from := newSource()
		from.subErr = func(int) error {
			if time.Now().Before(ready) {
				return router.Outage(errors.New("no broker at nats://user:secret@host"))
			}
			return nil
		}
		var out testkit.Output
		r := startLogged(t, watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&out, nil))), router.Config{Poison: newSink(nil)}, farmRoute(from, newSink(nil)))
		const warning, failure = "Warning: source unavailable", "level=ERROR"
		want := func(after time.Duration, text string, n int) {
			t.Helper()
			time.Sleep(after)
			if got := strings.Count(out.String(), text); got != n {
				t.Errorf("%q is logged %d times, want %d", text, got, n)
			}
		}
		if h := r.Health()[0]; h.State != router.StateStarting || h.LastError != "no broker at nats://host" {
			t.Errorf("the route is %s, with %q, want it starting, with the error without its secret", h.State, h.LastError)
		}
		want(59*time.Second, warning, 1)
		want(0, failure, 0)
		want(time.Minute, "source still unavailable", 1)
		want(2*time.Minute, "subscription established", 1)
		want(0, warning, 1)
		want(0, failure, 1)
		from.deliver(t, farmMessage("1", "e", "c", "p"))
		if got := r.Health()[0].State; got != router.StateRunning {
			t.Errorf("the route is %s, want it running", got)
		}
	})
}

// closedSubscriber refuses a subscription once it is closed, and is asked for one until then.
type closedSubscriber struct {
	asked, closed chan struct{}
	close         sync.Once
}

func (s *closedSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	close(s.asked)
	<-s.closed
	return nil, final.New("closed")
}

func (s *closedSubscriber) Close() error {
	s.close.Do(func() { close(s.closed) })
	return nil
}

// A subscriber that Close has closed before it was asked is not one that has failed.
func TestSubscribeAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &closedSubscriber{asked: make(chan struct{}), closed: make(chan struct{})}
		r := build(t, router.Config{Poison: newSink(nil)}, router.Route{Name: "farm", From: source, Topic: "in", To: newSink(nil)})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }() // ends with ctx
		<-source.asked
		cancel()
		testkit.NoError(t, <-result)
	})
}
