package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/fanin"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/twmb/franz-go/pkg/kfake"
	gcblob "gocloud.dev/blob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// componentBroker is a broker as Watermill's components see it: topics to publish to and to
// subscribe to, and a subscriber of its own for each handler.
type componentBroker struct {
	publisher  message.Publisher
	wildcards  bool // in topics to subscribe to
	subscriber func(name string) message.Subscriber
	foreign    func() message.Publisher // with a marshaler of Watermill; nil for none
}

// eachBroker runs a test of a component with NATS, with Kafka, which has the topics, and over the gateway in envelopes.
func eachBroker(t *testing.T, topics []string, test func(t *testing.T, b componentBroker)) {
	t.Run("gateway", func(t *testing.T) {
		t.Parallel()
		testkit.Bubble(t, func(t *testing.T) { test(t, gatewayAsBroker(t, topics)) })
	})
	realBrokers(t, topics, test)
}

// gatewayAsBroker returns a gateway between two endpoints. All handlers share one subscriber.
func gatewayAsBroker(t *testing.T, topics []string) componentBroker {
	server := gatewaytest.New(t, gatewaytest.Config{InMemory: true})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: topics})
	server.AddEndpoint(gatewaytest.EndpointConfig{Receive: topics, Subscribe: topics})
	client := server.Client()
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: client, TenantID: server.Tenant(), EndpointID: sender.ID, Marshaler: publisher.EnvelopeMarshaler{},
	}, nil))(t)
	sub := testkit.Must(subscriber.New(subscriber.Config{Client: client, Unmarshaler: subscriber.EnvelopeUnmarshaler{}}, nil))(t)
	t.Cleanup(func() { testkit.NoError(t, errors.Join(pub.Close(), sub.Close())) })
	return componentBroker{pub, false, func(string) message.Subscriber { return sub }, nil}
}

// realBrokers runs a test of a component with NATS and with Kafka, which has the topics.
func realBrokers(t *testing.T, topics []string, test func(t *testing.T, b componentBroker)) {
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		url := natstest.Start(t).URL()
		sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: url}}, nil))(t)
		t.Cleanup(func() { _ = sink.Close() })
		test(t, componentBroker{sink, true, func(name string) message.Subscriber {
			source := testkit.Must(sourcenats.New(sourcenats.Config{Connection: nats.Connection{URL: url}, Durable: name}, nil))(t)
			t.Cleanup(func() { _ = source.Close() })
			return source
		}, func() message.Publisher {
			foreign := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: url}, Marshaler: &wmnats.NATSMarshaler{}}, nil))(t)
			t.Cleanup(func() { _ = foreign.Close() })
			return foreign
		}})
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		names := make([]string, len(topics))
		for i, topic := range topics {
			names[i] = kafka.TopicName("", topic)
		}
		brokers := []string{kafkatest.Start(t, kfake.SeedTopics(2, names...)).Addr()}
		sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers}}, nil))(t)
		t.Cleanup(func() { _ = sink.Close() })
		test(t, componentBroker{sink, false, func(name string) message.Subscriber {
			source := testkit.Must(sourcekafka.New(sourcekafka.Config{Connection: kafka.Connection{Brokers: brokers}, Group: name}, nil))(t)
			t.Cleanup(func() { _ = source.Close() })
			return source
		}, func() message.Publisher {
			foreign := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers}, Marshaler: wmkafka.DefaultMarshaler{}}, nil))(t)
			t.Cleanup(func() { _ = foreign.Close() })
			return foreign
		}})
	})
}

