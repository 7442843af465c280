package natstest

import (
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy in front of a server, for faults on the way.
type Proxy struct {
	listener net.Listener
	target   string
	workers  sync.WaitGroup

	mu          sync.Mutex
	closed      bool
	connections map[net.Conn]bool
	flow        chan struct{} // closed while data flows
	loseReplies bool
}

// NewProxy starts a proxy to an address (host:port, or a URL of Server). It is
// closed when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	const scheme = "nats://"
	if len(target) > len(scheme) && target[:len(scheme)] == scheme {
		target = target[len(scheme):]
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := &Proxy{listener: listener, target: target, connections: map[net.Conn]bool{}, flow: make(chan struct{})}
	close(p.flow)
	p.workers.Go(p.accept) // ends when the listener is closed
	tb.Cleanup(p.close)
	return p
}

// URL returns the address of the proxy as a NATS URL.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

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
	if !p.add(client) {
		return
	}
	defer p.remove(client)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if !p.add(server) {
		return
	}
	defer p.remove(server)

	var directions sync.WaitGroup
	directions.Go(func() { p.copy(server, client, false) })
	directions.Go(func() { p.copy(client, server, true) })
	directions.Wait()
}

func (p *Proxy) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.connections[c] = true
	return true
}

func (p *Proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, c)
}

// copy ends when one of the connections does, and closes both.
func (p *Proxy) copy(to, from net.Conn, replies bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.mu.Lock()
		flow := p.flow
		p.mu.Unlock()
		<-flow
		p.mu.Lock()
		lose := replies && p.loseReplies
		p.mu.Unlock()
		if lose {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
