package poisonqueue_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

func TestQueueInDomain(t *testing.T) {
	_, leaf := natstest.StartLeaf(t)
	sink := testkit.Must(nats.New(nats.Config{
		Connection: nats.Connection{URL: leaf.URL(), User: natstest.LeafUser, Password: natstest.LeafPassword, Domain: natstest.LeafDomain, InboxPrefix: natstest.LeafInboxPrefix},
	}, nil))(t)
	t.Cleanup(func() { _ = sink.Close() })
	testkit.NoError(t, sink.Publish(router.DefaultPoisonTopic, message.NewMessage("1", []byte("one"))))
	open := func(domain string) *poisonqueue.Queue {
		return testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: sink.Conn(), Domain: domain}))(t)
	}
	if _, err := open("").Depth(t.Context()); !errors.Is(err, nats.ErrNoJetStream) {
		t.Errorf("without the domain: got %v, want %v", err, nats.ErrNoJetStream)
	}
	queue := open(natstest.LeafDomain)
	var ids []string
	for poisoned, err := range queue.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, poisoned.ID)
	}
	if len(ids) != 1 {
		t.Fatalf("got %d messages, want 1", len(ids))
	}
	testkit.NoError(t, queue.Delete(t.Context(), ids[0]))
	if depth, err := queue.Depth(t.Context()); err != nil || depth != 0 {
		t.Errorf("got %d messages, %v, want none", depth, err)
	}
}
