package router_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
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

// TestMessagesAreHandledAtOnce checks that no message waits for another one, however
// many there are, and that their goroutines do not stay.
func TestMessagesAreHandledAtOnce(t *testing.T) {
	const n = 300
	var begun sync.WaitGroup
	begun.Add(n)
	proceed := make(chan struct{})
	from, to := newSource(), newSink(func(string, *message.Message) error {
		begun.Done()
		<-proceed
		return nil
	})
	r := start(t, router.Config{Poison: newSink(nil)}, farmRoute(from, to))
	messages := make([]*message.Message, n)
	for i := range messages {
		id := strings.Repeat("x", i+1)
		messages[i] = farmMessage(id, "e", id, "p")
		from.messages <- messages[i]
	}
	begun.Wait()
	if got := r.Health()[0].InFlight; got != n {
		t.Errorf("r.Health()[0].InFlight = %d, want %d", got, n)
	}
	close(proceed)
	for _, msg := range messages {
		wantAck(t, msg)
	}
	testkit.Eventually(t, "at most 80 goroutines for messages", func() bool { return handlers() <= 80 })
}

// handlers counts the goroutines that handle messages or wait for some.
func handlers() int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*intake).read(")
}

// TestSourceThatComesUpLate checks that a source that is not there yet is a warning, and
// an error only when that takes long; each is logged once.
func TestSourceThatComesUpLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := time.Now().Add(3 * time.Minute)
		from := newSource()
		from.subErr = func(int) error {
			if time.Now().Before(ready) {
				return router.Outage(errors.New("connection refused"))
			}
			return nil
		}
		var out testkit.Output
		startLogged(t, watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&out, nil))), router.Config{Poison: newSink(nil)}, farmRoute(from, newSink(nil)))
		const warning, failure = "Warning: source unavailable", "level=ERROR"
		want := func(after time.Duration, text string, n int) {
			t.Helper()
			time.Sleep(after)
			if got := strings.Count(out.String(), text); got != n {
				t.Errorf("%q is logged %d times, want %d", text, got, n)
			}
		}
		want(59*time.Second, warning, 1)
		want(0, failure, 0)
		want(time.Minute, "source still unavailable", 1)
		want(2*time.Minute, "subscription established", 1)
		want(0, warning, 1)
		want(0, failure, 1)
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
		if err := <-result; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
