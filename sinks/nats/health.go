package nats

import (
	"context"
	"strings"

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

func (s *Sink) lookAtStream(ctx context.Context) error {
	if !s.conn.IsConnected() {
		return Explain(s.conn, s.config.Domain, natsgo.ErrDisconnected)
	}
	asked := s.run.ask(s.conn)
	stream, err := s.js.Stream(ctx, s.config.Stream)
	if err != nil {
		return Explain(s.conn, s.config.Domain, err)
	}
	s.compare(asked, stream.CachedInfo())
	have := stream.CachedInfo().Config
	last := s.stream.Swap(&have)
	anew := s.looked.Swap(asked.connection) != asked.connection
	if s.covered(&have) && (anew || !s.covered(last)) { // else what waits would try again and again, without a pause
		s.recovered.Raise()
	}
	if anew {
		s.askSynced(ctx, stream.CachedInfo())
	}
	// Somebody has changed the stream under us.
	if how := deletes(have, s.config); how != "" && last != nil && how != deletes(*last, s.config) {
		warnlog.Warn(s.logger, "durability none: "+how, watermill.LogFields{"stream": have.Name})
	}
	return nil
}

// covered reports whether a stream with this configuration takes all topics.
func (s *Sink) covered(stream *jetstream.StreamConfig) bool {
	return coversAny(stream.Subjects, s.config.SubjectPrefix)
}
