package subscriber_test

import (
	"io"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber"
)

// A message that is set aside does not come again on this connection, is not
// confirmed and does not hold up the ones behind it; after a reconnect it comes.
func TestSetAside(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			cfg := f.config()
			cfg.Order = order
			sub := f.subscriber(cfg)
			messages := f.subscribe(sub, subscriber.AllData)
			f.send(typeJSON, []byte("bad"))
			bad := f.next(messages)
			msgctx.NackOf(bad.Context()).Want(msgctx.SetAside)
			bad.Nack()
			f.sendN(3)
			f.ackN(messages, 3)
			f.waitConfirmed(3)
			f.nothing(messages)
			if got := sub.Stats(); got.Nacked != 1 || got.SetAside != 1 || got.InFlight != 0 {
				t.Errorf("nacked %d, set aside %d, in flight %d; want 1, 1 and 0", got.Nacked, got.SetAside, got.InFlight)
			}
			f.server.CutStreams()
			if again := f.next(messages); string(again.Payload) != "bad" {
				t.Errorf("got %q", again.Payload)
			} else {
				again.Ack()
			}
			f.waitConfirmed(4)
		})
	}
}

// A payload that has expired when the handler opens it comes with a new address
// once the message is nacked.
func TestExpiredLazyPayloadIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, gatewaytest.Config{})
			f.server.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 410, Times: 1})
			cfg := f.config()
			cfg.Payload.Mode = subscriber.PayloadLazy
			cfg.Order = order
			sub := f.subscriber(cfg)
			messages := f.subscribe(sub, subscriber.AllData)
			f.send(typeJSON, random(200_000))
			first := f.next(messages)
			if _, _, err := subscriber.OpenPayload(first); err == nil {
				t.Fatal("the payload is there")
			}
			first.Nack()
			second := f.next(messages)
			payload, _, err := subscriber.OpenPayload(second)
			if err != nil {
				t.Fatal(err)
			}
			if data, err := io.ReadAll(payload); err != nil || len(data) != 200_000 {
				t.Errorf("%d bytes, %v", len(data), err)
			}
			_ = payload.Close()
			second.Ack()
			f.waitConfirmed(1)
			if got := sub.Stats(); got.Expired != 1 || got.Stream.Connects != 2 {
				t.Errorf("Expired %d, Connects %d; want 1 and 2", got.Expired, got.Stream.Connects)
			}
		})
	}
}
