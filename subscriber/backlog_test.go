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
	s.link(time.Now(), d)
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

// Once something of a key was left, what comes later of it is left until the next connection,
// although the confirmations of its tenant get on meanwhile.
func TestLeftKeysStayLeft(t *testing.T) {
	cfg := Config{Client: idleClient{}}
	cfg.Confirm.MaxBacklog = 10
	s, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.confirmer.queue
	for range 10 {
		q.add(now, "sick", "sick", confirmation{})
		s.confirmer.expect(1)
	}
	sick := q.tenants["sick"]
	sick.failures, sick.since, q.lastOK = outageAfter, now, now.Add(time.Second)
	first, other := &delivery{order: "first"}, &delivery{order: "other"}
	if !s.leavesUnconfirmed(time.Now(), first, "Sick") || s.leavesUnconfirmed(time.Now(), other, "well") {
		t.Error("want the messages of the sick tenant left, and no others")
	}
	sick.failures = 0
	if !s.leavesUnconfirmed(time.Now(), first, "Sick") {
		t.Error("a message is taken although an earlier one of its key was left")
	}
	if s.leavesUnconfirmed(time.Now(), other, "sick") {
		t.Error("a message of another key is left")
	}
	s.mu.Unlock()
	s.setConnected(nil, false)
	s.mu.Lock()
	if s.leavesUnconfirmed(time.Now(), first, "sick") {
		t.Error("a message is left on a connection that brings all of its key")
	}
	s.cancel()
}

// Tenants whose confirmations fail can fill the backlog before those of any other were
// confirmed, and nothing else would come in ever after.
func TestFullBacklogOfTenantsThatFail(t *testing.T) {
	q := newConfirmQueue(ConfirmConfig{MaxBacklog: 10})
	now := time.Now()
	for range 10 {
		q.add(now, "sick", "sick", confirmation{})
	}
	sick := q.tenants["sick"]
	sick.failures, sick.since = outageAfter, now
	if q.full(now, 9, 0) || !q.full(now, 10, 0) || q.aboveShare(now, "sick") {
		t.Error("want the backlog full: all may fail")
	}
	now = now.Add(hopelessBacklog)
	if q.full(now, 19, 0) || !q.aboveShare(now, "sick") || q.aboveShare(now, "well") {
		t.Error("want room for others: nothing was confirmed for long")
	}
	if !q.full(now, 20, 0) {
		t.Error("want it full when others have filled it")
	}
}
