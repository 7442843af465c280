package router_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

// A route from one place to another, with a poison queue beside it.
func Example() {
	source := gochannel.NewGoChannel(gochannel.Config{}, nil)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	received, err := broker.Subscribe(context.Background(), "farm-1.img:png")
	if err != nil {
		log.Fatal(err)
	}
	sink := sinks.FromPublisher("broker", broker, sinks.PublisherConfig{})

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

// What is too large for the broker goes into a bucket, and the message refers to
// it.
func ExampleConfig_claimCheck() {
	source := gochannel.NewGoChannel(gochannel.Config{}, nil)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	received, err := broker.Subscribe(context.Background(), "farm-1.img:png")
	if err != nil {
		log.Fatal(err)
	}
	sink := sinks.FromPublisher("broker", broker, sinks.PublisherConfig{Description: sinks.Description{MaxMessageSize: 1 << 10}})
	payloads, err := claimcheck.New(context.Background(), claimcheck.Config{URL: "mem://"})
	if err != nil {
		log.Fatal(err)
	}
	r, err := router.New(router.Config{Poison: sink, ClaimCheck: payloads}, nil)
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

	msg := message.NewMessage("1", make([]byte, 5000))
	msg.Metadata.Set(gateway.KeyTenantID, "farm-1")
	msg.Metadata.Set(gateway.KeyMessageType, "img:png")
	if err := source.Publish("data", msg); err != nil {
		log.Fatal(err)
	}
	got := <-received
	fmt.Println(len(got.Payload), got.Metadata[gateway.KeyPayloadMode], got.Metadata[gateway.KeyPayloadSize])
	payload, size, err := payloads.OpenMessage(got)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(size, payload.Close())
	got.Ack()

	stop()
	fmt.Println(<-result, payloads.Close())
	// Output:
	// 0 claim-check 5000
	// 5000 <nil>
	// <nil> <nil>
}

// Errors say what is to be done about them.
func ExampleClassOf() {
	fmt.Println(router.ClassOf(gateway.ErrPartialDelivery))
	fmt.Println(router.ClassOf(gateway.ErrRateLimited))
	fmt.Println(router.ClassOf(context.Canceled))
	fmt.Println(router.ClassOf(errors.New("something else")))
	fmt.Println(router.ClassOf(router.Permanent(errors.New("no such field"))))
	// Output:
	// permanent
	// outage
	// handler
	// handler
	// permanent
}

// What the application knows better: which errors of a library mean that something is down.
func ExampleConfig_classify() {
	errStationOffline := errors.New("weather station offline")
	classify := func(err error) (router.Class, bool) {
		return router.ClassOutage, errors.Is(err, errStationOffline)
	}

	source := gochannel.NewGoChannel(gochannel.Config{}, nil)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	received, err := broker.Subscribe(context.Background(), "weather")
	if err != nil {
		log.Fatal(err)
	}
	sink := sinks.FromPublisher("broker", broker, sinks.PublisherConfig{})
	r, err := router.New(router.Config{
		Poison:   sink,
		Classify: classify,
		Retry:    router.RetrySettings{MaxAttempts: 2, MaxBackoff: time.Second},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	attempts := 0
	err = r.Add(router.Route{
		Name: "weather", From: source, Topic: "fields", To: sink, ToTopic: "weather",
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if attempts++; attempts <= 3 {
				return nil, fmt.Errorf("asking for rain: %w", errStationOffline)
			}
			return []*message.Message{msg}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()

	if err := source.Publish("fields", message.NewMessage("1", []byte("field 7"))); err != nil {
		log.Fatal(err)
	}
	got := <-received
	fmt.Println(string(got.Payload), "after", attempts, "attempts")
	got.Ack()

	stop()
	fmt.Println(<-result)
	// Output:
	// field 7 after 4 attempts
	// <nil>
}

// An error that a handler returns on the grounds of its own knowledge.
func ExampleWithClass() {
	lookup := errors.New("field register does not answer")
	fmt.Println(router.ClassOf(router.WithClass(lookup, router.ClassOutage)))
	fmt.Println(router.ClassOf(router.Outage(lookup)))
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
	retry, err := router.NewRetry(router.RetryConfig{RetrySettings: router.RetrySettings{MaxAttempts: 3, InitialBackoff: time.Millisecond}}, nil)
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

// What a sink refuses while it takes other messages is told by the middleware, and by the health
// of a route.
func ExampleRetry_Refused() {
	retry, err := router.NewRetry(router.RetryConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, refused := range retry.Refused() {
		fmt.Printf("%s is refused since %v: %s\n", refused.Topic, refused.Since, refused.Error)
	}
	fmt.Println(len(retry.Refused()), "topics are refused")
	// Output: 0 topics are refused
}

// The usual keys for messages from the gateway, and keys of one's own for others.
func ExampleNewKeyFunc() {
	usual, err := router.NewKeyFunc(router.KeysConfig{NeverChunkBelow: 64 << 10}) // this service makes small chunks
	if err != nil {
		log.Fatal(err)
	}
	keys := func(scope string, msg *message.Message) (router.Keys, error) {
		if number := msg.Metadata.Get("order-number"); number != "" {
			return router.Keys{Delivery: router.KeyOf(scope, number)}, nil
		}
		return usual(scope, msg)
	}
	received := message.NewMessage("1", []byte("{}"))
	received.Metadata = message.Metadata{
		gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyReceivingEndpointID: "barn",
		gateway.KeyMessageID: "1", gateway.KeyContextID: "c",
	}
	first, _ := keys("farm", received)
	received.Metadata[gateway.KeyMessageID] = "2" // the sender repeats it
	second, _ := keys("farm", received)
	fmt.Println(first.Delivery == second.Delivery, first.Content == second.Content)
	// Output: false true
}

// A key of one's own: messages with the same order number are copies.
func ExampleKeyOf() {
	config := router.DedupConfig{
		DedupSettings: router.DedupSettings{KeyFunc: func(scope string, msg *message.Message) (router.Keys, error) {
			number := msg.Metadata.Get("order-number")
			if number == "" {
				return router.Keys{}, nil // it is always handled
			}
			return router.Keys{Delivery: router.KeyOf(scope, number)}, nil
		}},
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

// A message whose payload cannot be read is put aside, and acknowledged.
func ExampleNewPoisonQueue() {
	store := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1}, nil)
	poisoned, err := store.Subscribe(context.Background(), "poison")
	if err != nil {
		log.Fatal(err)
	}
	queue, err := router.NewPoisonQueue(router.PoisonConfig{Publisher: store, Name: "farm"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := queue.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, router.Permanent(errors.New("not a zip file"))
	})
	_, err = handler(message.NewMessage("1", []byte("payload")))
	fmt.Println(err)

	msg := <-poisoned
	msg.Ack()
	p, ok := router.ParsePoisoned(msg)
	fmt.Println(ok, p.Route, p.Class, p.Reason, p.Attempts, string(msg.Payload))
	if err := store.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// <nil>
	// true farm permanent not a zip file 1 payload
}

// A store of a chosen size, shared by what needs it.
func ExampleNewMemoryStore() {
	store, err := router.NewMemoryStore(router.MemoryStoreConfig{MaxEntries: 10_000})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	claim := router.Claim{Keys: router.Keys{Delivery: router.KeyOf("order", "17")}}
	reservation, err := store.Reserve(ctx, claim, time.Minute)
	fmt.Println(reservation.State == router.Reserved, err)
	fmt.Println(store.Commit(ctx, claim, reservation.Token, time.Hour))
	reservation, err = store.Reserve(ctx, claim, time.Minute)
	fmt.Println(reservation.State == router.Committed, err)
	// Output:
	// true <nil>
	// <nil>
	// true <nil>
}

// Duplicates are dropped, but only after the first one was handled.
func ExampleNewDedup() {
	dedup, err := router.NewDedup(router.DedupConfig{Scope: "print"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fail := true
	handler := dedup.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if fail {
			return nil, errors.New("out of paper")
		}
		fmt.Println("printed", string(msg.Payload))
		return nil, nil
	})
	msg := message.NewMessage("1", []byte("page"))
	msg.Metadata.Set(gateway.KeyReceivingEndpointID, "endpoint")
	msg.Metadata.Set(gateway.KeyContextID, "context")
	for range 3 {
		_, err := handler(msg)
		fmt.Println(err)
		fail = false
	}
	// Output:
	// out of paper
	// printed page
	// <nil>
	// <nil>
}

// What was poisoned by a fault that is repaired goes through its route again.
func ExampleRouter_Replay() {
	replay := func(ctx context.Context, r *router.Router, conn *nats.Conn) error {
		queue, err := poisonqueue.New(poisonqueue.Config{Conn: conn})
		if err != nil {
			return err
		}
		report, err := r.Replay(ctx, queue, router.PoisonSelection{Filter: func(p router.Poisoned) bool {
			return p.Route == "farm data" && p.Reason == "no such field"
		}})
		fmt.Printf("%d sent, %d poisoned again\n", report.Sent, report.Poisoned)
		return err
	}
	_ = replay // with a server
}

// Errors are logged without secrets.
func ExampleRedactError() {
	err := errors.New("GET https://store.example/p/17?signature=secret: 403")
	fmt.Println(router.RedactError(err, nil))
	// Output: GET https://store.example/p/17?…: 403
}

// What takes long is done once for a message, however often it is retried.
func ExampleOnce() {
	type digestKey struct{}
	digest := func(msg *message.Message) (int, error) {
		return router.Once(msg, digestKey{}, func() (int, error) { return len(msg.Payload), nil })
	}
	route := router.Route{Name: "small payloads", Filter: func(msg *message.Message) (bool, error) {
		n, err := digest(msg)
		return n < 100, err
	}}
	fmt.Println(route.Filter(message.NewMessage("1", []byte("a picture"))))
	// Output: true <nil>
}
