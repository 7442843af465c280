package router_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// From the gateway into a sink, with an outage, messages that cannot be decoded,
// and a restart in the middle: nothing is confirmed before it is held, and in
// the end everything is held once and confirmed.
func TestGatewayToSink(t *testing.T) {
	const (
		n           = 300
		messageType = "app:test:json"
	)
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	server.AddEndpoint(gatewaytest.EndpointConfig{
		Name: "receiver", Receive: []string{messageType}, Subscribe: []string{messageType},
	})

	var calls atomic.Int64
	to := newSink(func(string, *message.Message) error {
		if c := calls.Add(1); c > 100 && c < 120 {
			return down
		}
		return nil
	})
	poison := newSink(nil)
	held := func(id string) bool {
		for _, sink := range []*memorySink{to, poison} {
			for _, m := range sink.all() {
				if m.msg.Metadata[gateway.KeyMessageID] == id {
					return true
				}
			}
		}
		return false
	}
	var early atomic.Int64
	server.OnConfirm(func(e gatewaytest.LedgerEntry) {
		if !held(e.MessageID) {
			early.Add(1)
		}
	})

	store := newStore(t, 0)
	run := func() (*router.Router, func() error) {
		sub, client := subscribeTo(t, server, subscriber.Config{Order: subscriber.Unordered})
		r := start(t, router.Config{Poison: poison, Retry: fastRetry, Dedup: router.DedupSettings{Store: store}}, router.Route{
			Name: "farm", From: sub, Topic: subscriber.AllData, To: to,
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				if len(msg.Payload) == 0 || msg.Payload[0] != '{' {
					return nil, router.Permanent(errors.New("not an object"))
				}
				return []*message.Message{msg}, nil
			},
		})
		return r.Router, func() error { return errors.Join(r.stop(), client.Close()) }
	}

	send := func(from, to int) {
		for i := from; i < to; i++ {
			payload := fmt.Sprintf(`{"n":%d}`, i)
			if i%100 == 50 {
				payload = "broken"
			}
			testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte(payload)}))(t)
		}
	}
	send(0, n/2)
	_, stop := run()
	to.wait(t, 30)
	testkit.NoError(t, stop())
	send(n/2, n)
	_, stop = run()
	testkit.NoError(t, server.WaitConfirmed(testkit.Context(t), n))
	testkit.NoError(t, stop())

	if got := early.Load(); got != 0 {
		t.Errorf("early.Load() = %d, want 0: confirmations of messages that nobody held", got)
	}
	ids := map[string]int{}
	for _, m := range to.all() {
		ids[m.msg.Metadata[gateway.KeyMessageID]]++
	}
	if len(ids) != n-3 {
		t.Errorf("ids has %d elements, want %d: %+v", len(ids), n-3, ids)
	}
	for id, times := range ids {
		if times != 1 {
			t.Errorf("times = %d, want 1: %v", times, id)
		}
	}
	poison.wantStored(t, 3)
}

// From somewhere into the gateway: acknowledged after the 200, and a message
// that nobody can receive goes to the poison queue.
func TestSinkToGateway(t *testing.T) {
	const messageType = "app:test:json"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
	outage := server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Times: 5})

	pub := publishTo(t, server, publisher.Config{EndpointID: sender.ID})
	from, poison := newSource(), newSink(nil)
	start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
		Name: "to gateway", From: from, Topic: "in", To: pub, ToTopic: "{type}",
	})
	send := func(recipient string) {
		msg := message.NewMessage("a4a2d4a9-52f4-4d6c-9f2a-6e5b6f0f3c11", []byte(`{"n":1}`))
		msg.Metadata[gateway.KeyMessageType] = messageType
		msg.Metadata[gateway.KeyDirectRecipients] = recipient
		from.deliver(t, msg)
	}
	send(receiver.ID)
	if got := outage.Hits(); got != 5 {
		t.Errorf("outage.Hits() = %d, want 5", got)
	}
	if n := len(server.Ledger()); n != 1 {
		t.Fatalf("server.Ledger() has %d elements, want 1", n)
	}
	if got := server.Ledger()[0].EndpointID; got != receiver.ID {
		t.Errorf("server.Ledger()[0].EndpointID = %q, want %q", got, receiver.ID)
	}
	poison.wantStored(t, 0)

	send("11111111-2222-4333-8444-555555555555")
	poison.wantStored(t, 1)
	if got := poison.all()[0].msg.Metadata[router.KeyPoisonClass]; got != "permanent" {
		t.Errorf("KeyPoisonClass = %q, want permanent", got)
	}
}

