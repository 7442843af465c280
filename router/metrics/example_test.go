package metrics_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// A route from the gateway, and everything about it in one registry.
func Example() {
	server, client, sender, err := startGateway()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	defer func() { _ = client.Close() }()

	sub, err := subscriber.New(subscriber.Config{Client: client}, nil)
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	received, err := broker.Subscribe(context.Background(), server.Tenant()+".img:png")
	if err != nil {
		log.Fatal(err)
	}
	measured := metrics.NewSinks()
	sink := measured.Wrap("broker", sinks.FromPublisher("broker", broker, sinks.PublisherConfig{}))
	defer func() { _ = sink.Close() }()

	observer := metrics.NewObserver(nil)
	r, err := router.New(router.Config{Poison: sink, Observer: observer}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := r.Add(router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink}); err != nil {
		log.Fatal(err)
	}

	registry := prometheus.NewRegistry() // promhttp.HandlerFor(registry, …) serves it
	registry.MustRegister(metrics.NewClientCollector(client), metrics.NewSubscriberCollector(sub),
		metrics.NewRouterCollector(r), observer, measured)

	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()

	pub, err := publisher.New(publisher.Config{Client: client, TenantID: server.Tenant(), EndpointID: sender}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := pub.Publish("img:png", message.NewMessage("", []byte("a picture"))); err != nil {
		log.Fatal(err)
	}
	(<-received).Ack()
	stop()
	if err := <-result; err != nil { // confirmed by now
		log.Fatal(err)
	}

	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if m.GetCounter().GetValue() > 0 {
				fmt.Println(family.GetName(), m.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// agrimill_route_messages_total 1
	// agrimill_sink_messages_total 1
	// agrimill_sink_stored_bytes_total 9
	// agrimill_subscriber_confirm_requests_total 1
	// agrimill_subscriber_confirmations_total 1
	// agrimill_subscriber_delivered_bytes_total 9
	// agrimill_subscriber_events_received_total 1
	// agrimill_subscriber_messages_delivered_total 1
	// agrimill_subscriber_received_bytes_total 9
	// agrimill_subscriber_stream_connects_total 1
}

// startGateway starts a gateway in memory with a sender and a receiver.
func startGateway() (*gatewaytest.Server, *gateway.Client, string, error) {
	server, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return nil, nil, "", err
	}
	types := []string{"img:png"}
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "camera", Send: types})
	server.AddEndpoint(gatewaytest.EndpointConfig{Name: "archive", Receive: types, Subscribe: types})
	client, err := gateway.New(server.ClientConfig())
	return server, client, sender.ID, err
}
