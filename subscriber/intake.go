package subscriber

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// intake accepts one decoded event of size bytes from the stream. It blocks while the in-flight
// window is full; nothing else applies back-pressure to the stream.
func (s *Subscriber) intake(ctx context.Context, event gateway.Event, size int64) {
	if s.fence.passed() {
		return
	}
	s.stats.received.Add(1)
	s.reportUnreadable(event)
	if s.observer != nil {
		s.observer.HandleEvent(event)
	}
	if s.cfg.Hooks.Event != nil {
		s.cfg.Hooks.Event(event)
	}
	now := time.Now()
	switch e := event.(type) {
	case *gateway.MessageReceived:
		s.stats.receivedBytes.Add(int64(len(e.Payload)))
		s.intakeMessage(ctx, now, e)
	case *gateway.FileReceived:
		s.stats.receivedBytes.Add(int64(len(e.Payload)))
		s.intakeFile(ctx, now, e)
	default:
		s.admit(ctx, now, &delivery{event: event, order: s.cfg.OrderKey(event), bytes: size})
	}
}

// reportUnreadable counts and logs what was left out of an event, in one line regardless of
// how much it is. The event itself carries all of it.
func (s *Subscriber) reportUnreadable(event gateway.Event) {
	var tenant string
	var left []*gateway.EntryError
	switch e := event.(type) {
	case *gateway.MessageReceived:
		tenant, left = e.TenantID, e.Unreadable
	case *gateway.FileReceived:
		tenant, left = e.TenantID, e.Unreadable
	case *gateway.EndpointsListChanged:
		tenant, left = e.TenantID, e.Unreadable
	case *gateway.AuthorizationAdded:
		tenant, left = e.Tenant.TenantID, e.Tenant.Unreadable
	}
	if len(left) > 0 {
		s.stats.unreadable.Add(int64(len(left)))
		s.logger.Error("Parts of an event are unreadable and were skipped", left[0], watermill.LogFields{
			"event_type": string(event.Type()), "tenant_id": tenant, "count": len(left), "endpoint_id": left[0].EndpointID,
		})
	}
}

func (s *Subscriber) intakeMessage(ctx context.Context, now time.Time, e *gateway.MessageReceived) {
	key := newMessageKey(e.ReceivingEndpointID, e.ID)
	family := newFamily(key, e.AppMessageID)
	if s.join(now, e, key, family) {
		return
	}
	if done, held := s.holdChunk(key, e); done {
		if held {
			s.progress(ProgressHeld, e, 0)
		}
		return
	}
	d := s.newMessageDelivery(key, e)
	d.family = family
	s.admit(ctx, now, d)
}

func (s *Subscriber) newMessageDelivery(key messageKey, e *gateway.MessageReceived) *delivery {
	d := &delivery{
		event: e, order: s.cfg.OrderKey(e), tenant: e.TenantID, tenantID: lower(e.TenantID), endpoint: e.ReceivingEndpointID,
		context: e.AppMessageID, bytes: int64(len(e.Payload)), whole: s.heldFor(e.MessageType),
	}
	d.key1[0] = key
	d.keys, d.entries = d.key1[:], d.entry1[:0]
	if e.Payload == nil {
		d.payload = newPayload(e.PayloadURI, -1)
	}
	return d
}

func (s *Subscriber) intakeFile(ctx context.Context, now time.Time, e *gateway.FileReceived) {
	keys := make([]messageKey, len(e.MessageIDs))
	for i, id := range e.MessageIDs {
		keys[i] = newMessageKey(e.ReceivingEndpointID, id)
	}
	file := newFileKey(keys)
	if s.joinFile(now, e, keys, file) {
		return
	}
	d := &delivery{
		event: e, order: s.cfg.OrderKey(e), tenant: e.TenantID, tenantID: lower(e.TenantID), endpoint: e.ReceivingEndpointID,
		keys: keys, messages: e.MessageIDs, file: file, bytes: int64(len(e.Payload)),
	}
	if e.Payload == nil {
		d.payload = newPayload(e.PayloadURI, e.Size)
	}
	s.progress(ProgressJoined, e, 0)
	s.admit(ctx, now, d)
}

