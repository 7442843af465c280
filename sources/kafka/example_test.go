package kafka_test

import (
	"context"
	"fmt"
	"log"

	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

// The subscriber of watermill-kafka reads the same topics, one record of a partition at a time.
func ExampleOpen() {
	source, err := kafka.Open(kafka.Config{
		Connection: sinkkafka.Connection{Brokers: []string{"kafka:9092"}},
		Topics:     []string{"reports"}, Group: "to-the-gateway", Driver: kafka.DriverWatermill,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	messages, err := source.Subscribe(context.Background(), "") // all of Topics
	if err != nil {
		log.Fatal(err)
	}
	for msg := range messages {
		fmt.Printf("%s %s\n", msg.UUID, msg.Payload)
		msg.Ack() // it does not come again
	}
}
