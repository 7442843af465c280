// Package memnet is a network in memory. Its connections block where a bubble of testing/synctest notices, so that
// HTTP runs in one, with a clock of its own. They buffer like those of TCP: whoever closes one of TLS, with locks held,
// says so without waiting for the other side.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// buffered is how much of a connection is on its way in each direction, in bytes.
const buffered = 64 << 10

// Network connects those that dial an address to the one that listens on it. All methods may be called
// concurrently.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener // by address
	port      int                  // the latest that was given away
}

// New returns a network on which nothing listens.
func New() *Network { return &Network{listeners: make(map[string]*listener)} }

// Listen listens on a TCP address with a literal IP; every interface is 127.0.0.1. Port 0 is one that is free.
func (n *Network) Listen(address string) (net.Listener, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	if addr.IP == nil || addr.IP.IsUnspecified() {
		addr.IP = net.IPv4(127, 0, 0, 1) // this network has one host
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr.Port == 0 {
		n.port++
		addr.Port = n.port
	}
	l := &listener{Listener: bufconn.Listen(buffered), network: n, addr: addr}
	if n.listeners[addr.String()] != nil {
		return nil, fmt.Errorf("listen %v: %w", addr, syscall.EADDRINUSE)
	}
	n.listeners[addr.String()] = l
	return l, nil
}

// Dial connects to an address. It blocks until the connection is accepted or ctx ends; where nothing listens it
// fails at once. Its signature is that of http.Transport.DialContext.
func (n *Network) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	refused := fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	if l == nil {
		return nil, refused
	}
	c, err := l.DialContext(ctx)
	switch {
	case err == nil:
		return &conn{Conn: c}, nil
	case ctx.Err() == nil:
		return nil, refused
	}
	return nil, err
}

// conn is one whose deadline for reading ends a read only while it is set. The timer of one that is past may fire after the next
// one was set: an HTTP server, which ends its reads so, would close the connection. The error is that of a connection of the
// operating system, because one that is not temporary ends a connection of TLS.
type conn struct {
	net.Conn
	mu       sync.Mutex
	deadline time.Time // for reading
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if timeout := net.Error(nil); n > 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
			return n, err
		}
		if c.expired() {
			return 0, os.ErrDeadlineExceeded
		}
	}
}

// expired reports whether the deadline is past. If it is not, reads go on.
func (c *conn) expired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.deadline.IsZero() && !time.Now().Before(c.deadline) || c.Conn.SetReadDeadline(c.deadline) != nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

type listener struct {
	*bufconn.Listener
	network *Network
	addr    *net.TCPAddr
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// Close frees the address. Connections stay open.
func (l *listener) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if l.network.listeners[l.addr.String()] == l {
		delete(l.network.listeners, l.addr.String())
	}
	return l.Listener.Close()
}

func (l *listener) Addr() net.Addr { return l.addr }
