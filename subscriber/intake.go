package subscriber

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// intake accepts one decoded event of size bytes from the stream. It blocks while the window is full; nothing
// else applies back-pressure to the stream.
func (s *Subscriber) intake(ctx context.Context, event gateway.Event, size int64) {
	if s.ctx.Err() != nil {
		return
	}
	s.stats.received.Add(1)
	s.reportUnreadable(event)
	if d, ok := s.cfg.Tenants.(directory); ok {
		d.HandleEvent(event)
	}
	if s.cfg.Hooks.Event != nil {
		s.cfg.Hooks.Event(event)
	}
	d := s.newDelivery(event, size)
	if len(d.IDs) > 0 {
		s.stats.receivedBytes.Add(d.Bytes)
	}
	s.offer(ctx, d)
}

// offer gives d to the core, once there is room for it, or until ctx ends.
func (s *Subscriber) offer(ctx context.Context, d *delivery) core.Taken {
	event := d.event
	for {
		taken, room := s.take(ctx, d)
		if taken != core.Full {
			s.report(d, event, taken)
			return taken
		}
		select {
		case <-room:
			// Let others that are about to free room run first, so that several events are taken before this has
			// to wait again.
			runtime.Gosched()
		case <-ctx.Done():
			return core.Full
		}
	}
}

// take gives d to the core. If there is no room, it returns a channel that is closed when there may be, or when there is
// no need for it any longer.
func (s *Subscriber) take(ctx context.Context, d *delivery) (taken core.Taken, room <-chan struct{}) {
	s.mu.Lock()
	defer s.unlock()
	// What is being read when Drain ends the stream is taken like what was read before. When the subscriptions have ended,
	// it would overtake what they have left.
	if s.loop.recalled || ctx.Err() != nil && !s.loop.draining {
		if len(d.IDs) > 0 {
			return core.LeftWithService, nil // it comes again
		}
		d.Last = true
	}
	if d.record() != nil && !s.openQuarantine() {
		return core.LeftWithService, nil
	}
	now := s.now()
	taken = s.core.Take(now, &d.Message)
	switch taken {
	case core.Full:
		return taken, s.freed.Next()
	case core.Opened:
		if d.payload != nil && (len(d.IDs) == 0 || s.core.Open(now, &d.Message) == &d.Message) { // nothing joins what has no ID
			s.queueDownload(d)
		}
	case core.Joined:
		s.stats.joined.Add(1)
	}
	if d.payload != nil || taken == core.Joined {
		s.refreshed(d)
	}
	return taken, nil
}

// report tells what became of d.
func (s *Subscriber) report(d *delivery, event gateway.Event, taken core.Taken) {
	switch taken {
	case core.Opened:
		if d.File != nil {
			s.progress(ProgressJoined, event, 0)
		}
	case core.Held:
		s.stats.held.Add(1)
		s.progress(ProgressHeld, event, 0)
	case core.LeftWithService:
		s.stats.abandoned.Add(1)
	case core.Untaken:
		s.untaken(d)
	}
}

// unlock carries out the effects of what the core was told, and unlocks s.mu.
func (s *Subscriber) unlock() {
	e := s.core.Effects()
	for _, it := range e.Start {
		it.Lane.Route.Owner.(*subscription).pool.Push(it)
	}
	var unclaimed []gateway.Event
	for _, m := range e.Closed {
		s.closeDelivery(ownerOf(m))
	}
	s.confirm(e.Closed, e.Confirm)
	for _, m := range e.Unclaimed {
		d := ownerOf(m)
		if d.payload != nil {
			s.queueDownload(d)
		}
		unclaimed = append(unclaimed, d.event)
	}
	due := slices.Clone(e.Due)
	s.stats.unmatched.Add(e.Unmatched)
	s.stats.released.Add(e.Released)
	s.stats.overtaken.Add(e.Overtaken)
	if e.Room {
		s.freed.Raise()
	}
	if e.Reconnect {
		s.recall()
	}
	e.Reset()
	if s.ctx.Err() == nil {
		s.wakeBy(s.core.NextWake())
	}
	s.mu.Unlock()
	for _, event := range unclaimed {
		s.progress(ProgressUnclaimed, event, 0)
	}
	if len(due) > 0 {
		s.askSynced(due)
	}
}

// closeDelivery records that nobody has d any longer. s.mu is held.
func (s *Subscriber) closeDelivery(d *delivery) {
	if d.payload != nil {
		s.forgetPayload(d)
	}
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	if d.File != nil {
		s.stats.inFiles.Add(int64(len(d.Confirm)))
	}
	switch {
	case d.Settled() && d.record() == nil:
		s.seen.acked.count(event, messageType)
		s.ackedByEnded(d)
	case !d.Settled() && !d.Aside:
		s.stats.abandoned.Add(1)
	}
	if !d.givenUp && d.record() == nil {
		d.event = nil // nobody needs the payload any longer
	}
}

// confirm queues what is to be confirmed of messages. s.mu is held.
func (s *Subscriber) confirm(lists ...[]*core.Message) {
	var now time.Time
	pump := false
	for _, messages := range lists {
		for _, m := range messages {
			d := ownerOf(m)
			for _, c := range s.toConfirm(d) {
				if now.IsZero() {
					now = time.Now()
				}
				pump = s.confirmer.add(now, d.tenant, confirmation{c, d.endpoint, d.messages[c.Index]}) || pump
			}
		}
	}
	if pump {
		s.confirmer.pump(now)
	}
}

// clock is that of the core, with the one timer of a Subscriber.
type clock struct {
	began time.Time // the zero of its times
	timer *time.Timer
	alarm time.Duration // when that goes off; zero for never
}

// time returns when it is at by the clock of others.
func (c *clock) time(at time.Duration) time.Time { return c.began.Add(at) }

// wakeBy has wake called then, or earlier; zero for never. s.mu is held.
func (s *Subscriber) wakeBy(at time.Duration) {
	c := &s.clock
	if at == 0 || c.alarm != 0 && c.alarm <= at || s.confirmer.ctx.Err() != nil {
		return
	}
	c.alarm = at
	wait := at - s.now()
	if c.timer == nil {
		c.timer = time.AfterFunc(wait, s.wake)
	} else {
		c.timer.Reset(wait)
	}
}

// wakeAt is wakeBy for a time of the clock; zero for never.
func (s *Subscriber) wakeAt(at time.Time) {
	if !at.IsZero() {
		s.wakeBy(max(1, at.Sub(s.clock.began)))
	}
}

// wake does what is due.
func (s *Subscriber) wake() {
	s.mu.Lock()
	defer s.unlock()
	s.clock.alarm = 0
	s.confirmer.pump(time.Now())
	if s.ctx.Err() != nil { // only what is acked is still confirmed
		return
	}
	s.core.Wake(s.now())
	s.pumpConnection(time.Now())
	s.pumpDownloads()
	s.startRun()
}

// now is the time of the core.
func (s *Subscriber) now() time.Duration { return time.Since(s.clock.began) }

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
		tenant, left = e.Tenant.ID, e.Tenant.Unreadable
	}
	if len(left) > 0 {
		s.stats.unreadable.Add(int64(len(left)))
		s.logger.Error("parts of an event are unreadable and were skipped", left[0], watermill.LogFields{
			"event_type": string(event.Type()), "tenant_id": tenant, "count": len(left), "endpoint_id": left[0].EndpointID,
		})
	}
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
