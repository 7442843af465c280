package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/warnlog"
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

// queueLength is how many messages may wait for the sender without blocking their
// callers on it. It only saves context switches.
const queueLength = 256

// maxKeptPayload is up to which size the memory for a payload is used again.
const maxKeptPayload = 1 << 20

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
	conn   *natsgo.Conn
	js     jetstream.JetStream

	stream     atomic.Pointer[jetstream.StreamConfig] // as on the server when last looked
	maxPayload atomic.Int64                           // of the server when last connected
	violation  atomic.Pointer[asyncError]             // last permissions violation
	run        run                                    // of the server
	logged     atomic.Pointer[string]                 // last such error since the connection came

	own      *Marshaler // the Config's, if it is that of this package
	drafts   sync.Pool  // of *draft
	payload  []byte     // of the message that the sender has in hand
	buffers  bool       // the connection keeps what is published while it is down
	requests chan *flight

	acks         *acks
	replies      *natsgo.Subscription
	provisioning chan struct{} // holds one token while the stream is looked at again
	status       chan natsgo.Status
	recovered    wakeup.Signal

	life    *lifecycle.Life
	workers sync.WaitGroup

	// background ends when Close stops waiting: calls under way give up.
	background context.Context
	stop       context.CancelFunc
}

// errClosed is why a publication that was under way when the sink closed has no
// result.
var errClosed = errors.New("closed")

// asyncError is an error that the server reported outside of any call.
type asyncError struct {
	at  time.Time
	err error
}

// Format writes what it is, for every verb, and nothing of its configuration.
func (s *Sink) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, "nats.Sink("+s.name+")") }

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
		requests:     make(chan *flight, queueLength),
		provisioning: make(chan struct{}, 1),
		life:         lifecycle.New(),
		run:          run{look: make(chan struct{}, 1)},
	}
	s.background, s.stop = context.WithCancel(context.Background())
	if own, ok := config.Marshaler.(Marshaler); ok {
		s.own = &own
	}
	if s.name == "" {
		s.name = "nats"
	}
	if s.conn == nil {
		name := config.Name
		if name == "" {
			name = DefaultName
		}
		var err error
		s.conn, err = config.Connection().Connect(name, natsgo.ErrorHandler(s.onAsyncError),
			// A server that reads nothing more must not block writers for ever.
			natsgo.FlusherTimeout(config.PublishTimeout))
		switch {
		case errors.Is(err, ErrConfig):
			s.stop()
			return nil, err
		case err != nil:
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
	s.maxPayload.Store(s.conn.MaxPayload())
	if err := s.provision(s.background, s.config.ConnectTimeout); err != nil {
		if errors.Is(err, ErrStream) {
			return err
		}
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	looking, cancel := context.WithTimeout(s.background, s.config.ConnectTimeout)
	defer cancel()
	if err := s.lookAtStream(looking); err != nil {
		return sinks.NewError(s.name, "", sinks.ErrUnavailable, err)
	}
	s.status = s.conn.StatusChanged(natsgo.CONNECTED, natsgo.RECONNECTING, natsgo.CLOSED)
	s.workers.Go(s.watch)  // ends when release removes the listener
	s.workers.Go(s.send)   // ends with background
	s.workers.Go(s.expire) // ends with background
	s.workers.Go(s.follow) // ends with background
	return nil
}

// Describe returns the name, the size limit (headers included) of server and
// stream, and the durability of the stream as it was when last looked at.
func (s *Sink) Describe() sinks.Description {
	level, note := durability(*s.stream.Load(), s.config)
	return sinks.Description{Name: s.name, MaxMessageSize: s.maxMessageSize(), Ordered: true,
		Pipelined: s.config.Ingest == sinks.IngestPipelined, Durability: level, DurabilityNote: note,
		Synced:   synced(*s.stream.Load(), s.config),
		ReadOnly: s.own != nil} // a marshaler of the application may change messages
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
	if !s.life.Enter() {
		return sinks.NewError(s.name, topic, sinks.ErrClosed, nil)
	}
	defer s.life.Leave()
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
	f, err := s.prepare(topic, msg)
	if err != nil {
		return nil, err
	}
	if err := s.enqueue(f); err != nil {
		return nil, err
	}
	return &f.Publication, nil
}

// prepare marshals and checks a message. What is sent shares the payload with it.
func (s *Sink) prepare(topic string, msg *message.Message) (*flight, error) {
	subject, id := subjectAndID(s.config.SubjectPrefix, topic, msg.Metadata[gateway.KeyDedupID])
	if err := checkSubject(subject); err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
	}
	ctx := msg.Context()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var d *draft
	if s.own != nil {
		d = s.newDraft()
		s.own.write(d, subject, id, msg)
	} else {
		natsMsg, err := s.config.Marshaler.Marshal(subject, msg)
		if err != nil {
			return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
		}
		d = &draft{msg: natsMsg, headerSize: headerSize(natsMsg.Header)}
		subject, id = natsMsg.Subject, natsMsg.Header.Get(natsgo.MsgIdHdr)
	}
	limit := s.maxMessageSize()
	header := d.headerSize
	size := int64(header + len(d.msg.Data))
	if header > maxHeaderSize || limit > 0 && size > limit {
		s.recycle(d)
		return nil, sinks.NewError(s.name, topic, sinks.ErrTooLarge,
			fmt.Errorf("%d bytes, %d of them headers; the limits are %d and %d", size, header, limit, maxHeaderSize))
	}
	return &flight{topic: topic, subject: subject, id: id, draft: d, ctx: ctx}, nil
}

func (s *Sink) newDraft() *draft {
	if d, ok := s.drafts.Get().(*draft); ok {
		return d
	}
	return &draft{msg: &natsgo.Msg{}}
}

// recycle takes back a draft that nobody uses any more.
func (s *Sink) recycle(d *draft) {
	if s.own != nil && d.reset() {
		s.drafts.Put(d)
	}
}

// withdraw gives the payload back to the caller: the sender does not read it any more.
func (f *flight) withdraw() {
	f.mu.Lock()
	f.withdrawn = true
	f.mu.Unlock()
}

// payload appends a copy of the payload to buf, unless it was withdrawn.
func (f *flight) payload(buf []byte) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.withdrawn {
		return buf, false
	}
	return append(buf, f.draft.msg.Data...), true
}

