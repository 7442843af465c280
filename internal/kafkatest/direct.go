package kafkatest

import (
	"context"
	"errors"
	"net"
)

var errNoTarget = errors.New("the broker is stopped")

// DialBroker dials the broker itself where its clients mean the proxy, so that
// an observer does not see the faults on the way. It is a kgo.Dialer's function.
func (p *Proxy) DialBroker(ctx context.Context, network, address string) (net.Conn, error) {
	if address == p.Addr() {
		p.mu.Lock()
		address = p.target
		p.mu.Unlock()
		if address == "" {
			return nil, errNoTarget
		}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}
