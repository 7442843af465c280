package subscriber_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx/outcometest"
	"github.com/agrimill/agrimill/subscriber"
)

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]subscriber.Order{"ordered": subscriber.OrderByKey, "unordered": subscriber.Unordered} {
		t.Run(name, func(t *testing.T) {
			outcometest.Run(t, func(t *testing.T) outcometest.Subscription {
				f := newFixture(t, gatewaytest.Config{})
				cfg := f.config()
				cfg.Order = order
				messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
				return outcometest.Subscription{
					Send:      func(payload string) { f.send(typeJSON, []byte(payload)) },
					Next:      func() *message.Message { return f.next(messages) },
					Nothing:   func() { f.nothing(messages) },
					Confirmed: f.waitConfirmed,
					Reconnect: func() { f.server.CutStreams() },
				}
			})
		})
	}
}
