package subscriber

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/reminders"
)

// healthyAfter is how many times Reconnect.Initial a stream has to be open to count as healthy.
const healthyAfter = 4

// run keeps the event stream open until ctx ends, or until the service has refused
// it for too long, in which case all subscriptions end.
func (s *Subscriber) run(ctx context.Context) {
	policy := backoff.Policy{Initial: s.cfg.Reconnect.Initial, Max: s.cfg.Reconnect.Max}
	for failures := 0; ctx.Err() == nil; {
		events, recalled, err := s.readStream(ctx)
		if ctx.Err() != nil {
			err = nil // closed by the subscriber
		}
		lasted := s.setDisconnected(err)
		if cause := s.finalError(err); cause != nil && !recalled {
			s.logger.Error("Ending all subscriptions", cause, reminders.Fields(0, err))
			s.end(cause)
			return
		}
		// A stream that was open for a while was healthy, also if nothing came, and is
		// reopened at once: a load balancer ends quiet ones all the time. One that was closed
		// on purpose is not: what made that necessary may happen again.
		healthy := lasted >= healthyAfter*s.cfg.Reconnect.Initial
		if healthy || events > 0 && !recalled {
			failures = 0
		}
		var wait time.Duration
		if !healthy || recalled {
			wait = policy.Delay(failures)
			failures++
		}
		if err != nil {
			s.logger.Info("Event stream ended; reconnecting", watermill.LogFields{"err": err, "wait": wait.String()})
		}
		s.remind(err)
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// isRefusal reports whether the service, or an intermediary, refuses the stream. The
// status is the only indication.
func isRefusal(err error) bool {
	return errors.Is(err, gateway.ErrBadRequest) || errors.Is(err, gateway.ErrForbidden)
}

// isAnswer reports whether err is an answer that a healthy service does not give.
// Such an outage would otherwise go unnoticed, because everything is up.
func isAnswer(err error) bool {
	return errors.Is(err, gateway.ErrIntermediary) || errors.Is(err, gateway.ErrBadResponse) || isRefusal(err)
}

// remind logs from time to time that such an answer still keeps the stream from
// opening.
func (s *Subscriber) remind(err error) {
	if !isAnswer(err) {
		return
	}
	s.mu.Lock()
	lasted, due := s.outage.Failed()
	s.mu.Unlock()
	if due {
		s.logger.Error("Event stream still cannot be opened; retrying", err, reminders.Fields(lasted, err))
	}
}

// finalError returns the reason all subscriptions must end, or nil.
func (s *Subscriber) finalError(err error) error {
	switch {
	case errors.Is(err, gateway.ErrInvalid), errors.Is(err, gateway.ErrClosed):
		return err // the request cannot be made
	case !isRefusal(err):
		return nil
	}
	s.mu.Lock()
	state := s.streamState
	s.mu.Unlock()
	if now := time.Now(); !state.EndsAt.IsZero() && !now.Before(state.EndsAt) {
		return &StreamRefusedError{Since: state.RefusedSince, Lasted: now.Sub(state.RefusedSince), Err: err}
	}
	return nil
}

// Err returns the reason all subscriptions ended: a [*StreamRefusedError], or the
// error of a closed client. It is nil while the stream is open or being opened,
// and if subscriptions ended because of their contexts or Close.
func (s *Subscriber) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// end ends every subscription with cause.
func (s *Subscriber) end(cause error) {
	s.mu.Lock()
	s.failure = cause
	s.mu.Unlock()
	s.stopAll()
}

// readStream opens the stream and processes its events until it ends. recalled
// reports whether the subscriber closed it to have events redelivered.
func (s *Subscriber) readStream(ctx context.Context) (events int, recalled bool, err error) {
	connection, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.openStream(ctx, connection, cancel)
	if err != nil {
		return 0, errors.Is(err, gateway.ErrClosed) && connection.Err() != nil, err
	}
	defer func() { _ = stream.Close() }() // it was read to the end, or abandoned
	// Unblocks a read that waits for the next event when the context ends.
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()

	for {
		raw, err := stream.Next()
		if err != nil {
			if errors.Is(err, gateway.ErrEventTooLarge) {
				s.tooLarge(ctx, err)
				continue
			}
			if errors.Is(err, io.EOF) {
				err = errStreamEnded
			}
			return events, errors.Is(err, gateway.ErrClosed), err
		}
		events++
		event, err := gateway.DecodeEvent(raw.Type, raw.Data)
		if err != nil {
			s.malformed(ctx, raw, err)
			continue
		}
		s.intake(ctx, event, int64(len(raw.Data)))
		if ctx.Err() != nil {
			return events, false, ctx.Err()
		}
	}
}

var errStreamEnded = errors.New("the service ended the stream")

func (s *Subscriber) malformed(ctx context.Context, raw gateway.RawEvent, err error) {
	s.stats.malformed.Add(1)
	if s.cfg.Hooks.Malformed != nil {
		s.cfg.Hooks.Malformed(raw.Type, raw.Data, err)
	}
	if s.quarantine == nil {
		s.logger.Error("Event could not be decoded; it stays unconfirmed", err, watermill.LogFields{"size": len(raw.Data)})
		return
	}
	if r := newMalformed(raw, err); s.quarantine.take(ctx, r) {
		s.logger.Error("Event could not be decoded; storing it in the quarantine", err, r.fields())
	}
}

func (s *Subscriber) tooLarge(ctx context.Context, err error) {
	s.stats.tooLarge.Add(1)
	if s.cfg.Hooks.TooLarge != nil {
		s.cfg.Hooks.TooLarge(err)
	}
	var large *gateway.EventTooLargeError
	if s.quarantine == nil || !errors.As(err, &large) {
		s.logger.Error("Event too large; it was skipped and stays unconfirmed", err, nil)
		return
	}
	if r := newTooLarge(large); s.quarantine.take(ctx, r) {
		s.logger.Error("Event too large; it was skipped and stays unconfirmed; storing a notice in the quarantine", err, r.fields())
	}
}

// syncTenants refreshes the directory after a connect, because changes made while
// the stream was down were not seen.
func (s *Subscriber) syncTenants(ctx context.Context) {
	if s.observer == nil {
		return
	}
	// Ends with the request, which ends with ctx.
	s.wg.Go(func() {
		if err := s.cfg.Tenants.Sync(ctx); err != nil && ctx.Err() == nil {
			s.logger.Error("Synchronizing the tenant directory failed", err, nil)
		}
	})
}

func (s *Subscriber) setConnected(reconnect func(), awaitingHead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnect, s.taking = reconnect, takesAll
	s.apart.connected(time.Now(), s.first)
	for _, sub := range s.subscriptions {
		sub.overflown = false
		sub.shares.connected() // everything is redelivered on this connection, in order
	}
	s.left = 0
	s.leftKeys.clear()
	s.streamState.Connected, s.streamState.AwaitingHead = true, awaitingHead
	s.streamState.Since = time.Now()
	s.streamState.Connects++
	now := s.streamState.Since
	s.ledger.resume(now, true)
	s.scheduleLedger(now)
	if !awaitingHead {
		s.answered()
	}
}

// answered is called when the service has opened the stream. s.mu is held.
func (s *Subscriber) answered() {
	s.clearRefusal()
	s.outage.Over()
}

// setDisconnected records the end of a connection, or of an attempt to make one, and returns
// for how long the stream was open.
func (s *Subscriber) setDisconnected(err error) (lasted time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnect = nil
	s.ledger.pause(time.Now())
	if s.streamState.Connected {
		lasted = time.Since(s.streamState.Since)
	}
	if s.streamState.Connected || s.streamState.Since.IsZero() {
		s.streamState.Connected, s.streamState.AwaitingHead = false, false
		s.streamState.Since = time.Now()
	}
	s.streamState.LastError = err
	if !isRefusal(err) {
		s.clearRefusal()
	} else if s.streamState.RefusedSince.IsZero() {
		s.streamState.RefusedSince = time.Now()
		if s.cfg.StreamRefusedFor != NeverRefused {
			s.streamState.EndsAt = s.streamState.RefusedSince.Add(s.cfg.StreamRefusedFor)
		}
	}
	return lasted
}

// clearRefusal forgets that the stream was refused. s.mu is held.
func (s *Subscriber) clearRefusal() {
	s.streamState.RefusedSince, s.streamState.EndsAt = time.Time{}, time.Time{}
}

// recall ends the current connection so that the service redelivers everything that
// is unconfirmed. An event waiting for room on that connection does not delay this:
// everything that is open may itself be waiting for events of the next connection.
func (s *Subscriber) recall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recallLocked()
}

// recallLocked is recall for callers that hold s.mu.
func (s *Subscriber) recallLocked() {
	if s.reconnect == nil {
		return
	}
	s.taking = takesNothing
	s.wakeRoom()
	s.reconnect()
}

// stopAll ends every subscription.
func (s *Subscriber) stopAll() {
	s.mu.Lock()
	subs := append([]*subscription(nil), s.subscriptions...)
	s.mu.Unlock()
	for _, sub := range subs {
		s.stopSubscription(sub)
	}
}
