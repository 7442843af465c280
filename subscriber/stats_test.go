package subscriber_test

import (
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// TestStatsCountBytes checks that payloads count once when they arrive, embedded
// or downloaded, and once for each delivery.
func TestStatsCountBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, gatewaytest.Config{})
	sub, messages := f.receive(f.config())
	f.send(typeJSON, random(1000))
	f.next(messages).Nack()
	f.next(messages).Ack()
	f.send(typeJSON, random(200_000)) // too large to be embedded
	msg := f.next(messages)
	msg.Payload = nil // what a handler does to the message counts for nothing
	msg.Ack()
	f.waitConfirmed(2)
	testkit.Eventually(f, "all is counted", func() bool { return sub.Stats().Confirmed == 2 })
	if s := sub.Stats(); s.ReceivedBytes != 201_000 || s.DeliveredBytes != 202_000 {
		t.Errorf("ReceivedBytes = %d, DeliveredBytes = %d; want 201000 and 202000", s.ReceivedBytes, s.DeliveredBytes)
	}
}
