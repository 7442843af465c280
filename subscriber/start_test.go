package subscriber_test

import (
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// The stream is opened only when the router has made all of its subscriptions, and
// Close does not wait for that.
func TestStreamWaitsForTheStartOfTheRoutes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	start := make(chan struct{})
	ctx := msgctx.WithSubscription(f.Context(), &msgctx.Subscription{Start: start})
	first := testkit.Must(sub.Subscribe(ctx, subscriber.AllData))(t)
	f.sendN(1)
	f.nothing(first)
	if got := f.server.Stats(gatewaytest.OpEvents).Requests; got != 0 {
		t.Fatalf("%d connections to /events before the start", got)
	}
	second := testkit.Must(sub.Subscribe(ctx, typeJSON))(t)
	close(start)
	f.next(first).Ack()
	f.next(second).Ack()
	f.waitConfirmed(1)
	if _, err := sub.Subscribe(ctx, typeOther); err != nil { // after the start
		t.Fatal(err)
	}

	never := f.subscriber(f.config())
	testkit.Must(never.Subscribe(msgctx.WithSubscription(f.Context(), &msgctx.Subscription{Start: make(chan struct{})}), subscriber.AllData))(t)
	if err := never.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
