package subscriber

import "time"

// refreshTimeout bounds how long a message whose payload URI has expired keeps
// its place while it waits to come again with a fresh one. A message that the
// service has withdrawn never does.
const refreshTimeout = 5 * time.Minute

// skipAfter is how long a message waits for room that only others could make
// which wait for fresh payload URIs. Those may come behind it on the stream, so it
// is then skipped, like all that follow it on this connection, and asked for again.
const skipAfter = 5 * time.Second

// endSkipping asks for what was skipped. s.mu is held.
func (s *Subscriber) endSkipping() {
	if s.skipping && !s.recalled {
		s.recallLocked()
	}
}

// refresh waits until d has come again with a fresh payload URI, and reports
// whether it has. d stays open meanwhile, so that it keeps its place in its
// order. It ends early with the delivery, and with stop.
func (s *Subscriber) refresh(d *delivery, stop <-chan struct{}) bool {
	s.stats.expired.Add(1)
	s.logger.Info("A payload can no longer be downloaded; its message is asked for again", eventFields(d.event))
	id := d.identity()
	fresh := &refreshWait{d: d, done: make(chan struct{})}
	s.mu.Lock()
	s.refreshing[id] = append(s.refreshing[id], fresh)
	s.mu.Unlock()
	// Whatever connection comes next, the message is recognised on it.
	s.recall()

	timer := time.NewTimer(refreshTimeout)
	defer timer.Stop()
	select {
	case <-fresh.done:
		return true
	case <-d.payload.ctx.Done():
	case <-stop:
	case <-timer.C:
		s.logger.Info("A message did not come again with a fresh payload URI; it is given up unconfirmed", eventFields(d.event))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waits := s.refreshing[id]
	for i, w := range waits {
		if w == fresh {
			s.refreshing[id] = append(waits[:i:i], waits[i+1:]...)
		}
	}
	if len(s.refreshing[id]) == 0 {
		delete(s.refreshing, id)
	}
	if len(s.refreshing) == 0 {
		s.endSkipping()
	}
	return false
}

// refreshWait is somebody who waits for a fresh URI of d.
type refreshWait struct {
	d    *delivery
	done chan struct{}
}

// refreshed hands a fresh URI to those who wait for it. s.mu is held.
func (s *Subscriber) refreshed(id messageKey, uri string) {
	waits := s.refreshing[id]
	if uri == "" || len(waits) == 0 {
		return
	}
	delete(s.refreshing, id)
	for _, w := range waits {
		w.d.payload.uri.Store(&uri)
		w.d.payload.expired.Store(false)
		close(w.done)
	}
	if len(s.refreshing) == 0 {
		s.endSkipping()
	}
}

// identity names the event of d among those that are open.
func (d *delivery) identity() messageKey {
	if d.file != (fileKey{}) {
		return d.file.identity()
	}
	return d.key1[0]
}

// identity widens a file's key; the second half of a message's is never zero.
func (f fileKey) identity() messageKey {
	var id messageKey
	copy(id[:], f[:])
	return id
}
