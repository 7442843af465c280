package router_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// A route from one place to another, with a poison queue beside it.
func Example() {
	source := gochannel.NewGoChannel(gochannel.Config{}, nil)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	received, err := broker.Subscribe(context.Background(), "farm-1.img:png")
	if err != nil {
		log.Fatal(err)
	}
	sink := sinks.FromPublisher("broker", broker)

	r, err := router.New(router.Config{Poison: sink}, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = r.Add(router.Route{Name: "farm data", From: source, Topic: "data", To: sink})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()

	msg := message.NewMessage("1", []byte("a picture"))
	msg.Metadata.Set(gateway.KeyTenantID, "farm-1")
	msg.Metadata.Set(gateway.KeyMessageType, "img:png")
	if err := source.Publish("data", msg); err != nil {
		log.Fatal(err)
	}
	got := <-received
	fmt.Println(string(got.Payload))
	got.Ack()

	stop()
	fmt.Println(<-result)
	// Output:
	// a picture
	// <nil>
}

// Errors say what is to be done about them.
func ExampleClassify() {
	fmt.Println(router.Classify(gateway.ErrPartialDelivery))
	fmt.Println(router.Classify(gateway.ErrRateLimited))
	fmt.Println(router.Classify(context.Canceled))
	fmt.Println(router.Classify(errors.New("something else")))
	fmt.Println(router.Classify(router.Permanent(errors.New("no such field"))))
	// Output:
	// permanent
	// outage
	// shutdown
	// handler
	// permanent
}

// An error that a handler returns on the grounds of its own knowledge.
func ExampleWithClass() {
	lookup := errors.New("field register does not answer")
	fmt.Println(router.Classify(router.WithClass(lookup, router.ClassOutage)))
	fmt.Println(router.Classify(router.Outage(lookup)))
	// Output:
	// outage
	// outage
}

// The middlewares in a Watermill Router of one's own, in their proper order.
func ExampleNewRetry() {
	pubsub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	poison, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: pubsub}, nil)
	if err != nil {
		log.Fatal(err)
	}
	retry, err := router.NewRetry(router.RetryConfig{MaxAttempts: 3, InitialInterval: time.Millisecond}, nil)
	if err != nil {
		log.Fatal(err)
	}
	dedup, err := router.NewDedup(router.DedupConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	r.AddMiddleware(poison.Middleware, retry.Middleware, dedup.Middleware, router.NewRecoverer(nil))
	r.AddConsumerHandler("print", "in", pubsub, func(msg *message.Message) error {
		fmt.Println(string(msg.Payload))
		return errors.New("printer on fire")
	})

	poisoned, err := pubsub.Subscribe(context.Background(), router.DefaultPoisonTopic)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := r.Run(context.Background()); err != nil {
			log.Print(err)
		}
	}()
	<-r.Running()
	if err := pubsub.Publish("in", message.NewMessage("1", []byte("page"))); err != nil {
		log.Fatal(err)
	}
	msg := <-poisoned
	fmt.Println(msg.Metadata.Get(router.KeyPoisonReason), msg.Metadata.Get(router.KeyPoisonAttempts))
	msg.Ack()
	if err := r.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// page
	// page
	// page
	// printer on fire 3
}

// A key of one's own: messages with the same order number are copies.
func ExampleKeyOf() {
	config := router.DedupConfig{
		KeyFunc: func(scope string, msg *message.Message) (router.Key, bool, error) {
			number := msg.Metadata.Get("order-number")
			return router.KeyOf(scope, number), number != "", nil
		},
	}
	dedup, err := router.NewDedup(config, nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := dedup.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("handled", msg.UUID)
		return nil, nil
	})
	for _, uuid := range []string{"first", "copy"} {
		msg := message.NewMessage(uuid, nil)
		msg.Metadata.Set("order-number", "17")
		if _, err := handler(msg); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// handled first
}

// A panic of a handler becomes an error.
func ExampleNewRecoverer() {
	handler := router.NewRecoverer(nil)(func(*message.Message) ([]*message.Message, error) {
		panic("out of diesel")
	})
	_, err := handler(message.NewMessage("1", nil))
	fmt.Println(err)
	// Output:
	// panic: out of diesel
}
