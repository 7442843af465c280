package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/readstate"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

var _ message.Subscriber = (*Subscriber)(nil)

// flushTimeout bounds how long the end of a subscription waits for what is on its way, and Close for the last
// acknowledgments to be sent.
func (c Config) flushTimeout() time.Duration { return max(2*time.Second, c.CloseTimeout) }

// Subscriber delivers the messages of a JetStream stream through a durable consumer, at
// least once. It survives server outages of any length, and Close returns during one. Its
// methods are safe for concurrent use.
//
// Of one key, which is the subject or a header (Config.KeyHeader), a message follows the ack of the one before. A
// nacked message comes again, after a while that grows (Config.MaxNackDelay), before those behind it. Messages of
// different keys are delivered side by side, up to Config.MaxInFlight. The order holds while one subscription reads
// the consumer: to several, in one process or more, the server hands out messages, whatever their keys. It holds from
// one subscription to the next as well, if the first one could end; after a crash, what was open comes again after
// AckWait, behind what is delivered meanwhile. What the server redelivers while it is held here does not become
// another message.
//
// What is read ahead is held and reported as in progress. Of a key of which nothing is acked
// for 10 seconds no more than a sixteenth of it stays when it is full; the others go back to
// the server, for AckWait at a time. Together they count against the consumer's MaxAckPending,
// 100,000 unless the stream or the consumer says otherwise; from there on the server gives no more.
//
// A durable consumer that is missing is created, without a MaxDeliver. One that exists is read as
// it is, its BackOff included, whoever made it; only what a Subscriber made, which its metadata
// says, gets a changed AckWait. Subscribe refuses one that would lose messages or cannot be read,
// with an error that matches [ErrConfig]: with MaxDeliver, because the server drops a message
// after so many deliveries, without explicit acks, without payloads, with another subject, with
// priority groups, or of the push kind.
//
// A message without a UUID gets one derived from the stream, its sequence and its
// timestamp, so that every delivery of the message has the same UUID.
type Subscriber struct {
	config Config
	logger watermill.LoggerAdapter
	// heartbeat is idleHeartbeat, but in tests.
	heartbeat time.Duration

	// stopped ends when Close begins: no more messages are taken.
	stopped context.Context
	stop    context.CancelFunc

	found atomic.Pointer[jetstream.Consumer] // as of the last lookup

	connecting chan struct{} // holds one token while connecting
	conn       *natsgo.Conn  // guarded by connecting

	life *lifecycle.Life // counts the subscriptions

	choice choice
	state  readstate.State // of the latest subscription

	refused ratelog.Line // see onAsyncError
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Subscriber) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, "nats.Subscriber("+s.config.Durable+")")
}

// New returns a Subscriber, or an error that wraps [ErrConfig]. It does not connect. A nil
// logger is silent.
func New(config Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	config = config.WithDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	logger = warnlog.Or(logger)
	s := &Subscriber{
		config: config, logger: logger.With(watermill.LogFields{"consumer": config.Durable}),
		heartbeat: idleHeartbeat, connecting: make(chan struct{}, 1), life: lifecycle.New(),
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Subscribe delivers the messages that a sink with the same SubjectPrefix publishes to the topic. Wildcards match
// tokens: "reports.*", "reports.>", and ">" for all topics of the prefix. Subscribe blocks until the consumer exists. If
// the server is unreachable or has no such stream, the error matches sinks.ErrUnavailable and Subscribe
// can be called again; it names the streams that there are instead, and their subjects. With
// Connection.RetryOnFailedConnect, the subscription waits for what is missing instead, and ReadError says for what.
//
// A Subscriber reads one subject, in one subscription at a time, because another one would get some of its messages: the
// error matches [ErrConfig]. To share the work, use another Subscriber with the same durable.
//
// A consumer that is deleted while it is read is made again, and the log says so: it delivers the whole stream again, with
// Config.NewOnly what was stored since the deleted one was made.
//
// When ctx ends, no more messages are taken; those that were taken can still be acked for
// Config.CloseTimeout, and then the channel is closed. The same happens on Close. The
// context of a message carries the values of ctx and ends with the message or that timeout.
// The bytes of its payload are shared with redeliveries: replace them, do not write to them.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if !s.life.Enter() {
		return nil, ErrClosed
	}
	subject := s.config.subject(topic, s.logger)
	sub := newSubscription(ctx, s, subject)
	err := s.choice.take(sub.intake, s.config.Durable, subject)
	var consumer jetstream.Consumer
	if err == nil {
		consumer, err = s.consumer(ctx, subject)
	}
	switch {
	case s.config.RetryOnFailedConnect && errors.Is(err, sinks.ErrUnavailable):
		s.logger.Error("NATS consumer unavailable; retrying", err, nil)
		s.state.Fails(err)
	case err != nil:
		sub.stopIntake()
		sub.giveUp()
		s.life.Leave()
		return nil, err
	default:
		s.state.Reads()
	}
	// Ends when ctx does, or on Close, within CloseTimeout.
	go func() {
		defer s.life.Leave()
		unwatch := context.AfterFunc(s.stopped, sub.stopIntake)
		defer unwatch()
		sub.run(consumer)
	}()
	return sub.out, nil
}

