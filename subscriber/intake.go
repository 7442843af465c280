package subscriber

import (
	"context"
	"runtime"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// intake accepts one decoded event from the stream. It blocks while the in-flight
// window is full; nothing else applies back-pressure to the stream.
func (s *Subscriber) intake(ctx context.Context, event gateway.Event) {
	s.stats.received.Add(1)
	s.reportUnreadable(event)
	if s.observer != nil {
		s.observer.HandleEvent(event)
	}
	if s.cfg.Hooks.Event != nil {
		s.cfg.Hooks.Event(event)
	}
	switch e := event.(type) {
	case *gateway.MessageReceived:
		s.stats.receivedBytes.Add(int64(len(e.Payload)))
		s.intakeMessage(ctx, e)
	case *gateway.FileReceived:
		s.stats.receivedBytes.Add(int64(len(e.Payload)))
		s.intakeFile(ctx, e)
	default:
		s.admit(ctx, &delivery{event: event, order: s.cfg.OrderKey(event)})
	}
}

// reportUnreadable logs what was left out of an event, in one line regardless of
// how much it is. The event itself carries all of it.
func (s *Subscriber) reportUnreadable(event gateway.Event) {
	var tenant string
	var left []*gateway.EntryError
	switch e := event.(type) {
	case *gateway.EndpointsListChanged:
		tenant, left = e.TenantID, e.Unreadable
	case *gateway.AuthorizationAdded:
		tenant, left = e.Tenant.TenantID, e.Tenant.Unreadable
	}
	if len(left) > 0 {
		s.logger.Error("Some endpoints in an event are unreadable and were skipped", left[0], watermill.LogFields{
			"event_type": string(event.Type()), "tenant_id": tenant, "count": len(left), "endpoint_id": left[0].EndpointID,
		})
	}
}

func (s *Subscriber) intakeMessage(ctx context.Context, e *gateway.MessageReceived) {
	key := newMessageKey(e.ReceivingEndpointID, e.ID)
	if s.join(e, key) {
		return
	}
	if s.holdChunk(key, e) {
		return
	}
	s.admit(ctx, s.newMessageDelivery(key, e))
}

func (s *Subscriber) newMessageDelivery(key messageKey, e *gateway.MessageReceived) *delivery {
	d := &delivery{
		event: e, order: s.cfg.OrderKey(e), tenant: e.TenantID, endpoint: e.ReceivingEndpointID,
		context: e.AppMessageID, bytes: int64(len(e.Payload)),
	}
	d.key1[0], d.message1[0] = key, e.ID
	d.keys, d.entries, d.messages = d.key1[:], d.entry1[:0], d.message1[:]
	if e.Payload == nil {
		d.payload = newPayload(e.PayloadURI, -1)
	}
	return d
}

func (s *Subscriber) intakeFile(ctx context.Context, e *gateway.FileReceived) {
	keys := make([]messageKey, len(e.MessageIDs))
	for i, id := range e.MessageIDs {
		keys[i] = newMessageKey(e.ReceivingEndpointID, id)
	}
	file := newFileKey(keys)
	if s.joinFile(e, keys, file) {
		return
	}
	d := &delivery{
		event: e, order: s.cfg.OrderKey(e), tenant: e.TenantID, endpoint: e.ReceivingEndpointID,
		keys: keys, messages: e.MessageIDs, file: file, bytes: int64(len(e.Payload)),
	}
	if e.Payload == nil {
		d.payload = newPayload(e.PayloadURI, e.Size)
	}
	s.admit(ctx, d)
}

// join recognizes a redelivered message: it is open, its confirmation is pending, or
// it was confirmed recently, in which case the confirmation is sent again. It reports
// whether the message needs no further processing.
func (s *Subscriber) join(e *gateway.MessageReceived, key messageKey) bool {
	var entry entryRef
	s.mu.Lock()
	state := s.table.state(key, time.Now())
	switch state {
	case stateOpen:
		s.refreshed(key, e.PayloadURI)
	case stateConfirmed:
		entry = s.table.confirming(key)
	}
	s.mu.Unlock()
	if state == 0 {
		return false
	}
	s.stats.joined.Add(1)
	if state == stateConfirmed {
		s.confirmer.add(e.TenantID, confirmation{entry: entry, endpoint: e.ReceivingEndpointID, message: e.ID})
	}
	return true
}

// joinFile is join for files. A file whose messages have all been acked is
// confirmed again; one that is open is joined to the first copy.
func (s *Subscriber) joinFile(e *gateway.FileReceived, keys []messageKey, file fileKey) bool {
	now := time.Now()
	s.mu.Lock()
	if _, open := s.table.files[file]; open && file != (fileKey{}) {
		s.refreshed(file.identity(), e.PayloadURI)
		s.mu.Unlock()
		s.stats.joined.Add(1)
		return true
	}
	if !s.filesDone.has(file, now) {
		s.mu.Unlock()
		return false
	}
	s.hold.absorb(keys)
	var again []confirmation
	for i, key := range keys {
		if state := s.table.state(key, now); state == stateOpen || state == stateConfirming {
			continue
		}
		again = append(again, confirmation{entry: s.table.confirming(key), endpoint: e.ReceivingEndpointID, message: e.MessageIDs[i]})
	}
	s.mu.Unlock()
	s.stats.joined.Add(1)
	if len(again) > 0 {
		s.confirmer.add(e.TenantID, again...)
	}
	return true
}

// admit waits for room and then opens d for every subscription that accepts it. It
// reports whether d was opened; it is not if no subscription accepts it or ctx ended.
func (s *Subscriber) admit(ctx context.Context, d *delivery) bool {
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	s.mu.Lock()
	for {
		if ctx.Err() != nil || d.held != nil && !s.hold.holds(d.held) {
			// Shutting down, or claimed by its file while it waited for room.
			s.mu.Unlock()
			return false
		}
		if s.takers(event, messageType) == 0 {
			s.mu.Unlock()
			s.untaken(event, messageType)
			return false
		}
		if (s.recalled || s.skipping) && d.held == nil {
			if len(d.keys) > 0 {
				// It will be redelivered, behind those that were open before it.
				s.mu.Unlock()
				return false
			}
			break // it would not be redelivered, so admit it beyond the caps
		}
		if _, evicted := s.evictedKeys[d.order]; evicted && len(d.keys) > 0 {
			s.mu.Unlock()
			s.stats.abandoned.Add(1)
			return false
		}
		if len(d.keys) > 0 && s.confirmer.leave(d.tenant) {
			s.mu.Unlock()
			s.stats.abandoned.Add(1)
			return false
		}
		if s.hasRoom(d) {
			break
		}
		if evicted := s.evictStalled(); len(evicted) > 0 {
			s.mu.Unlock()
			for _, d := range evicted {
				s.release(d)
			}
			s.mu.Lock()
			continue
		}
		freed := s.waitRoom()
		var stuck <-chan time.Time
		if s.waitsForFresh() && d.held == nil && len(d.keys) > 0 {
			stuck = time.After(skipAfter)
		}
		if d.held == nil {
			s.stopHold()
		}
		s.mu.Unlock()
		select {
		case <-stuck:
			s.mu.Lock()
			s.startHold()
			s.skipping = true
			continue
		case <-freed:
			// Let others that are about to free room run first, so that several
			// events are admitted before this has to wait again.
			runtime.Gosched()
		case <-ctx.Done():
		}
		s.mu.Lock()
		if d.held == nil {
			s.startHold()
		}
	}
	s.link(d)
	s.table.openDelivery(d)
	if d.held != nil {
		s.hold.drop(d.held)
	}
	if d.file != (fileKey{}) {
		d.context = s.hold.absorb(d.keys)
	}
	for _, sub := range s.subscriptions {
		if !sub.stopped && topicTakes(sub.topic, event, messageType) {
			d.open++
			s.enqueue(sub, d)
		}
	}
	if d.payload != nil {
		s.queueDownload(d)
	}
	s.mu.Unlock()
	return true
}

// takers counts the subscriptions that accept such an event. s.mu is held.
func (s *Subscriber) takers(event gateway.EventType, messageType string) int {
	n := 0
	for _, sub := range s.subscriptions {
		if !sub.stopped && topicTakes(sub.topic, event, messageType) {
			n++
		}
	}
	return n
}

// hasRoom reports whether d fits into the in-flight window now. s.mu is held.
func (s *Subscriber) hasRoom(d *delivery) bool {
	if s.confirmer.full() {
		return false
	}
	if s.inFlight == 0 {
		// A delivery larger than the cap must be able to pass alone.
		return true
	}
	return s.inFlight < s.cfg.MaxInFlight && s.bytes+d.bytes <= s.cfg.MaxInFlightBytes
}

// link appends d to the open deliveries. s.mu is held.
func (s *Subscriber) link(d *delivery) {
	d.arrived = time.Now()
	s.inFlight++
	s.bytes += d.bytes
	d.prev = s.last
	if s.last != nil {
		s.last.next = d
	} else {
		s.first = d
	}
	s.last = d
}

// unlink removes d from the open deliveries. s.mu is held.
func (s *Subscriber) unlink(d *delivery) {
	s.inFlight--
	s.bytes -= d.bytes
	if d.prev != nil {
		d.prev.next = d.next
	} else {
		s.first = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		s.last = d.prev
	}
	d.prev, d.next = nil, nil
	s.wakeRoom()
	s.endSkipping()
}

// waitRoom returns a channel that is closed when room may have become available.
// s.mu is held.
func (s *Subscriber) waitRoom() <-chan struct{} {
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	return s.freed
}

// wakeRoom wakes everything that waits for room. s.mu is held.
func (s *Subscriber) wakeRoom() {
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// finish records what d came to for one subscription and reports whether it was
// the last one. In that case d is closed, and the caller must call release after
// unlocking s.mu. s.mu is held.
func (s *Subscriber) finish(d *delivery, outcome msgctx.Outcome) (last bool) {
	d.abandoned = d.abandoned || outcome != msgctx.Acked
	d.open--
	if d.open > 0 {
		return false
	}
	s.unlink(d)
	if d.payload != nil {
		s.forgetPayload(d)
	}
	d.confirm = d.confirm1[:0]
	s.table.closeDelivery(d, func(i int) {
		d.confirm = append(d.confirm, confirmation{entry: d.entries[i], endpoint: d.endpoint, message: d.messages[i]})
	})
	s.confirmer.expect(len(d.confirm))
	if !d.abandoned && d.file != (fileKey{}) {
		s.filesDone.add(d.file, time.Now())
	}
	return true
}

// release does the work due outside the lock after a delivery was closed.
func (s *Subscriber) release(d *delivery) {
	if d.payload != nil {
		d.payload.release()
	}
	if d.abandoned {
		s.stats.abandoned.Add(1)
		s.untakenCount(d.event.Type(), messageTypeOf(d.event))
	}
	if len(d.confirm) > 0 {
		s.confirmer.addExpected(d.tenant, d.confirm...)
	}
}

// untaken records an event that no subscription accepts. It stays unconfirmed and
// is logged once per type.
func (s *Subscriber) untaken(event gateway.EventType, messageType string) {
	s.stats.untaken.Add(1)
	if s.untakenCount(event, messageType) == 1 {
		s.logger.Info("No subscription accepts this kind of event; it stays unconfirmed", watermill.LogFields{
			"event_type": string(event), "message_type": messageType,
		})
	}
}

// untakenCount remembers that the service has unconfirmed events of this kind, so
// that a later subscription to it has them redelivered.
func (s *Subscriber) untakenCount(event gateway.EventType, messageType string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := untakenKind{event, messageType}
	if _, known := s.untakenKinds[kind]; !known && len(s.untakenKinds) >= maxUntakenKinds {
		kind = untakenKind{event, ""}
	}
	s.untakenKinds[kind]++
	return s.untakenKinds[kind]
}

// maxUntakenKinds bounds how many kinds the subscriber remembers, since tenants
// choose the message types.
const maxUntakenKinds = 1000

type untakenKind struct {
	event       gateway.EventType
	messageType string
}

func messageTypeOf(event gateway.Event) string {
	switch e := event.(type) {
	case *gateway.MessageReceived:
		return e.MessageType
	case *gateway.FileReceived:
		return e.MessageType
	}
	return ""
}
