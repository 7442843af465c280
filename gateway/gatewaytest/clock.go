package gatewaytest

import (
	"sync/atomic"
	"time"
)

// clock is the server's notion of time: a source plus what Advance added. It
// decides what has expired; it does not drive timers.
type clock struct {
	source func() time.Time
	offset atomic.Int64
}

func (c *clock) now() time.Time { return c.source().Add(time.Duration(c.offset.Load())) }

// Advance moves the server's clock forward by d (or back, when d is negative).
// Tokens and payload URIs expire, a confirmation lag passes and the rate
// limit refills accordingly, and the Date header says so. Keep-alive and injected delays run on real time.
func (s *Server) Advance(d time.Duration) { s.clock.offset.Add(int64(d)) }

// Now is the time on the server's clock.
func (s *Server) Now() time.Time { return s.clock.now() }
