package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

const (
	messages    = 100
	messageType = "iso:11783:-10:taskdata:zip"
	patience    = 30 * time.Second
)

// demo runs the bridge between servers of its own and checks what comes of it.
func demo(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	gate, err := gatewaytest.Start(gatewaytest.Config{})
	if err != nil {
		return err
	}
	defer gate.Close()
	natsURL, stopNATS, err := startNATS()
	if err != nil {
		return err
	}
	defer stopNATS()

	// A sender, a receiver, and messages that wait for the bridge.
	sender := gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: []string{messageType}})
	gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: []string{messageType}, Subscribe: []string{messageType}})
	for i := range messages {
		if _, err := gate.Send(gatewaytest.SendRequest{
			From: sender.ID, MessageType: messageType, Payload: fmt.Appendf(nil, "task data %d", i),
		}); err != nil {
			return err
		}
	}

	running, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { result <- bridge(running, gate.ClientConfig(), natsURL) }()
	waited := gate.WaitConfirmed(ctx, messages)
	stop()
	if err := errors.Join(waited, <-result); err != nil {
		return err
	}
	if err := check(ctx, gate.Ledger(), natsURL); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "OK: %d messages sent, stored in JetStream once, and confirmed\n", messages)
	return err
}

// check holds the stream against what the gateway says it has delivered.
func check(ctx context.Context, ledger []gatewaytest.LedgerEntry, natsURL string) error {
	conn, err := natsgo.Connect(natsURL)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, "AGRIMILL")
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return err
	}
	stored := make(map[[sha256.Size]byte]int)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		msg, err := stream.GetMsg(ctx, seq)
		if err != nil {
			return err
		}
		if msg.Header.Get("x-router-message-type") != messageType {
			return fmt.Errorf("message %d (%s) is not what was sent", seq, msg.Subject)
		}
		stored[sha256.Sum256(msg.Data)]++
	}
	if len(ledger) != messages || len(stored) != messages {
		return fmt.Errorf("%d messages sent, %d delivered, %d stored", messages, len(ledger), len(stored))
	}
	for _, entry := range ledger {
		if n := stored[entry.PayloadSHA256]; n != 1 || !entry.Confirmed() {
			return fmt.Errorf("message %s: stored %d times, confirmed: %t", entry.MessageID, n, entry.Confirmed())
		}
	}
	return nil
}

// startNATS runs a NATS server with JetStream in this process, on a free
// loopback port, with its files in a temporary folder. stop ends and removes it.
func startNATS() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "agrimill-embed-")
	if err != nil {
		return "", nil, err
	}
	server, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, err
	}
	stop = func() {
		server.Shutdown()
		server.WaitForShutdown()
		_ = os.RemoveAll(dir) // temporary
	}
	server.Start()
	if !server.ReadyForConnections(patience) {
		stop()
		return "", nil, errors.New("NATS server: not ready")
	}
	return server.ClientURL(), stop, nil
}