// enqueue hands a message to the sender. It ends with the message's context.
func (s *Sink) enqueue(f *flight) error {
	s.life.Fork() // until it is resolved
	select {
	case s.requests <- f:
		return nil
	default:
	}
	select {
	case s.requests <- f:
		return nil
	case <-f.ctx.Done():
		s.life.Leave()
		return f.ctx.Err()
	case <-s.background.Done():
		s.life.Leave()
		return sinks.NewError(s.name, f.topic, sinks.ErrClosed, nil)
	}
}

// onAnswer is called with what the server answers.
func (s *Sink) onAnswer(answer *natsgo.Msg) {
	f, ack, err := s.acks.answered(answer)
	switch {
	case f == nil: // it came too late
	case err != nil:
		s.resolve(f, sinks.Receipt{}, err)
	case ack.Stream != s.config.Stream:
		s.resolve(f, sinks.Receipt{}, fmt.Errorf("acknowledged by stream %s instead of %s", ack.Stream, s.config.Stream))
	case s.config.Domain != "" && ack.Domain != s.config.Domain:
		s.resolve(f, sinks.Receipt{}, fmt.Errorf("acknowledged by stream %s of the domain %q instead of %s", ack.Stream, ack.Domain, s.config.Domain))
	default:
		s.run.acked(ack)
		s.resolve(f, sinks.Receipt{Stream: ack.Stream, Subject: f.subject, Sequence: ack.Sequence, Duplicate: ack.Duplicate}, nil)
	}
}

// expire gives up what is not acknowledged in time.
func (s *Sink) expire() {
	timer := time.NewTimer(s.config.PublishTimeout)
	defer timer.Stop()
	for {
		select {
		case now := <-timer.C:
			expired, oldest := s.acks.expire(now.Add(-s.config.PublishTimeout), now)
			for _, f := range expired {
				s.resolve(f, sinks.Receipt{}, errNoAck)
			}
			timer.Reset(max(time.Until(oldest.Add(s.config.PublishTimeout)), time.Millisecond))
		case <-s.background.Done():
			return
		}
	}
}

// resolve resolves a publication that acks does not know any more, or does not know yet.
func (s *Sink) resolve(f *flight, receipt sinks.Receipt, err error) {
	defer s.life.Leave()
	switch {
	case err == nil:
		stoppoint.At(stoppoint.Stored)
	case s.background.Err() != nil:
		err = sinks.NewError(s.name, f.topic, sinks.ErrClosed, nil)
	case f.ctx.Err() != nil && errors.Is(err, f.ctx.Err()): // the sender stops at an ended context
		err = f.ctx.Err()
	default:
		err = s.fail(f, err)
	}
	f.Resolve(receipt, err)
}

