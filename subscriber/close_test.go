package subscriber_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/subscriber"
)

// closesInTime asserts that Close returns soon.
func closesInTime(t *testing.T, sub *subscriber.Subscriber) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- sub.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("Close hangs")
		return nil
	}
}

func TestCloseWhileNobodyReads(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.CloseTimeout = time.Hour // it must not be needed
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
	f.sendN(10)
	f.waitDelivered(10)
	if err := closesInTime(t, sub); err != nil {
		t.Errorf("Close = %v", err)
	}
	if _, open := <-messages; open {
		t.Error("the channel is still open")
	}
	if f.confirmed() != 0 {
		t.Error("messages were confirmed that nobody acked")
	}
}

func TestCloseBeforeAnything(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	if err := closesInTime(t, sub); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := sub.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
}

func TestCloseWhileTheGatewayIsDown(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	f.server.Inject(gatewaytest.OpAny, gatewaytest.Fault{Hang: true})
	cfg := f.config()
	cfg.CloseTimeout = time.Hour
	sub := f.subscriber(cfg)
	f.subscribe(sub, subscriber.AllData)
	f.eventually("a request hangs", func() bool {
		return f.server.Stats(gatewaytest.OpToken).Requests > 0
	})
	if err := closesInTime(t, sub); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func TestCloseWhileADownloadHangs(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	hang := f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: 1000})
	defer hang.Lift()
	cfg := f.config()
	cfg.CloseTimeout = time.Hour
	sub := f.subscriber(cfg)
	f.subscribe(sub, subscriber.AllData)
	f.send(typeJSON, random(200_000))
	f.eventually("the download hangs", func() bool { return hang.Hits() == 1 })
	if err := closesInTime(t, sub); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func TestCloseDrainsOpenMessages(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	messages := f.subscribe(sub, subscriber.AllData)
	f.sendN(3)
	msg := f.next(messages)
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	f.nothing(messagesOnly(messages))
	if msg.Context().Err() != nil {
		t.Error("the message's context ended before the drain time was over")
	}
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait for the open message: %v", err)
	default:
	}
	msg.Ack()
	if err := <-closed; err != nil {
		t.Errorf("Close = %v", err)
	}
	if got := f.confirmed(); got != 1 {
		t.Errorf("%d confirmed, want the one that was acked", got)
	}
}

// messagesOnly passes messages on, and hides that the channel is closed.
func messagesOnly(in <-chan *message.Message) <-chan *message.Message {
	out := make(chan *message.Message)
	go func() {
		for m := range in {
			out <- m
		}
	}()
	return out
}

func TestCloseGivesUpOnAHandlerThatNeverAcks(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.CloseTimeout = 100 * time.Millisecond
	sub := f.subscriber(cfg)
	messages := f.subscribe(sub, subscriber.AllData)
	f.sendN(1)
	msg := f.next(messages)
	if err := closesInTime(t, sub); err != nil {
		t.Errorf("Close = %v", err)
	}
	if msg.Context().Err() == nil {
		t.Error("the message's context is alive after the drain time")
	}
	msg.Ack() // too late
	if f.confirmed() != 0 || sub.Stats().Abandoned != 1 {
		t.Errorf("confirmed %d, abandoned %d; want 0 and 1", f.confirmed(), sub.Stats().Abandoned)
	}
}

func TestCloseTellsWhatItCouldNotConfirm(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
	cfg := f.config()
	cfg.CloseTimeout = 200 * time.Millisecond
	sub := f.subscriber(cfg)
	f.sendN(5)
	f.ackN(f.subscribe(sub, subscriber.AllData), 5)
	err := closesInTime(t, sub)
	var unconfirmed *subscriber.UnconfirmedError
	if !errors.As(err, &unconfirmed) || unconfirmed.Count != 5 || !errors.Is(err, subscriber.ErrUnconfirmed) {
		t.Errorf("Close = %v, want an UnconfirmedError of 5", err)
	}
	// They come again with the next process. Only then is the fault lifted: a request
	// that Close gave up may still be on its way, and would confirm them.
	f.ackN(f.subscribe(f.subscriber(f.config()), subscriber.AllData), 5)
	f.server.LiftAll()
	f.waitConfirmed(5)
}

func TestConcurrentCloseAndSubscribe(t *testing.T) {
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
