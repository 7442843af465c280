package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/natssubject"
	"github.com/agrimill/agrimill/internal/readstate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks/nats"
)

// madeBy is the key of the consumer's metadata that says who made it.
const madeBy, madeHere = "made_by", "agrimill sources/nats"

// maxAckPending is how many messages may be delivered and not acked: what is held, and what
// was sent back for a while.
const maxAckPending = 100_000

// Found is what a subscription reads.
type Found struct {
	// Stream is the name of the stream.
	Stream string
	// Exists says that the stream has the durable consumer; Subscribe makes one that is missing.
	Exists bool
	// Waiting is how many messages the consumer has that are not yet acknowledged; 0 if it is missing.
	Waiting int64
}

// Look says what Subscribe of a subscriber with the configuration would read for a topic. It makes and changes
// nothing. The warnings and the errors are those of Subscribe. A nil logger is silent.
func Look(ctx context.Context, config Config, topic string, logger watermill.LoggerAdapter) (Found, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return Found{}, err
	}
	logger = warnlog.Or(logger)
	conn, err := connect(config)
	if err != nil {
		return Found{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, config.ConnectTimeout)
	defer cancel()
	d := durable{config: config, logger: logger, conn: conn}
	p, err := d.plan(ctx, config.subject(topic, logger))
	if err != nil {
		return Found{}, d.failed(err)
	}
	found := Found{Stream: p.stream, Exists: p.consumer != nil}
	if found.Exists {
		info := p.consumer.CachedInfo()
		found.Waiting = unacked(info.NumAckPending, info.NumPending)
	}
	return found, nil
}

// connect connects as a configuration says.
func connect(config Config, options ...natsgo.Option) (*natsgo.Conn, error) {
	conn, err := config.Connect(config.Name, options...)
	switch {
	case errors.Is(err, nats.ErrConfig):
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	case err != nil:
		return nil, config.unavailable(err)
	}
	return conn, nil
}

func (c Config) unavailable(err error) error {
	return readstate.Unavailable("nats, consumer "+c.Durable, err)
}

// durable is the consumer of a configuration, which may be missing.
type durable struct {
	config Config
	logger watermill.LoggerAdapter
	conn   *natsgo.Conn
	before *jetstream.ConsumerInfo // as it was; nil: nobody has looked yet
}

// plan is a consumer that was found, and what has to be made of it.
type plan struct {
	js       jetstream.JetStream
	stream   string
	consumer jetstream.Consumer        // nil: it is missing
	want     *jetstream.ConsumerConfig // nil: it stays as it is
}

// ready finds the consumer, and makes it if it is missing.
func (d durable) ready(ctx context.Context, subject string) (plan, error) {
	for first := true; ; first = false {
		p, err := d.plan(ctx, subject)
		if err == nil {
			p.consumer, err = d.make(ctx, p)
		}
		switch {
		case err == nil:
			return p, nil
		case !first || !errors.Is(err, jetstream.ErrConsumerExists): // somebody else was faster
			return plan{}, d.failed(err)
		}
	}
}

// failed gives an error its class.
func (d durable) failed(err error) error {
	if errors.Is(err, ErrConfig) {
		return err
	}
	return d.config.unavailable(nats.Explain(d.conn, d.config.Domain, err))
}

// plan finds the consumer and decides what becomes of it. It changes nothing.
func (d durable) plan(ctx context.Context, subject string) (p plan, err error) {
	if p.js, err = nats.JetStream(d.conn, d.config.Domain); err != nil {
		return p, err
	}
	if p.stream = d.config.Stream; p.stream == "" {
		if p.stream, err = p.js.StreamNameBySubject(ctx, subject); err != nil {
			return p, fmt.Errorf("stream with the subject %s: %w", subject, instead(ctx, p.js, err))
		}
	}
	found, err := p.js.Consumer(ctx, p.stream, d.config.Durable)
	switch {
	case err == nil:
		p.consumer = found
		p.want, err = d.adopt(p.stream, subject, found.CachedInfo().Config)
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		p.want, err = d.missing(ctx, p, subject)
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		err = d.refused(p.stream, "is a push consumer")
	}
	if err != nil && !errors.Is(err, ErrConfig) {
		err = fmt.Errorf("stream %s: %w", p.stream, instead(ctx, p.js, err))
	}
	return p, err
}

