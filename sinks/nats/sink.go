package nats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
)

// maxHeaderSize is the server's limit for the encoded headers of a message that
// JetStream stores.
const maxHeaderSize = 1<<16 - 1

// maxFileStoreSize is the server's limit for a record of its file store, less
// what the record holds beside headers and payload. Above it the server answers
// as if the store had failed.
const maxFileStoreSize = 32<<20 - maxSubjectLength - 64

// queueLength is how many calls of Publish may wait for the sender without
// blocking on it. It only saves context switches.
const queueLength = 256

var (
	_ sinks.Sink        = (*Sink)(nil)
	_ message.Publisher = (*Sink)(nil)
)

// Sink stores messages in a JetStream stream. It is safe for concurrent use.
type Sink struct {
	config Config
	name   string
	logger watermill.LoggerAdapter
	conn   *natsgo.Conn
	js     jetstream.JetStream

	stream     atomic.Pointer[jetstream.StreamConfig] // as on the server when last looked
	maxPayload atomic.Int64                           // of the server when last connected
	violation  atomic.Pointer[asyncError]             // last permissions violation
	logged     atomic.Pointer[string]                 // last such error since the connection came

	requests     chan *request
	pending      pending
	provisioning chan struct{} // holds one token while the stream is looked at again
	status       chan natsgo.Status

	mu       sync.Mutex // guards isClosed against calls.Add
	isClosed bool
	calls    sync.WaitGroup
	closed   chan struct{} // closed when Close is done
	workers  sync.WaitGroup

	// background ends when Close stops waiting: calls under way give up.
	background context.Context
	stop       context.CancelFunc
}

// asyncError is an error that the server reported outside of any call.
type asyncError struct {
	at  time.Time
	err error
}

// New connects, provisions the stream and returns the sink. It logs warnings
// where the stream's settings promise less than "what is acknowledged is not
// lost". A nil logger is silent.
//
// Errors wrap [ErrConfig], [ErrStream], or sinks.ErrUnavailable when the server
// cannot be reached or refuses; then calling New again later may help. Once New
// succeeded, the sink reconnects without end.
func New(config Config, logger watermill.LoggerAdapter) (*Sink, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if config.CloudEvents != nil {
		mapping, err := cloudevents.New(*config.CloudEvents)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		config.Marshaler = Marshaler{CloudEvents: mapping}
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	s := &Sink{
		config:       config,
		name:         config.Name,
		logger:       logger,
		conn:         config.Conn,
		requests:     make(chan *request, queueLength),
		provisioning: make(chan struct{}, 1),
		closed:       make(chan struct{}),
	}
	s.background, s.stop = context.WithCancel(context.Background())
	if s.name == "" {
		s.name = "nats"
	}
	if s.conn == nil {
		options, err := config.connectOptions()
		if err != nil {
			s.stop()
			return nil, err
		}
		options = append(options, natsgo.ErrorHandler(s.onAsyncError))
		s.conn, err = natsgo.Connect(config.URL, append(options, config.Options...)...)
		if err != nil {
			s.stop()
			return nil, sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
		}
	}
	if err := s.start(); err != nil {
		s.stop()
		s.release()
		return nil, err
	}
	return s, nil
}

// start provisions the stream and starts the goroutines.
func (s *Sink) start() error {
	js, err := jetstream.New(s.conn,
		jetstream.WithPublishAsyncTimeout(s.config.PublishTimeout),
		jetstream.WithPublishAsyncMaxPending(s.config.MaxPending),
		jetstream.WithPublishAsyncAckHandler(s.onAck),
		jetstream.WithPublishAsyncErrHandler(s.onFailure))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s.js = js
	s.maxPayload.Store(s.conn.MaxPayload())
	if err := s.provision(s.background, s.config.ConnectTimeout); err != nil {
		if errors.Is(err, ErrStream) {
			return err
		}
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	s.status = s.conn.StatusChanged(natsgo.CONNECTED, natsgo.RECONNECTING, natsgo.CLOSED)
	s.workers.Go(s.watch) // ends when release removes the listener
	s.workers.Go(s.send)  // ends with background
	return nil
}

// Describe returns the name, the size limit (headers included) of server and
// stream, and the durability of the stream as it was when last looked at.
func (s *Sink) Describe() sinks.Description {
	level, note := durability(*s.stream.Load(), s.config.SyncAlways)
	return sinks.Description{Name: s.name, MaxMessageSize: s.maxMessageSize(), Durability: level, DurabilityNote: note}
}

// Conn returns the connection, for what else is kept on the same server, such as
// packages kvstore and poisonqueue. Close closes it, unless it was given by
// Config.Conn.
func (s *Sink) Conn() *natsgo.Conn { return s.conn }

// TopicSegment is the function [TopicSegment].
func (s *Sink) TopicSegment(value string) string { return TopicSegment(value) }

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

// enter reports whether a call may start, and counts it if so.
func (s *Sink) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return false
	}
	s.calls.Add(1)
	return true
}

