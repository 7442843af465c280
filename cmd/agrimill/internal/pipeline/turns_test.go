package pipeline

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// clocked is the context of a term whose end the clock tells before Done is closed.
type clocked struct {
	context.Context
	over *atomic.Bool
}

func (c clocked) Err() error {
	if c.over.Load() {
		return context.Canceled
	}
	return c.Context.Err()
}

// countingSink counts what is published.
type countingSink struct {
	sinks.Sink
	published int
}

func (s *countingSink) Publish(string, ...*message.Message) error {
	s.published++
	return nil
}

func (s *countingSink) PublishAsync(string, *message.Message) (*sinks.Publication, error) {
	s.published++
	return nil, nil //nolint:nilnil // nobody looks at it
}

// Once the clock says that the lease is over, nothing begins, although nobody was told yet: no
// publish of what came before, or of a replay, and no call for an endpoint.
func TestNothingBeginsAfterTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		counting := &countingSink{}
		sink := &fenced{counting, turns}
		client := &oneTenant{turns: turns} // any request would panic
		replayed, leased := message.NewMessage("1", nil), message.NewMessage("2", nil)
		leased.SetContext(msgctx.With(t.Context(), msgctx.Value{Nack: &msgctx.Nack{Leased: true}}))

		refused := func(when string, msgs ...*message.Message) {
			t.Helper()
			for _, msg := range msgs {
				before := counting.published
				err := sink.Publish("topic", msg)
				_, async := sink.PublishAsync("topic", msg)
				if !errors.Is(err, ErrStandby) || !errors.Is(async, ErrStandby) || router.ClassOf(err) != router.ClassRedeliver || counting.published != before {
					t.Errorf("%s: message %s: %v, %v", when, msg.UUID, err, async)
				}
			}
			if _, _, err := client.PutEndpoint(t.Context(), "", "", gateway.PutEndpointRequest{}); !errors.Is(err, ErrStandby) {
				t.Errorf("%s: PutEndpoint: %v", when, err)
			}
		}
		refused("before the first turn", replayed)

		var over atomic.Bool
		term, end := context.WithCancel(t.Context())
		held := make(chan struct{})
		go func() { turns.hold(clocked{term, &over}, 1); close(held) }()
		synctest.Wait()
		now, leave, _ := turns.enter()
		received := message.NewMessage("3", nil)
		received.SetContext(turnContext{t.Context(), now})
		within, stop := now.within(t.Context())
		defer stop()
		for _, msg := range []*message.Message{replayed, leased, received} {
			if err := sink.Publish("topic", msg); err != nil {
				t.Errorf("in the turn: %s: %v", msg.UUID, err)
			}
		}

		over.Store(true)
		refused("after the time", replayed, received)
		if received.Context().Err() == nil || within.Err() == nil {
			t.Error("the context of the message, or of what is under way, does not say so")
		}
		if err := sink.Publish("topic", leased); err != nil {
			t.Errorf("the route looks after it: %v", err)
		}
		end()
		synctest.Wait()
		refused("after the end", replayed, received)
		select {
		case <-held:
			t.Error("the turn is over although somebody is in it")
		default:
		}
		leave()
		<-held

		// What came in an earlier turn does not belong to the next one.
		next, endNext := context.WithCancel(t.Context())
		go turns.hold(next, 2)
		synctest.Wait()
		if err := sink.Publish("topic", received); !errors.Is(err, ErrStandby) {
			t.Errorf("in the next turn: %v", err)
		}
		if err := sink.Publish("topic", replayed); err != nil {
			t.Errorf("in the next turn: %v", err)
		}
		endNext()
	})
}

// sourceOfOne hands out one message in each subscription.
type sourceOfOne struct{ subscriptions, nacked atomic.Int32 }

func (s *sourceOfOne) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.subscriptions.Add(1)
	out := make(chan *message.Message)
	go func() { // ends with ctx
		defer close(out)
		msg := message.NewMessage("1", nil)
		msg.SetContext(context.WithoutCancel(ctx))
		select {
		case out <- msg:
		case <-ctx.Done():
			return
		}
		select {
		case <-msg.Nacked():
			s.nacked.Add(1)
		case <-msg.Acked():
		}
		<-ctx.Done()
	}()
	return out, nil
}

func (*sourceOfOne) Close() error { return nil }

