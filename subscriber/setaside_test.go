package subscriber_test

import (
	"io"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/subscriber"
)

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
