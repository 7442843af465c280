package kafkatest

import (
	"encoding/binary"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Holder is a dialer for a client that writes each request in one call, as sarama does. It keeps requests of a kind on
// their way. The zero value keeps none.
type Holder struct {
	mu   sync.Mutex
	kind int16
	held chan struct{} // closed with the first request that waits; nil: none is to
	free chan struct{} // nil: nothing waits
}

// Hold makes requests of a kind wait until release is called; held is closed with the first one. What is held of an
// earlier call goes on waiting for its own release.
func (h *Holder) Hold(kind kmsg.Key) (held <-chan struct{}, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, free := make(chan struct{}), make(chan struct{})
	h.kind, h.held, h.free = kind.Int16(), first, free
	return first, sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.free == free {
			h.free = nil
		}
		close(free)
	})
}

// Dial connects.
func (h *Holder) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &heldConn{c, h}, nil
}

type heldConn struct {
	net.Conn
	holder *Holder
}

// Write is called with a whole request: its length, and the kind.
func (c *heldConn) Write(request []byte) (int, error) {
	if free := c.holder.waits(int16(binary.BigEndian.Uint16(request[4:]))); free != nil {
		<-free
	}
	return c.Conn.Write(request)
}

func (h *Holder) waits(kind int16) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.free == nil || kind != h.kind {
		return nil
	}
	if h.held != nil {
		close(h.held)
		h.held = nil
	}
	return h.free
}
