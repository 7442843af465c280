package nats

import "sync"

// taken is what is known of the messages that a subscription has taken.
type taken struct {
	mu    sync.Mutex
	open  map[place]*delivery // from receipt until the ack or nak is sent
	left  []*delivery         // of these, what is to be sent back because the subscription ends
	acked map[place]bool      // latest ones
	ring  []place             // of acked, the oldest at next
	next  int
}

// add takes note of a delivery. held means that the message has been delivered before and is still here, done
// that it has been acked.
func (t *taken) add(d *delivery) (held, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.open[d.place]
	switch done = t.acked[d.place]; {
	case before != nil:
		before.raw = d.raw
		return true, before.acked
	case !done:
		t.open[d.place] = d
	}
	return false, done
}

// done notes that a message is acked, and returns its latest delivery, by which the server is to be told.
func (t *taken) done(d *delivery) *received {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.acked = true
	return d.raw
}

// remember takes note of a message whose ack is sent.
func (t *taken) remember(d *delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, d.place)
	t.acked[d.place] = true
	if len(t.ring) < remembered {
		t.ring = append(t.ring, d.place)
		return
	}
	delete(t.acked, t.ring[t.next])
	t.ring[t.next] = d.place
	t.next = (t.next + 1) % remembered
}

// remove forgets a message that goes back, and returns its latest delivery.
func (t *taken) remove(d *delivery) *received {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, d.place)
	return d.raw
}

// forget: who acked what is gone with the consumer. What is open counts when the next one delivers it again, which may have other
// messages with the same numbers, of a stream that was made anew.
func (t *taken) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range t.open {
		d.raw = &received{d.raw.Msg, gone{}}
	}
	clear(t.acked)
	t.ring, t.next = nil, 0
}

func (t *taken) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// heldDelivery is a delivery as it was at one moment.
type heldDelivery struct {
	*delivery
	raw   *received
	acked bool
}

func (t *taken) held() []heldDelivery {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]heldDelivery, 0, len(t.open))
	for _, d := range t.open {
		all = append(all, heldDelivery{d, d.raw, d.acked})
	}
	return all
}

// leave takes note of a message that is to be sent back.
func (t *taken) leave(d *delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = append(t.left, d)
}

// unhandled takes what is left and of whose keys nothing is handled any more, or all of it.
func (t *taken) unhandled(all bool, key func(*received) string) (now []*delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	handled := make(map[string]bool)
	if !all {
		left := make(map[*delivery]bool, len(t.left))
		for _, d := range t.left {
			left[d] = true
		}
		for _, d := range t.open {
			if !left[d] {
				handled[key(d.raw)] = true
			}
		}
	}
	var later []*delivery
	for _, d := range t.left {
		if handled[key(d.raw)] {
			later = append(later, d)
		} else {
			now = append(now, d)
		}
	}
	t.left = later
	return now
}
