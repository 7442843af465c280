package metrics_test

import (
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/sinks"
)

// A sink that is measured goes wherever a sink goes: to router.Route.To, to
// router.Config.Poison.
func ExampleSinks_Wrap() {
	measured := metrics.NewSinks()
	registry := prometheus.NewRegistry()
	registry.MustRegister(measured)

	sink := measured.Wrap("farm", sinks.FromPublisher("memory", gochannel.NewGoChannel(gochannel.Config{}, nil), sinks.PublisherConfig{}))
	defer func() { _ = sink.Close() }()
	if err := sink.Publish("fields", message.NewMessage("1", []byte("a boundary"))); err != nil {
		log.Fatal(err)
	}

	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range families {
		switch family.GetName() {
		case "agrimill_sink_stored_bytes_total":
			fmt.Println("bytes:", family.GetMetric()[0].GetCounter().GetValue())
		case "agrimill_sink_publish_duration_seconds":
			fmt.Println("calls:", family.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	// Output:
	// calls: 1
	// bytes: 10
}
