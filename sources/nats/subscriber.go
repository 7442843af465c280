package nats

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

var _ message.Subscriber = (*Subscriber)(nil)

// How soon a nacked message is redelivered, and how often to look up a consumer that is
// gone. Both end when the subscription does.
var (
	nackPolicy     = backoff.Policy{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
	consumerPolicy = backoff.Policy{Initial: 100 * time.Millisecond, Max: 10 * time.Second}
)

// returnTimeout bounds how long the end of a subscription waits for prefetched messages to
// nak.
const returnTimeout = 2 * time.Second

// Subscriber delivers the messages of a JetStream stream through a durable consumer, at
// least once: every message that is not acknowledged is redelivered. It is the source of
// routes from NATS to the gateway. It survives server outages of any length, and Close
// returns during one. Its methods are safe for concurrent use.
//
// A message without a UUID gets one derived from the stream, its sequence and its
// timestamp, so that every delivery of the message has the same UUID.
type Subscriber struct {
	config Config
	logger watermill.LoggerAdapter

	// stopped ends when Close begins: no more messages are taken.
	stopped context.Context
	stop    context.CancelFunc

	found atomic.Pointer[jetstream.Consumer] // as of the last lookup

	connecting chan struct{} // holds one token while connecting
	conn       *natsgo.Conn  // guarded by connecting

	life *lifecycle.Life // counts the subscriptions

	mu      sync.Mutex
	subject string // what the consumer reads; empty before Subscribe; guarded by mu
}

// New returns a Subscriber, or an error that wraps [ErrConfig]. It does not connect. A nil
// logger is silent.
func New(config Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	s := &Subscriber{
		config: config, logger: logger.With(watermill.LogFields{"consumer": config.Durable}),
		connecting: make(chan struct{}, 1), life: lifecycle.New(),
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Subscribe delivers the messages with this subject, which may have wildcards; it is the
// full subject, without a prefix. It blocks until the consumer exists. If the server is
// unreachable or has no such stream, the error matches sinks.ErrUnavailable and Subscribe
// can be called again.
//
// All subscriptions of one Subscriber read one subject and share the work.
//
// When ctx ends, no more messages are taken; those that were taken can still be acked for
// Config.CloseTimeout, and then the channel is closed. The same happens on Close. The
// context of a message carries the values of ctx and ends with the message or that timeout.
func (s *Subscriber) Subscribe(ctx context.Context, subject string) (<-chan *message.Message, error) {
	if !s.life.Enter() {
		return nil, ErrClosed
	}
	if err := s.choose(subject); err != nil {
		s.life.Leave()
		return nil, err
	}
	consumer, err := s.consumer(ctx, subject)
	if err != nil {
		s.life.Leave()
		return nil, err
	}
	sub := &subscription{Subscriber: s, subject: subject, out: make(chan *message.Message)}
	sub.intake, sub.stopIntake = context.WithCancel(ctx)
	sub.work, sub.giveUp = context.WithCancel(context.WithoutCancel(ctx))
	// Ends when ctx does, or on Close, within CloseTimeout.
	go func() {
		defer s.life.Leave()
		unwatch := context.AfterFunc(s.stopped, sub.stopIntake)
		defer unwatch()
		sub.run(consumer)
	}()
	return sub.out, nil
}

// choose sets the subject that the consumer reads; it cannot be changed.
func (s *Subscriber) choose(subject string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case subject == "":
		return fmt.Errorf("%w: the subject is empty", ErrConfig)
	case s.subject != "" && s.subject != subject:
		return fmt.Errorf("%w: consumer %s already reads %s and can read only one subject", ErrConfig, s.config.Durable, s.subject)
	}
	s.subject = subject
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
	conn, err := s.config.Connect(s.config.Name)
	switch {
	case errors.Is(err, nats.ErrConfig):
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	case err != nil:
		return nil, s.unavailable(err)
	}
	s.conn = conn
	return conn, nil
}

func (s *Subscriber) unavailable(err error) error {
	return sinks.NewError("nats consumer "+s.config.Durable, "", sinks.ErrUnavailable, err)
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
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, s.unavailable(err)
	}
	stream := s.config.Stream
	if stream == "" {
		if stream, err = js.StreamNameBySubject(ctx, subject); err != nil {
			return nil, s.unavailable(fmt.Errorf("stream with the subject %s: %w", subject, err))
		}
	}
	deliver := jetstream.DeliverAllPolicy
	if s.config.NewOnly {
		deliver = jetstream.DeliverNewPolicy
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: s.config.Durable, FilterSubject: subject, DeliverPolicy: deliver,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.config.AckWait, MaxAckPending: s.config.MaxInFlight, MaxDeliver: -1,
	})
	if err != nil {
		return nil, s.unavailable(err)
	}
	s.found.Store(&consumer)
	return consumer, nil
}

