package subscriber_test

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// openAndAck reads the payload of a message, which has to be of this size, and has it confirmed.
func (f *fixture) openAndAck(msg *message.Message, size int) {
	f.Helper()
	payload, _, err := subscriber.OpenPayload(msg)
	if err != nil {
		f.Fatal(err)
	}
	if data, err := io.ReadAll(payload); err != nil || len(data) != size {
		f.Errorf("%d bytes, %v", len(data), err)
	}
	_ = payload.Close()
	msg.Ack()
	f.waitConfirmed(1)
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
			sub, messages := f.receive(cfg)
			f.send(typeJSON, random(200_000))
			first := f.next(messages)
			if _, _, err := subscriber.OpenPayload(first); err == nil {
				t.Fatal("the payload is there")
			}
			first.Nack()
			f.openAndAck(f.next(messages), 200_000)
			if got := sub.Stats(); got.Expired != 1 || got.Stream.Connects != 2 {
				t.Errorf("Expired %d, Connects %d; want 1 and 2", got.Expired, got.Stream.Connects)
			}
		})
	}
}

// refusedOnce is a client that finds the payload of the first message that is opened expired, after meanwhile has returned.
type refusedOnce struct {
	*gateway.Client
	once      sync.Once
	meanwhile func()
}

func (c *refusedOnce) OpenPayload(ctx context.Context, uri string, size int64) (*gateway.PayloadReader, error) {
	refused := false
	c.once.Do(func() {
		refused = true
		c.meanwhile()
	})
	if refused {
		return nil, gateway.ErrPayloadExpired
	}
	return c.Client.OpenPayload(ctx, uri, size)
}

// An address that is refused after a fresh one has come has nobody wait for another one.
func TestFreshAddressComesBeforeTheOldOneIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	cfg.Payload.Mode = subscriber.PayloadLazy
	client := &refusedOnce{Client: f.client}
	cfg.Client = client
	sub := f.subscriber(cfg)
	client.meanwhile = func() {
		f.server.RedeliverUnconfirmed()
		testkit.Eventually(f, "it has come again", func() bool { return sub.Stats().Joined == 1 })
	}
	messages := f.subscribe(sub, subscriber.AllData)
	f.send(typeJSON, random(200_000))
	first := f.next(messages)
	if _, _, err := subscriber.OpenPayload(first); err == nil {
		t.Fatal("the payload is there")
	}
	first.Nack()
	f.openAndAck(f.next(messages), 200_000)
	if got := sub.Stats(); got.Expired != 0 || got.Stream.Connects != 1 {
		t.Errorf("Expired %d, Connects %d; want 0 and 1", got.Expired, got.Stream.Connects)
	}
}
