package subscriber

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
)

// run keeps the event stream open until ctx ends or the service refuses it for
// good, in which case all subscriptions end.
func (s *Subscriber) run(ctx context.Context) {
	policy := backoff.Policy{Min: s.cfg.Reconnect.Min, Max: s.cfg.Reconnect.Max}
	for failures := 0; ctx.Err() == nil; {
		events, recalled, err := s.readStream(ctx)
		if ctx.Err() != nil {
			err = nil // this side ended it
		}
		s.setDisconnected(err)
		if !recalled && refusesStream(err) {
			s.logger.Error("The service refuses the event stream; all subscriptions end", err, nil)
			s.stopAll()
			return
		}
		// Also a stream that was ended on purpose is not opened again at once:
		// what made that necessary may happen again.
		if events > 0 && !recalled {
			failures = 0
		}
		wait := policy.Delay(failures)
		failures++
		if err != nil {
			s.logger.Info("Event stream ended; reconnecting", watermill.LogFields{"err": err, "wait": wait.String()})
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// refusesStream reports whether trying again is pointless: the service said so
// (4xx other than 401, 408 and 429), or the request cannot be made.
func refusesStream(err error) bool {
	if errors.Is(err, gateway.ErrUnavailable) || errors.Is(err, gateway.ErrRateLimited) || errors.Is(err, gateway.ErrUnauthorized) {
		return false
	}
	return errors.Is(err, gateway.ErrBadRequest) || errors.Is(err, gateway.ErrForbidden) ||
		errors.Is(err, gateway.ErrNotFound) || errors.Is(err, gateway.ErrInvalid) || errors.Is(err, gateway.ErrClosed)
}

// readStream opens the stream and takes in its events until it ends. recalled
// says that it was ended by this side to have events sent again.
func (s *Subscriber) readStream(ctx context.Context) (events int, recalled bool, err error) {
	stream, err := s.cfg.Client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{Types: s.cfg.EventTypes})
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = stream.Close() }() // it has been read to its end, or is given up
	// A read that waits for the next event ends with the context.
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()

	s.setConnected(func() { _ = stream.Close() })
	s.logger.Info("Event stream connected", nil)
	if s.cfg.Hooks.Connected != nil {
		s.cfg.Hooks.Connected()
	}
	s.syncTenants(ctx)

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
		s.intake(ctx, event)
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
		s.logger.Error("An event could not be decoded; it stays unconfirmed", err, watermill.LogFields{"size": len(raw.Data)})
		return
	}
	if r := newMalformed(raw, err); s.quarantine.take(ctx, r) {
		s.logger.Error("An event could not be decoded; it goes into the quarantine", err, r.fields())
	}
}

func (s *Subscriber) tooLarge(ctx context.Context, err error) {
	s.stats.tooLarge.Add(1)
	if s.cfg.Hooks.TooLarge != nil {
		s.cfg.Hooks.TooLarge(err)
	}
	var large *gateway.EventTooLargeError
	if s.quarantine == nil || !errors.As(err, &large) {
		s.logger.Error("An event was skipped because of its size; it stays unconfirmed", err, nil)
		return
	}
	if r := newTooLarge(large); s.quarantine.take(ctx, r) {
		s.logger.Error("An event was skipped because of its size; it stays unconfirmed, and the quarantine gets a notice", err, r.fields())
	}
}

// syncTenants refreshes the directory after a connect: what happened while the
// stream was down was not seen.
func (s *Subscriber) syncTenants(ctx context.Context) {
	if s.observer == nil {
		return
	}
	// Ends with the request, which ends with ctx.
	s.wg.Go(func() {
		if err := s.cfg.Tenants.Sync(ctx); err != nil && ctx.Err() == nil {
			s.logger.Error("The tenant directory could not be synchronised", err, nil)
		}
	})
}

func (s *Subscriber) setConnected(reconnect func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnect, s.recalled, s.skipping = reconnect, false, false
	clear(s.evictedKeys) // everything comes again on this connection, in order
	s.streamState.Connected = true
	s.streamState.Since = time.Now()
	s.streamState.Connects++
}

func (s *Subscriber) setDisconnected(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reconnect = nil
	if s.streamState.Connected || s.streamState.Since.IsZero() {
		s.streamState.Connected = false
		s.streamState.Since = time.Now()
	}
	s.streamState.LastError = err
}

// recall ends the current connection, so that the service sends again what is
// not confirmed. An event that waits for room on it does not hold that up:
// everything that is open may wait for events of the next connection.
func (s *Subscriber) recall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recallLocked()
}

// recallLocked is recall for those who hold s.mu.
func (s *Subscriber) recallLocked() {
	if s.reconnect == nil {
		return
	}
	s.recalled = true
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