// join recognizes a redelivered message: it is open, its confirmation is pending, or
// it was confirmed recently, in which case the confirmation is sent again. It reports
// whether the message needs no further processing.
func (s *Subscriber) join(now time.Time, e *gateway.MessageReceived, key messageKey, family family) bool {
	var entry entryRef
	s.mu.Lock()
	state := s.ledger.state(key, now)
	switch {
	case state == 0, state == stateLeft, state == stateOpen && !s.ledger.joins(key):
		s.ledger.families.add(family, key)
		s.mu.Unlock()
		return false
	case state == stateOpen:
		s.refreshed(key, e.PayloadURI)
		s.offerAgain(key)
	case state == stateConfirmed:
		entry = s.ledger.confirming(key)
	}
	s.mu.Unlock()
	s.stats.joined.Add(1)
	if state == stateConfirmed {
		s.confirmer.add(e.TenantID, confirmation{entry: entry, endpoint: e.ReceivingEndpointID, message: e.ID})
	}
	return true
}

// joinFile is join for files. A file whose messages have all been acked is
// confirmed again; one that is open is joined to the first copy.
func (s *Subscriber) joinFile(now time.Time, e *gateway.FileReceived, keys []messageKey, file fileKey) bool {
	s.mu.Lock()
	if _, open := s.ledger.files[file]; open && file != (fileKey{}) {
		s.refreshed(file.identity(), e.PayloadURI)
		s.offerAgain(file.identity())
		s.mu.Unlock()
		s.stats.joined.Add(1)
		return true
	}
	if !s.ledger.done.has(file, now) {
		s.mu.Unlock()
		return false
	}
	s.hold.absorb(keys)
	again := s.ledger.again(now, e, keys)
	s.mu.Unlock()
	s.stats.joined.Add(1)
	if len(again) > 0 {
		s.confirmer.add(e.TenantID, again...)
	}
	return true
}

// admit waits for room and then opens d for every subscription that accepts it. It
// reports whether d was opened; it is not if no subscription accepts it or ctx ended. d arrived now.
func (s *Subscriber) admit(ctx context.Context, now time.Time, d *delivery) bool {
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	tenant := d.tenant
	if tenant == "" && len(d.keys) > 0 {
		tenant = s.confirmer.tenantOf(d.endpoint)
	}
	s.mu.Lock()
	to := d.waits1[:0]
	for {
		if ctx.Err() != nil && !s.draining || d.held != nil && !s.hold.holds(d.held) {
			// Shutting down, or claimed by its file while it waited for room.
			s.mu.Unlock()
			return false
		}
		var taken bool
		if to, taken, d.left = s.recipients(d, to[:0]); !taken {
			s.mu.Unlock()
			s.untaken(event, messageType)
			if len(d.keys) > 0 {
				s.progress(ProgressUntaken, d.event, 0)
			}
			return false
		}
		if len(to) == 0 && d.left {
			s.left++
			s.leaveNew(d)
			s.mu.Unlock()
			s.stats.abandoned.Add(1)
			return false
		}
		if len(to) == 0 {
			closed := s.openAcked(now, d)
			s.mu.Unlock()
			if closed {
				s.release(now, d)
			}
			return true
		}
		if s.taking != takesAll && d.held == nil {
			if len(d.keys) > 0 {
				// It will be redelivered, behind those that were open before it.
				s.leaveNew(d)
				s.mu.Unlock()
				return false
			}
			break // it would not be redelivered, so admit it beyond the caps
		}
		if len(d.keys) > 0 && s.leavesUnconfirmed(now, d, tenant) {
			s.left++
			s.leaveNew(d)
			s.mu.Unlock()
			s.stats.abandoned.Add(1)
			return false
		}
		if s.hasRoom(d) || s.draining { // the last one that was read
			break
		}
		if s.windowFull(d) {
			inFlight := s.inFlight
			left := s.makeRoom(now)
			if len(left) > 0 {
				s.mu.Unlock()
				for _, d := range left {
					s.release(now, d)
				}
				s.mu.Lock()
			}
			moved := s.setApart(now)
			if s.apart.shutBad() {
				s.checkStalled()
				continue // d may be one of theirs
			}
			if moved || s.inFlight < inFlight {
				continue
			}
		}
		s.checkStalled()
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
			now = time.Now()
			s.mu.Lock()
			s.startHold()
			s.taking = max(s.taking, takesURIs)
			continue
		case <-freed:
			// Let others that are about to free room run first, so that several
			// events are admitted before this has to wait again.
			runtime.Gosched()
		case <-ctx.Done():
		}
		now = time.Now()
		s.mu.Lock()
		if d.held == nil {
			s.startHold()
		}
	}
	s.link(now, d)
	s.open(d)
	d.waits = to
	d.acked = append(d.acked1[:0], s.ledger.acked(d)...)
	if d.left {
		s.left++
		for _, sub := range s.subscriptions {
			if !sub.stopped && Takes(sub.topic, event, messageType) && !slices.Contains(to, sub) && !slices.Contains(d.acked, sub) {
				s.leftBy(d, sub)
			}
		}
	}
	for _, sub := range to {
		s.enqueue(sub, d)
	}
	if d.payload != nil {
		s.queueDownload(d)
	}
	s.mu.Unlock()
	return true
}