// What the gateway gets in all attempts to deliver one message has one context ID and
// one sent timestamp, by which receivers recognize a copy, whoever made the message: a
// broker or a handler that makes new UUIDs in each attempt.
func TestRetriesIntoTheGatewayAreRecognizable(t *testing.T) {
	const messageType = "app:test:json"
	handler := func(id func() string) message.HandlerFunc {
		var attempts atomic.Int64
		return func(*message.Message) ([]*message.Message, error) {
			last := fmt.Appendf(nil, "attempt %d", attempts.Add(1)) // never the same again
			return []*message.Message{
				message.NewMessage(id(), []byte("equal")), message.NewMessage(id(), []byte("equal")), message.NewMessage(id(), last),
			}, nil
		}
	}
	for name, test := range map[string]struct {
		uuid      string // of the source's message
		transform message.HandlerFunc
		want      string // context ID
		again     bool   // also when the source delivers the message again
	}{
		"UUID of the source":                 {uuid: "a4a2d4a9-52f4-4d6c-9f2a-6e5b6f0f3c11", want: "a4a2d4a9-52f4-4d6c-9f2a-6e5b6f0f3c11", again: true},
		"another ID of the source":           {uuid: "orders/7/4711", again: true},
		"no ID":                              {},
		"handler with new UUIDs":             {uuid: "source", transform: handler(watermill.NewUUID)},
		"handler with new ULIDs":             {uuid: "source", transform: handler(watermill.NewULID)},
		"handler without UUIDs":              {uuid: "source", transform: handler(func() string { return "" }), again: true},
		"handler without UUIDs, source also": {transform: handler(func() string { return "" })},
	} {
		t.Run(name, func(t *testing.T) {
			server := gatewaytest.New(t, gatewaytest.Config{})
			sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
			type identity struct{ context, at string }
			var mu sync.Mutex
			var sent []identity
			// The first message fails twice; then the third one, and comes again alone.
			server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Match: func(r *http.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, identity{r.Header.Get(gateway.KeyContextID), r.Header.Get(gateway.KeySentTimestamp)})
				n := len(sent)
				return n == 1 || n == 2 || n == 5 && test.transform != nil
			}})

			pub := publishTo(t, server, publisher.Config{EndpointID: sender.ID})
			from := newSource()
			r := start(t, router.Config{Poison: newSink(nil), Retry: fastRetry}, router.Route{
				Name: "to gateway", From: from, Topic: "in", To: pub, Transform: test.transform,
				TopicFunc: func(*message.Message) (string, error) { return messageType, nil },
			})
			for range 2 { // one delivery, and another one of the same message
				msg := message.NewMessage(test.uuid, []byte("payload"))
				from.deliver(t, msg)
				if len(msg.Metadata) != 0 {
					t.Fatalf("msg.Metadata = %+v, want none: the route wrote into the source's metadata", msg.Metadata)
				}
			}
			r.wantStop(t)

			same := func(what string, requests ...int) {
				for _, n := range requests {
					if sent[n].context != sent[requests[0]].context {
						t.Errorf("sent[n].context = %q, want %q: context ID of %s in request %d", sent[n].context, sent[requests[0]].context, what, n)
					}
				}
			}
			first, again := sent[:3], sent[3:]
			if test.transform == nil {
				same("the message", 0, 1, 2)
			} else {
				first, again = sent[:6], sent[6:]
				same("the first message", 0, 1, 2)
				contexts := map[string]bool{}
				for _, s := range first {
					contexts[s.context] = true
				}
				same("the third message, which is not made anew", 4, 5)
				if len(contexts) != 3 {
					t.Errorf("contexts has %d elements, want 3: %+v", len(contexts), contexts)
				}
			}
			if test.want != "" {
				if first[0].context != test.want {
					t.Errorf("first[0].context = %q, want %q", first[0].context, test.want)
				}
			}
			for n, s := range first {
				if s.at != first[0].at {
					t.Errorf("s.at = %q, want %q: sent timestamp of request %d", s.at, first[0].at, n)
				}
			}
			if same := again[0].context == first[0].context; same != test.again {
				t.Errorf("same context ID when the source delivers the message again: %t, want %t", same, test.again)
			}
		})
	}
}
