package subscriber

import (
	"context"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// A message costs one allocation for all that is known of it while it is open, its context included, one for
// its texts, and what Watermill's message and its metadata cost.
func TestAllocationsOfAMessage(t *testing.T) {
	s := testkit.Must(New(Config{Client: &silentClient{}}, nil))(t)
	defer func() { _ = s.Close() }()
	event := &gateway.MessageReceived{
		ID: "11111111-2222-4333-8444-555555555555", ReceivingEndpointID: "66666666-7777-4888-8999-aaaaaaaaaaaa",
		AppMessageID: "bbbbbbbb-cccc-4ddd-8eee-ffffffffffff", MessageType: "iso:11783:-10:taskdata:zip", TenantID: "t",
		Filename: "TASKDATA.ZIP", TeamsetContextID: "set", SentAt: time.Now(), ReceivedAt: time.Now(), Payload: make([]byte, 1024),
	}
	sub, it := &subscription{drained: context.Background()}, &core.Item{}
	allocations := testing.AllocsPerRun(100, func() {
		d := s.newDelivery(event, 1024)
		msg := testkit.Must(s.newMessage(d))(t)
		it.Message = &d.Message
		ctx := s.newContext(sub, it)
		msg.SetContext(ctx)
		ctx.end()
	})
	if allocations > 10 {
		t.Errorf("%v allocations, want at most 10", allocations)
	}
}

// Every message of a delivery has a context of its own.
func TestContextsOfADelivery(t *testing.T) {
	s, sub, d := &Subscriber{}, &subscription{drained: context.Background()}, &delivery{}
	d.Owner = d
	it := &core.Item{Message: &d.Message}
	first := s.newContext(sub, it)
	first.end()
	second := s.newContext(sub, it)
	if first == second || first.Err() == nil || second.Err() != nil {
		t.Errorf("%p ends with %v, %p with %v", first, first.Err(), second, second.Err())
	}
	second.end()
}
