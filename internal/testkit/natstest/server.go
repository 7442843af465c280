// Package natstest starts real NATS servers with JetStream in the test process.
package natstest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Server is a nats-server with JetStream and its own file store, for the goroutine of the test.
type Server struct {
	tb      testing.TB
	options server.Options
	running atomic.Pointer[server.Server]
}

// Start starts a server on a free loopback port, with its file store in a temporary directory, until the test ends. The
// functions may first modify its options.
func Start(tb testing.TB, change ...func(*server.Options)) *Server {
	tb.Helper()
	s := &Server{tb: tb, options: server.Options{
		Host:      "127.0.0.1",
		Port:      testkit.FreePorts(tb, 1)[0], // Restart needs it again
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
	if !running.ReadyForConnections(testkit.Patience) {
		running.Shutdown()
		s.tb.Fatalf("nats-server: not ready after %v", testkit.Patience)
	}
	// When the last stream was deleted, the server removes the folder that streams are in, some time later, and a stream
	// that is created at that moment fails.
	if held := filepath.Join(options.StoreDir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT, "streams", "no-stream"); options.JetStream {
		if err := os.MkdirAll(held, 0o750); err != nil {
			s.tb.Fatal(err)
		}
	}
	s.running.Store(running)
}

// URL returns the address of the server; Restart does not change it.
func (s *Server) URL() string {
	return fmt.Sprintf("nats://%s:%d", s.options.Host, s.options.Port)
}

// Stop stops the server, if it runs, and waits until it is down. Its store is kept.
func (s *Server) Stop() {
	if running := s.running.Swap(nil); running != nil {
		// A stream that is being made while the server shuts down is never closed: it stays in the process.
		testkit.Eventually(s.tb, "no request to JetStream is in work", func() bool {
			info, err := running.Jsz(nil)
			return err != nil || info.API.Inflight == 0
		})
		running.Shutdown()
		running.WaitForShutdown()
	}
}

// Restart restarts the server with the same store. The functions may first modify its options.
func (s *Server) Restart(change ...func(*server.Options)) {
	s.tb.Helper()
	s.Stop()
	for _, f := range change {
		f(&s.options)
	}
	s.start()
}

// Server returns the running server; nil while it is stopped.
func (s *Server) Server() *server.Server { return s.running.Load() }
