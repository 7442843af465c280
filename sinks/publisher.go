package sinks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/internal/workers"
)

// closeTimeout is the default of [PublisherConfig.CloseTimeout].
const closeTimeout = 30 * time.Second

// PublisherConfig configures a sink made by [FromPublisher]. The zero value is ready for use. The functions have to be
// safe for concurrent use.
type PublisherConfig struct {
	// Description tells what cannot be seen from a publisher: size limit, durability, and whether it opens
	// payloads that are not in the message. Name, Ordered and ReadOnly are set by FromPublisher. A message whose
	// payload, metadata names and metadata values together are above MaxMessageSize fails with ErrTooLarge
	// before it is sent; 0 means no limit.
	Description Description
	// Topics says which topics the sink takes; its CheckTopic may return any error. Nil means [AnyTopics].
	Topics Topics
	// Classify gives an error of the publisher its class: ErrTooLarge, ErrRejected, ErrUnavailable or ErrClosed.
	// It returns nil for an error that it does not know, which counts as ErrUnavailable: retried without end
	// rather than thrown away. It is not asked about errors that match one of the classes. Nil knows no error.
	Classify func(error) error
	// Health is behind the method Health of the sink; its errors are classified like those of the publisher.
	// Nil means healthy until closed.
	Health func(context.Context) error
	// Store stores one message and says where. It takes the place of the publisher's Publish for calls with one
	// message. Nil means Publish, and empty receipts.
	Store func(topic string, msg *message.Message) (Receipt, error)
	// CloseTimeout is how long Close waits for calls of Publish that are under way, before it closes the
	// publisher under them. 0 and less mean 30 seconds.
	CloseTimeout time.Duration
}

// AnyTopics are the [Topics] of a sink that takes every topic.
type AnyTopics struct{}

// TopicSegment is that of [DefaultSegments].
func (AnyTopics) TopicSegment(value string) string { return DefaultSegments.Escape(value) }

// CheckTopic returns nil.
func (AnyTopics) CheckTopic(string) error { return nil }

// FromPublisher makes a sink out of any Watermill publisher that is none. name is the Name of its Description.
// The sink owns pub and closes it.
//
// What the sink can promise is what pub keeps: that Publish returns after the
// message is stored, and that it may be called concurrently. Since publishers
// do not look at msg.Context(), the sink does: when it ends, Publish returns
// the context's error while the publisher's call continues in the background with
// copies of the messages, so the message may be stored although the call
// failed. Of one topic 16 such calls are let be; as long as there are so many,
// further calls of Publish wait. PublishAsync calls the publisher in the background,
// 256 times at once at most, and in no order. When the publisher panics, so does Publish, while a
// publication fails with ErrUnavailable. Goroutines that call the publisher wait for the
// next call, and end with Close.
func FromPublisher(name string, pub message.Publisher, config PublisherConfig) Sink {
	config.Description.Name, config.Description.Ordered = name, false
	if config.Topics == nil {
		config.Topics = AnyTopics{}
	}
	if config.CloseTimeout <= 0 {
		config.CloseTimeout = closeTimeout
	}
	s := &publisherSink{
		Topics: config.Topics,
		config: config,
		pub:    pub,
		left:   make(map[string]int),
		slots:  make(chan struct{}, maxAsync),
		life:   lifecycle.New(),
	}
	s.config.Description.ReadOnly = s // the publisher gets copies
	s.closing, s.giveUp = context.WithCancel(context.Background())
	s.calls = workers.New(workers.Config[*publisherCall]{
		Do:   s.do,
		Go:   func(f func()) { go f() },
		Stop: s.closing.Done(),
	})
	return s
}

type publisherSink struct {
	Topics
	config PublisherConfig
	pub    message.Publisher

	life     *lifecycle.Life
	mu       sync.Mutex
	left     map[string]int // calls whose callers have left, by topic
	returns  wakeup.Signal  // of those
	slots    chan struct{}  // taken by PublishAsync
	calls    *workers.Pool[*publisherCall]
	closing  context.Context // ends when Close gives up waiting, or has nothing to wait for
	giveUp   context.CancelFunc
	closeErr error
}

func (s *publisherSink) Describe() Description { return s.config.Description }

// CheckTopic gives an error of the Topics its class.
func (s *publisherSink) CheckTopic(topic string) error {
	if err := s.Topics.CheckTopic(topic); err != nil {
		return NewError(s.config.Description.Name, topic, ErrRejected, err)
	}
	return nil
}