// Publish stores the messages under the subject SubjectPrefix.topic, in their
// order, and returns nil when the stream has acknowledged each of them. They
// are sent without waiting for each other's acknowledgement, like those of
// concurrent calls, so an error may leave a gap in the order.
//
// Without a connection, without an acknowledgement within
// Config.PublishTimeout, and for whatever the server's state is to blame, the
// error is sinks.ErrUnavailable. A topic that is no subject is
// sinks.ErrRejected; a message above the limit of Describe, or with more than
// 65535 bytes of headers, sinks.ErrTooLarge. All messages of the call are
// checked before the first is sent. See [sinks.Sink] for the rest.
func (s *Sink) Publish(topic string, messages ...*message.Message) error {
	if !s.enter() {
		return sinks.NewError(s.name, topic, sinks.ErrClosed, nil)
	}
	defer s.calls.Done()
	if len(messages) == 0 {
		return nil
	}
	r, err := s.prepare(topic, messages)
	if err != nil {
		return err
	}
	return s.publish(topic, r)
}

// prepare marshals and checks the messages.
func (s *Sink) prepare(topic string, messages []*message.Message) (*request, error) {
	subject := s.config.SubjectPrefix + "." + topic
	if err := checkSubject(subject); err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
	}
	r := &request{
		messages: make([]*natsgo.Msg, len(messages)),
		contexts: make([]context.Context, len(messages)),
		done:     make(chan struct{}),
	}
	limit := s.maxMessageSize()
	for i, msg := range messages {
		ctx := msg.Context()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		natsMsg, err := s.config.Marshaler.Marshal(subject, msg)
		if err != nil {
			return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
		}
		header := headerSize(natsMsg.Header)
		size := int64(header + len(natsMsg.Data))
		if header > maxHeaderSize || limit > 0 && size > limit {
			return nil, sinks.NewError(s.name, topic, sinks.ErrTooLarge,
				fmt.Errorf("%d bytes, %d of them headers; the limits are %d and %d", size, header, limit, maxHeaderSize))
		}
		if ctx.Done() != nil {
			// When the context ends, the caller has its payload back while the
			// sender may still be writing it.
			natsMsg.Data = bytes.Clone(natsMsg.Data)
		}
		r.messages[i], r.contexts[i] = natsMsg, ctx
	}
	return r, nil
}

// publish hands a request to the sender and waits for the acknowledgements.
func (s *Sink) publish(topic string, r *request) error {
	ended, stop := firstEnd(r.contexts)
	defer stop()
	start := time.Now()

	closed := func() error { return sinks.NewError(s.name, topic, sinks.ErrClosed, nil) }
	select {
	case s.requests <- r:
	case <-ended:
		return endOf(r.contexts)
	case <-s.background.Done():
		return closed()
	}
	// Every message that was sent is waited for, so that no error returns while
	// another message of the call is still on its way.
	select {
	case <-r.done:
	case <-ended:
		return endOf(r.contexts)
	case <-s.background.Done():
		return closed()
	}
	if r.err == nil {
		return nil
	}
	// The sender stops at an ended context.
	if err := endOf(r.contexts); err != nil && errors.Is(r.err, err) {
		return err
	}
	return s.fail(topic, start, r.err)
}

// onAck is told that the server acknowledged a message.
func (s *Sink) onAck(_ jetstream.JetStream, msg *natsgo.Msg, ack *jetstream.PubAck) {
	if ack.Stream != s.config.Stream {
		s.pending.settle(msg, fmt.Errorf("acknowledged by stream %s instead of %s", ack.Stream, s.config.Stream))
		return
	}
	s.pending.settle(msg, nil)
}

// onFailure is told that a message that was sent is not acknowledged.
func (s *Sink) onFailure(_ jetstream.JetStream, msg *natsgo.Msg, err error) {
	s.pending.settle(msg, err)
}

// fail classifies a failure, and has the stream provisioned when it is gone.
func (s *Sink) fail(topic string, start time.Time, failure error) error {
	if errors.Is(failure, jetstream.ErrNoStreamResponse) && s.config.Provision != ProvisionNone {
		select {
		case s.provisioning <- struct{}{}:
			s.calls.Add(1) // no race with Wait: this call is counted
			// Ends by its timeout or by Close.
			go func() {
				defer s.calls.Done()
				if err := s.provision(s.background, s.config.ConnectTimeout); err != nil {
					s.logger.Error("NATS stream cannot be provisioned", err, nil)
				}
				<-s.provisioning
			}()
		default: // somebody is at it
		}
	}
	if errors.Is(failure, jetstream.ErrAsyncPublishTimeout) {
		// A server does not answer a publish that it does not allow; it says so
		// on the side.
		if v := s.violation.Load(); v != nil && !v.at.Before(start) {
			failure = fmt.Errorf("%w; %w", failure, v.err)
		}
	}
	return sinks.NewError(s.name, topic, classify(failure), failure)
}

