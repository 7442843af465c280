// Package faultproxy is a TCP proxy that makes faults between a client and a
// server, for tests.
package faultproxy

import (
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy in front of a server, for faults on the way.
type Proxy struct {
	listener net.Listener
	workers  sync.WaitGroup

	mu          sync.Mutex
	target      string
	closed      bool
	connections map[net.Conn]bool
	flow        chan struct{} // closed while data flows
	loseReplies bool
}

// New starts a proxy without target: connections are closed at once. It is
// closed when the test ends.
func New(tb testing.TB) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := &Proxy{listener: listener, connections: map[net.Conn]bool{}, flow: make(chan struct{})}
	close(p.flow)
	p.workers.Go(p.accept) // ends when the listener is closed
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address of the proxy.
func (p *Proxy) Addr() string { return p.ListenAddr().String() }

// ListenAddr is Addr as a net.Addr.
func (p *Proxy) ListenAddr() net.Addr { return p.listener.Addr() }

// Target returns the address that new connections go to; "" for none.
func (p *Proxy) Target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// SetTarget sets the address that new connections go to; "" for none.
func (p *Proxy) SetTarget(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

// Hang stops the data in both directions; connections are accepted and stay.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
		p.flow = make(chan struct{})
	default: // hangs already
	}
}

// Resume ends Hang. What was held back goes on its way.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
	default:
		close(p.flow)
	}
}

// LoseReplies throws away what the server sends, until Cut.
func (p *Proxy) LoseReplies() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseReplies = true
}

// Cut closes all connections and ends LoseReplies. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loseReplies = false
	for c := range p.connections {
		_ = c.Close()
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.Resume()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.workers.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.workers.Go(func() { p.serve(client) }) // ends when a side is closed, at the latest by close
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	target, ok := p.add(client)
	if !ok {
		return
	}
	defer p.remove(client)
	if target == "" {
		return
	}
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if _, ok := p.add(server); !ok {
		return
	}
	defer p.remove(server)

	var directions sync.WaitGroup
	directions.Go(func() { p.copy(server, client, false) })
	directions.Go(func() { p.copy(client, server, true) })
	directions.Wait()
}

// copy copies until one side is closed, and then closes both.
func (p *Proxy) copy(to, from net.Conn, replies bool) {
	defer func() { _ = to.Close() }()
	defer func() { _ = from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			flow, lose := p.state()
			<-flow
			if !replies || !lose {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) state() (flow <-chan struct{}, loseReplies bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flow, p.loseReplies
}

// add remembers a connection and returns the target; false when the proxy is
// closed.
func (p *Proxy) add(c net.Conn) (target string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return "", false
	}
	p.connections[c] = true
	return p.target, true
}

func (p *Proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, c)
}