// start runs something until the test ends, and fails the test if it fails.
func start(t *testing.T, run func(context.Context) error) {
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

type (
	harvested struct{ Number int }
	weighed   struct{ Number int }
)

// With an event bus and an event processor, each handler gets every event of its type, and no
// other one.
func TestComponentCQRS(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"events.harvested", "events.weighed"}, func(t *testing.T, b componentBroker) {
		marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
		bus := testkit.Must(cqrs.NewEventBusWithConfig(b.publisher, cqrs.EventBusConfig{
			Marshaler:            marshaler,
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return "events." + p.EventName, nil },
		}))(t)
		r := testkit.Must(message.NewRouter(message.RouterConfig{CloseTimeout: testkit.Patience}, nil))(t)
		processor := testkit.Must(cqrs.NewEventProcessorWithConfig(r, cqrs.EventProcessorConfig{
			Marshaler: marshaler,
			GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
				return "events." + p.EventName, nil
			},
			SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return b.subscriber(p.HandlerName), nil
			},
		}))(t)
		got := make(chan string, 100)
		testkit.NoError(t, processor.AddHandlers(
			cqrs.NewEventHandler("h", func(_ context.Context, e *harvested) error { got <- fmt.Sprint("harvested ", e.Number); return nil }),
			cqrs.NewEventHandler("w", func(_ context.Context, e *weighed) error { got <- fmt.Sprint("weighed ", e.Number); return nil })))
		start(t, r.Run)
		want := map[string]bool{}
		for i := range 10 {
			for _, event := range []any{harvested{i}, weighed{i}} {
				testkit.NoError(t, bus.Publish(t.Context(), event))
			}
			want[fmt.Sprint("harvested ", i)], want[fmt.Sprint("weighed ", i)] = true, true
		}
		receive(t, got, want)
	})
}

// A FanIn carries the messages of several topics to one.
func TestComponentFanIn(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"north", "south", "all"}, func(t *testing.T, b componentBroker) {
		sources := topicSubscriber{b: b}
		fan := testkit.Must(fanin.NewFanIn(sources, b.publisher, fanin.Config{
			SourceTopics: []string{"north", "south"}, TargetTopic: "all", CloseTimeout: testkit.Patience,
		}, nil))(t)
		got := read(t, b, "all")
		start(t, fan.Run)
		publish(t, b.publisher, "north", "1")
		publish(t, b.publisher, "south", "2")
		receive(t, got, map[string]bool{"1": true, "2": true})
	})
}

// A Forwarder publishes what was published to its topic to the topic that the message was for.
func TestComponentForwarder(t *testing.T) {
	t.Parallel()
	eachBroker(t, []string{"outbox", "orders"}, func(t *testing.T, b componentBroker) {
		forward := testkit.Must(forwarder.NewForwarder(topicSubscriber{b: b}, b.publisher, nil, forwarder.Config{
			ForwarderTopic: "outbox", CloseTimeout: testkit.Patience,
		}))(t)
		got := read(t, b, "orders")
		start(t, forward.Run)
		publish(t, forwarder.NewPublisher(b.publisher, forwarder.PublisherConfig{ForwarderTopic: "outbox"}), "orders", "1")
		receive(t, got, map[string]bool{"1": true})
	})
}

// A handler that hands on a message without the payload that is still with the gateway stores nothing.
func TestPayloadThatNobodyRead(t *testing.T) {
	t.Parallel()
	realBrokers(t, []string{"files"}, func(t *testing.T, b componentBroker) {
		server := gatewaytest.New(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
		files := []string{"img:jpeg"}
		sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: files})
		server.AddEndpoint(gatewaytest.EndpointConfig{Receive: files, Subscribe: files})
		testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: files[0], Payload: []byte("picture")}))(t)
		sub := testkit.Must(subscriber.New(subscriber.Config{Client: server.Client(), Payload: subscriber.PayloadConfig{Mode: subscriber.PayloadLazy}}, nil))(t)
		t.Cleanup(func() { testkit.NoError(t, sub.Close()) })
		msg := <-testkit.Must(sub.Subscribe(t.Context(), subscriber.AllData))(t)
		plain := sinks.FromPublisher("plain", gochannel.NewGoChannel(gochannel.Config{}, nil), sinks.PublisherConfig{})
		t.Cleanup(func() { testkit.NoError(t, plain.Close()) })
		for name, publisher := range map[string]message.Publisher{"sink": b.publisher, "marshaler of Watermill": b.foreign(), "plain": plain} {
			for _, handed := range []*message.Message{msg, msg.Copy()} { // a copy has no context
				if err := publisher.Publish("files", handed); !errors.Is(err, sinks.ErrRejected) || !strings.Contains(err.Error(), "would be lost") {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		payload, _, err := subscriber.OpenPayload(msg)
		testkit.NoError(t, err)
		msg.Payload = testkit.Must(io.ReadAll(payload))(t)
		testkit.NoError(t, errors.Join(payload.Close(), b.publisher.Publish("files", msg)))
		msg.Ack()
	})
}

