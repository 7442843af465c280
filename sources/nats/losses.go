package nats

import "time"

// losses finds out from the numbers of deliveries that some were lost.
type losses struct {
	last       uint64    // number of the last delivery by the server
	reconnects uint64    // as of the last loss
	suspect    bool      // a request has failed since
	lost       time.Time // when deliveries were found lost; zero: none
	broken     time.Time // when the first of them were
	shared     bool      // somebody else reads the consumer
}

// anew is for a consumer that was made anew: it counts from one.
func (l *losses) anew() { l.last = 0 }

// see takes in the number of a delivery, and how often the connection was made anew.
func (l *losses) see(number, reconnects uint64, ackWait time.Duration) {
	if l.last > 0 && number > l.last+1 {
		// Deliveries went to somebody else, or were lost with a connection; nobody knows of
		// which keys. The server delivers what was lost before anything new, once its time is
		// over.
		switch {
		case l.suspect || reconnects != l.reconnects:
			l.reconnects = reconnects
			l.lost = time.Now()
			l.broken = l.lost
		case !l.lost.IsZero() && !l.shared && time.Since(l.broken) < lostFactor*ackWait:
			l.lost = time.Now() // the server had not heard of the end of the connection before
		default:
			l.shared = true
		}
	}
	l.suspect, l.last = false, max(l.last, number)
}
