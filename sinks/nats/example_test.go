package nats_test

import (
	"context"
	"fmt"
	"os"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks/nats"
)

// startServer starts a server in the process. Programs have one elsewhere.
func startServer() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return "", nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return "", nil, err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return "", nil, fmt.Errorf("server not ready")
	}
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}, nil
}

func ExampleNew() {
	url, stop, err := startServer()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()

	sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}, Stream: "FARM", SubjectPrefix: "farm"}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sink.Close() }()

	msg := message.NewMessage("1", []byte("task data"))
	msg.Metadata[gateway.KeyDedupID] = "endpoint context digest"
	topic := sink.TopicSegment("tenant 7") + "." + sink.TopicSegment("iso:11783:-10:taskdata:zip")
	fmt.Println(topic)
	fmt.Println(sink.Publish(topic, msg), sink.Publish(topic, msg)) // stored once
	fmt.Println(sink.Describe().Durability)
	// Output:
	// tenant%207.iso:11783:-10:taskdata:zip
	// <nil> <nil>
	// disk
}

// A subscriber of watermill-nats reads what the sink wrote, metadata included.
func ExampleMarshaler() {
	url, stop, err := startServer()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sink.Close() }()

	subscriber, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL:               url,
		Unmarshaler:       nats.Marshaler{},
		SubjectCalculator: nats.SubjectCalculator(""),
		JetStream: wmnats.JetStreamConfig{
			SubscribeOptions: []natsgo.SubOpt{natsgo.DeliverAll(), natsgo.AckExplicit()},
		},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = subscriber.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, err := subscriber.Subscribe(ctx, "tenant.type")
	if err != nil {
		fmt.Println(err)
		return
	}

	sent := message.NewMessage("the UUID", []byte("payload"))
	sent.Metadata["Nats-Msg-Id"] = "two\r\nlines"
	if err := sink.Publish("tenant.type", sent); err != nil {
		fmt.Println(err)
		return
	}
	received := <-messages
	received.Ack()
	fmt.Printf("%s %s %q\n", received.UUID, received.Payload, received.Metadata["Nats-Msg-Id"])
	// Output: the UUID payload "two\r\nlines"
}

func ExampleUnescapeTopicSegment() {
	segment := nats.TopicSegment("field 3.5 ha")
	value, err := nats.UnescapeTopicSegment(segment)
	fmt.Println(segment, "=", value, err)
	// Output: field%203%2E5%20ha = field 3.5 ha <nil>
}

// A source of messages for a route to the gateway, or for anything else that takes
// a Watermill subscriber.

// A sink publishes to this subject, and a source subscribes to it.
func ExampleSubject() {
	fmt.Println(nats.Subject("", "iso:11783:-10:taskdata:zip"))
	fmt.Println(nats.Subject("farms", "north field.*"))
	fmt.Println(nats.Subject(nats.NoSubjectPrefix, "positions.>"))
	// Output:
	// agrimill.iso:11783:-10:taskdata:zip
	// farms.north%20field.*
	// positions.>
}
