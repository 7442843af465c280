package router_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/router"
)

// Retry alone in Watermill's Router: what is down is waited for.
func ExampleRetry() {
	stopping := make(chan struct{})
	retry, err := router.NewRetry(router.RetryConfig{
		RetrySettings: router.RetrySettings{MaxAttempts: 2, InitialBackoff: time.Millisecond},
		Stop:          stopping,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	orders := gochannel.NewGoChannel(gochannel.Config{}, nil)
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

	if err := orders.Publish("orders", message.NewMessage("1", []byte("10 t of lime"))); err != nil {
		log.Fatal(err)
	}
	<-done
	close(stopping)
	fmt.Println(r.Close(), <-result)
	// Output:
	// 10 t of lime after 4 attempts
	// <nil> <nil>
}

// Dedup alone in Watermill's Router: a copy is dropped, unless the first one failed.
func ExampleDedup() {
	dedup, err := router.NewDedup(router.DedupConfig{DedupSettings: router.DedupSettings{
		KeyFunc: func(scope string, msg *message.Message) (router.Keys, error) {
			return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
		},
	}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	orders := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(dedup.Middleware)
	attempts := 0
	r.AddConsumerHandler("print", "orders", orders, func(msg *message.Message) error {
		if attempts++; attempts == 1 {
			return errors.New("out of paper") // nacked, so GoChannel delivers it again
		}
		fmt.Println(string(msg.Payload))
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	for _, uuid := range []string{"1", "1", "2"} {
		if err := orders.Publish("orders", message.NewMessage(uuid, []byte("order "+uuid))); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(r.Close(), <-result)
	// Output:
	// order 1
	// order 2
	// <nil> <nil>
}

// PoisonQueue alone in Watermill's Router: what cannot be handled is put aside, with the
// reason.
func ExamplePoisonQueue() {
	orders := gochannel.NewGoChannel(gochannel.Config{}, nil)
	queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: orders, Topic: "orders.failed"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	failed, err := orders.Subscribe(context.Background(), "orders.failed")
	if err != nil {
		log.Fatal(err)
	}
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(queue.Middleware)
	r.AddConsumerHandler("print", "orders", orders, func(*message.Message) error {
		return errors.New("not a number")
	})
	result := make(chan error, 1)
	go func() { result <- r.Run(context.Background()) }()
	<-r.Running()

	if err := orders.Publish("orders", message.NewMessage("1", []byte("ten t of lime"))); err != nil {
		log.Fatal(err)
	}
	msg := <-failed
	poisoned, _ := router.ParsePoisoned(msg)
	fmt.Printf("%s: %s: %s\n", poisoned.Route, poisoned.Reason, msg.Payload)
	msg.Ack()
	fmt.Println(r.Close(), <-result)
	// Output:
	// print: not a number: ten t of lime
	// <nil> <nil>
}
