package publisher_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

// backend is a gateway with a sender and a receiver for every message type that is
// published to.
type backend struct {
	server *gatewaytest.Server
	hang   *gatewaytest.Injection
	faults bool // calls give up after some seconds

	mu       sync.Mutex
	types    []string
	endpoint gateway.Endpoint
}

func newBackend(t *testing.T, settings sinktest.Settings) sinktest.Backend {
	t.Helper()
	b := &backend{faults: settings.Faults, server: gatewaytest.New(t, gatewaytest.Config{InMemory: true, InlineLimit: 1 << 30, ChunkSize: 1 << 30})}
	b.learn("first")
	return b
}

// learn lets the endpoints send and receive one more message type: capabilities have
// no wildcard.
func (b *backend) learn(messageType string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Contains(b.types, messageType) {
		return
	}
	b.types = append(b.types, messageType)
	b.endpoint = b.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:test:sender", Send: b.types})
	b.server.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:test:receiver", Receive: b.types, Subscribe: b.types})
}

// learningClient is an application that knows each message type before it sends it.
type learningClient struct {
	*gateway.Client
	*backend
}

func (c learningClient) SendMessage(ctx context.Context, req gateway.SendMessageRequest) error {
	c.learn(req.MessageType)
	return c.Client.SendMessage(ctx, req)
}

func (b *backend) NewSink(t *testing.T) sinks.Sink {
	t.Helper()
	config := b.server.ClientConfig()
	closeTimeout := testkit.Patience
	if b.faults {
		config.RequestTimeout, config.TokenTimeout, closeTimeout = 4*time.Second, 4*time.Second, time.Second
	}
	config.Retry = gateway.RetryConfig{MaxAttempts: 1}
	client := b.client(t, config)
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: learningClient{client, b}, TenantID: b.server.Tenant(), EndpointID: b.endpoint.ID, CloseTimeout: closeTimeout,
	}, nil))(t)
	t.Cleanup(func() { _ = pub.Close() })
	return pub
}

func (b *backend) client(t *testing.T, config gateway.Config) *gateway.Client {
	t.Helper()
	client := testkit.Must(gateway.New(config))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Read reads the stream, which begins with everything that is not confirmed, in the
// order in which the service took it.
func (b *backend) Read(t *testing.T, topic string) []*message.Message {
	t.Helper()
	left := 0
	for _, entry := range b.server.Ledger() {
		if entry.MessageType == topic {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	client := b.client(t, b.server.ClientConfig())
	stream := testkit.Must(client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventMessageReceived}}))(t)
	defer func() { _ = stream.Close() }()
	var messages []*message.Message
	for len(messages) < left {
		raw, err := stream.Next()
		if err != nil {
			t.Fatalf("reader: after %d of %d messages: %v", len(messages), left, err)
		}
		event := testkit.Must(gateway.DecodeEvent(raw.Type, raw.Data))(t)
		if m := event.(*gateway.MessageReceived); m.MessageType == topic {
			messages = append(messages, message.NewMessage(m.AppMessageID, slices.Clone(m.Payload)))
		}
	}
	return messages
}

func (b *backend) Break(*testing.T) { b.server.Stop() }

func (b *backend) Repair(t *testing.T) {
	t.Helper()
	testkit.NoError(t, b.server.Restart())
}

func (b *backend) Hang(*testing.T) {
	b.hang = b.server.Inject(gatewaytest.OpAny, gatewaytest.Fault{Hang: true})
}

func (b *backend) Resume(*testing.T) { b.hang.Lift() }

// atReceipt finds the message by its context ID, which is its UUID.
func atReceipt(t *testing.T, b sinktest.Backend, topic string, receipt sinks.Receipt) *message.Message {
	t.Helper()
	for _, msg := range b.Read(t, topic) {
		if msg.UUID == receipt.ID {
			return msg
		}
	}
	return nil
}

// TestConformance: the publisher is a sink like all others.
func TestConformance(t *testing.T) {
	sinktest.Run(t, sinktest.Suite{
		New: newBackend,
		Features: sinktest.Features{
			UUID: true, Outage: true, Hang: true, TopicIsValue: true, AtReceipt: atReceipt,
			RejectedTopics: []string{"", " a", "a ", "a\r\nb", "a\x00", "\xff", strings.Repeat("a", 101)},
		},
	})
}

// A Marshaler needs the payload in the message, and Publish refuses references
// then; routes learn of it before.
func TestDescribe(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	for _, marshaler := range []publisher.Marshaler{nil, publisher.EnvelopeMarshaler{}} {
		p := f.publisher(publisher.Config{Client: f.client, Marshaler: marshaler})
		if d := p.Describe(); d.Name != "gateway" || d.OpensPayloads != (marshaler == nil) || d.MaxMessageSize != 0 {
			t.Errorf("with %v: %+v", marshaler, d)
		}
	}
}

// A closed client is a closed sink: its messages are left open.
func TestClosedClient(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{})
	cfg := f.config()
	client := f.newClient(f.server.ClientConfig())
	cfg.Client = client
	pub := f.publisher(cfg)
	testkit.NoError(t, client.Close())
	testkit.ErrorIs(t, pub.Publish(typeJSON, newMessage("late")), sinks.ErrClosed)
	testkit.ErrorIs(t, pub.Health(t.Context()), sinks.ErrClosed)
}
