package tracing_test

import (
	"context"
	"fmt"
	"log"
	"sort"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// A route from the gateway, followed from the event to the confirmation. Programs
// give the provider an exporter, such as otlptracegrpc, instead of a recorder.
func Example() {
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	t, err := tracing.New(tracing.Config{TracerProvider: provider})
	if err != nil {
		log.Fatal(err)
	}

	server, client, err := startGateway()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	defer func() { _ = client.Close() }()
	sub, err := subscriber.New(subscriber.Config{Client: client, Hooks: t.Hooks(subscriber.Hooks{})}, nil)
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	stored, err := broker.Subscribe(context.Background(), "img:png")
	if err != nil {
		log.Fatal(err)
	}
	sink := t.Sink("", sinks.FromPublisher("broker", broker, sinks.PublisherConfig{}))
	defer func() { _ = sink.Close() }()

	r, err := router.New(router.Config{Poison: sink, Chain: t.Chain(nil), Observer: t.Observer(nil)}, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = r.Add(router.Route{
		Name: "farm data", From: t.Subscriber(tracing.SystemGateway, sub), Topic: subscriber.AllData,
		To: sink, ToTopic: "{type}",
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()

	camera := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "camera", Send: []string{"img:png"}})
	if _, err := server.Send(gatewaytest.SendRequest{From: camera.ID, MessageType: "img:png", Payload: []byte("a picture")}); err != nil {
		log.Fatal(err)
	}
	msg := <-stored
	fmt.Println("in the message:", msg.Metadata["traceparent"] != "")
	msg.Ack()
	stop()
	if err := <-result; err != nil { // confirmed by now
		log.Fatal(err)
	}
	if err := provider.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	printSpans(recorder.Ended())
	// Output:
	// in the message: true
	// process ALL_DATA
	//   attempt farm data
	//     publish broker
	//   confirm
}

// printSpans prints the spans of one trace as a tree.
func printSpans(spans []trace.ReadOnlySpan) {
	sort.Slice(spans, func(i, j int) bool { return spans[i].StartTime().Before(spans[j].StartTime()) })
	var children func(parent, indent string)
	children = func(parent, indent string) {
		for _, span := range spans {
			if span.Parent().SpanID().String() == parent {
				fmt.Println(indent + span.Name())
				children(span.SpanContext().SpanID().String(), indent+"  ")
			}
		}
	}
	children("0000000000000000", "")
}

// startGateway starts a gateway in memory with a receiver.
func startGateway() (*gatewaytest.Server, *gateway.Client, error) {
	server, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return nil, nil, err
	}
	types := []string{"img:png"}
	server.AddEndpoint(gatewaytest.EndpointConfig{Name: "archive", Receive: types, Subscribe: types})
	client, err := gateway.New(server.ClientConfig())
	return server, client, err
}

// A consumer that knows nothing of this package continues the trace: the context
// is in ordinary W3C headers.
func ExampleTracing_Publisher() {
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	t, err := tracing.New(tracing.Config{TracerProvider: provider})
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	received, err := broker.Subscribe(context.Background(), "fields")
	if err != nil {
		log.Fatal(err)
	}
	pub := t.Publisher("gochannel", broker)
	if err := pub.Publish("fields", message.NewMessage("1", []byte("a boundary"))); err != nil {
		log.Fatal(err)
	}
	msg := <-received
	msg.Ack()
	if err := pub.Close(); err != nil {
		log.Fatal(err)
	}
	span := recorder.Ended()[0]
	want := fmt.Sprintf("00-%s-%s-01", span.SpanContext().TraceID(), span.SpanContext().SpanID())
	fmt.Println(span.Name(), msg.Metadata["traceparent"] == want)
	// Output: publish gochannel true
}
