package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks/nats"
)

// madeBy is the key of the consumer's metadata that says who made it.
const madeBy, madeHere = "made_by", "agrimill sources/nats"

// maxAckPending is how many messages may be delivered and not acked: what is held, and what
// was sent back for a while.
const maxAckPending = 100_000

// consumer connects and finds or creates the durable consumer.
func (s *Subscriber) consumer(ctx context.Context, subject string) (jetstream.Consumer, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.ConnectTimeout)
	defer cancel()
	unwatch := context.AfterFunc(s.stopped, cancel)
	defer unwatch()
	js, err := nats.JetStream(conn, s.config.Domain)
	if err != nil {
		return nil, s.unavailable(err)
	}
	name := s.config.Stream
	if name == "" {
		if name, err = js.StreamNameBySubject(ctx, subject); err != nil {
			return nil, s.unavailable(fmt.Errorf("stream with the subject %s: %w", subject, nats.Explain(conn, s.config.Domain, err)))
		}
	}
	consumer, err := s.findOrCreate(ctx, js, name, subject)
	switch {
	case errors.Is(err, ErrConfig):
		return nil, err
	case err != nil:
		return nil, s.unavailable(fmt.Errorf("stream %s: %w", name, nats.Explain(conn, s.config.Domain, err)))
	}
	s.found.Store(&consumer)
	return consumer, nil
}

func (s *Subscriber) findOrCreate(ctx context.Context, js jetstream.JetStream, streamName, subject string) (jetstream.Consumer, error) {
	consumer, err := js.Consumer(ctx, streamName, s.config.Durable)
	if err == nil {
		return s.adopt(ctx, js, streamName, subject, consumer)
	}
	switch {
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return nil, s.refused(streamName, "is a push consumer")
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, err
	}
	stream, err := js.Stream(ctx, streamName)
	if err != nil {
		return nil, err
	}
	if have := stream.CachedInfo().Config; len(have.Sources) == 0 {
		if err := inCommon(streamName, have.Subjects, subject); err != nil {
			return nil, err
		}
	}
	deliver, since := s.deliver(stream.CachedInfo())
	pending := maxAckPending
	if limit := stream.CachedInfo().Config.ConsumerLimits.MaxAckPending; limit > 0 {
		pending = min(pending, limit)
	}
	consumer, err = js.CreateConsumer(ctx, streamName, jetstream.ConsumerConfig{
		Durable: s.config.Durable, FilterSubject: subject, DeliverPolicy: deliver, OptStartTime: since,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.config.AckWait, MaxAckPending: pending, MaxDeliver: -1,
		Metadata: map[string]string{madeBy: madeHere},
	})
	if errors.Is(err, jetstream.ErrConsumerExists) { // somebody else was faster
		if consumer, err = js.Consumer(ctx, streamName, s.config.Durable); err == nil {
			return s.adopt(ctx, js, streamName, subject, consumer)
		}
	}
	return consumer, err
}

// deliver returns where a consumer starts that is to be made: one that is made again begins no later than the one before.
func (s *Subscriber) deliver(stream *jetstream.StreamInfo) (policy jetstream.DeliverPolicy, since *time.Time) {
	fields := watermill.LogFields{"stream": stream.Config.Name, "messages": stream.State.Msgs}
	before := s.found.Load()
	switch {
	case before != nil && s.config.NewOnly:
		since = &(*before).CachedInfo().Created
		fields["since"] = since.UTC().Format(time.RFC3339)
		warnlog.Warn(s.logger, "NATS consumer was deleted; it is made again and delivers again what was stored since it existed", fields)
		return jetstream.DeliverByStartTimePolicy, since
	case before != nil:
		warnlog.Warn(s.logger, "NATS consumer was deleted; it is made again and delivers the whole stream again", fields)
	case s.config.NewOnly:
		s.logger.Info("NATS consumer is new; it starts with the next message of the stream", fields)
		return jetstream.DeliverNewPolicy, nil
	}
	return jetstream.DeliverAllPolicy, nil
}

// inCommon refuses a subject that no message of a stream can have. A mirror has no subjects of its own.
func inCommon(stream string, subjects []string, subject string) error {
	if len(subjects) == 0 || slices.ContainsFunc(subjects, func(pattern string) bool { return overlap(pattern, subject) }) {
		return nil
	}
	return fmt.Errorf("%w: the stream %s has no subject that matches %s, but %s", ErrConfig, stream, subject, strings.Join(subjects, ", "))
}

// overlap reports whether a message can have a subject that matches both patterns.
func overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != bs[i] && as[i] != "*" && bs[i] != "*":
			return false
		}
	}
	return len(as) == len(bs)
}

// covers reports whether every subject that matches narrow also matches wide.
func covers(wide, narrow string) bool {
	ws, ns := strings.Split(wide, "."), strings.Split(narrow, ".")
	for i, w := range ws {
		switch {
		case i >= len(ns):
			return false
		case w == ">":
			return true
		case ns[i] == ">" || w != "*" && w != ns[i]:
			return false
		}
	}
	return len(ws) == len(ns)
}

// adopt takes a consumer that exists, or refuses it.
func (s *Subscriber) adopt(ctx context.Context, js jetstream.JetStream, stream, subject string, consumer jetstream.Consumer) (jetstream.Consumer, error) {
	have := consumer.CachedInfo().Config
	if reason := unfit(have, subject); reason != "" {
		return nil, s.refused(stream, reason)
	}
	if len(have.BackOff) > 0 || have.AckWait == s.config.AckWait {
		return consumer, nil
	}
	fields := watermill.LogFields{"stream": stream, "ack_wait": have.AckWait.String(), "configured": s.config.AckWait.String()}
	if have.Metadata[madeBy] != madeHere {
		s.logger.Info("NATS consumer exists with another AckWait, which stays", fields)
		return consumer, nil
	}
	have.AckWait = s.config.AckWait
	consumer, err := js.UpdateConsumer(ctx, stream, have)
	if err == nil {
		s.logger.Info("NATS consumer gets the configured AckWait", fields)
	}
	return consumer, err
}

func (s *Subscriber) refused(stream, reason string) error {
	return fmt.Errorf("%w: consumer %s of the stream %s exists and %s; change it, or use another durable", ErrConfig, s.config.Durable, stream, reason)
}

// unfit returns why a consumer cannot be read with the promises of a Subscriber; empty if it
// can.
func unfit(have jetstream.ConsumerConfig, subject string) string {
	subjects := have.FilterSubjects
	if have.FilterSubject != "" {
		subjects = []string{have.FilterSubject}
	}
	switch {
	case len(subjects) == 0 && subject != ">":
		return "reads every subject, not " + subject
	case len(subjects) > 0 && !slices.Equal(subjects, []string{subject}):
		return fmt.Sprintf("reads %s, not %s", subjects, subject)
	case have.AckPolicy != jetstream.AckExplicitPolicy:
		return fmt.Sprintf("has the ack policy %s: messages would count as handled that are not", have.AckPolicy)
	case have.MaxDeliver > 0:
		return fmt.Sprintf("has max_deliver %d: a message is lost after so many deliveries", have.MaxDeliver)
	case have.HeadersOnly:
		return "delivers headers only: payloads would be lost"
	case len(have.PriorityGroups) > 0:
		return "has priority groups"
	}
	return ""
}

// waits returns after what time without a sign of progress the server redelivers a message:
// the first time, and at the earliest.
func waits(have jetstream.ConsumerConfig) (first, shortest time.Duration) {
	if len(have.BackOff) > 0 {
		return have.BackOff[0], slices.Min(have.BackOff)
	}
	return have.AckWait, have.AckWait
}