// openAcked opens d, which all who take it have acked. Either one that left it when it ended may
// come back, or it was its file that was left: then d is closed, and the caller must call release
// after unlocking s.mu. s.mu is held.
func (s *Subscriber) openAcked(now time.Time, d *delivery) (closed bool) {
	gaveUp := d.file != (fileKey{}) || s.ledger.gaveUp(d.keys[0])
	s.open(d)
	d.acked = append(d.acked1[:0], s.ledger.acked(d)...)
	if gaveUp {
		s.part(now, d)
		return false
	}
	s.conclude(now, d, verdictAcked)
	return true
}

// leaveNew leaves d, which was never opened, with the service, and what is held for it: all of it
// comes again. s.mu is held.
func (s *Subscriber) leaveNew(d *delivery) {
	if d.file != (fileKey{}) {
		s.hold.absorb(d.keys)
	}
	s.ledger.leaveNew(time.Now(), d)
}

// leavesUnconfirmed reports whether d, which arrives, is left with the service because of the
// confirmations of its tenant, which may be unknown. Whatever comes later for its key is left,
// too, until the next connection brings all of it again in order. s.mu is held.
func (s *Subscriber) leavesUnconfirmed(now time.Time, d *delivery, tenant string) bool {
	if s.leftKeys.has(d.order) {
		return true
	}
	left := s.confirmer.leave(now, tenant)
	if left && s.cfg.Order == OrderByKey {
		s.leftKeys.add(d.order)
	}
	return left
}

// takers counts the subscriptions that accept such an event. s.mu is held.
func (s *Subscriber) takers(event gateway.EventType, messageType string) int {
	n := 0
	for _, sub := range s.subscriptions {
		if !sub.stopped && Takes(sub.topic, event, messageType) {
			n++
		}
	}
	return n
}

// open opens d in the ledger; what was held for it is no longer. s.mu is held.
func (s *Subscriber) open(d *delivery) {
	s.ledger.open(d)
	if d.held != nil {
		s.hold.drop(d.held)
	}
	if d.file != (fileKey{}) {
		d.context = s.hold.absorb(d.keys)
	}
}

// recipients appends to list the subscriptions that get d: they accept it, and have not acked it
// before. taken reports whether any accepts it, left whether one of them takes nothing of its key now.
// s.mu is held.
func (s *Subscriber) recipients(d *delivery, list []*subscription) (to []*subscription, taken, left bool) {
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	acked := s.ledger.acked(d)
	for _, sub := range s.subscriptions {
		if sub.stopped || !Takes(sub.topic, event, messageType) {
			continue
		}
		taken = true
		switch {
		case slices.Contains(acked, sub):
		case !s.takes(sub, d):
			left = true
		default:
			list = append(list, sub)
		}
	}
	return list, taken, left
}

// hasRoom reports whether d fits into the in-flight window now. s.mu is held.
func (s *Subscriber) hasRoom(d *delivery) bool {
	if s.confirmer.full() {
		return false
	}
	return !s.windowFull(d)
}

