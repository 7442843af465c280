package nats_test

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sources/nats"
)

// TestCrash: of a process that is gone, with messages open and read ahead, everything that it had
// not acked comes to the next one, once; what it had acked does not.
func TestCrash(t *testing.T) {
	t.Parallel()
	const n, acked = 400, 20
	f := newField(t)
	f.putKeys(10, n)
	way := natstest.NewProxy(t, f.server.URL()) // of the process that crashes
	quick := func(c *nats.Config) { c.AckWait, c.MaxInFlight, c.MaxNackDelay = time.Second, 10, time.Millisecond }
	messages := f.subscribe(f.subscriber(keyed, quick, func(c *nats.Config) { c.URL = way.URL() }))
	seen := map[string]bool{}
	for range acked {
		msg := f.next(messages)
		seen[string(msg.Payload)] = true
		msg.Ack()
	}
	testkit.Eventually(t, "the acks have arrived", func() bool { return f.pending() == n-acked })
	f.next(messages) // stays open
	way.SetTarget("")
	way.Cut()

	next := f.subscribe(f.subscriber(keyed, quick))
	for len(seen) < n {
		msg := f.next(next)
		payload := string(msg.Payload)
		if seen[payload] {
			t.Errorf("%s came again", payload)
		}
		seen[payload] = true
		msg.Ack()
	}
	testkit.Eventually(t, "nothing is left", func() bool { return f.pending() == 0 })
}
