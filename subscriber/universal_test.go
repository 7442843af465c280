package subscriber_test

import (
	"errors"
	"flag"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/subscriber"
)

// universe is one gateway for one test of Watermill's suite, with one endpoint
// that sends and one that receives.
type universe struct {
	server *gatewaytest.Server
	sender gateway.Endpoint

	mu     sync.Mutex
	topics []string
}

// provision gives both endpoints the capability for topic, as an application
// would by PUT /endpoints/{externalId}.
func (u *universe) provision(topic string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Contains(u.topics, topic) {
		return
	}
	u.topics = append(u.topics, topic)
	u.sender = u.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:suite:sender", Send: u.topics})
	u.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:suite:receiver", Receive: u.topics, Subscribe: u.topics})
}

// suiteSubscriber provisions a topic when the suite asks for it.
type suiteSubscriber struct {
	*subscriber.Subscriber
	universe *universe
}

func (s suiteSubscriber) SubscribeInitialize(topic string) error {
	s.universe.provision(topic)
	return nil
}

// multiverse has a universe for each test.
type multiverse struct {
	mu    sync.Mutex
	byID  map[string]*universe
	lease func() subscriber.Lease // of each subscriber; nil: none
}

func (m *multiverse) get(t *testing.T) *universe {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.byID[t.Name()]
	if u == nil {
		u = &universe{server: gatewaytest.New(t, gatewaytest.Config{InMemory: true})}
		u.provision("none")
		m.byID[t.Name()] = u
	}
	return u
}

func (m *multiverse) pubSub(t *testing.T) (message.Publisher, message.Subscriber) {
	u := m.get(t)
	cfg := u.server.ClientConfig()
	cfg.Retry = gateway.RetryConfig{InitialBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
	client := testkit.Must(gateway.New(cfg))(t)
	t.Cleanup(func() { _ = client.Close() })
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: client, TenantID: u.server.Tenant(), EndpointID: u.sender.ID, Marshaler: publisher.EnvelopeMarshaler{},
	}, nil))(t)
	short := subscriber.Backoff{Initial: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	var lease subscriber.Lease
	if m.lease != nil {
		lease = m.lease()
	}
	sub, err := subscriber.New(subscriber.Config{
		Client: client, Lease: lease, Unmarshaler: subscriber.EnvelopeUnmarshaler{},
		Nack:      subscriber.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond},
		Reconnect: short,
		Confirm:   subscriber.ConfirmConfig{MaxBatch: 500, MaxAge: 50 * time.Millisecond, Retry: short},
		// The suite closes with messages open that it never acks.
		DrainTimeout: 200 * time.Millisecond,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The suite leaves some of them open.
	t.Cleanup(func() { _ = errors.Join(pub.Close(), sub.Close()) })
	return pub, suiteSubscriber{sub, u}
}

// features is what the gateway gives, no more. RestartServiceCommand stays
// empty: the suite's TestReconnect reads the list of what it published while
// that is still written (a data race of its own); TestRestartedGateway does the
// same here.
func features() tests.Features {
	return tests.Features{
		ConsumerGroups:                      false, // every stream of an application gets everything
		ExactlyOnceDelivery:                 false,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true, // several streams get the same messages
		Persistent:                          true,
		RequireSingleInstance:               false,
		NewSubscriberReceivesOldMessages:    false, // what was confirmed is gone
		ContextPreserved:                    false,
	}
}

// universal has the suite send as many messages as it does by default, instead of hundreds:
// `make check STEP=universal`.
var universal = flag.Bool("universal", false, "run Watermill's Pub/Sub suite with all its messages")

// TestUniversalSuite runs Watermill's own suite for every Pub/Sub over a real
// gateway.
func TestUniversalSuite(t *testing.T) {
	t.Parallel()
	m := &multiverse{byID: map[string]*universe{}}
	features := features()
	features.ForceShort = !*universal
	tests.TestPubSub(t, features, m.pubSub, nil)
}

// TestRestartedGateway publishes 10,000 messages with 100 goroutines while the
// gateway is restarted twice.
func TestRestartedGateway(t *testing.T) {
	t.Parallel()
	const publishers = 100
	count := 2000
	if *universal {
		count = 10_000
	}
	m := &multiverse{byID: map[string]*universe{}}
	pub, sub := m.pubSub(t)
	u := m.get(t)
	u.provision("topic")
	messages := testkit.Must(sub.Subscribe(t.Context(), "topic"))(t)
	ids := make(chan string)
	var publishing sync.WaitGroup
	for range publishers {
		publishing.Go(func() {
			for id := range ids {
				for pub.Publish("topic", message.NewMessage(id, []byte("x"))) != nil && t.Context().Err() == nil {
				}
			}
		})
	}
	want := map[string]bool{}
	for range count {
		want[uuid.NewString()] = true
	}
	publishing.Go(func() {
		defer close(ids)
		n := 0
		for id := range want {
			if n++; n == count/3 || n == count/2 {
				u.server.Stop()
				if err := u.server.Restart(); err != nil {
					t.Errorf("restart: %v", err)
				}
			}
			ids <- id
		}
	})
	got := map[string]bool{}
	for len(got) < count {
		select {
		case msg := <-messages:
			got[msg.UUID] = true
			msg.Ack()
		case <-time.After(testkit.Patience):
			t.Fatalf("received %d of %d", len(got), count)
		}
	}
	publishing.Wait()
	if !maps.Equal(got, want) {
		t.Error("other messages were received than published")
	}
	testkit.NoError(t, errors.Join(pub.Close(), sub.Close()))
}
