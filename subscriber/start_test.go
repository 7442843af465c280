package subscriber_test

import (
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber"
)

// The stream is opened only when the router has made all of its subscriptions, and
// Close does not wait for that.
func TestStreamWaitsForTheStartOfTheRoutes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub := f.subscriber(f.config())
	start := make(chan struct{})
	ctx := msgctx.WithStart(f.Context(), start)
	first, err := sub.Subscribe(ctx, subscriber.AllData)
	if err != nil {
		t.Fatal(err)
	}
	f.sendN(1)
	f.nothing(first)
	if got := f.server.Stats(gatewaytest.OpEvents).Requests; got != 0 {
		t.Fatalf("%d connections to /events before the start", got)
	}
	second, err := sub.Subscribe(ctx, typeJSON)
	if err != nil {
		t.Fatal(err)
	}
	close(start)
	f.next(first).Ack()
	f.next(second).Ack()
	f.waitConfirmed(1)
	if _, err := sub.Subscribe(ctx, typeOther); err != nil { // after the start
		t.Fatal(err)
	}

	never := f.subscriber(f.config())
	if _, err := never.Subscribe(msgctx.WithStart(f.Context(), make(chan struct{})), subscriber.AllData); err != nil {
		t.Fatal(err)
	}
	if err := never.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
