package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/router"
)

// Retry, Dedup and PoisonQueue in Watermill's Router over Kafka, with the publisher and the
// subscriber of watermill-kafka: an outage is waited for, a copy is dropped, and what cannot
// be handled is put aside with the reason.
func Example_watermillRouter() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "orders.failed"))
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	publisher, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{Brokers: cluster.ListenAddrs(), Marshaler: wmkafka.DefaultMarshaler{}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = publisher.Close() }()
	client := wmkafka.DefaultSaramaSubscriberConfig()
	client.Consumer.Offsets.Initial = sarama.OffsetOldest
	orders, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: cluster.ListenAddrs(), ConsumerGroup: "printer", Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: client,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	stopping := make(chan struct{})
	queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: publisher, Topic: "orders.failed", Stop: stopping}, nil)
	if err != nil {
		log.Fatal(err)
	}
	retry, err := router.NewRetry(router.RetryConfig{
		RetrySettings: router.RetrySettings{MaxAttempts: 2, InitialBackoff: time.Millisecond}, Stop: stopping,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	dedup, err := router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{
		KeyFunc: func(scope string, msg *message.Message) (router.Keys, error) {
			return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
		},
	}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(queue.Middleware, retry.Middleware, dedup.Middleware)
	attempts, done := 0, make(chan struct{})
	r.AddConsumerHandler("print", "orders", orders, func(msg *message.Message) error {
		attempts++
		switch order := string(msg.Payload); {
		case order == "last":
			close(done)
		case order == "ten t of lime":
			return errors.New("not a number")
		case attempts <= 3:
			return router.Outage(errors.New("printer switched off"))
		default:
			fmt.Println(order, "after", attempts, "attempts")
		}
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	for _, order := range []struct{ uuid, text string }{{"1", "10 t of lime"}, {"1", "10 t of lime"}, {"2", "ten t of lime"}, {"3", "last"}} {
		if err := publisher.Publish("orders", message.NewMessage(order.uuid, []byte(order.text))); err != nil {
			log.Fatal(err)
		}
	}
	<-done
	close(stopping)
	fmt.Println(r.Close(), <-result)

	client = wmkafka.DefaultSaramaSubscriberConfig()
	client.Consumer.Offsets.Initial = sarama.OffsetOldest
	failed, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: cluster.ListenAddrs(), Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: client,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = failed.Close() }()
	messages, err := failed.Subscribe(context.Background(), "orders.failed")
	if err != nil {
		log.Fatal(err)
	}
	msg := <-messages
	poisoned, _ := router.ParsePoisoned(msg)
	fmt.Printf("%s: %s: %s\n", poisoned.Route, poisoned.Reason, msg.Payload)
	msg.Ack()
	// Output:
	// 10 t of lime after 4 attempts
	// <nil> <nil>
	// print: not a number: ten t of lime
}
