package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/opening"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

// maxFileStoreSize is the server's limit for a record of its file store, less
// what the record holds beside headers and payload. Above it the server answers
// as if the store had failed.
const maxFileStoreSize = 32<<20 - maxSubjectLength - 64

var (
	_ sinks.Sink        = (*Sink)(nil)
	_ sinks.Recovering  = (*Sink)(nil)
	_ sinks.Syncing     = (*Sink)(nil)
	_ message.Publisher = (*Sink)(nil)
)

// Sink stores messages in a JetStream stream. It is safe for concurrent use.
type Sink struct {
	config Config
	name   string
	logger watermill.LoggerAdapter
	link
	js      jetstream.JetStream
	opening *opening.Opening // of the stream

	stream    atomic.Pointer[jetstream.StreamConfig] // as on the server when last looked
	run       run                                    // of the server
	recovered wakeup.Signal

	drafts   drafts
	requests chan *flight
	acks     *acks

	life    *lifecycle.Life
	workers sync.WaitGroup

	// background ends when Close stops waiting: calls under way give up.
	background context.Context
	stop       context.CancelFunc
}

// errClosed is why a publication that was under way when the sink closed has no
// result.
var errClosed = errors.New("closed")

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Sink) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "nats.Sink("+s.name+")") }

// New connects, provisions the stream and returns the sink. It logs warnings
// where the stream's settings promise less than "what is acknowledged is not
// lost". A nil logger is silent.
//
// Errors wrap [ErrConfig], [ErrStream], or sinks.ErrUnavailable when the server
// cannot be reached or refuses. With Config.RetryOnFailedConnect they wrap ErrConfig only: whatever else
// is the matter is logged, New succeeds, and the sink goes on trying; until it has the stream, Publish and Health
// fail with sinks.ErrUnavailable, [sinks.ErrNotConnected] and the reason. Once connected, the sink reconnects without end.
func New(config Config, logger watermill.LoggerAdapter) (*Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.WithDefaults()
	if config.CloudEvents != nil {
		mapping, err := cloudevents.New(*config.CloudEvents)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		config.Marshaler = Marshaler{CloudEvents: mapping}
	}
	s := &Sink{
		config:   config,
		name:     cmp.Or(config.Name, "nats"),
		logger:   warnlog.Or(logger),
		link:     link{conn: config.Conn},
		requests: make(chan *flight, queueLength),
		life:     lifecycle.New(),
		run:      run{look: make(chan struct{}, 1)},
	}
	s.background, s.stop = context.WithCancel(context.Background())
	if own, ok := config.Marshaler.(Marshaler); ok {
		s.drafts.own = &own
	}
	if s.conn == nil {
		var err error
		s.conn, err = config.Connect(cmp.Or(config.Name, DefaultName), natsgo.ErrorHandler(s.onAsyncError),
			// A server that reads nothing more must not block writers for ever.
			natsgo.FlusherTimeout(config.PublishTimeout))
		if err != nil {
			s.stop()
			if !errors.Is(err, ErrConfig) {
				err = sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
			}
			return nil, err
		}
	}
	if err := s.start(); err != nil {
		s.stop()
		s.release(s.config.Conn == nil)
		return nil, err
	}
	return s, nil
}

