// Package natstest starts real NATS servers with JetStream in the process of a
// test.
package natstest

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startTimeout bounds the start of a server on a busy machine.
const startTimeout = 30 * time.Second

// Server is a nats-server with JetStream and a file store of its own. Its
// methods are for the goroutine of the test.
type Server struct {
	tb      testing.TB
	options server.Options
	running *server.Server
}

// Start starts a server on a free port of the loopback interface, with its file
// store in a temporary directory. The functions may change the server's options
// first. It is stopped when the test ends.
func Start(tb testing.TB, change ...func(*server.Options)) *Server {
	tb.Helper()
	s := &Server{tb: tb, options: server.Options{
		Host:      "127.0.0.1",
		Port:      server.RANDOM_PORT,
		JetStream: true,
		StoreDir:  tb.TempDir(),
		NoLog:     true,
		NoSigs:    true,
	}}
	for _, f := range change {
		f(&s.options)
	}
	s.start()
	tb.Cleanup(s.Stop)
	return s
}

func (s *Server) start() {
	s.tb.Helper()
	options := s.options
	running, err := server.NewServer(&options)
	if err != nil {
		s.tb.Fatalf("nats-server: %v", err)
	}
	if !s.options.NoLog {
		running.ConfigureLogger()
	}
	running.Start()
	if !running.ReadyForConnections(startTimeout) {
		running.Shutdown()
		s.tb.Fatalf("nats-server: not ready after %v", startTimeout)
	}
	s.running = running
	s.options.Port = options.Port // the port that was free
	if s.options.Port == server.RANDOM_PORT {
		s.tb.Fatalf("nats-server: no port")
	}
}

// URL returns the address of the server; it stays the same over Restart.
func (s *Server) URL() string {
	return fmt.Sprintf("nats://%s:%d", s.options.Host, s.options.Port)
}

// Stop stops the server and waits until it is down. Its store stays. Stopping a
// stopped server does nothing.
func (s *Server) Stop() {
	if s.running == nil {
		return
	}
	s.running.Shutdown()
	s.running.WaitForShutdown()
	s.running = nil
}

// Restart starts a stopped server again, on the same port and with the same
// store. The functions may change its options first.
func (s *Server) Restart(change ...func(*server.Options)) {
	s.tb.Helper()
	s.Stop()
	for _, f := range change {
		f(&s.options)
	}
	s.start()
}

// Server returns the running server, nil while it is stopped.
func (s *Server) Server() *server.Server { return s.running }
