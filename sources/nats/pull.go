package nats

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/sinks/nats"
)

// pull takes messages from the consumer, as many as there is room for, until intake ends or
// the consumer is gone, or another one.
func (s *subscription) pull(consumer jetstream.Consumer) error {
	conn, err := s.connect(s.intake)
	if err != nil {
		return err
	}
	s.conn = conn
	s.report() // acks that could not be sent while the consumer was gone
	connected := conn.StatusChanged(natsgo.CONNECTED)
	defer conn.RemoveStatusListener(connected)
	begun, failures := false, 0
	for {
		var n int
		var err error
		switch {
		case !begun:
			err = s.begin(consumer, s.fetchNow(consumer, connected))
			begun = err == nil
		case !s.lost.IsZero():
			err = s.recover(consumer, s.fetchNow(consumer, connected))
		default:
			if room := s.waitForRoom(); room > 0 {
				n, _, err = s.fetch(consumer, room, true, connected)
			}
		}
		if n > 0 || err == nil {
			failures = 0
			s.state.Reads()
		}
		switch {
		case s.intake.Err() != nil:
			return s.intake.Err()
		case err == nil:
			continue
		case errors.Is(err, errChanged), errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound),
			errors.Is(err, natsgo.ErrNoResponders) && conn.IsConnected():
			return err
		}
		// An outage, or a consumer without a server: what was on its way is lost, and comes
		// again.
		s.suspect = true
		if errors.Is(err, errReconnected) {
			s.report() // acks that could not be sent
			continue
		}
		s.state.Fails(s.config.unavailable(nats.Explain(conn, s.config.Domain, err)))
		select {
		case <-time.After(consumerPolicy.Delay(failures)):
		case <-connected:
			s.report() // as above
		case <-s.intake.Done():
		}
		failures++
	}
}

// fetchFunc takes up to n messages that are there, as [subscription.fetch].
type fetchFunc func(n int) (got int, anew bool, err error)

func (s *subscription) fetchNow(consumer jetstream.Consumer, connected <-chan natsgo.Status) fetchFunc {
	return func(n int) (int, bool, error) { return s.fetch(consumer, n, false, connected) }
}

// begin collects what is sent back, before it hands out anything. The server redelivers that in the
// order in which it hears of it, and what it could not deliver before; others of the same keys
// may follow. If somebody else has a request open, it goes to either of us.
func (s *subscription) begin(consumer jetstream.Consumer, fetch fetchFunc) error {
	info, err := s.info(s.intake, consumer)
	if err != nil {
		return err
	}
	s.gaps = gaps{at: info.Delivered, whole: func() bool { return s.readsAll(info.Stream) }}
	window := s.config.MaxInFlight * aheadFactor
	late := time.Now().Add(beginning)
	s.collecting = info.NumAckPending > 0 && info.NumWaiting == 0
	for s.collecting {
		held, bytes := s.queue.Held()
		missing := s.missing(info)
		if missing <= 0 || held >= window || bytes >= maxAhead || s.shared || time.Now().After(late) {
			s.collecting = false
			break
		}
		if _, _, err := fetch(min(missing, window-held, s.mostRequested())); err != nil {
			return err
		}
		if err := backoff.Sleep(s.intake, between); err != nil {
			return err
		}
		if info, err = s.info(s.intake, consumer); err != nil {
			return err
		}
	}
	if s.lost.IsZero() {
		s.queue.Release()
	}
	return nil
}

// recover gets deliveries that were lost. The server redelivers them when their time is over,
// before anything new. A server that is late is waited for as long as it says that more is
// unacknowledged than is known here, within limits. If others read the consumer, that says nothing.
func (s *subscription) recover(consumer jetstream.Consumer, fetch fetchFunc) error {
	wait, _ := waits(consumer.CachedInfo().Config)
	for {
		lost := s.lost
		if err := backoff.Sleep(s.intake, time.Until(lost.Add(wait+lostMargin))); err != nil {
			return err
		}
		n := min(max(1, s.config.MaxInFlight*aheadFactor/2), s.mostRequested())
		got, anew, err := fetch(n)
		switch {
		case err != nil:
			return err
		case s.lost != lost: // again
		case anew || got < n:
			if !s.shared && time.Since(lost) < lostFactor*wait && s.misses(consumer) {
				if err := backoff.Sleep(s.intake, lostMargin/5); err != nil {
					return err
				}
				break
			}
			s.lost = time.Time{}
			s.queue.Release()
			return nil
		}
	}
}

