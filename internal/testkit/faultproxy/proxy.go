// Package faultproxy is a TCP proxy that injects faults between a client and a
// server, for tests.
package faultproxy

import (
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy in front of a server that injects faults.
type Proxy struct {
	listener net.Listener
	workers  sync.WaitGroup

	mu          sync.Mutex
	target      string
	closed      bool
	connections map[net.Conn]bool
	flow        chan struct{} // closed while data flows
	present     fate          // of the current connections
	loseReplies bool
}

// fate is shared by the connections made between two faults.
type fate struct {
	frozen chan struct{} // closed by Freeze
	cut    chan struct{} // closed by Cut
}

func newFate() fate { return fate{frozen: make(chan struct{}), cut: make(chan struct{})} }

// New starts a proxy without a target: connections are closed immediately. The proxy
// is closed when the test ends.
func New(tb testing.TB) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := &Proxy{listener: listener, connections: map[net.Conn]bool{}, flow: make(chan struct{}), present: newFate()}
	close(p.flow)
	p.workers.Go(p.accept) // ends when the listener is closed
	tb.Cleanup(p.close)
	return p
}

// Addr returns the address of the proxy.
func (p *Proxy) Addr() string { return p.ListenAddr().String() }

// ListenAddr is Addr as a net.Addr.
func (p *Proxy) ListenAddr() net.Addr { return p.listener.Addr() }

// Target returns the address for new connections; "" for none.
func (p *Proxy) Target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// SetTarget sets the address for new connections; "" for none.
func (p *Proxy) SetTarget(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = address
}

// Hang stops the data in both directions; connections are accepted and stay open.
func (p *Proxy) Hang() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
		p.flow = make(chan struct{})
	default: // already hanging
	}
}

// Resume ends Hang. Held data is then forwarded.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
	default:
		close(p.flow)
	}
}

// Freeze makes the current connections silent forever, like a firewall that
// has forgotten them: what is sent is lost, and neither side notices that the other has
// closed. New connections work. Cut closes the frozen ones.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.present.frozen)
	// The frozen connections wait for the next Cut like all others.
	p.present.frozen = make(chan struct{})
}

// LoseReplies discards what the server sends, until Cut.
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
	close(p.present.cut)
	p.present = newFate()
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
	target, fate, ok := p.add(client)
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
	if _, _, ok := p.add(server); !ok {
		return
	}
	defer p.remove(server)

	var directions sync.WaitGroup
	directions.Go(func() { p.copy(server, client, false, fate) })
	directions.Go(func() { p.copy(client, server, true, fate) })
	directions.Wait()
}

// copy copies until one side is closed, and then closes both.
func (p *Proxy) copy(to, from net.Conn, replies bool, fate fate) {
	defer func() { _ = to.Close() }()
	defer func() { _ = from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-fate.frozen:
			<-fate.cut // neither the data nor the end passes
			return
		default:
		}
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

// add registers a connection and returns the target and its fate;
// false if the proxy is closed.
func (p *Proxy) add(c net.Conn) (target string, of fate, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return "", fate{}, false
	}
	p.connections[c] = true
	return p.target, p.present, true
}

func (p *Proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, c)
}