// A source is subscribed to for each turn, and what nobody has taken goes back to it.
func TestSourceInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, from := newTurns(), &sourceOfOne{}
		source := &inTurn{Subscriber: from, logger: slog.New(slog.DiscardHandler), turns: turns}
		ctx, cancel := context.WithCancel(t.Context())
		out := testkit.Must(source.Subscribe(ctx, "topic"))(t)
		synctest.Wait()
		if n := from.subscriptions.Load(); n != 0 {
			t.Errorf("%d subscriptions without a turn", n)
		}
		for turn := int32(1); turn <= 3; turn++ {
			var over atomic.Bool
			term, end := context.WithCancel(t.Context())
			held := make(chan struct{})
			go func() { turns.hold(clocked{term, &over}, uint64(turn)); close(held) }()
			synctest.Wait()
			if n := from.subscriptions.Load(); n != turn {
				t.Errorf("%d subscriptions in turn %d", n, turn)
			}
			if turn == 2 { // nobody takes it
				end()
				<-held
				if n := from.nacked.Load(); n != 1 {
					t.Errorf("%d messages went back, want 1", n)
				}
				continue
			}
			msg := <-out
			if msg.Context().Err() != nil {
				t.Error("the context of a message has ended in its turn")
			}
			over.Store(true)
			if msg.Context().Err() == nil {
				t.Error("the context of a message has not ended with its turn")
			}
			msg.Ack()
			end()
			<-held
		}
		cancel()
		if _, open := <-out; open {
			t.Error("a message without a turn")
		}
		testkit.NoError(t, source.Close())
	})
}

// failingSource fails by what Subscribe returns, and then by subscriptions that end.
type failingSource struct {
	errs  []error     // of Subscribe, one after the other
	ended error       // why subscriptions end
	works atomic.Bool // the next one hands out a message first

	mu       sync.Mutex
	attempts []time.Time
}

// tried returns when Subscribe was called.
func (s *failingSource) tried() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.attempts)
}

func (s *failingSource) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	s.mu.Lock()
	s.attempts = append(s.attempts, time.Now())
	s.mu.Unlock()
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, err
	}
	out := make(chan *message.Message, 1)
	if s.works.Swap(false) {
		out <- message.NewMessage("1", nil)
	}
	close(out)
	return out, nil
}

func (s *failingSource) ReadError() (time.Time, error) { return time.Time{}, s.ended }
func (*failingSource) Close() error                    { return nil }

// Why a source cannot be read is in the log once, and in the status, however often it is tried. The attempts become rare.
func TestSourceInATurnFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("no such topic")
		from := &failingSource{errs: []error{errors.New("brokers away"), errors.New("brokers away"), gone, gone}, ended: errors.New("group in use")}
		var log bytes.Buffer
		turns := newTurns()
		source := &inTurn{Subscriber: from, logger: slog.New(slog.NewTextHandler(&log, nil)), turns: turns}
		ctx, cancel := context.WithCancel(t.Context())
		out := testkit.Must(source.Subscribe(ctx, "topic"))(t)
		held := make(chan struct{})
		go func() { turns.hold(ctx, 1); close(held) }()
		told := func(reasons ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for line := range strings.Lines(log.String()) {
				_, reason, _ := strings.Cut(strings.TrimSpace(line), "error=")
				got = append(got, strings.Trim(reason, `"`))
			}
			testkit.Equal(t, got, reasons)
		}
		time.Sleep(time.Hour)
		told("brokers away", "no such topic", "subscription ended: group in use")
		if _, err := source.ReadError(); !errors.Is(err, from.ended) || !errors.Is(err, router.ErrSubscriptionEnded) {
			t.Errorf("the status says %v", err)
		}
		attempts := from.tried()
		for i := 2; i < len(attempts) && i < 6; i++ {
			if before, pause := attempts[i-1].Sub(attempts[i-2]), attempts[i].Sub(attempts[i-1]); pause < before {
				t.Errorf("attempt %d comes after %s, the one before after %s", i, pause, before)
			}
		}
		if n := len(attempts); n > 1000 {
			t.Errorf("%d attempts in an hour", n)
		}
		from.works.Store(true)
		(<-out).Ack()
		time.Sleep(time.Hour)
		told("brokers away", "no such topic", "subscription ended: group in use", "subscription ended: group in use") // it had worked
		cancel()
		<-held
		testkit.NoError(t, source.Close())
	})
}