// Publish calls the publisher once, with copies of all messages.
func (s *publisherSink) Publish(topic string, messages ...*message.Message) error {
	if !s.life.Enter() {
		return NewError(s.config.Description.Name, topic, ErrClosed, nil)
	}
	defer s.life.Leave()
	if len(messages) == 0 {
		return nil
	}
	if err := s.check(topic, messages); err != nil {
		return err
	}
	if err := s.waitForLeft(topic, messages); err != nil {
		return err
	}
	call := newPublisherCall(topic, messages)
	s.start(call)
	if err := s.wait(call, messages); err != nil {
		return err
	}
	if panicked, ok := errors.AsType[publisherPanic](call.err); ok {
		panic(panicked.value)
	}
	if call.err != nil {
		return call.err
	}
	for _, msg := range messages {
		ReportStored(msg, call.receipt)
	}
	return nil
}

// wait waits until a call of Publish is resolved. It returns the error of a context that ends before.
func (s *publisherSink) wait(call *publisherCall, messages []*message.Message) error {
	ended, stop := msgctx.FirstEnd(messages)
	defer stop()
	select {
	case <-call.Done():
	case <-ended.Done():
		s.leave(call)
		return endOf(messages)
	case <-s.closing.Done():
		s.resolveClosed(call)
	}
	return nil
}

// PublishAsync calls the publisher in the background.
func (s *publisherSink) PublishAsync(topic string, msg *message.Message) (*Publication, error) {
	if !s.life.Enter() {
		return nil, NewError(s.config.Description.Name, topic, ErrClosed, nil)
	}
	defer s.life.Leave()
	messages := [1]*message.Message{msg}
	if err := s.check(topic, messages[:]); err != nil {
		return nil, err
	}
	select {
	case s.slots <- struct{}{}:
	case <-msg.Context().Done():
		return nil, msg.Context().Err()
	case <-s.closing.Done():
		return nil, NewError(s.config.Description.Name, topic, ErrClosed, nil)
	}
	call := newPublisherCall(topic, messages[:])
	call.unwatch = context.AfterFunc(s.closing, func() { s.resolveClosed(call) })
	s.start(call)
	return &call.Publication, nil
}

// check refuses what need not be tried.
func (s *publisherSink) check(topic string, messages []*message.Message) error {
	if err := s.CheckTopic(topic); err != nil {
		return err
	}
	if err := msgctx.Missing(messages...); err != nil {
		return NewError(s.config.Description.Name, topic, ErrRejected, err)
	}
	for _, msg := range messages {
		if err := msg.Context().Err(); err != nil {
			return err
		}
		if limit := s.config.Description.MaxMessageSize; limit > 0 && messageSize(msg) > limit {
			return NewError(s.config.Description.Name, topic, ErrTooLarge, nil)
		}
		if err := payloadref.Lost(msg); err != nil && !s.config.Description.OpensPayloads {
			return NewError(s.config.Description.Name, topic, ErrRejected, err)
		}
	}
	return nil
}

// publisherCall is one call of the publisher.
type publisherCall struct {
	Publication
	topic    string
	messages []*message.Message // copies
	room     [1]*message.Message
	unwatch  func() bool // of a call of PublishAsync, which has a slot

	left, returned bool // guarded by the sink's mu
}

// newPublisherCall copies the messages. The publisher may keep copies, change or mark them, and it may
// still be using them when the caller has its messages back, payloads included.
func newPublisherCall(topic string, messages []*message.Message) *publisherCall {
	call := &publisherCall{topic: topic}
	call.messages = call.room[:0]
	for _, msg := range messages {
		copied := message.NewMessageWithContext(msg.Context(), msg.UUID, slices.Clone(msg.Payload))
		if len(msg.Metadata) > 0 {
			copied.Metadata = maps.Clone(msg.Metadata) // makes room for all of it at once
		}
		call.messages = append(call.messages, copied)
	}
	return call
}

// start calls the publisher in the background. Close waits for the call, and closes the publisher when
// that takes too long.
func (s *publisherSink) start(call *publisherCall) {
	s.life.Fork()
	s.calls.Push(call)
}

// do makes a call and resolves it.
func (s *publisherSink) do(call *publisherCall) {
	defer s.life.Leave()
	var receipt Receipt
	err := errors.New("the publisher ended its goroutine") // unless it returns: runtime.Goexit, as by FailNow of a test
	defer func() { s.called(call, receipt, err) }()
	receipt, err = s.call(call.topic, call.messages)
}

