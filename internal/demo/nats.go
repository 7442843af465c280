package demo

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// maxMessage is the maximum size of a NATS message including headers. JetStream's file
// store accepts a little less than 32 MiB, regardless of the server's configuration.
const maxMessage = 32 << 20

// NATS is a NATS server with JetStream in this process, on a loopback port, with file storage in a temporary
// folder. It is not safe for concurrent use.
type NATS struct {
	options natsserver.Options
	server  *natsserver.Server // nil: stopped
	url     string
}

// StartNATS starts one on a free port.
func StartNATS() (*NATS, error) {
	dir, err := os.MkdirTemp("", "agrimill-nats-")
	if err != nil {
		return nil, err
	}
	n := &NATS{options: natsserver.Options{
		Host:       "127.0.0.1",
		Port:       natsserver.RANDOM_PORT,
		JetStream:  true,
		StoreDir:   dir,
		SyncAlways: true,
		MaxPayload: maxMessage,
		// What may be pending for a slow reader: several of the largest messages.
		MaxPending: 4 * maxMessage,
		NoSigs:     true,
		NoLog:      true,
	}}
	if err := n.Start(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	n.url = n.server.ClientURL()
	n.options.Port = n.server.Addr().(*net.TCPAddr).Port
	return n, nil
}

// patience bounds what the server does at once, unless the machine is busy with something else.
const patience = time.Minute

// URL is the server's address, also while it is stopped.
func (n *NATS) URL() string { return n.url }

// Start starts the server again, with what it has stored, at the same address. It does nothing if the
// server runs.
func (n *NATS) Start() error {
	if n.server != nil {
		return nil
	}
	options := n.options // which the server changes
	server, err := natsserver.NewServer(&options)
	if err != nil {
		return fmt.Errorf("NATS server: %w", err)
	}
	n.server = server
	server.Start()
	if !server.ReadyForConnections(patience) {
		n.Stop()
		return fmt.Errorf("NATS server: not ready after %v", patience)
	}
	return nil
}

// Stop stops the server, which keeps what it has stored. It does nothing if the server is stopped.
func (n *NATS) Stop() {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
}

// Close stops the server and removes what it has stored. It may be called more than once.
func (n *NATS) Close() error {
	n.Stop()
	return os.RemoveAll(n.options.StoreDir)
}