// subject returns the subject of a topic. Nobody refuses one with the prefix twice, which waits for what is never stored.
func (c Config) subject(topic string, logger watermill.LoggerAdapter) string {
	subject := nats.Subject(c.SubjectPrefix, topic)
	if strings.HasPrefix(topic, c.SubjectPrefix+".") {
		warnlog.Warn(logger, "the topic begins with the prefix, which comes before it once more", watermill.LogFields{"subject": subject})
	}
	return subject
}

// maxInstead is how many streams an error names.
const maxInstead = 10

// instead adds to the error of a stream that is not found which ones there are, with their subjects.
func instead(ctx context.Context, js jetstream.JetStream, err error) error {
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the list
	defer cancel()
	var have []string
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		if len(have) == maxInstead {
			have = append(have, "and others")
			break
		}
		have = append(have, info.Config.Name+" ("+strings.Join(info.Config.Subjects, " ")+")")
	}
	if len(have) == 0 && streams.Err() != nil {
		return err
	}
	return fmt.Errorf("%w; there are %s", err, cmp.Or(strings.Join(have, ", "), "no streams"))
}

// make does what is planned.
func (d durable) make(ctx context.Context, p plan) (jetstream.Consumer, error) {
	switch {
	case p.want == nil:
		return p.consumer, nil
	case p.consumer == nil:
		return p.js.CreateConsumer(ctx, p.stream, *p.want)
	}
	made, err := p.js.UpdateConsumer(ctx, p.stream, *p.want)
	if err == nil {
		d.logger.Info("NATS consumer gets the configured acknowledgment timeout", watermill.LogFields{"stream": p.stream, "configured": d.config.AckWait.String()})
	}
	return made, err
}

// missing returns the consumer that is to be made.
func (d durable) missing(ctx context.Context, p plan, subject string) (*jetstream.ConsumerConfig, error) {
	stream, err := p.js.Stream(ctx, p.stream)
	if err != nil {
		return nil, err
	}
	have := stream.CachedInfo().Config
	if len(have.Sources) == 0 {
		if err := inCommon(p.stream, have.Subjects, subject); err != nil {
			return nil, err
		}
	}
	policy, since := d.deliver(stream.CachedInfo())
	want := &jetstream.ConsumerConfig{
		Durable: d.config.Durable, FilterSubject: subject, DeliverPolicy: policy, OptStartTime: since,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: d.config.AckWait, MaxAckPending: maxAckPending, MaxDeliver: -1,
		Metadata: map[string]string{madeBy: madeHere},
	}
	if limit := have.ConsumerLimits.MaxAckPending; limit > 0 {
		want.MaxAckPending = min(want.MaxAckPending, limit)
	}
	return want, nil
}

// deliver returns where a consumer starts that is to be made: one that is made again begins no later than the one before.
func (d durable) deliver(stream *jetstream.StreamInfo) (policy jetstream.DeliverPolicy, since *time.Time) {
	fields := watermill.LogFields{"stream": stream.Config.Name, "messages": stream.State.Msgs}
	switch {
	case d.before != nil && d.config.NewOnly:
		since = &d.before.Created
		fields["since"] = since.UTC().Format(time.RFC3339)
		warnlog.Warn(d.logger, "NATS consumer was deleted; it is made again and delivers again what was stored since it existed", fields)
		return jetstream.DeliverByStartTimePolicy, since
	case d.before != nil:
		warnlog.Warn(d.logger, "NATS consumer was deleted; it is made again and delivers the whole stream again", fields)
	case d.config.NewOnly:
		d.logger.Info("NATS consumer is new; it starts with the next message of the stream", fields)
		return jetstream.DeliverNewPolicy, nil
	}
	return jetstream.DeliverAllPolicy, nil
}

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
	d := durable{config: s.config, logger: s.logger, conn: conn}
	if before := s.found.Load(); before != nil {
		d.before = (*before).CachedInfo()
	}
	p, err := d.ready(ctx, subject)
	if err != nil {
		return nil, err
	}
	s.found.Store(&p.consumer)
	return p.consumer, nil
}

