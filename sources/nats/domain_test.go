package nats_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// The source reads a stream of another domain, with an account that may subscribe to one prefix only.
func TestSourceThroughLeafNode(t *testing.T) {
	t.Parallel()
	hub, leaf := natstest.StartLeaf(t)
	f := &field{T: t, server: hub}
	_, f.js = natstest.Client(t, hub.URL())
	f.createStream()
	f.put(0, 3)
	open := func(domain, inbox string) *nats.Subscriber {
		source := testkit.Must(nats.New(nats.Config{
			Connection: sinknats.Connection{
				URL: leaf.URL(), User: natstest.LeafUser, Password: natstest.LeafPassword,
				Domain: domain, InboxPrefix: inbox,
			},
			SubjectPrefix: sinknats.NoSubjectPrefix, Durable: "out", CloseTimeout: time.Second,
		}, nil))(t)
		t.Cleanup(func() { _ = source.Close() })
		return source
	}
	for _, test := range []struct {
		domain, inbox string
		is            error
	}{
		{"", natstest.LeafInboxPrefix, sinknats.ErrNoJetStream},
		{"elsewhere", natstest.LeafInboxPrefix, sinknats.ErrNoDomain},
		{natstest.LeafDomain, "", sinknats.ErrInbox},
	} {
		if _, err := open(test.domain, test.inbox).Subscribe(t.Context(), fieldSubject); !errors.Is(err, test.is) || !errors.Is(err, sinks.ErrUnavailable) {
			t.Errorf("domain %q and inbox prefix %q: got %v, want %v", test.domain, test.inbox, err, test.is)
		}
	}
	source := open(natstest.LeafDomain, natstest.LeafInboxPrefix)
	messages := testkit.Must(source.Subscribe(t.Context(), fieldSubject))(t)
	for _, want := range []string{"0", "1", "2"} {
		msg := f.next(messages)
		if string(msg.Payload) != want {
			t.Errorf("got %s, want %s", msg.Payload, want)
		}
		msg.Ack()
	}
	testkit.NoError(t, source.Close())
	consumer := testkit.Must(f.js.Consumer(t.Context(), "FIELD", "out"))(t)
	if open := unackedOf(consumer.CachedInfo()); open != 0 {
		t.Errorf("%d messages have no ack", open)
	}
}

func unackedOf(info *jetstream.ConsumerInfo) uint64 {
	return uint64(info.NumAckPending) + info.NumPending
}
