package nats_test

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// TestCluster: one of three servers stops, which leads the consumer, while messages are open and read
// ahead: every message comes, and is acked in the end.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers := natstest.StartCluster(t)
	f := &field{T: t}
	_, f.js = natstest.Client(t, servers.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond),
		natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {})) // it would print them
	testkit.EventuallyNil(t, func() error {
		_, err := f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FIELD", Subjects: []string{"field.>"}, Replicas: 3})
		return err
	})
	const n = 300
	f.putKeys(10, n)
	s := testkit.Must(nats.New(nats.Config{
		Connection: sinknats.Connection{
			URL: servers.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(20 * time.Millisecond), natsgo.ReconnectJitter(0, 0)},
		},
		SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", KeyHeader: "Key", AckWait: 2 * time.Second, MaxInFlight: 10, CloseTimeout: time.Second,
	}, nil))(t)
	defer func() { _ = s.Close() }()
	messages := f.subscribe(s)
	seen := map[string]bool{}
	f.takeAll(messages, seen, n/3)
	consumer := testkit.Must(f.js.Consumer(t.Context(), "FIELD", "out"))(t)
	open := f.next(messages)
	leader := consumer.CachedInfo().Cluster.Leader
	for _, server := range servers {
		if server.Server().Name() == leader {
			server.Stop()
		}
	}
	open.Ack()
	seen[string(open.Payload)] = true
	again := f.takeAll(messages, seen, n)
	t.Logf("%d messages came again", again)
	testkit.Eventually(t, "nothing is left", func() bool {
		select {
		case msg := <-messages:
			msg.Ack()
		default:
		}
		consumer, err := f.js.Consumer(t.Context(), "FIELD", "out")
		return err == nil && consumer.CachedInfo().NumAckPending == 0 && consumer.CachedInfo().NumPending == 0
	})
}
