package subscriber

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/reminders"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// run keeps the event stream open until ctx ends, or until the service has refused
// it for too long, in which case all subscriptions end.
func (s *Subscriber) run(ctx context.Context) {
	for ctx.Err() == nil {
		end := s.readStream(ctx)
		if ctx.Err() != nil {
			end.err = nil // closed by the subscriber
		}
		wait, final := s.setDisconnected(end)
		if final != nil {
			s.logger.Error("ending all subscriptions", final, reminders.Fields(0, end.err))
			s.mu.Lock()
			s.loop.failure = final
			s.mu.Unlock()
			lease.Of(s.ctx).Leave()
			s.stopAll()
			return
		}
		if end.err != nil {
			s.logger.Info("event stream ended; reconnecting", watermill.LogFields{"error": end.err, "wait": wait.String()})
		}
		s.remind(end.err)
		_ = backoff.Sleep(ctx, wait) // the loop says that ctx has ended
	}
}

// remind logs from time to time that an answer which a healthy service does not give still keeps the stream from opening:
// nobody would notice, because everything is up.
func (s *Subscriber) remind(err error) {
	if !isRefusal(err) && !errors.Is(err, gateway.ErrIntermediary) && !errors.Is(err, gateway.ErrBadResponse) {
		return
	}
	s.mu.Lock()
	lasted, due := s.loop.outage.Failed()
	s.mu.Unlock()
	if due {
		s.logger.Error("event stream still cannot be opened; retrying", err, reminders.Fields(lasted, err))
	}
}

// Err returns the reason all subscriptions ended: [ErrStreamRefused] with the latest answer, or the
// error of a closed client. It is nil while the stream is open or being opened,
// and if subscriptions ended because of their contexts or Close.
func (s *Subscriber) Err() error {
	s = s.working()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loop.failure
}

const (
	// yieldAfter is after how many events the goroutine that reads the stream lets others run that are
	// ready to. On a busy processor it would otherwise fill the window before the first message is
	// handled: by then all of it has left the processor's cache, and each message waits the longest
	// time possible.
	yieldAfter = 32
	// yieldLate is how long it takes at most to get a turn again while all that runs are handlers that
	// are fast. When it takes longer, something else wants the processor for itself: then it is given
	// away half as often each time, until it hardly is more often than it would be taken away anyway.
	yieldLate   = time.Millisecond
	yieldSeldom = 256 * yieldAfter
)

// turns says when to let others run. The zero value is ready to use.
type turns struct{ n, after int }

// due reports, after each event, whether it is time.
func (t *turns) due() bool {
	t.n++
	return t.n >= max(t.after, yieldAfter)
}

// waited takes in how long the others ran.
func (t *turns) waited(d time.Duration) {
	t.n = 0
	if d > yieldLate {
		t.after = min(2*max(t.after, yieldAfter), yieldSeldom)
	} else {
		t.after = yieldAfter
	}
}

// readStream opens the stream and processes its events until it ends.
func (s *Subscriber) readStream(ctx context.Context) (end streamEnd) {
	connection, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.openStream(ctx, connection, cancel)
	s.confirmer.heard.note(err)
	if err != nil {
		return streamEnd{err: err, recalled: errors.Is(err, gateway.ErrClosed) && connection.Err() != nil}
	}
	defer func() { _ = stream.Close() }() // it was read to the end, or abandoned
	s.mu.Lock()
	s.loop.stream = stream
	s.mu.Unlock()
	// Unblocks a read that waits for the next event when the context ends.
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()

	var turns turns
	for {
		raw, err := stream.Next()
		if err != nil {
			if large, is := errors.AsType[*gateway.EventTooLargeError](err); is {
				s.tooLarge(ctx, large)
				continue
			}
			if errors.Is(err, io.EOF) {
				err = errStreamEnded
			}
			end.err, end.recalled = err, errors.Is(err, gateway.ErrClosed)
			return end
		}
		end.events++
		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
		if err != nil {
			s.malformed(ctx, raw, err)
			continue
		}
		stoppoint.At(stoppoint.Receive)
		s.intake(ctx, event, int64(len(raw.Data)))
		if turns.due() {
			began := time.Now()
			runtime.Gosched()
			turns.waited(time.Since(began))
		}
		if ctx.Err() != nil {
			end.err = ctx.Err()
			return end
		}
	}
}

var errStreamEnded = errors.New("the service ended the stream")

func (s *Subscriber) malformed(ctx context.Context, raw gateway.RawEvent, err error) {
	s.stats.malformed.Add(1)
	s.unreadable(ctx, newMalformed(raw, err), err, "event could not be decoded; it stays unconfirmed", "event could not be decoded; storing it in the quarantine")
}

func (s *Subscriber) tooLarge(ctx context.Context, err *gateway.EventTooLargeError) {
	s.stats.tooLarge.Add(1)
	const skipped = "event too large; it was skipped and stays unconfirmed"
	s.unreadable(ctx, newTooLarge(err), err, skipped, skipped+"; storing a notice in the quarantine")
}

// unreadable has an event that cannot be delivered stored in the quarantine, and logs kept if there is none, or stored if
// it is a new one.
func (s *Subscriber) unreadable(ctx context.Context, r *quarantined, err error, kept, stored string) {
	if s.quarantine == nil {
		s.logger.Error(kept, err, r.fields())
	} else if s.quarantineEvent(ctx, r, false) {
		s.logger.Error(stored, err, r.fields())
	}
}

func (s *Subscriber) setConnected(reconnect func(), awaitingHead bool) {
	s.mu.Lock()
	defer s.unlock()
	s.loop.reconnect, s.loop.recalled = reconnect, false
	s.stats.connects.Add(1)
	clear(s.seen.acked)
	clear(s.seen.before)
	s.loop.connection.opened(time.Now(), awaitingHead)
	s.core.Connected(s.now())
	if awaitingHead {
		s.core.Disconnected(s.now()) // nothing is read yet
	} else {
		s.loop.outage.Over()
	}
}

// setDisconnected records the end of a connection, or of an attempt to make one, and returns how
// long to wait before the next one, or why there is none.
func (s *Subscriber) setDisconnected(end streamEnd) (wait time.Duration, final error) {
	s.mu.Lock()
	defer s.unlock()
	now := time.Now()
	s.loop.reconnect = nil
	s.core.Disconnected(s.now())
	return s.loop.connection.ended(now, end)
}

// pumpConnection ends the connection if it is time to have events redelivered. s.mu is held.
func (s *Subscriber) pumpConnection(now time.Time) {
	if s.ctx.Err() != nil {
		return
	}
	if s.loop.connection.tick(now, len(s.payloads.stale) > 0 || s.payloads.downloads.stale > 0) {
		s.recall()
	}
	s.wakeAt(s.loop.connection.freshNext)
}

// recall ends the current connection so that the service redelivers everything that
// is unconfirmed. An event waiting for room on that connection does not delay this:
// everything that is open may itself be waiting for events of the next connection.
// s.mu is held.
func (s *Subscriber) recall() {
	if s.loop.reconnect == nil {
		return
	}
	s.loop.recalled = true
	s.freed.Raise()
	s.loop.reconnect()
}

// stopAll ends every subscription, and returns them.
func (s *Subscriber) stopAll() []*subscription {
	s.mu.Lock()
	subs := slices.Clone(s.subscriptions)
	s.mu.Unlock()
	for _, sub := range subs {
		s.stopSubscription(sub)
	}
	return subs
}
