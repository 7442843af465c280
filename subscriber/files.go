package subscriber

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// fileHold keeps messages until the file they are a chunk of arrives. It is
// guarded by Subscriber.mu.
//
// A held message is unconfirmed, so dropping it loses nothing: either its file
// confirms it, or it is redelivered.
type fileHold struct {
	chunks   map[messageKey]*chunk
	families map[familyKey]int // number of held messages per family
	bytes    int64
	// deadlines is a heap; it may still contain chunks that are no longer held.
	deadlines deadlines
	running   bool          // the loop that ends holds is running
	changed   chan struct{} // signals the loop that the earliest deadline has changed
	over      bool          // there were more than can be held, which were left with the service
}

// maxIdentities is of how many times Config.MaxHeld messages the hold keeps the identity.
const maxIdentities = 10

// chunk is one held message.
type chunk struct {
	key    messageKey
	event  *gateway.MessageReceived // nil if only its identity is kept
	family familyKey
	start  time.Time
	until  time.Time
	whole  bool // probably not a chunk: held for the shorter time
}

// familyKey is what the chunks of one payload have in common.
type familyKey struct{ endpoint, context string }

type deadlines []*chunk

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].until.Before(d[j].until) }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(*chunk)) }
func (d *deadlines) Pop() any {
	old := *d
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return last
}

func newFileHold() *fileHold {
	return &fileHold{
		chunks: make(map[messageKey]*chunk), families: make(map[familyKey]int), changed: make(chan struct{}, 1),
	}
}

// holds reports whether c is still held.
func (h *fileHold) holds(c *chunk) bool { return h.chunks[c.key] == c }

func (h *fileHold) add(c *chunk) {
	h.chunks[c.key] = c
	h.families[c.family]++
	if c.event != nil {
		h.bytes += int64(len(c.event.Payload))
	}
	heap.Push(&h.deadlines, c)
}

// drop removes c. Its deadline stays in the heap and is skipped later, unless there are many of
// those.
func (h *fileHold) drop(c *chunk) {
	delete(h.chunks, c.key)
	if c.event != nil {
		h.bytes -= int64(len(c.event.Payload))
		c.event = nil // its deadline keeps c
	}
	if h.families[c.family]--; h.families[c.family] == 0 {
		delete(h.families, c.family)
	}
	if len(h.deadlines) > 2*len(h.chunks)+64 {
		h.deadlines = slices.DeleteFunc(h.deadlines, func(c *chunk) bool { return !h.holds(c) })
		heap.Init(&h.deadlines)
	}
}

// absorb drops the chunks of a file and returns the sender's ID of the payload if
// one of them carried it.
func (h *fileHold) absorb(keys []messageKey) (contextID string) {
	for _, key := range keys {
		if c := h.chunks[key]; c != nil {
			contextID = c.family.context
			h.drop(c)
		}
	}
	return contextID
}

// expired returns the messages that are still held past their deadline, and the next
// deadline; zero if nothing else is held.
func (h *fileHold) expired(now time.Time, fileHold time.Duration) (over []*chunk, next time.Time) {
	for len(h.deadlines) > 0 {
		c := h.deadlines[0]
		if h.holds(c) && c.until.After(now) {
			return over, c.until
		}
		heap.Pop(&h.deadlines)
		if !h.holds(c) {
			continue
		}
		if c.whole && h.families[c.family] > 1 {
			// Others of its payload have arrived: it is a chunk after all.
			c.whole = false
			c.until = c.start.Add(fileHold)
			heap.Push(&h.deadlines, c)
			continue
		}
		over = append(over, c)
	}
	return over, time.Time{}
}

// heldFor reports whether messages of a type are held back for their files, which are delivered in
// their place.
func (s *Subscriber) heldFor(messageType string) bool {
	return s.cfg.FileHold >= 0 && s.fileTypes[messageType]
}

