package nats

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/natssubject"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks/nats"
)

// gaps finds messages that were deleted unread, by the numbers of a stream that is read as a whole.
type gaps struct {
	at    jetstream.SequenceInfo // of the latest delivery
	whole func() bool            // whether the consumer reads all of the stream; nil: it does not
	known bool                   // whole has said yes
}

// see returns how many messages are missing before a delivery, at least.
func (g *gaps) see(number natsgo.SequencePair, first bool) int64 {
	if !first { // it has a number of the consumer, and its stream's is known
		g.at.Consumer++
		return 0
	}
	gone := int64(number.Stream-g.at.Stream) - int64(number.Consumer-g.at.Consumer)
	g.at.Stream, g.at.Consumer = max(g.at.Stream, number.Stream), max(g.at.Consumer, number.Consumer)
	if gone <= 0 || g.whole == nil {
		return 0
	}
	if !g.known && !g.whole() {
		g.whole = nil
		return 0
	}
	g.known = true
	return gone
}

// tellDeleted says it once a minute: a stream that keeps the latest message of a subject only has many gaps.
func (s *subscription) tellDeleted(meta *natsgo.MsgMetadata, gone int64) {
	s.deleted += gone
	if _, ok := s.deletedLine.Next(); ok {
		warnlog.Warn(s.logger, "NATS messages were deleted before they were delivered",
			watermill.LogFields{"stream": meta.Stream, "before": meta.Sequence.Stream, "deleted": s.deleted})
		s.deleted = 0
	}
}

// readsAll reports whether the subject has everything that is stored in the stream; false if the server does not say.
func (s *subscription) readsAll(stream string) bool {
	if s.subject == ">" {
		return true
	}
	js, err := nats.JetStream(s.conn, s.config.Domain)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(s.intake, s.config.ConnectTimeout)
	defer cancel()
	info, err := js.Stream(ctx, stream)
	if err != nil {
		return false
	}
	have := info.CachedInfo().Config
	return len(have.Sources) == 0 && len(have.Subjects) > 0 && !slices.ContainsFunc(have.Subjects, func(subject string) bool { return !natssubject.Covers(s.subject, subject) })
}
