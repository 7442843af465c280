package pipeline_test

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// What waits for its file is unconfirmed, and has an age like everything else.
func TestHeldMessagesAreUnconfirmed(t *testing.T) {
	w := newWorld(t)
	b := w.start(strings.Replace(w.head()+w.natsSink()+allRoute, "subscriber:\n", "subscriber:\n  files: ["+pictures+"]\n  file_hold: 10m\n", 1))
	b.waitReady()
	if s := b.Snapshot().Subscriber; !s.OldestUnconfirmed.IsZero() {
		t.Errorf("nothing has come, and the oldest waits since %v", s.OldestUnconfirmed)
	}
	w.send(pictures, 2)
	testkit.Eventually(w, "they are held", func() bool { return b.Snapshot().Subscriber.Held == 2 })
	if s := b.Snapshot().Subscriber; s.OldestUnconfirmed.IsZero() || s.InFlight != 0 {
		t.Errorf("%d are in flight, and the oldest waits since %v", s.InFlight, s.OldestUnconfirmed)
	}
	if open := b.Open(); len(open) != 1 || open[0].Held != 2 || open[0].Oldest.IsZero() {
		t.Errorf("open: %+v", open)
	}
	_ = b.stop() // they are left
}
