package tracing_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// broker is what a message passes on its way.
type broker struct {
	system string
	sink   sinks.Sink
	sub    message.Subscriber
	topic  string // what sub reads
	// header reads the headers of the one stored message as a foreign consumer
	// would.
	header func(t *testing.T, name string) string
}

func startNATS(t *testing.T) broker {
	server := natstest.Start(t)
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}}, nil))(t)
	if err := sink.Health(t.Context()); err != nil { // the stream exists from now on
		t.Fatal(err)
	}
	sub := testkit.Must(sourcenats.New(sourcenats.Config{Connection: nats.Connection{URL: server.URL()}, SubjectPrefix: nats.NoSubjectPrefix, Durable: "reports"}, nil))(t)
	subject := nats.DefaultSubjectPrefix + "." + sink.TopicSegment(typeIn)
	return broker{"nats", sink, sub, subject, func(t *testing.T, name string) string {
		conn := testkit.Must(natstest.Connect(server.URL()))(t)
		defer conn.Close()
		js := testkit.Must(natstest.JetStream(conn))(t)
		stream := testkit.Must(js.StreamNameBySubject(t.Context(), subject))(t)
		s := testkit.Must(js.Stream(t.Context(), stream))(t)
		msg := testkit.Must(s.GetLastMsgForSubject(t.Context(), subject))(t)
		return msg.Header.Get(name)
	}}
}

func startKafka(t *testing.T) broker {
	cluster := kafkatest.Start(t)
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Partitions: 1}, nil))(t)
	config := wmkafka.DefaultSaramaSubscriberConfig()
	config.Version = sarama.V2_8_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub := testkit.Must(wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: []string{cluster.Addr()}, ConsumerGroup: "reports", Unmarshaler: kafka.Marshaler{}, OverwriteSaramaConfig: config,
		InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1},
	}, nil))(t)
	topic := kafka.DefaultTopicPrefix + "." + sink.TopicSegment(typeIn)
	testkit.NoError(t, sub.SubscribeInitialize(topic))
	return broker{"kafka", sink, sub, topic, func(t *testing.T, name string) string {
		for _, h := range kafkatest.Read(t, cluster.Addr(), topic)[0].Headers {
			if h.Key == name {
				return string(h.Value)
			}
		}
		return ""
	}}
}

// TestFromEventToConfirmationAndBack follows one message from the gateway into a
// broker and what a reader makes of it back to the gateway: one trace.
func TestFromEventToConfirmationAndBack(t *testing.T) {
	for name, start := range map[string]func(*testing.T) broker{"nats": startNATS, "kafka": startKafka} {
		t.Run(name, func(t *testing.T) { testThereAndBack(t, start(t)) })
	}
}

