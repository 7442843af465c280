package subscriber

import "time"

// skipAfter is how long a message waits for room that can only be freed by
// deliveries waiting for fresh payload URIs. Those URIs may be behind it on the
// stream, so after that time it and everything after it on this connection is
// skipped, and requested again later.
const skipAfter = 5 * time.Second

// taking is what is taken from a connection. It only grows until the next connection.
type taking int

const (
	takesAll     taking = iota
	takesURIs           // messages are skipped, but their fresh payload URIs are taken
	takesNothing        // the connection was given up
)

// endSkipping requests what was skipped. s.mu is held.
func (s *Subscriber) endSkipping() {
	if s.taking == takesURIs {
		s.recallLocked()
	}
}

// waitsForFresh reports whether anything open waits for a fresh payload URI. s.mu is held.
func (s *Subscriber) waitsForFresh() bool { return s.freshWaits > 0 || s.downloads.stale > 0 }

// requestFresh asks for fresh payload URIs, which come with a redelivery, and that takes a
// reconnect. One reconnect serves everything that waits for one, now and until the next: it
// happens at once, but at most once in Payload.RefreshEvery. s.mu is held.
func (s *Subscriber) requestFresh(now time.Time) {
	s.connection.wantFresh(now)
	s.pumpConnection(now)
}

// refresh waits until d has been redelivered with a fresh payload URI and reports
// whether it was. d stays open meanwhile, so that it keeps its place in its
// order. refresh returns early if the delivery ends or stop is closed.
func (s *Subscriber) refresh(d *delivery, stop <-chan struct{}) bool {
	s.expired(d)
	fresh := d.payload.fresh.Next()
	if !d.payload.expired.Load() {
		return true // it came in the meantime
	}
	s.mu.Lock()
	s.freshWaits++
	s.requestFresh(time.Now())
	s.mu.Unlock()

	came := false
	timer := time.NewTimer(s.downloads.giveUpAfter)
	defer timer.Stop()
	select {
	case <-fresh:
		came = true
	case <-d.payload.ctx.Done():
	case <-stop:
	case <-timer.C:
		s.unserved(d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freshWaits--
	if !s.waitsForFresh() {
		s.endSkipping()
	}
	return came
}

// expired records that the payload URI of d has expired.
func (s *Subscriber) expired(d *delivery) {
	s.stats.expired.Add(1)
	s.logger.Info("Payload can no longer be downloaded; requesting redelivery of its message", eventFields(d.event))
}

// unserved records that d was not redelivered. A message that the service has withdrawn
// never is.
func (s *Subscriber) unserved(d *delivery) {
	s.logger.Info("Message was not redelivered with a fresh payload URI; it stays unconfirmed", eventFields(d.event))
}

// refreshed stores the payload URI of a redelivered message, for current and later
// downloads. s.mu is held.
func (s *Subscriber) refreshed(id messageKey, uri string) {
	d := s.payloads[id]
	if uri == "" || d == nil {
		return
	}
	p := d.payload
	p.uri.Store(&uri)
	p.expired.Store(false)
	p.fresh.Raise()
	if p.download != nil {
		s.downloads.refreshed(time.Now(), p.download)
		s.pumpDownloads()
	}
	if !s.waitsForFresh() {
		s.endSkipping()
	}
}

// identity identifies the event of d among the open ones.
func (d *delivery) identity() messageKey {
	if d.file != (fileKey{}) {
		return d.file.identity()
	}
	return d.key1[0]
}

// identity widens a file's key. The second half is zero, which it never is for a
// message.
func (f fileKey) identity() messageKey {
	var id messageKey
	copy(id[:], f[:])
	return id
}

// maxGone bounds how many messages are remembered whose payloads were gone.
const maxGone = 1000

// goneMessages are messages that were set aside because their payloads were gone. When one
// is redelivered, its payload gets one attempt, and asks for no reconnect.
type goneMessages struct {
	known  map[messageKey]struct{}
	recent []messageKey
	head   int
	hosts  map[string]struct{} // that served nothing meanwhile: perhaps it is they that fail
}

// fails records a host of which nothing came while a payload was found gone.
func (g *goneMessages) fails(host string) {
	if g.hosts == nil {
		g.hosts = make(map[string]struct{})
	}
	if len(g.hosts) < maxGone {
		g.hosts[host] = struct{}{}
	}
}

// served is called when a host has served a payload. It reports whether some of its payloads were found gone
// while it served nothing: they are worth another attempt.
func (g *goneMessages) served(host string) (again bool) {
	_, again = g.hosts[host]
	delete(g.hosts, host)
	return again
}

func (g *goneMessages) add(id messageKey) (isNew bool) {
	if _, known := g.known[id]; known {
		return false
	}
	if g.known == nil {
		g.known = make(map[messageKey]struct{})
	}
	g.known[id] = struct{}{}
	if len(g.recent) < maxGone {
		g.recent = append(g.recent, id)
		return true
	}
	delete(g.known, g.recent[g.head])
	g.recent[g.head] = id
	g.head = (g.head + 1) % maxGone
	return true
}

func (g *goneMessages) has(id messageKey) bool {
	_, known := g.known[id]
	return known
}

// gone sets d aside: its payload is gone, however often its message is redelivered. j was its download.
func (s *Subscriber) gone(d *delivery, j *download) {
	s.stats.setAside.Add(1)
	s.mu.Lock()
	isNew := s.goneMessages.add(d.identity())
	if isNew && !j.host.served.After(j.uriAt) {
		s.goneMessages.fails(j.host.name)
	}
	s.mu.Unlock()
	if isNew {
		s.undeliverable(d.event, ErrPayloadGone)
	}
	if s.quarantine != nil {
		s.quarantine.take(s.ctx, newGone(d)) // also again: there may have been too many
	}
}

// newGone makes the notice of a message whose payload is gone.
func newGone(d *delivery) *quarantined {
	id := d.identity()
	return &quarantined{
		digest: digestOf(QuarantinePayloadGone, d.event.Type(), id[:]), class: QuarantinePayloadGone, reason: ErrPayloadGone.Error(),
		event: string(d.event.Type()), received: d.arrived, endpoint: d.endpoint, tenant: d.tenant, messages: d.messageIDs(),
	}
}
