package nats_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"

	sinknats "github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sources/nats"
)

// startServer returns the address of a server that has a report.
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
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
	sink, err := sinknats.New(sinknats.Config{Connection: sinknats.Connection{URL: s.ClientURL()}}, nil)
	if err != nil {
		stop()
		return "", nil, err
	}
	defer func() { _ = sink.Close() }()
	if err := sink.Publish("reports", message.NewMessage("1", []byte("a report"))); err != nil {
		stop()
		return "", nil, err
	}
	return s.ClientURL(), stop, nil
}

func ExampleNew() {
	url, stop, err := startServer()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	subscriber, err := nats.New(nats.Config{Connection: sinknats.Connection{URL: url}, Durable: "to-the-gateway"}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = subscriber.Close() }()
	messages, err := subscriber.Subscribe(context.Background(), "reports")
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := <-messages
	fmt.Printf("%s %s\n", msg.UUID, msg.Payload)
	msg.Ack() // it does not come again
	// Output: 1 a report
}