// Backlog asks the server how many messages are not yet acknowledged, whether delivered or
// not. The error matches sinks.ErrUnavailable, also before the first call of Subscribe has
// succeeded. It returns at the latest when ctx ends.
func (s *Subscriber) Backlog(ctx context.Context) (int64, error) {
	consumer := s.found.Load()
	if consumer == nil {
		return 0, s.unavailable(errors.New("not subscribed yet"))
	}
	info, err := (*consumer).Info(ctx)
	if err != nil {
		return 0, s.unavailable(err)
	}
	return int64(info.NumAckPending) + int64(min(info.NumPending, math.MaxInt64/2)), nil
}

// Close takes no more messages, naks prefetched ones, waits for the others for at most
// Config.CloseTimeout, and closes the connection. What was not acknowledged is redelivered.
// It is idempotent, all calls wait for the first one, and it returns nil.
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
			_ = s.conn.FlushTimeout(returnTimeout)
		}
		s.conn.Close()
	})
	return nil
}

// subscription is one call of Subscribe. Only run sends to out and closes it.
type subscription struct {
	*Subscriber
	subject string
	out     chan *message.Message

	intake     context.Context // ends when no more messages are to be taken
	stopIntake context.CancelFunc
	work       context.Context // ends when messages that were taken are abandoned
	giveUp     context.CancelFunc
	taken      sync.WaitGroup
}

// run delivers until intake ends.
func (s *subscription) run(consumer jetstream.Consumer) {
	defer close(s.out)
	for consumer != nil {
		err := s.deliver(consumer)
		if s.intake.Err() != nil {
			break
		}
		s.logger.Info("NATS consumer is gone; looking it up again", watermill.LogFields{"error": err.Error()})
		consumer = s.again()
	}
	s.stopIntake()
	timer := time.AfterFunc(s.config.CloseTimeout, s.giveUp)
	defer timer.Stop()
	s.taken.Wait()
	s.giveUp()
}

// again finds or creates the consumer, retrying until that succeeds; nil if intake ends.
func (s *subscription) again() jetstream.Consumer {
	for n := 0; ; n++ {
		if consumerPolicy.Wait(s.intake, n) != nil {
			return nil
		}
		consumer, err := s.consumer(s.intake, s.subject)
		if err == nil {
			s.logger.Info("NATS consumer is available again", nil)
			return consumer
		}
		if n == 0 && s.intake.Err() == nil {
			s.logger.Error("NATS consumer unavailable; retrying", err, nil)
		}
	}
}