// called resolves a call that was made.
func (s *publisherSink) called(call *publisherCall, receipt Receipt, err error) {
	if call.unwatch != nil {
		<-s.slots
		call.unwatch()
	} else {
		s.returned(call)
	}
	if err == nil {
		call.Resolve(receipt, nil)
		return
	}
	for _, msg := range call.messages {
		// The publisher looked at the context and was faster.
		if ctxErr := msg.Context().Err(); ctxErr != nil && errors.Is(err, ctxErr) {
			call.Resolve(Receipt{}, ctxErr)
			return
		}
	}
	if s.closing.Err() != nil {
		// Close did not wait any longer and closed the publisher under the call.
		err = NewError(s.config.Description.Name, call.topic, ErrClosed, err)
	}
	call.Resolve(receipt, s.wrap(call.topic, err))
}

// resolveClosed resolves a call that Close does not wait for any longer.
func (s *publisherSink) resolveClosed(call *publisherCall) {
	call.Resolve(Receipt{}, NewError(s.config.Description.Name, call.topic, ErrClosed, nil))
}

// publisherPanic is a panic of the publisher, which is one of whoever waits for it in Publish.
type publisherPanic struct{ value any }

func (p publisherPanic) Error() string { return fmt.Sprint("panic: ", p.value) }

func (s *publisherSink) call(topic string, messages []*message.Message) (receipt Receipt, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = publisherPanic{value}
		}
	}()
	if s.config.Store != nil && len(messages) == 1 {
		return s.config.Store(topic, messages[0])
	}
	return Receipt{}, s.pub.Publish(topic, messages...)
}

// maxAsync is how many publications of a sink may be under way.
const maxAsync = 256

// maxLeft is how many calls of one topic may continue although their callers have left.
// Without a limit, one message that hangs and comes again and again would leave a
// goroutine and a copy of its payload each time.
const maxLeft = 16

// waitForLeft waits until a call may start.
func (s *publisherSink) waitForLeft(topic string, messages []*message.Message) error {
	changed := s.tooManyLeft(topic)
	if changed == nil {
		return nil
	}
	ended, stop := msgctx.FirstEnd(messages)
	defer stop()
	for ; changed != nil; changed = s.tooManyLeft(topic) {
		select {
		case <-changed:
		case <-ended.Done():
			return endOf(messages)
		case <-s.closing.Done():
			return NewError(s.config.Description.Name, topic, ErrClosed, nil)
		}
	}
	return nil
}

// tooManyLeft returns nil if a call may start, or else a channel that is closed when that may have changed.
func (s *publisherSink) tooManyLeft(topic string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left[topic] < maxLeft {
		return nil
	}
	return s.returns.Next()
}

// leave counts a call whose caller does not wait for it any more.
func (s *publisherSink) leave(call *publisherCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !call.returned {
		call.left = true
		s.left[call.topic]++
	}
}

func (s *publisherSink) returned(call *publisherCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call.returned = true
	if !call.left {
		return
	}
	if s.left[call.topic]--; s.left[call.topic] == 0 {
		delete(s.left, call.topic)
	}
	s.returns.Raise()
}

func messageSize(msg *message.Message) int64 {
	size := len(msg.Payload)
	for name, value := range msg.Metadata {
		size += len(name) + len(value)
	}
	return int64(size)
}

// wrap gives err its class.
func (s *publisherSink) wrap(topic string, err error) error {
	if err == nil {
		return nil
	}
	for _, kind := range []error{ErrTooLarge, ErrRejected, ErrClosed, ErrUnavailable} {
		if errors.Is(err, kind) {
			return NewError(s.config.Description.Name, topic, kind, err)
		}
	}
	if s.config.Classify != nil {
		if kind := s.config.Classify(err); kind != nil {
			return NewError(s.config.Description.Name, topic, kind, err)
		}
	}
	return NewError(s.config.Description.Name, topic, ErrUnavailable, err)
}

func (s *publisherSink) Health(ctx context.Context) error {
	if !s.life.Enter() {
		return NewError(s.config.Description.Name, "", ErrClosed, nil)
	}
	defer s.life.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.config.Health == nil {
		return nil
	}
	err := s.config.Health(ctx)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return s.wrap("", err)
}

func (s *publisherSink) Close() error {
	s.life.Close(func() {
		timer := time.NewTimer(s.config.CloseTimeout)
		defer timer.Stop()
		select {
		case <-s.life.Idle(): // when that does not come, closing the publisher makes it
		case <-timer.C:
			s.giveUp()
		}
		s.closeErr = s.pub.Close()
		s.giveUp()
	})
	return s.closeErr
}
