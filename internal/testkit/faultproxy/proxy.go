// Package faultproxy is a proxy, over TCP or in memory, that injects faults, for tests.
package faultproxy

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a proxy in front of a server that injects faults.
type Proxy struct {
	listener net.Listener // nil in memory
	dial     func(target string) (net.Conn, error)
	delay    time.Duration // of what either side sends
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

// New starts a proxy without a target, which closes connections immediately, until the test ends.
func New(tb testing.TB) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := newProxy(tb, func(target string) (net.Conn, error) { return net.Dial("tcp", target) })
	p.listener = listener
	p.workers.Go(p.accept) // ends when the listener is closed
	return p
}

// InMemory makes a proxy without an address, for a bubble of testing/synctest: clients call Connect, and
// the proxy gets its connections to the server from dial. It is closed when the test ends.
func InMemory(tb testing.TB, dial func() (net.Conn, error)) *Proxy {
	p := newProxy(tb, func(string) (net.Conn, error) { return dial() })
	p.target = "in memory"
	return p
}

func newProxy(tb testing.TB, dial func(target string) (net.Conn, error)) *Proxy {
	p := &Proxy{dial: dial, connections: map[net.Conn]bool{}, flow: make(chan struct{}), present: newFate()}
	close(p.flow)
	tb.Cleanup(p.close)
	return p
}

// Connect returns a connection to a proxy in memory.
func (p *Proxy) Connect() net.Conn {
	client, end := net.Pipe()
	p.workers.Go(func() { p.serve(p.buffered(end)) }) // ends when a side is closed, at the latest by close
	return client
}

// buffered is a connection that is read as soon as something comes, as the buffers of TCP do: whoever
// writes does not wait, also while the proxy hangs.
type buffered struct {
	net.Conn
	mu    sync.Mutex
	came  sync.Cond
	bytes []byte
	err   error
}

func (p *Proxy) buffered(conn net.Conn) net.Conn {
	b := &buffered{Conn: conn}
	b.came.L = &b.mu
	p.workers.Go(b.fill) // ends when a side is closed
	return b
}

func (b *buffered) fill() {
	buf := make([]byte, 32<<10)
	for {
		n, err := b.Conn.Read(buf)
		b.mu.Lock()
		b.bytes, b.err = append(b.bytes, buf[:n]...), err
		b.came.Signal()
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (b *buffered) Read(buf []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.bytes) == 0 && b.err == nil {
		b.came.Wait()
	}
	if len(b.bytes) == 0 {
		return 0, b.err
	}
	n := copy(buf, b.bytes)
	b.bytes = b.bytes[n:]
	return n, nil
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
	if p.listener != nil {
		_ = p.listener.Close()
	}
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
	server, err := p.dial(target)
	if err != nil {
		return
	}
	if p.listener == nil {
		server = p.buffered(server)
	}
	defer func() { _ = server.Close() }()
	if _, _, ok := p.add(server); !ok {
		return
	}
	defer p.remove(server)

	var directions sync.WaitGroup
	toServer, toClient := p.late(server), p.late(client)
	directions.Go(func() { p.copy(toServer, client, false, fate) })
	directions.Go(func() { p.copy(toClient, server, true, fate) })
	directions.Wait()
}

// copy copies until one side is closed, and then closes both.
func (p *Proxy) copy(to io.WriteCloser, from net.Conn, replies bool, fate fate) {
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

// add registers a connection and returns the target and its fate; false if the proxy is closed.
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
