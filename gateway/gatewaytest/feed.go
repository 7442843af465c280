package gatewaytest

import (
	"net"
	"slices"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// feed is the event log of one application, guarded by Server.mu. Streams are positions in it, so a slow reader does not
// delay others and a payload is stored once.
type feed struct {
	items   []*item
	streams []*stream
	// dead estimates how many items are no longer needed, and deadBytes their size.
	dead      int
	deadBytes int64
	// How many items and bytes are enough; set by the previous compaction.
	enough      int
	enoughBytes int64
}

// item is one event. It is immutable except for claimed.
type item struct {
	seq uint64
	// name is empty for raw bytes.
	name gateway.EventType
	// data is the JSON of a lifecycle event, or the raw bytes.
	data []byte
	// These make a MESSAGE_RECEIVED (one entry) or a FILE_RECEIVED (the entries of all chunks).
	payload  *payload
	receiver *endpoint
	entries  []*entry
	chunk    int
	// again marks a duplicate made by RedeliverUnconfirmed: not replayed.
	again bool
	// claimed is the stream that received the item with OneStream.
	claimed *stream
}

// replayable reports whether a stream that connects later needs the item.
func (i *item) replayable() bool {
	return i.payload != nil && !i.again && slices.ContainsFunc(i.entries, func(e *entry) bool { return !e.final() })
}

// withdrawn reports whether the item's endpoint was deleted, so that no stream gets it.
func (i *item) withdrawn() bool { return i.payload != nil && i.receiver.deleted }

// stream is an open GET /events.
type stream struct {
	app    *Application
	filter map[gateway.EventType]bool // nil for all
	start  uint64                     // items with lower sequence numbers are replay
	pos    int                        // index of the next item
	open   bool
	conn   net.Conn
	// wake has a buffer of one: it signals that there may be something to do.
	wake chan struct{}
}

func (st *stream) notify() {
	wakeup.Token(st.wake)
}

// retire records that a message no longer needs replay.
func (f *feed) retire(size int64) {
	f.dead++
	f.deadBytes += size
}

// appendLocked appends an event to the feed.
func (s *Server) appendLocked(f *feed, i *item) {
	s.sequence++
	i.seq = s.sequence
	if i.payload == nil && len(f.streams) == 0 {
		return // lifecycle events reach open streams only
	}
	if i.payload != nil {
		i.payload.uses++
	} else {
		f.dead++
	}
	f.items = append(f.items, i)
	for _, st := range f.streams {
		st.notify()
	}
}

// takeLocked returns the next item for the stream and counts the delivery.
func (s *Server) takeLocked(st *stream) *item {
	f := &st.app.feed
	if s.faults.stalls > 0 || !st.open {
		return nil
	}
	for st.pos < len(f.items) {
		i := f.items[st.pos]
		st.pos++
		if !s.admitsLocked(st, i) {
			continue
		}
		if i.payload != nil {
			i.claimed = st
			s.deliveredLocked(i)
		}
		return i
	}
	return nil
}

func (s *Server) admitsLocked(st *stream, i *item) bool {
	switch {
	case i.name != "" && st.filter != nil && !st.filter[i.name]:
		return false
	case i.seq <= st.start && (s.cfg.NoReplay || !i.replayable()):
		return false
	case i.withdrawn():
		return false
	case s.cfg.Streams == OneStream && i.claimed != nil && i.claimed != st && i.claimed.open:
		return false
	}
	return true
}

func (s *Server) deliveredLocked(i *item) {
	now := s.clock.now()
	s.sequence++
	for _, e := range i.entries {
		e.delivered(i.name == gateway.EventFileReceived && !i.payload.fileAlone, now, s.sequence)
	}
	s.changedLocked()
}

// compactLocked drops enough items that every open stream has passed and no new stream will get.
func (s *Server) compactLocked(f *feed) {
	if f.dead < max(f.enough, 64) && f.deadBytes < max(f.enoughBytes, 1<<20) {
		return
	}
	passed := len(f.items)
	for _, st := range f.streams {
		passed = min(passed, st.pos)
	}
	kept := make([]*item, 0, len(f.items))
	keptBytes := int64(0)
	index := make([]int, len(f.streams)) // new positions
	for n, i := range f.items {
		for k, st := range f.streams {
			if st.pos == n {
				index[k] = len(kept)
			}
		}
		if n < passed && (!i.replayable() || i.withdrawn()) {
			if i.payload != nil {
				i.payload.uses--
			}
			continue
		}
		kept = append(kept, i)
		for _, e := range i.entries {
			keptBytes += e.Size
		}
	}
	for k, st := range f.streams {
		if st.pos == len(f.items) {
			index[k] = len(kept)
		}
		st.pos = index[k]
	}
	f.items = kept
	f.dead, f.deadBytes = 0, 0
	// Compact again when half of what is kept has died: at constant cost per item.
	f.enough, f.enoughBytes = len(kept)/2, keptBytes/2
	s.sweepLocked(s.clock.now())
}

// openStream registers a stream at the start of the feed, so unconfirmed items are replayed.
func (s *Server) openStream(app *Application, filter map[gateway.EventType]bool, conn net.Conn) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLagLocked(s.clock.now())
	st := &stream{app: app, filter: filter, start: s.sequence, open: true, conn: conn, wake: make(chan struct{}, 1)}
	app.feed.streams = append(app.feed.streams, st)
	s.changedLocked()
	return st
}

func (s *Server) closeStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.open = false
	f := &st.app.feed
	f.streams = slices.DeleteFunc(f.streams, func(other *stream) bool { return other == st })
	s.compactLocked(f)
	s.changedLocked()
}

// Streams returns the number of open event streams of all applications.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streamsLocked())
}

func (s *Server) streamsLocked() (all []*stream) {
	for _, app := range s.applicationOrder {
		all = append(all, app.feed.streams...)
	}
	return all
}

// CutStreams drops the connections of all open event streams, and returns how many there were.
func (s *Server) CutStreams() int {
	s.mu.Lock()
	streams := s.streamsLocked()
	for _, st := range streams {
		st.open = false
	}
	s.mu.Unlock()
	for _, st := range streams {
		dropConn(st.conn, CutReset)
		st.notify()
	}
	return len(streams)
}

// StallStreams silences all streams, open and new, keep-alive comments included, like a half-open connection. A new stream
// still receives its response header. The returned function ends that; it may be called more than once.
func (s *Server) StallStreams() (lift func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.stalls++
	lifted := false
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if lifted {
			return
		}
		lifted = true
		s.faults.stalls--
		for _, st := range s.streamsLocked() {
			st.notify()
		}
	}
}

// EmitRaw writes raw bytes to the open streams of the application, between events and regardless of their filter, and
// returns the number of streams.
func (s *Server) EmitRaw(app *Application, raw []byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendLocked(&app.feed, &item{data: slices.Clone(raw)})
	s.compactLocked(&app.feed)
	return len(app.feed.streams)
}

// RedeliverUnconfirmed resends all unconfirmed messages on all open streams, and returns the number of events.
func (s *Server) RedeliverUnconfirmed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applyLagLocked(s.clock.now())
	n := 0
	for _, app := range s.applicationOrder {
		f := &app.feed
		if len(f.streams) == 0 {
			continue
		}
		for _, i := range f.items[:len(f.items):len(f.items)] {
			if i.replayable() && !i.withdrawn() {
				n++
				f.dead++
				s.appendLocked(f, &item{name: i.name, payload: i.payload, receiver: i.receiver, entries: i.entries, chunk: i.chunk, again: true})
			}
		}
	}
	return n
}
