package subscriber_test

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// Whatever fails is tried again by one part alone: the client, which would try several times,
// makes one request for each attempt of the subscriber.
func TestEachRetryHasOneOwner(t *testing.T) {
	later := subscriber.Backoff{Initial: time.Hour, Max: time.Hour}
	for op, test := range map[gatewaytest.Operation]struct {
		gateway gatewaytest.Config
		put     func(*subscriber.Config)
		ack     bool
	}{
		gatewaytest.OpPayload:     {gateway: gatewaytest.Config{InlineLimit: 10}, put: func(c *subscriber.Config) { c.Payload.Retry = later }},
		gatewaytest.OpConfirm:     {ack: true, put: func(c *subscriber.Config) { c.Confirm.Retry = later }},
		gatewaytest.OpListTenants: {ack: true, gateway: gatewaytest.Config{OmitOptionalFields: true}, put: func(c *subscriber.Config) { c.Confirm.Retry = later }},
		gatewaytest.OpEvents:      {put: func(c *subscriber.Config) { c.Reconnect = later }},
		gatewaytest.OpToken:       {put: func(c *subscriber.Config) { c.Reconnect = later }},
	} {
		testkit.RunBubble(t, string(op), func(t *testing.T) {
			test.gateway.InMemory = true
			f := newFixture(t, test.gateway)
			clientConfig := f.server.ClientConfig()
			clientConfig.Retry = gateway.RetryConfig{MaxAttempts: 5, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond}
			client := testkit.Must(gateway.New(clientConfig))(t)
			t.Cleanup(func() { _ = client.Close() })
			failing := f.server.Inject(op, gatewaytest.Fault{Status: 500})
			cfg := f.config()
			cfg.Client = client
			test.put(&cfg)
			messages := f.subscribe(f.subscriber(cfg), subscriber.AllData)
			f.send(typeJSON, random(100), f.receiver)
			if test.ack {
				f.next(messages).Ack()
			}
			testkit.Eventually(t, "it fails", func() bool { return failing.Hits() > 0 })
			f.nothing(messages)
			if got := failing.Hits(); got != 1 {
				t.Errorf("%d requests, want 1", got)
			}
		})
	}
}