// inCommon refuses a subject that no message of a stream can have. A mirror has no subjects of its own.
func inCommon(stream string, subjects []string, subject string) error {
	if len(subjects) == 0 || slices.ContainsFunc(subjects, func(pattern string) bool { return natssubject.Overlap(pattern, subject) }) {
		return nil
	}
	return fmt.Errorf("%w: the stream %s has no subject that matches %s, but %s", ErrConfig, stream, subject, strings.Join(subjects, ", "))
}

// adopt takes a consumer that exists, or refuses it. It returns what it is to become, or nil if it stays as it is, and
// warns of what is not as configured then.
func (d durable) adopt(stream, subject string, have jetstream.ConsumerConfig) (*jetstream.ConsumerConfig, error) {
	if reason := d.unfit(have, subject); reason != "" {
		return nil, d.refused(stream, reason)
	}
	list := d.differences(have)
	wait := len(have.BackOff) == 0 && have.AckWait != d.config.AckWait
	own := have.Metadata[madeBy] == madeHere
	if wait && !own {
		list = append(list, fmt.Sprintf("ack wait %v (configured: %v)", have.AckWait, d.config.AckWait))
	}
	if len(list) > 0 {
		warnlog.Warn(d.logger, fmt.Sprintf("NATS consumer %s of the stream %s exists with other settings, which stay: %s", d.config.Durable, stream, strings.Join(list, ", ")), nil)
	}
	if wait && own {
		have.AckWait = d.config.AckWait
		return &have, nil
	}
	return nil, nil
}

// differences lists what makes a consumer slower than configured, or forget what was acknowledged.
func (d durable) differences(have jetstream.ConsumerConfig) (list []string) {
	add := func(is bool, format string, args ...any) {
		if is {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(have.MaxAckPending > 0 && have.MaxAckPending < d.config.MaxInFlight,
		"max ack pending %d, so no more are handled at a time (configured: %d)", have.MaxAckPending, d.config.MaxInFlight)
	add(have.InactiveThreshold > 0, "inactive threshold %v, after which the server deletes it, and everything comes again", have.InactiveThreshold)
	add(have.MemoryStorage, "memory storage, so everything comes again after a restart of the server")
	add(have.ReplayPolicy == jetstream.ReplayOriginalPolicy, "replay policy original, so messages come as slowly as they were stored")
	add(have.RateLimit > 0, "rate limit %d bit/s", have.RateLimit)
	add(have.PauseUntil != nil && have.PauseUntil.After(time.Now()), "paused until %v", have.PauseUntil)
	return list
}

func (d durable) refused(stream, reason string) error {
	return fmt.Errorf("%w: consumer %s of the stream %s exists and %s; change it, or use another durable", ErrConfig, d.config.Durable, stream, reason)
}

// unfit returns why a consumer cannot be read with the promises of a subscriber; empty if it
// can.
func (d durable) unfit(have jetstream.ConsumerConfig, subject string) string {
	subjects := have.FilterSubjects
	if have.FilterSubject != "" {
		subjects = []string{have.FilterSubject}
	}
	switch {
	case len(subjects) == 0 && subject != ">":
		return "reads every subject, not " + subject
	case len(subjects) > 0 && !slices.Equal(subjects, []string{subject}):
		return fmt.Sprintf("reads %s, not %s", strings.Join(subjects, ", "), subject)
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