// misses reports whether something is missing, or the server does not say.
func (s *subscription) misses(consumer jetstream.Consumer) bool {
	info, err := s.info(s.intake, consumer)
	return err != nil || s.missing(info) > 0
}

// missing is how many messages more the server waits for the ack of than are held here, or
// were sent back for a while.
func (s *subscription) missing(info *jetstream.ConsumerInfo) int {
	return info.NumAckPending - s.taken.count() - s.queue.Away()
}

func (s *subscription) info(ctx context.Context, consumer jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.ConnectTimeout)
	defer cancel()
	return consumer.Info(ctx)
}

// errReconnected ends a request when there is another connection: its answers went to the
// one before.
var errReconnected = errors.New("reconnected")

// fetch takes up to n messages: those that are there, or with wait also what comes after
// them. It returns how many came, and whether one was delivered for the first time.
func (s *subscription) fetch(consumer jetstream.Consumer, n int, wait bool, connected <-chan natsgo.Status) (got int, anew bool, err error) {
	info := consumer.CachedInfo()
	if most := info.Config.MaxRequestBatch; most > 0 {
		n = min(n, most)
	}
	r, err := newRequest(s.conn, s.config.Domain, info, n, wait, s.heartbeat)
	if err != nil {
		return 0, false, err
	}
	defer func() {
		rest, first := r.end(s.receive, s.intake.Err() != nil, s.config.flushTimeout())
		got, anew = got+rest, anew || first
	}()
	patience := 2 * s.heartbeat
	if !wait {
		patience = answerWait // the server says that there are no more, but not always
	}
	silence := time.NewTimer(patience)
	defer silence.Stop()
	known := s.lost
	for !r.done() && s.lost == known { // to recover what is found lost comes first
		select {
		case msg := <-r.messages:
			silence.Reset(patience)
			raw, err := r.read(msg)
			if err != nil {
				return got, anew, err
			}
			s.state.Reads() // the server knows the request
			if raw != nil {
				got++
				anew = s.receive(raw) || anew
			}
		case <-silence.C:
			if !wait {
				return got, anew, nil
			}
			return got, anew, jetstream.ErrNoHeartbeat
		case <-connected:
			return got, anew, errReconnected
		case <-s.changed:
			return got, anew, errChanged
		case <-s.intake.Done():
			return got, anew, s.intake.Err()
		}
	}
	return got, anew, nil
}

// mostRequested is for how many messages one request may be, if none is larger than the largest of the latest.
func (s *subscription) mostRequested() int {
	return int(max(1, maxRequest/max(1, cmp.Or(s.largest, s.conn.MaxPayload()))))
}

// waitForRoom returns how many messages may be requested; 0 when intake has ended.
func (s *subscription) waitForRoom() int {
	window := s.config.MaxInFlight * aheadFactor
	timer := time.NewTimer(refill)
	defer timer.Stop()
	late := false
	for {
		held, bytes := s.queue.Held()
		room := window - held
		switch {
		case bytes >= maxAhead:
			room = 0
		case held > 0:
			room = min(room, int((maxAhead-bytes)*int64(held)/max(bytes, 1))+1)
		}
		if room >= (window+3)/4 || late && room > 0 {
			room = min(room, s.mostRequested())
			s.largest = 0
			return room
		}
		if late && s.sendAway(window) {
			continue
		}
		if late {
			late = false
			timer.Reset(refill)
		}
		select {
		case <-s.queue.Freed():
		case <-timer.C:
			late = true
		case <-s.intake.Done():
			return 0
		}
	}
}

// sendAway makes room by what was set aside, and what stalled keys have too much of; false if there is nothing.
func (s *subscription) sendAway(window int) bool {
	wait := s.config.AckWait
	patience := time.Duration(alonePatience)
	if s.shared { // somebody else may get them
		patience = sharedPatience
	}
	away := s.queue.SendAway(max(1, window/shares), min(stalled, wait), time.Now().Add(patience*wait))
	for _, d := range away {
		s.drop(d, wait)
	}
	if len(away) > 0 {
		s.logger.Info("messages that were set aside, or are behind a stalled key, go back to NATS for a while, so that others pass",
			watermill.LogFields{"messages": len(away)})
	}
	return len(away) > 0
}
