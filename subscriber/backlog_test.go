package subscriber

import (
	"context"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// idleClient is never called.
type idleClient struct{ Client }

// Between the ack of a message and the moment its confirmation is queued, one of
// the caps counts it.
func TestBacklogCountsFromTheAck(t *testing.T) {
	cfg := Config{Client: idleClient{}}
	cfg.Confirm.MaxBacklog = 1
	s, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	event := &gateway.MessageReceived{ID: "11111111-2222-4333-8444-555555555555", ReceivingEndpointID: "66666666-7777-4888-8999-aaaaaaaaaaaa"}
	d := s.newMessageDelivery(newMessageKey(event.ReceivingEndpointID, event.ID), event)
	s.mu.Lock()
	s.link(d)
	s.ledger.open(d)
	last := s.finish(time.Now(), &subscription{}, d, msgctx.Acked)
	if !last || s.hasRoom(&delivery{}) {
		t.Errorf("last %v; there is room for another message before the confirmation is queued", last)
	}
	s.mu.Unlock()

	// It is never queued, so Close must not wait for it for long.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if left := s.confirmer.close(ctx, ctx); left != 1 {
		t.Errorf("%d confirmations are left", left)
	}
	s.cancel()
}
