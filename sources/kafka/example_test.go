package kafka_test

import (
	"context"
	"fmt"
	"log"

	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

func ExampleNew() {
	source, err := kafka.New(kafka.Config{
		Connection: sinkkafka.Connection{Brokers: []string{"kafka:9092"}},
		Topics:     []string{"reports"}, Group: "to-the-gateway",
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