// choice is what a consumer reads, which cannot be changed, and the latest subscription that does.
type choice struct {
	mu      sync.Mutex
	subject string          // empty before Subscribe
	intake  context.Context // of the subscription
}

func (c *choice) take(intake context.Context, durable, subject string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case slices.Contains(strings.Split(subject, "."), ""):
		return fmt.Errorf("%w: the subject %q has an empty token", ErrConfig, subject)
	case c.subject != "" && c.subject != subject:
		return fmt.Errorf("%w: consumer %s already reads %s and can read only one subject; use another durable", ErrConfig, durable, c.subject)
	case c.intake != nil && c.intake.Err() == nil:
		return fmt.Errorf("%w: another subscription reads %s with consumer %s and would get some of its messages; use another durable, or another Subscriber to share the work", ErrConfig, subject, durable)
	}
	c.subject, c.intake = subject, intake
	return nil
}

// connect returns the connection, connecting on first use.
func (s *Subscriber) connect(ctx context.Context) (*natsgo.Conn, error) {
	select {
	case s.connecting <- struct{}{}:
		defer func() { <-s.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.conn != nil {
		return s.conn, nil
	}
	if s.stopped.Err() != nil {
		return nil, ErrClosed
	}
	conn, err := connect(s.config, natsgo.ErrorHandler(s.onAsyncError))
	if err != nil {
		return nil, err
	}
	s.conn = conn
	return conn, nil
}

// onAsyncError logs what the server says outside of any call, such as that it takes no acknowledgments of this client: it answers none.
func (s *Subscriber) onAsyncError(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
	if errors.Is(err, natsgo.ErrBadHeaderMsg) {
		return // whoever takes the message says it, with its sequence
	}
	if suppressed, ok := s.refused.Next(); ok {
		s.logger.Error("NATS connection error", err, warnlog.Counted(watermill.LogFields{}, suppressed))
	}
}

// ReadError returns why nothing can be read although there is a subscription, and since when: the server is away or refuses
// this client, or the stream or the consumer is gone and cannot be made again. The subscription retries. It is nil as long as
// the server answers, and what has happened is noticed after 10 seconds at the latest. It does not wait for the server.
func (s *Subscriber) ReadError() (since time.Time, err error) { return s.state.ReadError() }

// Backlog asks the server how many messages are not yet acknowledged, whether delivered or
// not. The error matches sinks.ErrUnavailable, also before the first call of Subscribe has
// succeeded. It returns at the latest when ctx ends.
func (s *Subscriber) Backlog(ctx context.Context) (int64, error) {
	consumer := s.found.Load()
	if consumer == nil {
		return 0, s.config.unavailable(errors.New("not subscribed yet"))
	}
	info, err := (*consumer).Info(ctx)
	if err != nil {
		return 0, s.config.unavailable(err)
	}
	return unacked(info.NumAckPending, info.NumPending), nil
}

func unacked(delivered int, waiting uint64) int64 {
	return int64(delivered) + int64(min(waiting, math.MaxInt64/2))
}

// Close takes no more messages, waits for those that are being handled for at most
// Config.CloseTimeout, and closes the connection. Those that were read ahead go back in order, of a
// key when nothing of it is handled any more, so that the next Subscriber, which collects them
// before it delivers, gets them at once and in order. Only what is on its way between the servers of a
// cluster at that moment, or is to come over a connection that breaks, comes again after
// AckWait. Close is idempotent, all calls wait for the first one, and it returns nil.
func (s *Subscriber) Close() error {
	s.life.Close(func() {
		s.stop()
		<-s.life.Idle()            // a subscription ends within CloseTimeout
		s.connecting <- struct{}{} // no one connects from here on
		if s.conn == nil {
			return
		}
		// Acknowledgments may still be on their way. If one does not arrive, its message is
		// redelivered.
		if s.conn.IsConnected() {
			_ = s.conn.FlushTimeout(s.config.flushTimeout())
		}
		s.conn.Close()
	})
	return nil
}
