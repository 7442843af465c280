package subscriber_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// hangingStore stores nothing until it is left.
type hangingStore struct{ leave <-chan struct{} }

func (s hangingStore) Publish(string, ...*message.Message) error { <-s.leave; return nil }

func (hangingStore) Close() error { return nil }

// Whatever hangs, Close ends within its time, and at once if nothing of it is needed.
func TestCloseEndsInItsTime(t *testing.T) {
	const closeTimeout, drainTimeout = 30 * time.Second, 20 * time.Second
	sendOne := func(f *fixture) { f.sendN(1) }
	sendLarge := func(f *fixture) { f.send(typeJSON, random(200_000)) } // it is downloaded
	for name, test := range map[string]struct {
		server gatewaytest.Config
		hang   func(f *fixture, cfg *subscriber.Config, leave <-chan struct{})
		send   func(f *fixture) // nil: nothing comes
		reads  bool
		acks   bool
		atMost time.Duration
		left   int // unconfirmed
	}{
		"nothing":           {},
		"nothing, acked":    {send: sendOne, reads: true, acks: true},
		"nobody reads":      {send: sendOne},
		"the stream's head": {server: gatewaytest.Config{StreamHead: gatewaytest.HeadWithFirstEvent}},
		"the handler":       {send: sendOne, reads: true, atMost: drainTimeout},
		"a download": {
			hang: func(f *fixture, _ *subscriber.Config, _ <-chan struct{}) {
				f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{HangAfter: 1000})
			},
			send: sendLarge,
		},
		"a fresh address": {
			server: gatewaytest.Config{NoReplay: true}, // it never comes again
			hang: func(f *fixture, _ *subscriber.Config, _ <-chan struct{}) {
				f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 410})
			},
			send: sendLarge,
		},
		"a confirmation": {
			hang: func(f *fixture, _ *subscriber.Config, _ <-chan struct{}) {
				f.server.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Hang: true})
			},
			send: sendOne, reads: true, acks: true, atMost: closeTimeout, left: 1,
		},
		"a hook, one acked": {
			hang: func(_ *fixture, cfg *subscriber.Config, leave <-chan struct{}) {
				events := 0
				cfg.Hooks.Event = func(gateway.Event) {
					if events++; events > 1 {
						<-leave
					}
				}
			},
			send: func(f *fixture) { f.sendN(2) }, reads: true, acks: true, atMost: closeTimeout,
		},
		"a hook of the connection": {
			hang: func(_ *fixture, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Hooks.Connected = func() { <-leave }
			},
			atMost: closeTimeout,
		},
		"a hook of an undeliverable event": {
			hang: func(_ *fixture, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Hooks.Undeliverable, cfg.Unmarshaler = func(gateway.Event, error) { <-leave }, failingUnmarshaler{}
			},
			send: func(f *fixture) { f.send(typeOther, []byte("undeliverable")) }, atMost: closeTimeout,
		},
		"a hook of a confirmation": {
			hang: func(_ *fixture, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Hooks.Confirmed = func(string, []gateway.MessageConfirmation) { <-leave }
			},
			send: sendOne, reads: true, acks: true, atMost: closeTimeout, left: 1,
		},
		"the quarantine": {
			hang: func(_ *fixture, cfg *subscriber.Config, leave <-chan struct{}) {
				cfg.Quarantine.Publisher = hangingStore{leave}
			},
			send: func(f *fixture) { f.emit(gateway.EventMessageReceived, `"id":7`) }, atMost: closeTimeout,
		},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			test.server.InMemory = true
			f := newFixture(t, test.server)
			leave := make(chan struct{})
			cfg := f.config()
			cfg.CloseTimeout, cfg.DrainTimeout, cfg.Confirm.MaxAge = closeTimeout, drainTimeout, time.Hour // Close sends it
			if test.hang != nil {
				test.hang(f, &cfg, leave)
			}
			sub, messages := f.receive(cfg)
			testkit.Eventually(f, "connected", func() bool { return f.server.Streams() == 1 })
			if test.send != nil {
				test.send(f)
			}
			var msg *message.Message
			if test.reads {
				msg = f.next(messages)
			}
			if test.acks {
				msg.Ack()
			}
			time.Sleep(5 * time.Second)
			began := time.Now()
			err := sub.Close()
			if took, most := time.Since(began), max(test.atMost, time.Second); took > most {
				t.Errorf("Close took %v, want at most %v", took, most)
			}
			if got, want := fmt.Sprint(err), fmt.Sprint(map[bool]error{true: &subscriber.UnconfirmedError{Count: test.left}}[test.left > 0]); got != want {
				t.Errorf("Close = %v, want %v", got, want)
			}
			if test.acks != (f.confirmed() == 1) && test.left == 0 {
				t.Errorf("%d are confirmed", f.confirmed())
			}
			f.server.LiftAll()
			close(leave)
		})
	}
}

// Close may be called from a hook, whose end it cannot wait for.
func TestCloseFromAHookEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 30 * time.Second
		f := newFixture(t, gatewaytest.Config{InMemory: true})
		cfg := f.config()
		cfg.CloseTimeout = timeout
		took := make(chan time.Duration, 1)
		var sub *subscriber.Subscriber
		cfg.Hooks.Connected = func() {
			began := time.Now()
			if err := sub.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
			took <- time.Since(began)
		}
		sub = f.subscriber(cfg)
		messages := f.subscribe(sub, subscriber.AllData)
		if got := <-took; got > timeout {
			t.Errorf("Close took %v, want at most %v", got, timeout)
		}
		if _, open := <-messages; open {
			t.Error("a message came")
		}
	})
}
