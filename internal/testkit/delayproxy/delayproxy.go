// Package delayproxy is a TCP proxy that puts the delay of a network between a client and a
// server, for tests and benchmarks.
package delayproxy

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of a server. What either side sends arrives after the delay, and
// as fast as it was sent: the delay bounds no throughput.
type Proxy struct {
	listener net.Listener
	target   string
	delay    time.Duration
	workers  sync.WaitGroup

	mu          sync.Mutex
	closed      bool
	connections map[net.Conn]bool
}

// maxAhead is how many chunks may be under way in one direction; a chunk has up to 64 KiB.
const maxAhead = 4096

// New starts a proxy in front of target (host:port). It is closed when the test ends.
func New(tb testing.TB, target string, delay time.Duration) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := &Proxy{listener: listener, target: target, delay: delay, connections: map[net.Conn]bool{}}
	p.workers.Go(p.accept) // ends when the listener is closed
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.connections {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.workers.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		if p.closed {
			_, _ = client.Close(), server.Close()
			p.mu.Unlock()
			return
		}
		p.connections[client], p.connections[server] = true, true
		p.mu.Unlock()
		p.workers.Go(func() { p.forward(client, server) })
		p.workers.Go(func() { p.forward(server, client) })
	}
}

// chunk is some data that is under way.
type chunk struct {
	data []byte
	due  time.Time
}

// forward ends when one of the connections does, and closes both.
func (p *Proxy) forward(from, to net.Conn) {
	ahead := make(chan chunk, maxAhead)
	var writer sync.WaitGroup
	writer.Go(func() {
		for c := range ahead {
			wait(c.due)
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close()
				for range ahead { // until the reader has noticed
				}
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			ahead <- chunk{append([]byte(nil), buf[:n]...), time.Now().Add(p.delay)}
		}
		if err != nil {
			break
		}
	}
	close(ahead)
	writer.Wait()
	_, _ = from.Close(), to.Close()
	p.mu.Lock()
	delete(p.connections, from)
	delete(p.connections, to)
	p.mu.Unlock()
}
