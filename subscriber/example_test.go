package subscriber_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

// startService gives the examples a service in memory, and a way to send through
// it from another endpoint.
func startService(cfg gatewaytest.Config) (s *gatewaytest.Server, send func(messageType string, payload string)) {
	s, err := gatewaytest.Start(cfg)
	if err != nil {
		log.Fatal(err)
	}
	types := []string{"img:png", "iso:11783:-10:taskdata:zip"}
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types})
	s.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: types, Subscribe: types})
	return s, func(messageType, payload string) {
		_, err := s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte(payload), Filename: "a file"})
		if err != nil {
			log.Fatal(err)
		}
	}
}

// confirmed tells how many messages the service takes for done.
func confirmed(s *gatewaytest.Server) (n int) {
	for _, entry := range s.Ledger() {
		if entry.Confirmed() {
			n++
		}
	}
	return n
}

// A message is confirmed at the service after it was acked.
func ExampleNew() {
	ctx := context.Background()
	s, send := startService(gatewaytest.Config{})
	defer s.Close()

	sub, err := subscriber.New(subscriber.Config{Client: s.Client()}, nil) // gateway.New(gateway.Config{…})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := sub.Subscribe(ctx, "img:png") // or subscriber.AllData, an event type, …
	if err != nil {
		log.Fatal(err)
	}
	send("img:png", "an image")

	msg := <-messages
	fmt.Println(msg.Metadata.Get(gateway.KeyMessageType), msg.Metadata.Get(gateway.KeyFilename), string(msg.Payload))
	fmt.Println("confirmed:", confirmed(s))
	msg.Ack()
	if err := sub.Close(); err != nil { // sends the confirmations that wait
		log.Fatal(err)
	}
	fmt.Println("confirmed:", confirmed(s))
	// Output:
	// img:png a file an image
	// confirmed: 0
	// confirmed: 1
}

