package nats

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// taken is what is known of the messages that a subscription has taken.
type taken struct {
	mu    sync.Mutex
	open  map[place]*delivery             // from receipt until the ack or nak is sent
	acked *simplelru.LRU[place, struct{}] // latest ones
}

func newTaken() taken {
	acked, _ := simplelru.NewLRU[place, struct{}](remembered, nil) // only a size below one is an error
	return taken{open: make(map[place]*delivery), acked: acked}
}

// add takes note of a delivery. held means that the message has been delivered before and is still here, done
// that it has been acked.
func (t *taken) add(d *delivery) (held, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.open[d.place]
	switch done = t.acked.Contains(d.place); {
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
	t.acked.Add(d.place, struct{}{})
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
	t.acked.Purge()
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

// leave takes note of a message that is to be sent back because the subscription ends.
func (t *taken) leave(d *delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.left = true
}

// unhandled returns what is left and of whose keys nothing is handled any more, or all of it.
func (t *taken) unhandled(all bool, key func(*received) string) (now []*delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	handled := make(map[string]bool)
	for _, d := range t.open {
		if !d.left && !all {
			handled[key(d.raw)] = true
		}
	}
	for _, d := range t.open {
		if d.left && !handled[key(d.raw)] {
			now = append(now, d)
		}
	}
	return now
}
