package nats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/synctime"
	"github.com/agrimill/agrimill/sinks"
)

// lookEvery is how often the server is asked for the stream at least if it syncs at intervals.
const lookEvery = 10 * time.Second

// run is what is known of how long the server has run on: from one look at the stream to the next it is the same process, and
// the stream has what was acknowledged.
type run struct {
	synctime.Horizon
	look chan struct{} // holds a token when the server is to be asked at once

	mu      sync.Mutex
	server  string    // the ID of the server's process
	created time.Time // the stream; zero before the first look
	highest uint64    // sequence that was acknowledged
	losses  uint64
}

// asked is what was known when the server was asked.
type asked struct {
	at      time.Time
	server  string
	highest uint64
}

// acked takes in an acknowledgment.
func (r *run) acked(ack jetstream.PubAck) {
	if ack.Duplicate {
		return
	}
	r.mu.Lock()
	r.highest = max(r.highest, ack.Sequence)
	r.mu.Unlock()
}

func (r *run) ask(conn *natsgo.Conn) asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	return asked{time.Now(), conn.ConnectedServerId(), r.highest}
}

// lookNow has the server asked at once.
func (r *run) lookNow() {
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// errWentBack is what is logged with acknowledged messages that the stream no longer has.
var errWentBack = errors.New("the stream has fewer messages than it has acknowledged: the server lost its power, or its files were restored")

// compare compares the stream with what was acknowledged before the server was asked for it.
func (s *Sink) compare(asked asked, info *jetstream.StreamInfo) {
	r := &s.run
	r.mu.Lock()
	first := r.created.IsZero()
	ranOn := first && asked.highest == 0 || r.server == asked.server && r.created.Equal(info.Created) && info.State.LastSeq >= asked.highest
	same := s.conn.ConnectedServerId() == asked.server
	var lost uint64
	switch {
	case !same: // another one has answered, perhaps
	case info.State.LastSeq < asked.highest:
		lost = asked.highest - info.State.LastSeq
	case !first && !r.created.Equal(info.Created):
		lost = asked.highest
	}
	if same {
		if !ranOn {
			r.Restarted(time.Now(), s.config.Synced.After())
		}
		if lost > 0 {
			r.highest = info.State.LastSeq
		}
		r.server, r.created, r.losses = asked.server, info.Created, r.losses+lost
		r.Alive(asked.at)
	}
	r.mu.Unlock()
	if lost > 0 {
		s.logger.Error("The broker has lost acknowledged messages", errWentBack, watermill.LogFields{
			"stream": s.config.Stream, "lost": lost, "first_sequence": info.State.LastSeq + 1, "last_sequence": asked.highest,
		})
	}
}

// Lost returns how many messages the stream has acknowledged and was found not to have any longer after a reconnect: it went back in
// time, because the server lost its power or its files were restored, or was deleted.
func (s *Sink) Lost() uint64 {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	return s.run.losses
}

// follow asks for the stream after each reconnect, and at intervals if the server syncs at intervals.
func (s *Sink) follow() {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	var tick <-chan time.Time
	if interval := time.Duration(s.config.Synced); interval > 0 {
		every.Reset(min(lookEvery, max(interval/4, 10*time.Millisecond)))
		tick = every.C
	}
	for {
		select {
		case <-tick:
		case <-s.run.look:
		case <-s.background.Done():
			return
		}
		if s.opening.Err() != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(s.background, s.config.PublishTimeout)
		if err := s.lookAtStream(ctx); err != nil && tick == nil && s.background.Err() == nil {
			time.AfterFunc(time.Second, s.run.lookNow)
		}
		cancel()
	}
}

// Survives implements [sinks.Syncing]. The server has run on if from one look at the stream to the next it is the same process, as
// far as the connection tells, the stream was not made anew, and it has what was acknowledged.
func (s *Sink) Survives(began, acked time.Time) (bool, error) {
	if s.config.Synced.After() == 0 {
		return s.config.Synced.Known(), nil
	}
	is, err := s.run.Survives(began, acked, s.config.Synced.After())
	if !is && err == nil && s.background.Err() != nil { // nobody looks any longer
		err = sinks.NewError(s.name, "", sinks.ErrClosed, nil)
	}
	return is, err
}
