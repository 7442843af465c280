//go:build !race

package nats

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A message takes two allocations until it is with the client library: what waits for its result, and
// subject and ID in one. The race detector has memory forgotten that is there to be used again.
func TestAllocationsUntilSent(t *testing.T) {
	s := &Sink{config: Config{SubjectPrefix: "agrimill"}, drafts: drafts{own: &Marshaler{}}}
	s.stream.Store(&jetstream.StreamConfig{})
	msg := message.NewMessage("6f0e3a0c-3a5e-4a6c-9b57-000000000000", make([]byte, 1024))
	for i := range 12 {
		msg.Metadata.Set(fmt.Sprint("key", i), "value")
	}
	msg.Metadata.Set(gateway.KeyDedupID, "0d4c1e2f93a14f6e8a44000000000000")
	allocs := testing.AllocsPerRun(1000, func() {
		f := testkit.Must(s.prepare("topic", msg))(t)
		d, _ := s.drafts.take(f)
		s.drafts.recycle(d)
	})
	if allocs > 2 {
		t.Errorf("%v allocations, want 2", allocs)
	}
}
