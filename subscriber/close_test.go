package subscriber_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
	"github.com/agrimill/agrimill/subscriber/leasetest"
)

// closesInTime asserts that Close returns soon.
func closesInTime(t *testing.T, sub *subscriber.Subscriber) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- sub.Close() }()
	return testkit.Receive(t, "the end of Close", done)
}

// What is being read while Drain ends the stream is delivered, and Drain waits for it.
func TestDrainWhileAnEventIsRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.DrainTimeout = testkit.Patience
	var sub *subscriber.Subscriber
	drained := make(chan struct{})
	cfg.Hooks.Event = func(gateway.Event) {
		go func() {
			defer close(drained)
			sub.Drain(f.Context())
		}()
		testkit.EventuallyNil(f, func() error { return f.server.WaitStreams(f.Context(), 0) })
	}
	sub = f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
	f.sendN(1)
	msg := f.next(messages)
	select {
	case <-drained:
		t.Error("Drain did not wait for the message")
	default:
	}
	msg.Ack()
	<-drained
	if s := sub.Stats(); s.Abandoned != 0 || s.InFlight != 0 {
		t.Errorf("%d abandoned, %d in flight", s.Abandoned, s.InFlight)
	}
}

func TestCloseGivesUpOnAHandlerThatNeverAcks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.CloseTimeout = 100 * time.Millisecond
	sub, messages := f.receive(cfg)
	f.sendN(1)
	msg := f.next(messages)
	if err := closesInTime(t, sub); err != nil {
		t.Errorf("Close = %v", err)
	}
	// Within so short a time a busy machine may not come to it before Close returns.
	select {
	case <-msg.Context().Done():
	case <-time.After(testkit.Patience):
		t.Error("the message's context is alive after the drain time")
	}
	testkit.Eventually(t, "the message is abandoned", func() bool { return sub.Stats().Abandoned == 1 })
	msg.Ack() // too late
	if f.confirmed() != 0 || sub.Stats().Abandoned != 1 {
		t.Errorf("confirmed %d, abandoned %d; want 0 and 1", f.confirmed(), sub.Stats().Abandoned)
	}
}

func TestCloseTellsWhatItCouldNotConfirm(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
	cfg := f.config()
	cfg.CloseTimeout = 200 * time.Millisecond
	sub := f.subscriber(cfg)
	f.sendN(5)
	f.ackN(f.subscribe(sub, subscriber.AllData), 5)
	err := closesInTime(t, sub)
	var unconfirmed *subscriber.UnconfirmedError
	if !errors.As(err, &unconfirmed) || unconfirmed.Count != 5 {
		t.Errorf("Close = %v, want an UnconfirmedError of 5", err)
	}
	// They come again with the next process. Only then is the fault lifted: a request
	// that Close gave up may still be on its way, and would confirm them.
	f.ackN(f.subscribe(f.subscriber(f.config()), subscriber.AllData), 5)
	f.server.LiftAll()
	f.waitConfirmed(5)
}

// Whoever has more time left than Config.CloseTimeout gives it to the confirmations.
func TestCloseWithinWaitsForConfirmations(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]subscriber.Lease{"alone": nil, "with a lease": leasetest.NewMemory(time.Hour).Lease()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, gatewaytest.Config{})
			cfg := f.config()
			cfg.CloseTimeout, cfg.DrainTimeout = time.Millisecond, time.Millisecond
			cfg.Lease = lease
			sub := f.subscriber(cfg)
			fault := f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
			messages := f.subscribe(sub, subscriber.AllData)
			f.sendN(3)
			f.ackN(messages, 3)
			testkit.Eventually(f, "a confirmation was refused", func() bool { return fault.Hits() > 0 })
			done := make(chan error, 1)
			go func() { done <- sub.CloseWithin(time.Hour) }()
			before := fault.Hits()
			testkit.Eventually(f, "it tries again, or has given up", func() bool { return fault.Hits() >= before+5 || len(done) > 0 })
			fault.Lift()
			if err := <-done; err != nil {
				t.Errorf("CloseWithin = %v", err)
			}
			if n := f.confirmed(); n != 3 {
				t.Errorf("%d messages are confirmed", n)
			}
		})
	}
}

func TestConcurrentCloseAndSubscribe(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	f.sendN(50)
	for range 20 {
		sub := f.subscriber(f.config())
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(f.Context())
				defer cancel()
				messages, err := sub.Subscribe(ctx, subscriber.AllData)
				if err != nil {
					return // closed already
				}
				for range messages {
					break
				}
			})
			wg.Go(func() { _ = sub.Close() })
		}
		wg.Wait()
	}
}

// failingUnmarshaler refuses messages of typeOther.
type failingUnmarshaler struct{}

func (failingUnmarshaler) Unmarshal(msg *message.Message) (*message.Message, error) {
	if msg.Metadata.Get(gateway.KeyMessageType) == typeOther {
		return nil, errors.New("refused")
	}
	return msg, nil
}

// A client that was closed first confirms nothing any more: Close says how many
// acked messages that leaves, and does not wait.
func TestCloseAfterTheClient(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before the ack": true, "after the ack": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{OmitOptionalFields: before}) // without the tenant it is asked for
			cfg := f.config()
			cfg.CloseTimeout = time.Hour
			cfg.Confirm.Retry = subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
			if !before {
				cfg.Confirm.MaxAge = time.Hour
			}
			sub, messages := f.receive(cfg)
			f.sendN(1)
			msg := f.next(messages)
			if before {
				_ = f.client.Close()
			}
			msg.Ack()
			if before {
				testkit.Eventually(f, "the confirmation fails", func() bool { return sub.Stats().ConfirmFailures > 0 })
			} else {
				testkit.Eventually(f, "the ack is taken", func() bool { return sub.Stats().PendingConfirmations == 1 })
				_ = f.client.Close()
			}
			var unconfirmed *subscriber.UnconfirmedError
			if err := closesInTime(t, sub); !errors.As(err, &unconfirmed) || unconfirmed.Count != 1 {
				t.Errorf("Close = %v, want an UnconfirmedError of 1", err)
			}
		})
	}
}
