package faultproxy

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// maxAhead is how many chunks may be under way in one direction; a chunk has up to 32 KiB.
const maxAhead = 8192

// Late is New with a target (host:port) and the delay of a network: what either side sends arrives after it, and as fast as it was
// sent, because the delay bounds no throughput.
func Late(tb testing.TB, target string, delay time.Duration) *Proxy {
	p := New(tb)
	p.delay = delay
	p.SetTarget(target)
	return p
}

// late is a connection to which what is written comes after the delay.
type late struct {
	net.Conn
	delay  time.Duration
	ahead  chan chunk
	closed sync.Once
	done   chan struct{} // closed when all is written
}

// chunk is some data that is under way.
type chunk struct {
	data []byte
	due  time.Time
}

// late returns where to write what a connection gets.
func (p *Proxy) late(to net.Conn) io.WriteCloser {
	if p.delay == 0 {
		return to
	}
	l := &late{Conn: to, delay: p.delay, ahead: make(chan chunk, maxAhead), done: make(chan struct{})}
	p.workers.Go(l.write) // ends when it is closed
	return l
}

func (l *late) write() {
	defer close(l.done)
	var err error
	for c := range l.ahead {
		if wait(c.due); err == nil { // else until the reader has noticed
			_, err = l.Conn.Write(c.data)
		}
	}
}

// Write implements net.Conn.
func (l *late) Write(b []byte) (int, error) {
	l.ahead <- chunk{bytes.Clone(b), time.Now().Add(l.delay)}
	return len(b), nil
}

// Close closes the connection after what is under way.
func (l *late) Close() error {
	l.closed.Do(func() { close(l.ahead) })
	<-l.done
	return l.Conn.Close()
}
