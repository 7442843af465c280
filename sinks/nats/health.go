package nats

import (
	"context"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

// onAsyncError is the error handler of an own connection.
func (s *Sink) onAsyncError(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
	if !strings.Contains(err.Error(), askSubject) && s.tells(err) { // that it may not ask is nothing to tell
		s.logger.Error("NATS connection error", err, nil)
	}
}

// watch follows the connection's state.
func (s *Sink) watch() {
	for status := range s.status {
		switch status {
		case natsgo.CONNECTED:
			if s.opening.Err() != nil {
				s.opening.Now()
				continue
			}
			s.connected()
			s.logger.Info("NATS connection restored", nil)
			s.run.lookNow()
		case natsgo.RECONNECTING:
			for _, f := range s.acks.takeAll() {
				s.resolve(f, sinks.Receipt{}, natsgo.ErrDisconnected)
			}
			s.logger.Info("NATS connection lost; reconnecting", nil)
		case natsgo.CLOSED:
			s.logger.Debug("NATS connection closed", nil)
		}
	}
}

// Health asks the server for the stream. It returns nil when the stream
// answers, sinks.ErrUnavailable when not, sinks.ErrClosed after Close.
func (s *Sink) Health(ctx context.Context) error {
	// A request may block in a write to a server that does not read, longer than ctx; it ends by the connection's write timeout.
	return s.opening.Health(ctx, s.background, s.name, s.life, func() error { return s.lookAtStream(ctx) })
}

// lookAtStream asks the server for the stream.
func (s *Sink) lookAtStream(ctx context.Context) error {
	if !s.conn.IsConnected() {
		return Explain(s.conn, s.config.Domain, natsgo.ErrDisconnected)
	}
	s.run.mu.Lock()
	asked := asked{time.Now(), s.conn.ConnectedServerId(), s.run.highest, s.run.losses, connection(s.conn)}
	s.run.mu.Unlock()
	stream, err := s.js.Stream(ctx, s.config.Stream)
	if err != nil {
		err = Explain(s.conn, s.config.Domain, err)
		s.unanswered.Store(&err)
		return err
	}
	if s.answered(asked, stream.CachedInfo()) {
		s.askSynced(ctx, stream.CachedInfo())
	}
	return nil
}

// answered takes in what the server said of the stream, and reports whether that is the first answer on this connection.
func (s *Sink) answered(asked asked, info *jetstream.StreamInfo) (first bool) {
	s.run.answers.Lock()
	defer s.run.answers.Unlock()
	if asked.at.Before(s.run.counts) || !s.compare(asked, info) {
		return false
	}
	s.run.counts = asked.at
	have := &info.Config
	if s.config.ReadOnly && s.config.Provision == ProvisionUpdate && have.Mirror == nil {
		changed := s.config.updated(*have)
		have = &changed
	}
	last := s.stream.Swap(have)
	s.tellDurability(*have)
	if s.run.telling > 0 { // until Config.Lost has returned, nothing is stored
		s.unanswered.Store(&errTelling)
		return false
	}
	first = s.looked.Swap(asked.connection) != asked.connection
	// What waits tries again: not before the sink is open, which is told then, and not again and again without a pause.
	if s.opening.Err() == nil && s.covered(have) && (first || !s.covered(last)) {
		s.recovered.Raise()
	}
	return first
}

// unlook has nothing stored until the stream has answered what it is asked from now on.
func (s *Sink) unlook(cause error) {
	s.run.answers.Lock()
	defer s.run.answers.Unlock()
	s.run.counts = time.Now()
	s.unanswered.Store(&cause)
	s.looked.Store(0)
}

// tellDurability warns of a stream that promises less than the router's "nothing is lost" needs, once.
func (s *Sink) tellDurability(have jetstream.StreamConfig) {
	level, note := durability(have, s.config)
	before := s.run.durability
	s.run.durability = note
	fields := watermill.LogFields{"stream": have.Name}
	switch {
	case level >= sinks.DurabilitySynced || note == before:
	case level == sinks.DurabilityNone:
		warnlog.Warn(s.logger, "durability none: "+note, fields)
	default:
		warnlog.Warn(s.logger, "durability "+level.String()+": "+note, fields)
	}
}

// covered reports whether a stream with this configuration takes all topics.
func (s *Sink) covered(stream *jetstream.StreamConfig) bool {
	return coversAny(stream.Subjects, s.config.SubjectPrefix)
}
