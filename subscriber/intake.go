package subscriber

import (
	"context"
	"runtime"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
)

// intake takes one decoded event from the stream. It blocks while the caps of
// what is open are reached; that, and nothing else, holds the stream back.
func (s *Subscriber) intake(ctx context.Context, event gateway.Event) {
	s.stats.received.Add(1)
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

// join recognises a message that comes again: it is open already, or its
// confirmation is on its way, or was sent a short while ago, and is then sent
// again. It reports whether there is nothing more to do.
func (s *Subscriber) join(e *gateway.MessageReceived, key messageKey) bool {
	var entry entryRef
	s.mu.Lock()
	state := s.table.state(key)
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

// joinFile is join for a file. A file whose messages have all been acked is
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
		if state := s.table.state(key); state == stateOpen || state == stateConfirming {
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

// admit opens d for every subscription that takes it, after waiting for room.
// It reports whether d was opened: not when nobody takes it, or ctx ended.
func (s *Subscriber) admit(ctx context.Context, d *delivery) bool {
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	s.mu.Lock()
	for {
		if ctx.Err() != nil || d.held != nil && !s.hold.holds(d.held) {
			// Over, or claimed by its file while it waited for room.
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
				// It comes again, behind those that were open before it.
				s.mu.Unlock()
				return false
			}
			break // it would not come again, so it is let in beyond the caps
		}
		if _, evicted := s.evictedKeys[d.order]; evicted && len(d.keys) > 0 {
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
		if len(s.refreshing) > 0 && d.held == nil && len(d.keys) > 0 {
			stuck = time.After(skipAfter)
		}
		s.mu.Unlock()
		select {
		case <-stuck:
			s.mu.Lock()
			s.skipping = true
			continue
		case <-freed:
			// Others that are about to make room go first, so that several events
			// are taken in before this has to wait again.
			runtime.Gosched()
		case <-ctx.Done():
		}
		s.mu.Lock()
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
	fetch := d.payload != nil && s.queueFetch(d)
	s.mu.Unlock()
	if fetch {
		s.startFetch()
	}
	return true
}

// takers counts the subscriptions that take such an event. s.mu is held.
func (s *Subscriber) takers(event gateway.EventType, messageType string) int {
	n := 0
	for _, sub := range s.subscriptions {
		if !sub.stopped && topicTakes(sub.topic, event, messageType) {
			n++
		}
	}
	return n
}

// hasRoom reports whether d may be opened now. s.mu is held.
func (s *Subscriber) hasRoom(d *delivery) bool {
	if s.confirmer.full() {
		return false
	}
	if s.inFlight == 0 {
		// One that is larger than the cap has to pass alone.
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

// waitRoom returns a channel that is closed when there may be room again. s.mu
// is held.
func (s *Subscriber) waitRoom() <-chan struct{} {
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	return s.freed
}

// wakeRoom wakes everybody who waits for room. s.mu is held.
func (s *Subscriber) wakeRoom() {
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// settle records the end of d for one subscription and reports whether it was
// the last one. d is closed then, and release has to be called after s.mu was
// unlocked. s.mu is held.
func (s *Subscriber) settle(d *delivery, acked bool) (last bool) {
	d.abandoned = d.abandoned || !acked
	d.open--
	if d.open > 0 {
		return false
	}
	s.unlink(d)
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

// release does what has to be done outside the lock when a delivery is closed.
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

// untaken records an event that no subscription takes. It stays unconfirmed,
// and is told once for each type.
func (s *Subscriber) untaken(event gateway.EventType, messageType string) {
	s.stats.untaken.Add(1)
	if s.untakenCount(event, messageType) == 1 {
		s.logger.Info("Nobody subscribes to this kind of event; it stays unconfirmed", watermill.LogFields{
			"event_type": string(event), "message_type": messageType,
		})
	}
}

// untakenCount remembers that the service has unconfirmed events of a kind, so
// that a later subscription to it makes them come again.
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

// maxUntakenKinds bounds what a hostile or merely lively tenant can make the
// subscriber remember.
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