// holdChunk holds a message back if its type is handled as files. done reports that the message needs
// nothing more for now, held that it is held, and not left with the service because there are too many.
func (s *Subscriber) holdChunk(key messageKey, e *gateway.MessageReceived) (done, held bool) {
	if !s.heldFor(e.MessageType) {
		return false, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.gaveUp(key) {
		return false, false // no file confirms it, so who had it without its file gets it again
	}
	if s.closed || s.takers(e.Type(), e.MessageType) == 0 && s.takers(gateway.EventFileReceived, e.MessageType) == 0 {
		return false, false // admit reports that no subscription accepts it
	}
	h := s.hold
	if c := h.chunks[key]; c != nil {
		// It was redelivered, perhaps with a fresher URI.
		if c.event != nil {
			h.bytes += int64(len(e.Payload)) - int64(len(c.event.Payload))
			c.event = e
		}
		s.stats.joined.Add(1)
		return true, false
	}
	if len(h.chunks) >= maxIdentities*s.cfg.MaxHeld {
		h.over = true
		return true, false
	}
	now := s.holdClock.now(time.Now())
	c := &chunk{key: key, family: familyKey{lower(e.ReceivingEndpointID), familyContext(e.AppMessageID)}, start: now, until: now.Add(s.cfg.FileHold)}
	if len(e.Payload) < s.cfg.ChunkSize && h.families[c.family] == 0 {
		// Of a payload elsewhere nobody knows the size yet: most are no chunks, and chunks come together.
		c.whole = true
		c.until = now.Add(min(s.cfg.WholeFileHold, s.cfg.FileHold))
	}
	if len(h.chunks) < s.cfg.MaxHeld && h.bytes+int64(len(e.Payload)) <= s.cfg.MaxInFlightBytes {
		c.event = e
	}
	h.add(c)
	s.stats.held.Add(1)
	if !h.running {
		h.running = true
		// Ends when nothing is held, or with s.ctx.
		s.wg.Go(func() { s.runHold(s.ctx) })
	} else if h.deadlines[0] == c {
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}
	return true, true
}

// runHold delivers held messages that no file has claimed in time. It ends when
// nothing is held anymore, or with the intake.
func (s *Subscriber) runHold(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.hold.changed:
		}
		s.mu.Lock()
		if s.closed || s.draining { // it stays held, and is counted as that
			s.mu.Unlock()
			return
		}
		now := s.holdClock.now(time.Now())
		over, next := s.hold.expired(now, s.cfg.FileHold)
		stopped := s.holdClock.stopped()
		if len(over) == 0 && next.IsZero() {
			s.hold.running = false
			if s.hold.over { // what could not be held comes again
				s.hold.over = false
				s.recallLocked()
			}
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.deliverUnclaimed(ctx, over)
		switch {
		case next.IsZero():
			timer.Reset(0) // check whether more has arrived
		case stopped:
			timer.Stop() // until intake goes on
		default:
			timer.Reset(next.Sub(now))
		}
	}
}

// holdClock is the clock of what waits for files. It stops while intake waits for room: the file
// may be the next event on the stream.
type holdClock struct {
	since   time.Time // when it was stopped; zero while it runs
	skipped time.Duration
}

func (c *holdClock) stopped() bool { return !c.since.IsZero() }

func (c *holdClock) stop(now time.Time) {
	if !c.stopped() {
		c.since = now
	}
}

func (c *holdClock) start(now time.Time) {
	if c.stopped() {
		c.skipped += now.Sub(c.since)
		c.since = time.Time{}
	}
}

// now returns the time of the clock.
func (c *holdClock) now(real time.Time) time.Time {
	if c.stopped() {
		real = c.since
	}
	return real.Add(-c.skipped)
}

// stopHold stops the clocks of what waits for files. s.mu is held.
func (s *Subscriber) stopHold() {
	now := time.Now()
	s.holdClock.stop(now)
	s.ledger.pause(now)
}

// startHold starts them again. s.mu is held.
func (s *Subscriber) startHold() {
	if !s.holdClock.stopped() {
		return
	}
	now := time.Now()
	s.holdClock.start(now)
	s.ledger.resume(now, false)
	s.scheduleLedger(now)
	select {
	case s.hold.changed <- struct{}{}:
	default:
	}
}

// deliverUnclaimed delivers messages that no file claimed.
func (s *Subscriber) deliverUnclaimed(ctx context.Context, over []*chunk) {
	recall := false
	for _, c := range over {
		opened := false
		if c.event != nil && !s.comesAgain(c) {
			s.progress(ProgressUnclaimed, c.event, 0) // before anybody gets it
			d := s.newMessageDelivery(c.key, c.event)
			d.held = c
			opened = s.admit(ctx, time.Now(), d)
		}
		if opened {
			continue
		}
		// Only its identity was kept, no subscription accepts it now, or its file was left:
		// drop it, and it is redelivered.
		s.mu.Lock()
		if s.hold.holds(c) {
			recall = recall || c.event == nil
			s.hold.drop(c)
		}
		s.mu.Unlock()
	}
	if recall {
		s.recall()
	}
}

// comesAgain reports whether the file of c was left on this connection, before or after c came, so
// that both come again.
func (s *Subscriber) comesAgain(c *chunk) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.leftNow(c.key) && s.takers(gateway.EventFileReceived, c.event.MessageType) > 0
}

// fileSet remembers files that were acked recently. It is guarded by
// Subscriber.mu.
type fileSet struct {
	at         map[fileKey]time.Time
	ring       []fileKey
	head, size int
	keep       time.Duration
}

func newFileSet(size int, keep time.Duration) *fileSet {
	return &fileSet{at: make(map[fileKey]time.Time), size: size, keep: keep}
}

func (f *fileSet) add(k fileKey, now time.Time) {
	if len(f.ring) < f.size {
		f.ring = append(f.ring, k)
	} else {
		delete(f.at, f.ring[f.head])
		f.ring[f.head] = k
		f.head = (f.head + 1) % f.size
	}
	f.at[k] = now
}

func (f *fileSet) has(k fileKey, now time.Time) bool {
	at, ok := f.at[k]
	return ok && now.Sub(at) <= f.keep
}