func testThereAndBack(t *testing.T, b broker) {
	w := newWorld(t, tracing.Config{})
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: w.client, TenantID: w.server.Tenant(), EndpointID: w.receiver.ID, DirectRecipients: []string{w.sender.ID},
	}, nil))(t)
	toBroker := w.Sink("", b.sink)
	stop := w.start(router.Config{Poison: toBroker},
		router.Route{
			Name: "out", From: w.Subscriber(tracing.SystemGateway, w.subscriber()), Topic: typeIn, To: toBroker, ToTopic: "{type}",
		},
		router.Route{
			Name: "back", From: w.Subscriber(b.system, b.sub), Topic: b.topic,
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				// A message of its own, whose context the router sets.
				return []*message.Message{message.NewMessage(uuid.NewString(), append([]byte("report on "), msg.Payload...))}, nil
			},
			To:        w.Sink(tracing.SystemGateway, pub),
			TopicFunc: func(*message.Message) (string, error) { return typeBack, nil },
		})
	const secret = "the yield of the north field"
	ids := w.send(typeIn, secret, "north-field.json")
	w.wait("the report", func(entries []gatewaytest.LedgerEntry) bool {
		return len(entries) == 2 && entries[1].MessageType == typeBack
	})
	w.waitConfirmed(1)
	stop()

	w.wantTree(fmt.Sprintf(`process app:test:json
  attempt out
    publish %s
      process %s
        attempt back
          publish gateway
  confirm
`, b.system, b.topic))
	w.wantOneTrace()
	for _, s := range w.spans() {
		w.wantStatus(s, codes.Unset)
	}

	root, published, read := w.named("process app:test:json"), w.named("publish "+b.system), w.named("process "+b.topic)
	kinds := map[string]trace.SpanKind{
		root.Name(): trace.SpanKindConsumer, published.Name(): trace.SpanKindProducer, read.Name(): trace.SpanKindConsumer,
		"attempt out": trace.SpanKindInternal, "publish gateway": trace.SpanKindProducer, "confirm": trace.SpanKindClient,
	}
	for name, kind := range kinds {
		if got := w.named(name).SpanKind(); got != kind {
			t.Errorf("span %q is of kind %v, want %v", name, got, kind)
		}
	}
	if root.Parent().IsValid() || !read.Parent().IsRemote() {
		t.Errorf("the first span has the parent %v, that of the reader is remote: %v", root.Parent(), read.Parent().IsRemote())
	}
	type row struct {
		span sdktrace.ReadOnlySpan
		want map[string]string
	}
	size := fmt.Sprint(len(secret))
	for _, r := range []row{
		{root, map[string]string{
			string(semconv.MessagingSystemKey): tracing.SystemGateway, string(semconv.MessagingOperationNameKey): "process",
			string(semconv.MessagingOperationTypeKey): "process", string(semconv.MessagingDestinationNameKey): typeIn,
			string(semconv.MessagingMessageIDKey): ids[0], string(semconv.MessagingMessageBodySizeKey): size,
			string(tracing.KeyTenant): w.server.Tenant(), string(tracing.KeyEndpoint): w.receiver.ID,
			string(tracing.KeyMessageType): typeIn, string(tracing.KeyEventType): string(gateway.EventMessageReceived),
			string(tracing.KeyOutcome): "delivered", string(tracing.KeySettled): "ack", string(tracing.KeyRoute): "out",
		}},
		{published, map[string]string{
			string(semconv.MessagingSystemKey): b.system, string(semconv.MessagingOperationNameKey): "publish",
			string(semconv.MessagingOperationTypeKey):   "send",
			string(semconv.MessagingDestinationNameKey): b.sink.TopicSegment(typeIn), string(semconv.MessagingMessageBodySizeKey): size,
			string(semconv.MessagingMessageIDKey): ids[0],
		}},
		{read, map[string]string{
			string(semconv.MessagingSystemKey): b.system, string(semconv.MessagingDestinationNameKey): b.topic,
			string(tracing.KeySettled): "ack", string(semconv.MessagingMessageIDKey): ids[0],
		}},
		{w.named("attempt out"), map[string]string{string(tracing.KeyRoute): "out", string(tracing.KeyAttempt): "1"}},
		{w.named("confirm"), map[string]string{
			string(semconv.MessagingOperationTypeKey): "settle", string(semconv.MessagingMessageIDKey): ids[0],
			string(tracing.KeyTenant): w.server.Tenant(), string(tracing.KeyEndpoint): w.receiver.ID,
		}},
	} {
		have := attributes(r.span)
		for key, want := range r.want {
			if have[key] != want {
				t.Errorf("span %q: %s is %q, want %q", r.span.Name(), key, have[key], want)
			}
		}
	}
	if confirm := w.named("confirm"); confirm.StartTime().Before(published.EndTime()) || confirm.EndTime().Before(confirm.StartTime()) {
		t.Error("the span of the confirmation is not between the ack and the answer")
	}

	// Whoever reads the broker with something else finds an ordinary header.
	want := fmt.Sprintf("00-%s-%s-01", published.SpanContext().TraceID(), published.SpanContext().SpanID())
	if got := b.header(t, "traceparent"); got != want {
		t.Errorf("header traceparent is %q, want %q", got, want)
	}
	for _, piece := range []string{secret, "north-field", "north field", string(w.server.ClientConfig().ClientSecret)} {
		if strings.Contains(w.everything(), piece) {
			t.Errorf("%q is in a span", piece)
		}
	}
}

// TestThroughTheGateway continues a trace on the other side of the gateway: with
// the envelope, metadata travel inside the payload.
func TestThroughTheGateway(t *testing.T) {
	w := newWorld(t, tracing.Config{})
	pub := testkit.Must(publisher.New(publisher.Config{
		Client: w.client, TenantID: w.server.Tenant(), EndpointID: w.sender.ID, Marshaler: publisher.EnvelopeMarshaler{},
	}, nil))(t)
	traced := w.Publisher(tracing.SystemGateway, pub)
	sub := w.Subscriber(tracing.SystemGateway, w.subscriber(func(c *subscriber.Config) { c.Unmarshaler = subscriber.EnvelopeUnmarshaler{} }))
	messages := subscribe(t, sub, subscriber.AllData)
	msg := message.NewMessage(uuid.NewString(), []byte("x"))
	testkit.NoError(t, traced.Publish(typeIn, msg))
	if len(msg.Metadata) != 0 {
		t.Errorf("Publish wrote into the caller's metadata: %v", msg.Metadata)
	}
	(<-messages).Ack()
	w.waitConfirmed(1)
	w.close(sub)
	testkit.NoError(t, traced.Close())
	w.wantTree("publish agrimill_gateway\n  process ALL_DATA\n    confirm\n")
	w.wantOneTrace()
}