// windowFull reports whether the window has no room for d. A delivery larger than the cap
// must be able to pass alone. s.mu is held.
func (s *Subscriber) windowFull(d *delivery) bool {
	return s.inFlight > 0 && (s.inFlight >= s.cfg.MaxInFlight || s.bytes+d.bytes > s.cfg.MaxInFlightBytes)
}

// link appends d to the open deliveries. s.mu is held.
func (s *Subscriber) link(now time.Time, d *delivery) {
	d.arrived, d.since = now, now
	s.linkAfter(s.last, d)
}

// linkAfter inserts d behind prev, or as the first one if that is nil. s.mu is held.
func (s *Subscriber) linkAfter(prev, d *delivery) {
	d.linked = true
	s.inFlight++
	s.bytes += d.bytes
	d.prev, d.next = prev, s.first
	if prev != nil {
		d.next = prev.next
		prev.next = d
	} else {
		s.first = d
	}
	if d.next != nil {
		d.next.prev = d
	} else {
		s.last = d
	}
}

// unlink removes d from the open deliveries. s.mu is held.
func (s *Subscriber) unlink(d *delivery) {
	d.linked = false
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

// finish records what d came to for sub and reports whether that was the last one, in which
// case the caller must call release after unlocking s.mu. s.mu is held.
func (s *Subscriber) finish(now time.Time, sub *subscription, d *delivery, outcome msgctx.Outcome) (last bool) {
	d.aside = d.aside || outcome == msgctx.SetAside
	if !d.finish(sub, outcome == msgctx.Acked, outcome == msgctx.Left && sub.ending()) {
		if outcome != msgctx.Acked && !sub.ending() {
			s.leftBy(d, sub)
		}
		s.relink(d)
		return false
	}
	if d.left {
		delete(s.partly, d.identity())
	}
	if d.apart {
		s.apart.remove(d)
	} else {
		s.unlink(d)
	}
	if d.payload != nil {
		s.forgetPayload(d)
	}
	v := d.verdict()
	if v == verdictParted && !s.closed {
		s.part(now, d)
		return false
	}
	s.conclude(now, d, v)
	return true
}

// part keeps d, which nobody has any longer, until what was left of it is clear. s.mu is held.
func (s *Subscriber) part(now time.Time, d *delivery) {
	d.large = s.isLarge(d)
	if d.payload != nil {
		d.payload.release()
	}
	s.ledger.part(now, d)
	s.scheduleLedger(now)
}

// conclude closes d, which nobody has any longer. The caller must call release after unlocking
// s.mu. s.mu is held.
func (s *Subscriber) conclude(now time.Time, d *delivery, v verdict) {
	if v != verdictAcked {
		d.acked = slices.DeleteFunc(d.acked, func(sub *subscription) bool { return sub.stopped })
	}
	s.ledger.close(now, d, v, v == verdictAcked && s.maybeChunk(d))
	s.scheduleLedger(now)
	s.requestUnasked(now)
	s.confirmer.expect(len(d.confirm))
	if d.file != (fileKey{}) {
		s.stats.inFiles.Add(int64(len(d.confirm)))
	}
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	switch {
	case v == verdictAcked:
		s.ackedKinds.count(event, messageType)
		for i, sub := range d.acked {
			if sub.stopped && !slices.ContainsFunc(d.acked[:i], func(other *subscription) bool { return other.stopped && other.topic == sub.topic }) {
				s.ackedBefore[sub.topic]++
			}
		}
	default:
		if !d.aside {
			s.stats.abandoned.Add(1)
		}
		s.leftKinds.count(event, messageType)
		if d.parted && !d.left && !s.closed && s.takers(event, messageType) > 0 {
			s.requestLeft(now, false) // a subscription that was made in the meantime takes it
		}
	}
}

// maybeChunk reports whether d may be a chunk of a file that somebody takes: it is large, or
// others have its context ID. s.mu is held.
func (s *Subscriber) maybeChunk(d *delivery) bool {
	e, ok := d.event.(*gateway.MessageReceived)
	if !ok || d.held != nil && !d.held.whole { // it has waited for its file already
		return false
	}
	if !d.large && !s.isLarge(d) && !s.ledger.families.several(d.family) {
		return false
	}
	if len(s.cfg.EventTypes) > 0 && !slices.Contains(s.cfg.EventTypes, gateway.EventFileReceived) {
		return false
	}
	return s.takers(gateway.EventFileReceived, e.MessageType) > 0
}

// isLarge reports whether the payload of d may be as large as a chunk.
func (s *Subscriber) isLarge(d *delivery) bool {
	e, ok := d.event.(*gateway.MessageReceived)
	if !ok {
		return false
	}
	size := int64(len(e.Payload))
	if d.payload != nil {
		size = max(d.payload.size, d.payload.opened.Load()-1)
	}
	return size < 0 || size >= int64(s.cfg.ChunkSize)
}

// release does the work due outside the lock after a delivery was closed.
func (s *Subscriber) release(now time.Time, d *delivery) {
	if d.payload != nil {
		d.payload.release()
	}
	if len(d.confirm) > 0 {
		s.confirmer.addExpected(now, d.tenant, d.tenantID, d.confirm...)
	}
}

// reclaim leaves with the service what a subscription left when it ended and a new one to topic
// takes, before the acks of the others confirm it. s.mu is held.
func (s *Subscriber) reclaim(topic string) {
	now := time.Now()
	for _, d := range s.ledger.unpart(func(d *delivery) bool { return Takes(topic, d.event.Type(), messageTypeOf(d.event)) }) {
		s.conclude(now, d, verdictLeft)
	}
}

// scheduleLedger sets the timer of what waits in the ledger. s.mu is held.
func (s *Subscriber) scheduleLedger(now time.Time) {
	at := s.ledger.wake(now)
	switch {
	case at.IsZero():
	case s.ledgerTimer == nil:
		s.ledgerTimer = time.AfterFunc(at.Sub(now), s.pumpLedger)
	default:
		s.ledgerTimer.Reset(at.Sub(now))
	}
}

// pumpLedger confirms what has waited in the ledger for its time.
func (s *Subscriber) pumpLedger() {
	s.mu.Lock()
	if s.closed { // what waits is not confirmed
		s.mu.Unlock()
		return
	}
	now := time.Now()
	parted := s.ledger.unpart(func(d *delivery) bool { return now.Sub(d.arrived) >= partGrace })
	for _, d := range parted {
		v := verdictLeft
		if slices.ContainsFunc(d.acked, func(sub *subscription) bool { return !sub.stopped && !sub.over() }) {
			v = verdictAcked
		}
		s.conclude(now, d, v)
	}
	tenant, items := s.ledger.due(now)
	s.confirmer.expect(len(items))
	s.scheduleLedger(now)
	s.requestUnasked(now)
	s.mu.Unlock()
	for _, d := range parted {
		s.release(now, d)
	}
	if len(items) > 0 {
		s.confirmer.addExpected(now, tenant, lower(tenant), items...)
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
	return s.untakenKinds.count(event, messageType)
}

// maxUntakenKinds bounds how many kinds the subscriber remembers, since tenants
// choose the message types.
const maxUntakenKinds = 1000

type untakenKind struct {
	event       gateway.EventType
	messageType string
}

// kindCounts counts events by kind. Beyond maxUntakenKinds, those of a type count together.
type kindCounts map[untakenKind]int

func (c kindCounts) count(event gateway.EventType, messageType string) int {
	kind := untakenKind{event, messageType}
	if _, known := c[kind]; !known && len(c) >= maxUntakenKinds {
		kind = untakenKind{event, ""}
	}
	c[kind]++
	return c[kind]
}

// take forgets the kinds for topic and reports whether there were any, and how many events do not come again.
func (c kindCounts) take(topic string) (some bool, gone int) {
	for kind, n := range c {
		data := Takes(AllData, kind.event, "")
		if Takes(topic, kind.event, kind.messageType) || data && kind.messageType == "" {
			delete(c, kind)
			some = true
			if !data {
				gone += n
			}
		}
	}
	return some, gone
}

// of counts the events for topic.
func (c kindCounts) of(topic string) (n int) {
	for kind, count := range c {
		if Takes(topic, kind.event, kind.messageType) {
			n += count
		}
	}
	return n
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