// In Watermill's Router, the stream is opened after all handlers have subscribed.
func ExampleConfig_watermillRouter() {
	ctx, stop := context.WithCancel(context.Background())
	s, send := startService(gatewaytest.Config{})
	defer s.Close()
	send("img:png", "an image") // waits at the service

	r, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	sub, err := subscriber.New(subscriber.Config{
		Client: s.Client(), Ready: r.Running(),
		Hooks: subscriber.Hooks{Confirmed: func(string, []gateway.MessageConfirmation) { stop() }},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	var handled atomic.Int64
	handle := func(*message.Message) error { handled.Add(1); return nil }
	r.AddConsumerHandler("archive", subscriber.AllData, sub, handle)
	r.AddConsumerHandler("pictures", "img:png", sub, handle)
	if err := r.Run(ctx); err != nil {
		log.Fatal(err)
	}
	if err := sub.Close(); err != nil { // sends the confirmations that the Router has not waited for
		log.Fatal(err)
	}
	fmt.Println("handlers that had it before it was confirmed:", handled.Load())
	// Output: handlers that had it before it was confirmed: 2
}

// A large payload arrives in chunks, and then as a file. Who wants the file
// alone lists its type; its ack confirms all chunks.
func ExampleConfig_files() {
	ctx := context.Background()
	s, send := startService(gatewaytest.Config{ChunkSize: 10})
	defer s.Close()

	sub, err := subscriber.New(subscriber.Config{
		Client: s.Client(),
		Files:  []string{"iso:11783:-10:taskdata:zip"},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	messages, err := sub.Subscribe(ctx, subscriber.AllData)
	if err != nil {
		log.Fatal(err)
	}
	send("iso:11783:-10:taskdata:zip", strings.Repeat("task ", 10))

	file := <-messages
	fmt.Println(file.Metadata.Get(gateway.KeyEventType), len(file.Payload), "bytes")
	fmt.Println(strings.Count(file.Metadata.Get(gateway.KeyMessageIDs), ",")+1, "chunks")
	file.Ack()
	if err := sub.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("confirmed:", confirmed(s))
	// Output:
	// FILE_RECEIVED 50 bytes
	// 5 chunks
	// confirmed: 5
}

// Large payloads go into a bucket in constant memory; the message refers to them.
func ExampleConfig_claimCheck() {
	ctx := context.Background()
	s, send := startService(gatewaytest.Config{})
	defer s.Close()
	store, err := claimcheck.New(ctx, claimcheck.Config{URL: "mem://"}) // or file://, s3://, gs://, azblob://
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()

	sub, err := subscriber.New(subscriber.Config{
		Client: s.Client(),
		Payload: subscriber.PayloadConfig{
			Mode:           subscriber.PayloadClaimCheck,
			ClaimCheck:     store,
			ClaimCheckFrom: 100_000, // bytes
		},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	messages, err := sub.Subscribe(ctx, subscriber.AllData)
	if err != nil {
		log.Fatal(err)
	}
	send("img:png", strings.Repeat("pixel", 100_000))
	send("img:png", "small")

	for range 2 {
		msg := <-messages
		payload, size, err := subscriber.OpenPayload(msg) // wherever it is
		if err != nil {
			log.Fatal(err)
		}
		n, err := io.Copy(io.Discard, payload)
		if err != nil {
			log.Fatal(err)
		}
		if err := payload.Close(); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d bytes in the message, %d of %d read, %q\n", len(msg.Payload), n, size, msg.Metadata.Get(gateway.KeyPayloadMode))
		msg.Ack()
	}
	if err := sub.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 bytes in the message, 500000 of 500000 read, "claim-check"
	// 5 bytes in the message, 5 of 5 read, ""
}

// When the context of Subscribe ends, a handler may finish what it has begun.
// Close then sends the confirmations that wait.
func ExampleSubscriber_Close() {
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext in a program
	defer stop()
	s, send := startService(gatewaytest.Config{})
	defer s.Close()

	sub, err := subscriber.New(subscriber.Config{
		Client:       s.Client(),
		DrainTimeout: 20 * time.Second, // for the handlers
		CloseTimeout: 30 * time.Second, // for everything
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	messages, err := sub.Subscribe(ctx, subscriber.AllData)
	if err != nil {
		log.Fatal(err)
	}
	send("img:png", "first")
	send("img:png", "second")

	for msg := range messages { // ends after the shutdown
		stop() // the signal comes while the first message is handled
		fmt.Println(string(msg.Payload), "is handled to its end:", msg.Context().Err() == nil)
		msg.Ack()
	}
	if err := sub.Close(); err != nil {
		log.Fatal(err)
	}
	// The second message stays with the service, for the next start.
	fmt.Println("confirmed:", confirmed(s))
	// Output:
	// first is handled to its end: true
	// confirmed: 1
}

// Events that cannot be decoded are stored as they came.
func ExampleQuarantineConfig() {
	service, _ := startService(gatewaytest.Config{})
	defer service.Close()
	client := service.Client()
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	store := gochannel.NewGoChannel(gochannel.Config{}, nil) // a sink, in earnest
	defer func() { _ = store.Close() }()
	stored, err := store.Subscribe(ctx, subscriber.DefaultQuarantineTopic)
	if err != nil {
		log.Fatal(err)
	}
	sub, err := subscriber.New(subscriber.Config{
		Client:     client,
		Quarantine: subscriber.QuarantineConfig{Publisher: store},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = sub.Close() }()
	if _, err := sub.Subscribe(ctx, subscriber.AllData); err != nil {
		log.Fatal(err)
	}
	if err := service.WaitStreams(ctx, 1); err != nil {
		log.Fatal(err)
	}

	service.EmitRaw(service.Application(), []byte("event: MESSAGE_RECEIVED\ndata: {\"id\": 17}\n\n"))
	record := <-stored
	record.Ack()
	fmt.Println(string(record.Payload))
	fmt.Println(record.Metadata[subscriber.KeyQuarantineClass])
	fmt.Println(record.Metadata[subscriber.KeyQuarantineReason])
	// Output:
	// {"id": 17}
	// malformed
	// gateway: decode MESSAGE_RECEIVED: event_type is missing
}

func ExampleTakes() {
	fmt.Println(subscriber.Takes(subscriber.AllData, gateway.EventFileReceived, "img:png"))
	fmt.Println(subscriber.Takes("img:png", gateway.EventMessageReceived, "img:png"))
	fmt.Println(subscriber.Takes(subscriber.AllData, gateway.EventEndpointDeleted, ""))
	// Output:
	// true
	// true
	// false
}

// A handler that is no route of package router says itself that it does not want a message. What nobody
// wants is then kept, or goes to the quarantine.
func ExampleRefuse() {
	s, send := startService(gatewaytest.Config{})
	defer s.Close()

	quarantine := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil) // your poison queue
	defer quarantine.Close()
	sub, err := subscriber.New(subscriber.Config{
		Client: s.Client(), Unmatched: subscriber.UnmatchedQuarantine,
		Quarantine: subscriber.QuarantineConfig{Publisher: quarantine},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	messages, err := sub.Subscribe(context.Background(), subscriber.AllData)
	if err != nil {
		log.Fatal(err)
	}
	send("img:png", "an image of a cat")
	msg := <-messages
	if !strings.Contains(string(msg.Payload), "tractor") {
		subscriber.Refuse(msg)
	}
	msg.Ack()

	refused, err := quarantine.Subscribe(context.Background(), subscriber.DefaultQuarantineTopic)
	if err != nil {
		log.Fatal(err)
	}
	record := <-refused
	fmt.Println(record.Metadata.Get(subscriber.KeyQuarantineClass), string(record.Payload))
	record.Ack()
	if err := sub.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("confirmed:", confirmed(s))
	// Output:
	// unmatched an image of a cat
	// confirmed: 1
}