// deliver passes on messages from the consumer, until intake ends or the consumer is gone.
func (s *subscription) deliver(consumer jetstream.Consumer) error {
	ahead := max(1, s.config.MaxInFlight/2)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(ahead))
	if err != nil {
		return err
	}
	defer s.returnPrefetched(messages)
	for {
		raw, err := messages.Next(jetstream.NextContext(s.intake))
		switch {
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			continue // an outage, or a consumer without a server: keep waiting
		case err != nil:
			return err
		}
		msg, err := s.unmarshal(raw)
		if err != nil {
			s.logger.Error("Message cannot be read; it will be redelivered", err, nil)
			_ = raw.NakWithDelay(nackPolicy.Max)
			continue
		}
		ctx, end := context.WithCancel(s.work)
		msg.SetContext(ctx)
		select {
		case s.out <- msg:
			// Ends with the message, or when it is abandoned.
			s.taken.Go(func() {
				defer end()
				s.awaitAck(raw, msg)
			})
		case <-s.intake.Done():
			end()
			_ = raw.Nak()
			return s.intake.Err()
		}
	}
}

// returnPrefetched stops pulling and naks prefetched messages, so that they do not have to wait for
// AckWait.
func (s *subscription) returnPrefetched(messages jetstream.MessagesContext) {
	if !s.isConnected() {
		messages.Stop() // Drain would wait for the server
		return
	}
	messages.Drain()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.intake), returnTimeout)
	defer cancel()
	for {
		raw, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return
		}
		_ = raw.Nak()
	}
}

func (s *subscription) isConnected() bool {
	s.connecting <- struct{}{}
	defer func() { <-s.connecting }()
	return s.conn != nil && s.conn.IsConnected()
}

// unmarshal creates the Watermill message. Its UUID is the same for every delivery.
func (s *subscription) unmarshal(raw jetstream.Msg) (*message.Message, error) {
	msg, err := s.config.Unmarshaler.Unmarshal(&natsgo.Msg{Subject: raw.Subject(), Header: raw.Headers(), Data: raw.Data()})
	if err != nil || msg.UUID != "" {
		return msg, err
	}
	meta, err := raw.Metadata()
	if err != nil {
		return nil, err
	}
	// A recreated stream counts from one again; the timestamp makes the difference.
	name := fmt.Sprintf("%s %d %d", meta.Stream, meta.Sequence.Stream, meta.Timestamp.UnixNano())
	msg.UUID = uuid.NewHash(sha256.New(), streamNamespace(), []byte(name), 8).String()
	return msg, nil
}

// streamNamespace is the namespace of derived UUIDs.
func streamNamespace() uuid.UUID { return uuid.MustParse("4a2e55f8-29d3-4bd9-8d2f-1a2f1f9d1c53") }

// awaitAck waits for the ack or nack of a message and passes it on to the server. Until
// then it reports the message as in progress.
func (s *subscription) awaitAck(raw jetstream.Msg, msg *message.Message) {
	alive := time.NewTicker(s.config.AckWait / 3)
	defer alive.Stop()
	acked, nacked := msg.Acked(), msg.Nacked()
	answer := raw.InProgress
	for {
		select {
		case <-acked:
			acked, nacked, answer = nil, nil, raw.Ack
			if answer() == nil {
				return
			}
		case <-nacked:
			acked, nacked, answer = nil, nil, s.nak(raw)
			if answer() == nil {
				return
			}
		case <-alive.C:
			// Without a connection this fails and is retried.
			if err := answer(); err == nil && acked == nil {
				return
			}
		case <-s.work.Done():
			// An ack at the same moment counts.
			select {
			case <-acked:
				answer = raw.Ack
			default:
				if acked != nil {
					answer = raw.Nak
				}
			}
			_ = answer() // the last chance; if it fails, the message is redelivered
			return
		}
	}
}

// nak returns a function that naks a message: at once if the subscription is ending, else
// with a delay that grows with the number of deliveries.
func (s *subscription) nak(raw jetstream.Msg) func() error {
	return func() error {
		meta, err := raw.Metadata()
		if err != nil || s.intake.Err() != nil {
			return raw.Nak()
		}
		return raw.NakWithDelay(nackPolicy.Delay(int(min(meta.NumDelivered, 32)) - 1))
	}
}