// firstEnd returns a channel that is closed when one of the contexts ends, and a
// function that releases it.
func firstEnd(contexts []context.Context) (<-chan struct{}, func()) {
	if len(contexts) == 1 {
		return contexts[0].Done(), func() {}
	}
	ended, end := context.WithCancel(context.Background())
	stops := make([]func() bool, len(contexts))
	for i, ctx := range contexts {
		stops[i] = context.AfterFunc(ctx, end)
	}
	return ended.Done(), func() {
		for _, stop := range stops {
			stop()
		}
		end()
	}
}

// endOf returns the error of the first of the contexts that has ended, nil when
// none has.
func endOf(contexts []context.Context) error {
	for _, ctx := range contexts {
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// send is the one goroutine that writes to the connection. A write blocks when
// the server does not read, under the connection's lock and without looking at
// any context; the callers must not.
func (s *Sink) send() {
	// Stalling is how MaxPending holds the callers.
	options := []jetstream.PublishOpt{
		jetstream.WithStallWait(s.config.PublishTimeout),
		// A retry by the client would overtake what was sent meanwhile.
		jetstream.WithRetryAttempts(0),
	}
	for {
		select {
		case r := <-s.requests:
			s.sendRequest(r, options)
		case <-s.background.Done():
			return
		}
	}
}

func (s *Sink) sendRequest(r *request, options []jetstream.PublishOpt) {
	s.pending.add(r)
	for i, msg := range r.messages {
		err := r.contexts[i].Err()
		// A connection that was given to us may buffer while it reconnects.
		if err == nil && !s.conn.IsConnected() {
			err = natsgo.ErrDisconnected
		}
		if err == nil {
			_, err = s.js.PublishMsgAsync(msg, options...)
		}
		if err != nil {
			for _, unsent := range r.messages[i:] {
				s.pending.settle(unsent, err)
			}
			return
		}
	}
}

// headerSize returns how many bytes a header takes on the wire, at most.
func headerSize(header natsgo.Header) int {
	if len(header) == 0 {
		return 0
	}
	size := len("NATS/1.0\r\n\r\n")
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}

// onAsyncError is the error handler of an own connection.
func (s *Sink) onAsyncError(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
	if errors.Is(err, natsgo.ErrPermissionViolation) {
		s.violation.Store(&asyncError{at: time.Now(), err: err})
	}
	// While the server is away or refuses us the same error comes with every
	// attempt to reconnect. It is logged once.
	text := err.Error()
	if last := s.logged.Swap(&text); last == nil || *last != text {
		s.logger.Error("NATS connection reports an error", err, nil)
	}
}

// watch follows the connection's state.
func (s *Sink) watch() {
	for status := range s.status {
		switch status {
		case natsgo.CONNECTED:
			s.maxPayload.Store(s.conn.MaxPayload())
			s.logged.Store(nil)
			s.logger.Info("NATS connection is back", nil)
		case natsgo.RECONNECTING:
			s.logger.Info("NATS connection is lost, reconnecting", nil)
		case natsgo.CLOSED:
			s.logger.Debug("NATS connection is closed", nil)
		}
	}
}

// Health asks the server for the stream. It returns nil when the stream
// answers, sinks.ErrUnavailable when not, sinks.ErrClosed after Close.
func (s *Sink) Health(ctx context.Context) error {
	if !s.enter() {
		return sinks.NewError(s.name, "", sinks.ErrClosed, nil)
	}
	result := make(chan error, 1)
	// A request may block in a write to a server that does not read, longer
	// than ctx; it ends by the connection's write timeout.
	go func() {
		defer s.calls.Done()
		result <- s.lookAtStream(ctx)
	}()
	select {
	case err := <-result:
		if err == nil {
			return nil
		}
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.background.Done():
		return sinks.NewError(s.name, "", sinks.ErrClosed, nil)
	}
}

func (s *Sink) lookAtStream(ctx context.Context) error {
	if !s.conn.IsConnected() {
		return natsgo.ErrDisconnected
	}
	stream, err := s.js.Stream(ctx, s.config.Stream)
	if err != nil {
		return err
	}
	have := stream.CachedInfo().Config
	s.stream.Store(&have)
	return nil
}

// Close waits up to Config.CloseTimeout for calls that are under way; those that
// are not done then return sinks.ErrClosed. It closes the connection unless it
// was given by Config.Conn. It always returns nil; all calls wait for the first
// one.
func (s *Sink) Close() error {
	s.mu.Lock()
	first := !s.isClosed
	s.isClosed = true
	s.mu.Unlock()
	if !first {
		<-s.closed
		return nil
	}

	idle := make(chan struct{})
	// Ends with the last call, which closing makes give up.
	go func() {
		defer close(idle)
		s.calls.Wait()
	}()
	timer := time.NewTimer(s.config.CloseTimeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		s.logger.Info("NATS sink closes with publishes under way", nil)
	}
	s.stop()
	s.release()
	<-idle
	s.workers.Wait()
	close(s.closed)
	return nil
}

// release gives back what the sink has of the connection.
func (s *Sink) release() {
	if s.status != nil {
		s.conn.RemoveStatusListener(s.status)
	}
	if s.js != nil {
		s.js.CleanupPublisher()
	}
	if s.config.Conn == nil {
		s.conn.Close()
	}
}