// All that handlers make of one message is stored, also with the metadata of that, by whose dedup ID a sink tells copies.
func TestHandlerThatSplits(t *testing.T) {
	t.Parallel()
	split := func(t *testing.T, in message.Subscriber, out message.Publisher, parts ...string) {
		r := newRouter(t)
		r.AddHandler("split", "whole", in, "parts", out, func(whole *message.Message) ([]*message.Message, error) {
			var made []*message.Message
			for _, name := range parts {
				part := whole.Copy()
				part.Payload = []byte(name)
				made = append(made, part)
			}
			return made, nil
		})
		start(t, r.Run)
	}
	whole := message.NewMessage("1", nil)
	whole.Metadata.Set(gateway.KeyDedupID, "1")
	realBrokers(t, []string{"whole", "parts"}, func(t *testing.T, b componentBroker) {
		got := read(t, b, "parts")
		split(t, b.subscriber("split"), b.publisher, "left", "right")
		split(t, b.subscriber("name"), b.publisher, "name") // of the same message, with the same metadata
		r := newRouter(t)
		r.AddConsumerHandler("publishes by itself", "whole", b.subscriber("itself"), func(whole *message.Message) error {
			part := whole.Copy()
			part.Payload = []byte("dedup ID " + whole.Metadata[gateway.KeyReceivedDedupID])
			return b.publisher.Publish("parts", part)
		})
		start(t, r.Run)
		testkit.NoError(t, b.publisher.Publish("whole", whole))
		receive(t, got, map[string]bool{"left": true, "right": true, "name": true, "dedup ID 1": true})
	})
	t.Run("bucket", func(t *testing.T) {
		t.Parallel()
		in := gochannel.NewGoChannel(gochannel.Config{Persistent: true, BlockPublishUntilSubscriberAck: true}, nil)
		bucket := testkit.Must(gcblob.OpenBucket(t.Context(), "mem://"))(t)
		split(t, in, testkit.Must(blob.New(blob.Config{Bucket: bucket}))(t), "left", "right")
		testkit.NoError(t, in.Publish("whole", whole))
		testkit.Eventually(t, "both parts", func() bool {
			objects, _, err := bucket.ListPage(t.Context(), gcblob.FirstPageToken, 10, nil)
			return err == nil && len(objects) == 4 // each with its metadata
		})
	})
}

// topicSubscriber subscribes to each topic with a subscriber of its own.
type topicSubscriber struct{ b componentBroker }

func (s topicSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.b.subscriber("by-"+topic).Subscribe(ctx, topic)
}

func (topicSubscriber) Close() error { return nil } // the test closes them

func publish(t *testing.T, publisher message.Publisher, topic, uuid string) {
	t.Helper()
	testkit.NoError(t, publisher.Publish(topic, message.NewMessage(uuid, []byte(uuid))))
}

// read returns the payloads of the messages of a topic, as they come.
func read(t *testing.T, b componentBroker, topic string) <-chan string {
	t.Helper()
	messages := testkit.Must(b.subscriber("reader").Subscribe(t.Context(), topic))(t)
	got := make(chan string, 100)
	go func() { // ends with the subscription
		for msg := range messages {
			got <- string(msg.Payload)
			msg.Ack()
		}
	}()
	return got
}

// receive waits until all that is wanted has come, and fails for anything else.
func receive(t *testing.T, got <-chan string, want map[string]bool) {
	t.Helper()
	for range len(want) {
		var text string
		testkit.Ends(t, "receiving", func() { text = <-got })
		if !want[text] {
			t.Fatalf("got %q, want one of %v", text, want)
		}
		delete(want, text)
	}
}
