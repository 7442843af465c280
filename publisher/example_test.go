package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/sinks/claimcheck"
)

const taskdata = "iso:11783:-10:taskdata:zip"

// startService gives the examples a service in memory with a sender, and two
// endpoints that can receive, of which one subscribes.
func startService() (s *gatewaytest.Server, sender, tractor, office gateway.Endpoint) {
	s, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		log.Fatal(err)
	}
	types := []string{taskdata}
	sender = s.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types})
	tractor = s.AddEndpoint(gatewaytest.EndpointConfig{Name: "tractor", Receive: types})
	office = s.AddEndpoint(gatewaytest.EndpointConfig{Name: "office", Receive: types, Subscribe: types})
	return s, sender, tractor, office
}

// A message goes to one endpoint, which needs no subscription.
func ExampleNew() {
	s, sender, tractor, _ := startService()
	defer s.Close()

	pub, err := publisher.New(publisher.Config{
		Client:     s.Client(), // gateway.New(gateway.Config{…})
		TenantID:   s.Tenant(),
		EndpointID: sender.ID,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	msg := message.NewMessage(watermill.NewUUID(), []byte("a task"))
	msg.Metadata.Set(gateway.KeyDirectRecipients, tractor.ID)
	msg.Metadata.Set(gateway.KeyFilename, "TASKDATA.ZIP")
	if err := pub.Publish(taskdata, msg); err != nil {
		log.Fatal(err)
	}
	if err := pub.Close(); err != nil {
		log.Fatal(err)
	}

	for _, entry := range s.Ledger() {
		fmt.Println(entry.EndpointID == tractor.ID, entry.MessageType, entry.Filename, entry.Size)
		fmt.Println("context ID is the UUID:", entry.ContextID == msg.UUID)
	}
	// Output:
	// true iso:11783:-10:taskdata:zip TASKDATA.ZIP 6
	// context ID is the UUID: true
}

// Without direct recipients a message is published to everyone who subscribes.
func ExamplePublisher_Publish() {
	s, sender, _, office := startService()
	defer s.Close()
	pub, err := publisher.New(publisher.Config{Client: s.Client(), TenantID: s.Tenant(), EndpointID: sender.ID}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()

	err = pub.Publish(taskdata,
		message.NewMessage(watermill.NewUUID(), []byte("first")),
		message.NewMessage(watermill.NewUUID(), []byte("second")),
	)
	fmt.Println(err)
	for _, entry := range s.Ledger() {
		fmt.Println(entry.EndpointID == office.ID, entry.Size)
	}
	// Output:
	// <nil>
	// true 5
	// true 6
}

// A file is read while it is sent, and again if an attempt fails.
func ExamplePublisher_Send() {
	s, sender, _, _ := startService()
	defer s.Close()
	pub, err := publisher.New(publisher.Config{Client: s.Client(), TenantID: s.Tenant(), EndpointID: sender.ID}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()

	file := strings.NewReader("a large file") // os.Open, and the size that Stat tells
	err = pub.Send(context.Background(), publisher.Message{
		Type: taskdata, UUID: watermill.NewUUID(), Body: file, Size: file.Size(),
		Metadata: message.Metadata{gateway.KeyFilename: "TASKDATA.ZIP"},
	})
	fmt.Println(err, s.Ledger()[0].Size, s.Ledger()[0].Filename)
	// Output: <nil> 12 TASKDATA.ZIP
}

// The error tells what became of each message.
func ExamplePublishError() {
	s, sender, tractor, _ := startService()
	defer s.Close()
	pub, err := publisher.New(publisher.Config{Client: s.Client(), TenantID: s.Tenant(), EndpointID: sender.ID}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()

	messages := make([]*message.Message, 3)
	for i := range messages {
		messages[i] = message.NewMessage(watermill.NewUUID(), []byte("a task"))
	}
	const stranger = "00000000-0000-4000-8000-000000000000"
	messages[1].Metadata.Set(gateway.KeyDirectRecipients, tractor.ID+","+stranger)
	err = pub.Publish(taskdata, messages...)
	var failed *publisher.PublishError
	if errors.As(err, &failed) {
		fmt.Println(failed.Outcomes, failed.UUID == messages[1].UUID)
	}
	fmt.Println("partial delivery:", errors.Is(err, gateway.ErrPartialDelivery))

	// What breaks a rule is found before anything is sent.
	messages[2].Metadata.Set(gateway.KeyFilename, "a\r\nb")
	err = pub.Publish(taskdata, messages[0], messages[2])
	var rule *publisher.MetadataError
	if errors.As(err, &rule) {
		fmt.Println(rule)
	}
	// Output:
	// [sent partially delivered not sent] true
	// partial delivery: true
	// metadata x-router-filename must not contain control characters
}

// A large payload is streamed out of a bucket; the message only refers to it.
func ExampleConfig_claimCheck() {
	ctx := context.Background()
	s, sender, tractor, _ := startService()
	defer s.Close()
	store, err := claimcheck.New(ctx, claimcheck.Config{URL: "mem://"}) // or file://, s3://, gs://, azblob://
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	pub, err := publisher.New(publisher.Config{
		Client: s.Client(), TenantID: s.Tenant(), EndpointID: sender.ID,
		ClaimCheck: store,
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()

	msg := message.NewMessage(watermill.NewUUID(), nil)
	reference, err := store.Put(ctx, msg.UUID, strings.NewReader("a large file"))
	if err != nil {
		log.Fatal(err)
	}
	msg.Metadata.Set(gateway.KeyPayloadMode, gateway.PayloadModeClaimCheck)
	msg.Metadata.Set(gateway.KeyPayloadReference, reference)
	msg.Metadata.Set(gateway.KeyDirectRecipients, tractor.ID)
	fmt.Println(pub.Publish(taskdata, msg))
	fmt.Println(s.Ledger()[0].Size, "bytes arrived")
	// Output:
	// <nil>
	// 12 bytes arrived
}

// Applications that talk to their own endpoints keep their metadata.
func ExampleEnvelopeMarshaler() {
	s, sender, _, _ := startService()
	defer s.Close()
	pub, err := publisher.New(publisher.Config{
		Client: s.Client(), TenantID: s.Tenant(), EndpointID: sender.ID,
		Marshaler: publisher.EnvelopeMarshaler{}, // subscriber.EnvelopeUnmarshaler at the other end
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
	msg := message.NewMessage(watermill.NewUUID(), []byte("a task"))
	msg.Metadata.Set("field", "north 7")
	fmt.Println(pub.Publish(taskdata, msg))
	// Output: <nil>
}