// start provisions the stream and starts the goroutines.
func (s *Sink) start() error {
	js, err := JetStream(s.conn, s.config.Domain)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s.js = js
	s.buffers = s.conn.Opts.ReconnectBufSize >= 0
	s.acks = newAcks(s.conn.NewInbox()+".", s.config.MaxPending)
	if s.replies, err = s.conn.Subscribe(s.acks.subject(), s.onAnswer); err != nil {
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	// MaxPending bounds the answers.
	if err := s.replies.SetPendingLimits(-1, -1); err != nil {
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	s.status = s.conn.StatusChanged(natsgo.CONNECTED, natsgo.RECONNECTING, natsgo.CLOSED) // before its state is looked at
	s.opening = opening.New(s.open, s.logger)
	switch err := s.opening.Try(s.background); {
	case s.config.RetryOnFailedConnect:
		s.opening.Start(s.background, func(context.Context) {
			s.recovered.Raise()
			s.run.lookNow()
		})
	case errors.Is(err, ErrStream):
		return err
	case err != nil:
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	s.workers.Go(s.watch)  // ends when release removes the listener
	s.workers.Go(s.send)   // ends with background
	s.workers.Go(s.expire) // ends with background
	s.workers.Go(s.follow) // ends with background
	return nil
}

// open provisions the stream and looks at it.
func (s *Sink) open(ctx context.Context) error {
	if !s.conn.IsConnected() {
		return Explain(s.conn, s.config.Domain, natsgo.ErrDisconnected)
	}
	s.connected()
	if err := s.provision(ctx, s.config.ConnectTimeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.ConnectTimeout)
	defer cancel()
	return s.lookAtStream(ctx)
}

// Describe returns the name, the size limit (headers included) of server and
// stream, and the durability of the stream as it was when last looked at. Limit and durability are unknown until then.
func (s *Sink) Describe() sinks.Description {
	d := sinks.Description{Name: s.name, Ordered: true, Pipelined: s.config.Ingest == sinks.IngestPipelined}
	if s.opening.Err() == nil {
		have, settings := *s.stream.Load(), s.settings()
		d.MaxMessageSize, d.Synced = s.maxMessageSize(), synced(have, settings)
		d.Durability, d.DurabilityNote = durability(have, settings)
	}
	if s.drafts.own != nil { // a marshaler of the application may change messages
		d.ReadOnly = s
	}
	return d
}

// Recovered implements [sinks.Recovering]: the connection is there again.
func (s *Sink) Recovered() <-chan struct{} { return s.recovered.Next() }

// Conn returns the connection, for what else is kept on the same server, such as
// packages kvstore and poisonqueue. Close closes it, unless it was given by
// Config.Conn.
func (s *Sink) Conn() *natsgo.Conn { return s.conn }

// TopicSegment is the function [TopicSegment].
func (s *Sink) TopicSegment(value string) string { return TopicSegment(value) }

// CheckTopic implements [sinks.Topics].
func (s *Sink) CheckTopic(topic string) error { return s.config.CheckTopic(topic) }

func (s *Sink) maxMessageSize() int64 {
	limit, stream := s.maxPayload.Load(), s.stream.Load()
	if stream.MaxMsgSize > 0 {
		limit = min(limit, int64(stream.MaxMsgSize))
	}
	if stream.Storage == jetstream.FileStorage {
		limit = min(limit, maxFileStoreSize)
	}
	return limit
}

// Publish stores the messages under the subject SubjectPrefix.topic, in their
// order, and returns nil when the stream has acknowledged each of them. They
// are sent without waiting for each other's acknowledgment, so an error may
// leave a gap in the order.
//
// Without an acknowledgment within Config.PublishTimeout, and for whatever the
// server's state is to blame, the error is sinks.ErrUnavailable. A topic that is
// no subject is sinks.ErrRejected; a message above the limit of Describe, or with
// more than 65535 bytes of headers, sinks.ErrTooLarge. All messages of the call
// are checked before the first is sent.
func (s *Sink) Publish(topic string, messages ...*message.Message) error {
	if !s.life.Enter() {
		return sinks.NewError(s.name, topic, sinks.ErrClosed, nil)
	}
	defer s.life.Leave()
	if err := msgctx.Missing(messages...); err != nil {
		return sinks.NewError(s.name, topic, sinks.ErrRejected, err)
	}
	messages = msgctx.Apart(messages)
	var one [1]*flight
	flights := one[:0]
	for _, msg := range messages {
		f, err := s.prepare(topic, msg)
		if err != nil {
			return err
		}
		flights = append(flights, f)
	}
	var room [1]*sinks.Publication
	publications := room[:0]
	var err error
	for _, f := range flights {
		if err = s.enqueue(f); err != nil {
			break
		}
		publications = append(publications, &f.Publication)
	}
	if err = sinks.Await(messages, publications, err); err != nil {
		for _, f := range flights {
			f.withdraw() // a context may have ended, and the caller has the payloads back
		}
	}
	return err
}

// PublishAsync gives the message its place behind all others that were published, of
// whatever topic, and blocks while as many are under way as Config.MaxPending allows.
// The receipt has stream, subject and sequence. A message that the stream does not
// take, or that is lost with the connection, does not hold up those behind it, see
// [sinks.Description].Ordered.
func (s *Sink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	if !s.life.Enter() {
		return nil, sinks.NewError(s.name, topic, sinks.ErrClosed, nil)
	}
	defer s.life.Leave()
	if err := msgctx.Missing(msg); err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
	}
	f, err := s.prepare(topic, msg)
	if err != nil {
		return nil, err
	}
	if err := s.enqueue(f); err != nil {
		return nil, err
	}
	return &f.Publication, nil
}

// Close waits up to Config.CloseTimeout for calls that are under way; those that
// are not done then return sinks.ErrClosed. It closes the connection unless it
// was given by Config.Conn. It always returns nil; all calls wait for the first
// one. A nil Sink has nothing to close.
func (s *Sink) Close() error {
	if s == nil {
		return nil
	}
	s.life.Close(func() {
		idle := s.life.Idle() // stop makes the last call give up
		timer := time.NewTimer(s.config.CloseTimeout)
		defer timer.Stop()
		select {
		case <-idle:
		case <-timer.C:
			s.logger.Info("NATS sink closing with publishes in flight", nil)
		}
		s.stop()
		s.opening.Stop(context.Background())
		s.release(s.config.Conn == nil)
		s.workers.Wait() // the sender takes nothing any more
		s.abandon(idle)
	})
	return nil
}

// abandon resolves what is still queued or pending, until idle is closed: calls that
// were about to hand over a message may still do so.
func (s *Sink) abandon(idle <-chan struct{}) {
	for _, f := range s.acks.takeAll() {
		s.resolve(f, sinks.Receipt{}, errClosed)
	}
	for {
		select {
		case f := <-s.requests:
			s.resolve(f, sinks.Receipt{}, errClosed)
		case <-idle:
			return
		}
	}
}
