package gatewaytest

import (
	"sync/atomic"
	"time"
)

// clock is the server's clock: the system's plus an offset added by Advance. It
// determines what has expired; it does not drive timers.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

// Advance moves the server's clock forward by d, or back if d is negative, for the expiry of tokens and payload URIs, the
// confirmation lag, the rate limit and the Date header. Keep-alive and injected delays run in real time.
func (s *Server) Advance(d time.Duration) { s.clock.offset.Add(int64(d)) }

// Now returns the time of the server's clock.
func (s *Server) Now() time.Time { return s.clock.now() }
