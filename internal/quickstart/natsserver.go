package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// maxMessage is the maximum size of a NATS message including headers. JetStream's file
// store accepts a little less than 32 MiB, regardless of the server's configuration.
const maxMessage = 32 << 20

// startNATS runs a NATS server with JetStream in this process, on a free
// loopback port, with file storage in a temporary folder. stop shuts down the server
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
		MaxPayload: maxMessage,
		// What may be pending for a slow reader: several of the largest messages.
		MaxPending: 4 * maxMessage,
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
