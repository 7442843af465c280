// Package dialer makes connections that can all be ended at once.
package dialer

import (
	"context"
	"net"
	"sync"
	"time"

	"golang.org/x/net/proxy"
)

// Dialer makes the connections of a client and can end them all: sarama has no
// other way to stop waiting for a broker that does not answer.
type Dialer struct {
	timeout time.Duration
	ctx     context.Context // ends with Shut
	cancel  context.CancelFunc

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// New returns a Dialer whose connections are made within timeout.
func New(timeout time.Duration) *Dialer {
	d := &Dialer{timeout: timeout, conns: map[*conn]struct{}{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Through returns a dialer that makes its connections with via.
func (d *Dialer) Through(via proxy.Dialer) proxy.Dialer { return through{d, via} }

type through struct {
	*Dialer
	via proxy.Dialer
}

// Dial connects.
func (d through) Dial(network, address string) (raw net.Conn, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	if via, ok := d.via.(proxy.ContextDialer); ok {
		raw, err = via.DialContext(ctx, network, address)
	} else {
		raw, err = d.via.Dial(network, address)
	}
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, dialer: d.Dialer}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		_ = raw.Close()
		return nil, net.ErrClosed
	}
	d.conns[c] = struct{}{}
	return c, nil
}

// IsShut reports whether Shut was called.
func (d *Dialer) IsShut() bool { return d.ctx.Err() != nil }

// Shut closes all connections and makes no more.
func (d *Dialer) Shut() {
	d.mu.Lock()
	d.cancel()
	conns := d.conns
	d.conns = map[*conn]struct{}{}
	d.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
}

// conn is a connection that its dialer knows.
type conn struct {
	net.Conn
	dialer *Dialer
}

// Close closes the connection.
func (c *conn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.conns, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}
