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

// startKafka starts a broker in this process that has topics, and connects the publisher of
// watermill-kafka.
func startKafka(topics ...string) (brokers []string, publisher *wmkafka.Publisher, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topics...))
	if err != nil {
		return nil, nil, nil, err
	}
	publisher, err = wmkafka.NewPublisher(wmkafka.PublisherConfig{Brokers: cluster.ListenAddrs(), Marshaler: wmkafka.DefaultMarshaler{}}, nil)
	if err != nil {
		cluster.Close()
		return nil, nil, nil, err
	}
	return cluster.ListenAddrs(), publisher, func() {
		_ = publisher.Close()
		cluster.Close()
	}, nil
}

// newSubscriber returns the subscriber of watermill-kafka, which reads from the beginning.
func newSubscriber(brokers []string, group string) (*wmkafka.Subscriber, error) {
	client := wmkafka.DefaultSaramaSubscriberConfig()
	client.Consumer.Offsets.Initial = sarama.OffsetOldest
	return wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: client,
		NackResendSleep: time.Millisecond,
	}, nil)
}

// Retry alone in Watermill's Router over Kafka, with the publisher and the subscriber of
// watermill-kafka: what is down is waited for.
func Example_watermillRetry() {
	brokers, publisher, stop, err := startKafka("orders")
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	orders, err := newSubscriber(brokers, "printer")
	if err != nil {
		log.Fatal(err)
	}
	stopping := make(chan struct{})
	retry, err := router.NewRetry(router.RetryConfig{
		RetrySettings: router.RetrySettings{MaxAttempts: 2, InitialBackoff: time.Millisecond}, Stop: stopping,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(retry.Middleware)
	attempts, done := 0, make(chan struct{})
	r.AddConsumerHandler("print", "orders", orders, func(msg *message.Message) error {
		if attempts++; attempts <= 3 {
			return router.Outage(errors.New("printer switched off"))
		}
		fmt.Println(string(msg.Payload), "after", attempts, "attempts")
		close(done)
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	if err := publisher.Publish("orders", message.NewMessage("1", []byte("10 t of lime"))); err != nil {
		log.Fatal(err)
	}
	<-done
	close(stopping) // first: what waits between two attempts does not hold up Close
	fmt.Println(r.Close(), <-result)
	// Output:
	// 10 t of lime after 4 attempts
	// <nil> <nil>
}

// Dedup alone in Watermill's Router over Kafka: a copy is dropped, unless the first one
// failed.
func Example_watermillDedup() {
	brokers, publisher, stop, err := startKafka("orders")
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	orders, err := newSubscriber(brokers, "printer")
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
	r.AddMiddleware(dedup.Middleware)
	attempts, done := 0, make(chan struct{})
	r.AddConsumerHandler("print", "orders", orders, func(msg *message.Message) error {
		if attempts++; attempts == 1 {
			return errors.New("out of paper") // nacked, so the subscriber delivers it again
		}
		fmt.Println(string(msg.Payload))
		if msg.UUID == "2" {
			close(done)
		}
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	for _, uuid := range []string{"1", "1", "2"} {
		if err := publisher.Publish("orders", message.NewMessage(uuid, []byte("order "+uuid))); err != nil {
			log.Fatal(err)
		}
	}
	<-done
	fmt.Println(r.Close(), <-result)
	// Output:
	// order 1
	// order 2
	// <nil> <nil>
}

// PoisonQueue alone in Watermill's Router over Kafka: what cannot be handled is put aside in
// another topic, with the reason.
func Example_watermillPoisonQueue() {
	brokers, publisher, stop, err := startKafka("orders", "orders.failed")
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	orders, err := newSubscriber(brokers, "printer")
	if err != nil {
		log.Fatal(err)
	}
	stopping := make(chan struct{})
	queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: publisher, Topic: "orders.failed", Stop: stopping}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(queue.Middleware)
	done := make(chan struct{})
	r.AddConsumerHandler("print", "orders", orders, func(msg *message.Message) error {
		if string(msg.Payload) == "ten t of lime" {
			return errors.New("not a number")
		}
		fmt.Println(string(msg.Payload))
		close(done)
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	for _, order := range []struct{ uuid, text string }{{"1", "ten t of lime"}, {"2", "10 t of lime"}} {
		if err := publisher.Publish("orders", message.NewMessage(order.uuid, []byte(order.text))); err != nil {
			log.Fatal(err)
		}
	}
	<-done
	close(stopping)
	fmt.Println(r.Close(), <-result)

	failed, err := newSubscriber(brokers, "repairer")
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
	// 10 t of lime
	// <nil> <nil>
	// print: not a number: ten t of lime
}
