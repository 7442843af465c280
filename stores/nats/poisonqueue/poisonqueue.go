// Package poisonqueue looks after the poison queue that a NATS sink has written:
// it lists, shows and deletes messages of the stream one by one, without a
// consumer, so nothing is taken off by looking. Router.Replay and
// router.DeletePoisoned do the rest.
package poisonqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
)

// DefaultTimeout is the default of [Config.Timeout].
const DefaultTimeout = 5 * time.Second

// ErrConfig is matched by the errors of [Config.Validate].
var ErrConfig = errors.New("poisonqueue: invalid configuration")

// Config configures a [Queue].
type Config struct {
	// Conn is the connection, e.g. [nats.Sink.Conn]. Required. It is not closed.
	Conn *natsgo.Conn
	// Domain is the JetStream domain of the stream, as [nats.Connection.Domain].
	Domain string
	// Stream and SubjectPrefix are those of the sink's Config. Empty means
	// [nats.DefaultStream] and [nats.DefaultSubjectPrefix].
	Stream        string
	SubjectPrefix string
	// Topic is router.Config.PoisonTopic. Empty means
	// [router.DefaultPoisonTopic].
	Topic string
	// Unmarshaler reads the messages. Nil means [nats.Marshaler].
	Unmarshaler wmnats.Unmarshaler
	// Timeout bounds each request to the server. 0 means [DefaultTimeout];
	// negative is an error.
	Timeout time.Duration
}

func (c *Config) setDefaults() {
	c.Stream = cmp.Or(c.Stream, nats.DefaultStream)
	c.Topic = cmp.Or(c.Topic, router.DefaultPoisonTopic)
	if c.Unmarshaler == nil {
		c.Unmarshaler = nats.Marshaler{}
	}
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
}

// Format writes the fields without what is secret, for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// Validate reports every field whose value is not allowed; the error matches
// [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	e.Check(c.Conn != nil, "Conn", "is required")
	validate.NotNegative(&e, "Timeout", c.Timeout)
	return e.Err(ErrConfig)
}

// Queue is a [router.PoisonStore]. The ID of a message is its sequence number in
// the stream. It is safe for concurrent use.
type Queue struct {
	js      jetstream.JetStream
	config  Config
	subject string
}

var _ router.PoisonStore = (*Queue)(nil)

// Format writes what it is, for every verb, and nothing of its configuration.
func (q *Queue) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "poisonqueue.Queue") }

// New returns a Queue. It does not ask the server; the error matches [ErrConfig].
func New(config Config) (*Queue, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	js, err := nats.JetStream(config.Conn, config.Domain)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Queue{js: js, config: config, subject: nats.Subject(config.SubjectPrefix, config.Topic)}, nil
}

// Depth returns how many messages are in the queue. It asks the server once.
func (q *Queue) Depth(ctx context.Context) (int64, error) {
	stream, err := q.stream(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.config.Timeout)
	defer cancel()
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(q.subject))
	if err != nil {
		return 0, q.failed(err)
	}
	return int64(info.State.Subjects[q.subject]), nil
}

// Oldest returns when the message that has been in the queue for longest was put there; zero if the queue
// is empty. It asks the server twice.
func (q *Queue) Oldest(ctx context.Context) (time.Time, error) {
	stream, err := q.stream(ctx)
	if err != nil {
		return time.Time{}, err
	}
	raw, err := q.get(ctx, stream, 1, jetstream.WithGetMsgSubject(q.subject))
	if errors.Is(err, router.ErrNotInQueue) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return raw.Time, nil
}

// Messages implements [router.PoisonStore]. It asks the server once per message.
func (q *Queue) Messages(ctx context.Context) iter.Seq2[router.Poisoned, error] {
	return func(yield func(router.Poisoned, error) bool) {
		stream, err := q.stream(ctx)
		if err != nil {
			yield(router.Poisoned{}, err)
			return
		}
		// What is written from now on is not part of it: a message that is
		// replayed while we iterate and fails again would be met without end.
		last := stream.CachedInfo().State.LastSeq
		for next := max(1, stream.CachedInfo().State.FirstSeq); next <= last; {
			raw, err := q.get(ctx, stream, next, jetstream.WithGetMsgSubject(q.subject))
			if errors.Is(err, router.ErrNotInQueue) {
				return
			}
			if err != nil {
				yield(router.Poisoned{}, err)
				return
			}
			if raw.Sequence > last {
				return
			}
			if !yield(q.poisoned(raw)) {
				return
			}
			next = raw.Sequence + 1
		}
	}
}

// Get implements [router.PoisonStore].
func (q *Queue) Get(ctx context.Context, id string) (router.Poisoned, error) {
	_, raw, err := q.lookUp(ctx, id)
	if err != nil {
		return router.Poisoned{}, err
	}
	return q.poisoned(raw)
}

// Delete implements [router.PoisonStore]. The server marks the message as
// deleted; it does not overwrite it. A message of another topic is not touched,
// whatever the ID.
func (q *Queue) Delete(ctx context.Context, id string) error {
	stream, raw, err := q.lookUp(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, q.config.Timeout)
	defer cancel()
	err = stream.DeleteMsg(ctx, raw.Sequence)
	if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		// The client says no more about it: it was deleted a moment ago?
		if _, again := q.get(ctx, stream, raw.Sequence); errors.Is(again, router.ErrNotInQueue) {
			return again
		}
	}
	if err != nil {
		return q.failed(err)
	}
	return nil
}

func (q *Queue) stream(ctx context.Context) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, q.config.Timeout)
	defer cancel()
	stream, err := q.js.Stream(ctx, q.config.Stream)
	if err != nil {
		return nil, q.failed(err)
	}
	return stream, nil
}

// lookUp returns the message with an ID, if it is one of the queue.
func (q *Queue) lookUp(ctx context.Context, id string) (jetstream.Stream, *jetstream.RawStreamMsg, error) {
	seq, err := strconv.ParseUint(id, 10, 64)
	if err != nil || seq == 0 {
		return nil, nil, router.ErrNotInQueue
	}
	stream, err := q.stream(ctx)
	if err != nil {
		return nil, nil, err
	}
	raw, err := q.get(ctx, stream, seq)
	if err == nil && raw.Subject != q.subject {
		err = router.ErrNotInQueue
	}
	return stream, raw, err
}

func (q *Queue) get(ctx context.Context, stream jetstream.Stream, seq uint64, options ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, q.config.Timeout)
	defer cancel()
	raw, err := stream.GetMsg(ctx, seq, options...)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, router.ErrNotInQueue
	}
	if err != nil {
		return nil, q.failed(err)
	}
	return raw, nil
}

// failed says where a request failed.
func (q *Queue) failed(err error) error {
	return fmt.Errorf("poisonqueue: stream %s: %w", q.config.Stream, nats.Explain(q.config.Conn, q.config.Domain, err))
}

func (q *Queue) poisoned(raw *jetstream.RawStreamMsg) (router.Poisoned, error) {
	msg, err := msgctx.Unmarshaled(q.config.Unmarshaler.Unmarshal(&natsgo.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data}))
	if err != nil {
		return router.Poisoned{}, fmt.Errorf("poisonqueue: message %d: %w", raw.Sequence, err)
	}
	poisoned, _ := router.ParsePoisoned(msg)
	poisoned.ID = strconv.FormatUint(raw.Sequence, 10)
	return poisoned, nil
}