// fail classifies a failure, and has the stream provisioned when it is gone.
func (s *Sink) fail(f *flight, failure error) error {
	if errors.Is(failure, jetstream.ErrNoStreamResponse) && s.config.Provision != ProvisionNone {
		select {
		case s.provisioning <- struct{}{}:
			s.life.Fork()
			// Ends by its timeout or by Close.
			go func() {
				defer s.life.Leave()
				if err := s.provision(s.background, s.config.ConnectTimeout); err != nil {
					s.logger.Error("NATS stream provisioning failed", err, nil)
				}
				<-s.provisioning
			}()
		default: // somebody is at it
		}
	}
	if errors.Is(failure, errNoAck) {
		// A server does not answer a publish that it does not allow; it says so
		// on the side.
		if v := s.violation.Load(); v != nil && !v.at.Before(f.sent) {
			failure = fmt.Errorf("%w; %w", failure, v.err)
		}
	}
	return sinks.NewError(s.name, f.topic, classify(failure), failure)
}

// send is the one goroutine that writes to the connection. A write blocks when
// the server does not read, under the connection's lock and without looking at
// any context; the callers must not.
func (s *Sink) send() {
	for {
		select {
		case f := <-s.requests:
			// Those that are about to publish come along, in the same write to the network.
			runtime.Gosched()
			s.sendOne(f)
			s.sendQueued()
		case <-s.background.Done():
			return
		}
	}
}

// sendQueued sends what waits in the queue.
func (s *Sink) sendQueued() {
	for range queueLength { // then send looks at the rest
		select {
		case f := <-s.requests:
			s.sendOne(f)
		default:
			return
		}
	}
}

// sendOne sends a message. Its payload is copied first: once the message is on its way, anybody may
// resolve it, and then the payload is the caller's again, while the write may still be blocked.
func (s *Sink) sendOne(f *flight) {
	payload, ok := f.payload(s.payload[:0])
	d := f.draft
	f.draft = nil
	defer s.recycle(d)
	if !ok {
		s.resolve(f, sinks.Receipt{}, context.Canceled)
		return
	}
	d.msg.Data = payload
	if s.payload = payload; cap(payload) > maxKeptPayload {
		s.payload = nil
	}
	id, err := s.takePlace(f)
	if err != nil {
		s.resolve(f, sinks.Receipt{}, err)
		return
	}
	// It may have been resolved meanwhile: as lost with the connection, for instance.
	if err := s.write(f, d); err != nil && s.acks.take(id) != nil {
		s.resolve(f, sinks.Receipt{}, err)
	}
}

// write writes a message to the connection.
func (s *Sink) write(f *flight, d *draft) error {
	// What is published without a connection must fail.
	if s.buffers && !s.conn.IsConnected() {
		return natsgo.ErrDisconnected
	}
	stoppoint.At(stoppoint.Write)
	d.msg.Reply = f.reply
	err := s.conn.PublishMsg(d.msg)
	if errors.Is(err, natsgo.ErrReconnectBufExceeded) {
		return natsgo.ErrDisconnected
	}
	return err
}

// takePlace has a message wait for its acknowledgement. It blocks while as many wait as
// Config.MaxPending allows, for at most Config.PublishTimeout.
func (s *Sink) takePlace(f *flight) (id uint64, err error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	if id, ok := s.acks.add(f, time.Now()); ok {
		return id, nil
	}
	timer := time.NewTimer(s.config.PublishTimeout)
	defer timer.Stop()
	for {
		if id, ok := s.acks.add(f, time.Now()); ok {
			return id, nil
		}
		select {
		case <-s.acks.room:
		case <-timer.C:
			return 0, errNoRoom
		case <-f.ctx.Done():
			return 0, f.ctx.Err()
		case <-s.background.Done():
			return 0, errClosed
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
		s.logger.Error("NATS connection error", err, nil)
	}
}

// watch follows the connection's state.
func (s *Sink) watch() {
	for status := range s.status {
		switch status {
		case natsgo.CONNECTED:
			s.maxPayload.Store(s.conn.MaxPayload())
			s.logged.Store(nil)
			s.logger.Info("NATS connection restored", nil)
			s.recovered.Raise()
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
	if !s.life.Enter() {
		return sinks.NewError(s.name, "", sinks.ErrClosed, nil)
	}
	result := make(chan error, 1)
	// A request may block in a write to a server that does not read, longer
	// than ctx; it ends by the connection's write timeout.
	go func() {
		defer s.life.Leave()
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
	// Somebody has changed the stream under us.
	if how := deletes(have, s.config); how != "" && how != deletes(*last, s.config) {
		warnlog.Warn(s.logger, "durability none: "+how, watermill.LogFields{"stream": have.Name})
	}
	return nil
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
		s.release()
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

// release gives back what the sink has of the connection.
func (s *Sink) release() {
	if s.status != nil {
		s.conn.RemoveStatusListener(s.status)
	}
	if s.config.Conn == nil {
		s.conn.Close()
		return
	}
	if s.replies != nil {
		_ = s.replies.Unsubscribe() // it is closed
	}
}
