// Command embed shows how to store everything from the gateway in NATS JetStream. The
// function run is all it takes. The rest starts a gateway and a NATS server, and checks the
// result. The last line of the output is
//
//	OK: 100 messages stored once and confirmed, 1 undecodable event quarantined
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

func run(ctx context.Context, config gateway.Config, natsURL string) error {
	client, err := gateway.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: natsURL}}, nil)
	if err != nil {
		return err
	}
	defer sink.Close()
	sub, err := subscriber.New(subscriber.Config{Client: client, Quarantine: subscriber.QuarantineConfig{Publisher: sink}}, nil)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{Poison: sink}, nil)
	if err != nil {
		return err
	}
	if err := r.Add(router.Route{Name: "farm data", From: sub, Topic: subscriber.AllData, To: sink}); err != nil {
		return err
	}
	return r.Run(ctx)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := demo(ctx, 100, "iso:11783:-10:taskdata:zip"); err != nil {
		log.Fatal(err)
	}
}

func demo(ctx context.Context, count int, messageType string) error {
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return err
	}
	defer gate.Close()
	dir, err := os.MkdirTemp("", "agrimill-embed-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir})
	if err != nil {
		return err
	}
	server.Start()
	defer server.WaitForShutdown()
	defer server.Shutdown()
	conn, err := natsgo.Connect("", natsgo.InProcessServer(server))
	if err != nil {
		return err
	}
	defer conn.Close()
	quarantine, err := conn.SubscribeSync("agrimill.quarantine")
	if err != nil {
		return err
	}

	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{messageType}})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{messageType}, Subscribe: []string{messageType}})
	for i := range count {
		file := fmt.Appendf(nil, "task data %d", i)
		if _, err := gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: file}); err != nil {
			return err
		}
	}
	running, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- run(running, gate.ClientConfig(), server.ClientURL()) }()
	err = gate.WaitConfirmed(ctx, count)
	if err == nil {
		gate.EmitRaw(gate.Application(), []byte("event: MESSAGE_RECEIVED\ndata: {\"id\": 17}\n\n"))
		_, err = quarantine.NextMsgWithContext(ctx)
	}
	stop()
	if err := errors.Join(err, <-result); err != nil {
		return err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, "AGRIMILL")
	if err != nil {
		return err
	}
	if stored := stream.CachedInfo().State.Msgs; stored != uint64(count)+1 {
		return fmt.Errorf("%d messages stored, want %d and the event in quarantine", stored, count)
	}
	fmt.Printf("OK: %d messages stored once and confirmed, 1 undecodable event quarantined\n", count)
	return nil
}
