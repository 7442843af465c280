package subscriber

import (
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// finishExpired has it, whose handler found that its payload can no longer be downloaded, delivered again once there is a
// fresh URI. It keeps its place in its order. When none comes, it is given up, and its event is returned. s.mu is held.
func (s *Subscriber) finishExpired(it *core.Item) (next *core.Item, unserved gateway.Event) {
	d := ownerOf(it.Message)
	now := time.Now()
	since, waited := s.payloads.stale[d]
	it.Kept = nil
	switch {
	case !d.payload.expired.Load(): // it came in the meantime
		return s.core.Done(s.now(), it, core.Nacked, 0), nil
	case waited && now.Sub(since) >= s.payloads.downloads.giveUpAfter():
		delete(s.payloads.stale, d)
		event := d.event
		return s.core.Done(s.now(), it, core.Left, 0), event
	case !waited:
		s.payloads.stale[d] = now
	}
	s.loop.connection.wantFresh(now)
	s.pumpConnection(now)
	return s.core.Done(s.now(), it, core.Nacked, s.payloads.downloads.giveUpAfter()), nil
}

// expired records that the payload URI of an event has expired.
func (s *Subscriber) expired(event gateway.Event) {
	s.stats.expired.Add(1)
	s.logger.Info("payload can no longer be downloaded; requesting redelivery of its message", eventFields(event))
}

// unserved records that a message was not redelivered. One that the service has withdrawn never is.
func (s *Subscriber) unserved(event gateway.Event) {
	s.logger.Info("message was not redelivered with a fresh payload URI; it stays unconfirmed", eventFields(event))
}

// refreshed takes the payload of d, which came again, or its URI, for the delivery that is open. s.mu is held.
func (s *Subscriber) refreshed(d *delivery) {
	now := s.now()
	m := s.core.Open(now, &d.Message)
	if m == nil || m == &d.Message {
		return
	}
	open, uri := ownerOf(m), ""
	p := open.payload
	_, waits := s.payloads.stale[open]
	switch {
	case p == nil || p.embedded.Load() != nil:
		return
	case d.payload != nil:
		if uri = *d.payload.uri.Load(); uri == "" {
			return
		}
	case p.download == nil && !waits, !s.core.Fits(now, m, d.Bytes):
		return
	default:
		data := embedded(d.event)
		p.embedded.Store(&data)
		s.core.Grow(m, d.Bytes)
	}
	p.uri.Store(&uri)
	p.expired.Store(false)
	if p.download != nil {
		s.payloads.downloads.refreshed(time.Now(), p.download)
		if d.payload == nil && !p.download.place.Queued() {
			p.download.abandon() // it may hang
		}
		s.pumpDownloads()
	}
	if waits {
		delete(s.payloads.stale, open)
		s.core.HastenAll(now, m)
	}
}

// maxGone bounds how many messages are remembered whose payloads were gone.
const maxGone = 1000

// goneMessages are messages that were set aside because their payloads were gone. When one
// is redelivered, its payload gets one attempt, and asks for no reconnect.
type goneMessages struct {
	known *simplelru.LRU[core.ID, struct{}]
	hosts map[string]struct{} // that served nothing meanwhile: perhaps it is they that fail
}

// gone sets d aside: its payload is gone, however often its message is redelivered. j was its download.
func (s *Subscriber) gone(d *delivery, j *download) {
	s.stats.setAside.Add(1)
	s.mu.Lock()
	gone := s.payloads.gone
	isNew := !gone.known.Contains(d.identity())
	gone.known.Add(d.identity(), struct{}{})
	if isNew && !j.host.served.After(j.uriAt) && len(gone.hosts) < maxGone {
		gone.hosts[j.host.name] = struct{}{}
	}
	s.mu.Unlock()
	if isNew {
		s.undeliverable(j.event, ErrPayloadGone)
	}
	if s.quarantine != nil {
		s.quarantineEvent(s.ctx, s.newGone(d, j), true) // also again: it may have been left
	}
}

// newGone makes the notice of a message whose payload is gone.
func (s *Subscriber) newGone(d *delivery, j *download) *quarantined {
	id := d.identity()
	return &quarantined{
		digest: digestOf(QuarantinePayloadGone, j.event.Type(), id[:]), class: QuarantinePayloadGone, reason: ErrPayloadGone.Error(),
		event: string(j.event.Type()), received: s.clock.time(d.arrived), endpoint: d.endpoint, tenant: d.tenant, messages: d.messages,
	}
}
