package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// startNATS runs a NATS server with JetStream inside this process, on a free
// loopback port, with file storage in a temporary folder. stop ends the server
// and removes the folder; it may be called more than once.
func startNATS() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "agrimill-quickstart-")
	if err != nil {
		return "", nil, err
	}
	remove := func() { _ = os.RemoveAll(dir) }
	server, err := natsserver.NewServer(&natsserver.Options{
		Host:       "127.0.0.1",
		Port:       natsserver.RANDOM_PORT,
		JetStream:  true,
		StoreDir:   dir,
		MaxPayload: natsserver.MAX_PAYLOAD_MAX_SIZE,
		// Enough to send the largest payload to a reader in one go.
		MaxPending: 4 * natsserver.MAX_PAYLOAD_MAX_SIZE,
		NoSigs:     true,
		NoLog:      true,
	})
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("NATS server: %w", err)
	}
	stop = func() {
		server.Shutdown()
		server.WaitForShutdown()
		remove()
	}
	server.Start()
	if !server.ReadyForConnections(10 * time.Second) {
		stop()
		return "", nil, errors.New("NATS server: not ready after 10 s")
	}
	return server.ClientURL(), stop, nil
}
