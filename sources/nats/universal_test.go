package nats_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

var universal = flag.Bool("universal", false, "run Watermill's Pub/Sub suite with all its messages")

// manyTopics is a Subscriber for each topic, because one reads one subject.
type manyTopics struct {
	config nats.Config

	mu     sync.Mutex
	topics map[string]*nats.Subscriber
	closed bool
}

func (m *manyTopics) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nats.ErrClosed
	}
	s := m.topics[topic]
	if s == nil {
		config := m.config
		config.Durable += topic
		var err error
		if s, err = nats.New(config, nil); err != nil {
			return nil, err
		}
		m.topics[topic] = s
	}
	return s.Subscribe(ctx, topic)
}

func (m *manyTopics) Close() error {
	m.mu.Lock()
	m.closed = true
	var errs []error
	for _, s := range m.topics {
		errs = append(errs, s.Close())
	}
	m.mu.Unlock()
	return errors.Join(errs...)
}

// TestUniversalSuite runs Watermill's own suite for every Pub/Sub over a real server, with
// our sink and this source. RestartServiceCommand stays empty; TestSubscriberOutages restarts
// the server.
func TestUniversalSuite(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	features := tests.Features{
		ConsumerGroups:                      true, // a durable each
		ExactlyOnceDelivery:                 false,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true, // several share messages, whatever their keys
		Persistent:                          true,
		RequireSingleInstance:               false,
		NewSubscriberReceivesOldMessages:    false, // what was acked does not come again
		ContextPreserved:                    false,
		ForceShort:                          !*universal,
	}
	group := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		sink := testkit.Must(sinknats.New(sinknats.Config{Connection: sinknats.Connection{URL: server.URL()}}, nil))(t)
		source := &manyTopics{topics: map[string]*nats.Subscriber{}, config: nats.Config{
			Connection: sinknats.Connection{URL: server.URL()}, Durable: group,
			MaxNackDelay: 10 * time.Millisecond,
			AckWait:      2 * time.Second,        // what was on its way to a subscriber that has ended comes again
			CloseTimeout: 200 * time.Millisecond, // the suite closes with messages open that it never acks
		}}
		t.Cleanup(func() { _ = errors.Join(sink.Close(), source.Close()) })
		return sink, source
	}
	// A group of subtests ends when all of them have: the server is stopped after that.
	t.Run("suite", func(t *testing.T) {
		tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "suite") }, group)
	})
}
