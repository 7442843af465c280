package core

import "time"

// tempo tells what is behind from what is as slow as everything is. When handlers, or a sink, are slower than the stream, all that is
// open waits long, and leaving some of it with the service is in vain: nothing gets on in its place, and it has to be
// read again. So everything has more time from then on, until leaving something is of use again: when more than a few are acked
// quickly that came in its place.
type tempo struct {
	// patience is how long something may be open, or in a handler, before it is late.
	patience time.Duration
	// leftAt is when something was left first on this connection; zero if nothing was. acked counts what was acked since then,
	// and quick what of that had come since then, and took a fraction of patience.
	leftAt       time.Duration
	acked, quick int
}

// maxPatience bounds how long what hangs may hold up others after a time in which everything was slow.
const maxPatience = 64 * stall

// ack takes in that something that came at opened was acked at the first attempt.
func (t *tempo) ack(now, opened time.Duration) {
	t.acked++
	if opened >= t.leftAt && now-opened <= t.patience/8 {
		t.quick++
	}
}

// leave takes in that something is left.
func (t *tempo) leave(now time.Duration) {
	if t.leftAt == 0 {
		*t = tempo{patience: t.patience, leftAt: now}
	}
}

// reopen takes in that what was left comes again.
func (t *tempo) reopen() {
	switch {
	case t.leftAt == 0:
	case t.acked == 0: // an outage
	case 16*t.quick >= t.acked: // and not only the first of a key, when many of them take turns
		t.patience = stall
	default:
		t.patience = min(4*t.patience, maxPatience)
	}
	t.leftAt = 0
}
