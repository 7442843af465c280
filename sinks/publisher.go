package sinks

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultCloseTimeout is how long Close of a sink made by [FromPublisher] waits
// for calls of Publish that are under way.
const DefaultCloseTimeout = 30 * time.Second

// PublisherOption changes a sink made by [FromPublisher].
type PublisherOption func(*publisherSink)

// WithDescription tells what cannot be seen from a publisher: size limit and
// durability. The name given to FromPublisher is kept, and so is OpensPayloads
// when the publisher has a method OpensPayloads() bool that says so. A message whose payload,
// metadata names and metadata values together are above MaxMessageSize fails
// with ErrTooLarge before it is sent.
// Default: no limit, DurabilityUnknown.
func WithDescription(d Description) PublisherOption {
	return func(s *publisherSink) {
		d.Name = s.description.Name
		d.OpensPayloads = d.OpensPayloads || s.description.OpensPayloads
		s.description = d
	}
}

// WithTopicSegment sets the function behind TopicSegment. It has to be
// injective and safe for concurrent use. Default: [DefaultSegments].
func WithTopicSegment(f func(value string) string) PublisherOption {
	return func(s *publisherSink) { s.segment = f }
}

// WithClassifier sets the function that gives a publisher's error its class:
// ErrTooLarge, ErrRejected, ErrUnavailable or ErrClosed. nil means "do not
// know", which counts as ErrUnavailable: retried without end rather than thrown
// away. Errors that match one of the classes already are not asked about. It
// has to be safe for concurrent use.
func WithClassifier(f func(error) error) PublisherOption {
	return func(s *publisherSink) { s.classify = f }
}

// WithHealth sets the function behind Health; its errors are classified like
// those of the publisher. Default: healthy until closed.
func WithHealth(f func(context.Context) error) PublisherOption {
	return func(s *publisherSink) { s.health = f }
}

// WithCloseTimeout sets how long Close waits for calls of Publish that are
// under way, before it closes the publisher under them. Default, and for
// values of zero and below: [DefaultCloseTimeout].
func WithCloseTimeout(d time.Duration) PublisherOption {
	return func(s *publisherSink) {
		if d > 0 {
			s.closeTimeout = d
		}
	}
}

// FromPublisher makes a sink out of any Watermill publisher. The sink owns pub
// and closes it.
//
// What the sink can promise is what pub keeps: that Publish returns after the
// message is stored, and that it may be called concurrently. Since publishers
// do not look at msg.Context(), the sink does: when it ends, Publish returns
// the context's error while the publisher's call goes on in the background with
// copies of the messages, so the message may be stored although the call
// failed.
func FromPublisher(name string, pub message.Publisher, options ...PublisherOption) Sink {
	s := &publisherSink{
		pub:          pub,
		description:  Description{Name: name},
		segment:      DefaultSegments.Escape,
		closeTimeout: DefaultCloseTimeout,
		closing:      make(chan struct{}),
		closed:       make(chan struct{}),
	}
	if opener, ok := pub.(interface{ OpensPayloads() bool }); ok {
		s.description.OpensPayloads = opener.OpensPayloads()
	}
	for _, option := range options {
		option(s)
	}
	return s
}

type publisherSink struct {
	pub          message.Publisher
	description  Description
	segment      func(string) string
	classify     func(error) error
	health       func(context.Context) error
	closeTimeout time.Duration

	mu       sync.Mutex // guards isClosed against calls.Add
	isClosed bool
	calls    sync.WaitGroup
	closing  chan struct{} // closed when Close gave up waiting
	closed   chan struct{} // closed when closeErr is set
	closeErr error
}

func (s *publisherSink) Describe() Description { return s.description }

func (s *publisherSink) TopicSegment(value string) string { return s.segment(value) }

// enter reports whether a call may start, and counts it if so.
func (s *publisherSink) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return false
	}
	s.calls.Add(1)
	return true
}

func (s *publisherSink) Publish(topic string, messages ...*message.Message) error {
	if !s.enter() {
		return NewError(s.description.Name, topic, ErrClosed, nil)
	}
	if len(messages) == 0 {
		s.calls.Done()
		return nil
	}
	watched := false
	for _, msg := range messages {
		if err := msg.Context().Err(); err != nil {
			s.calls.Done()
			return err
		}
		if limit := s.description.MaxMessageSize; limit > 0 && messageSize(msg) > limit {
			s.calls.Done()
			return NewError(s.description.Name, topic, ErrTooLarge, nil)
		}
		watched = watched || msg.Context().Done() != nil
	}

	// The publisher gets copies: it may keep or mark them, and it may still be
	// at work with them when this call has returned.
	copies := make([]*message.Message, len(messages))
	for i, msg := range messages {
		copies[i] = msg.CopyWithContext()
		if watched {
			// Payload is shared by Copy, and the caller gets its own back
			// when the context ends.
			copies[i].Payload = slices.Clone(msg.Payload)
		}
	}

	result := make(chan error, 1)
	// Ends when the publisher's Publish returns; Close waits for it by way of
	// calls, and closes the publisher when that takes too long.
	go func() {
		defer s.calls.Done()
		result <- s.pub.Publish(topic, copies...)
	}()

	ended := make(chan error, 1)
	for _, msg := range messages {
		ctx := msg.Context()
		if ctx.Done() == nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() {
			select {
			case ended <- ctx.Err():
			default: // another message's context was first
			}
		})
		defer stop()
	}

	select {
	case err := <-result:
		return s.wrap(topic, err)
	case err := <-ended:
		return err
	case <-s.closing:
		return NewError(s.description.Name, topic, ErrClosed, nil)
	}
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
			return NewError(s.description.Name, topic, kind, err)
		}
	}
	if s.classify != nil {
		if kind := s.classify(err); kind != nil {
			return NewError(s.description.Name, topic, kind, err)
		}
	}
	return NewError(s.description.Name, topic, ErrUnavailable, err)
}

func (s *publisherSink) Health(ctx context.Context) error {
	if !s.enter() {
		return NewError(s.description.Name, "", ErrClosed, nil)
	}
	defer s.calls.Done()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.health == nil {
		return nil
	}
	err := s.health(ctx)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return s.wrap("", err)
}

func (s *publisherSink) Close() error {
	s.mu.Lock()
	first := !s.isClosed
	s.isClosed = true
	s.mu.Unlock()
	if !first {
		<-s.closed
		return s.closeErr
	}

	done := make(chan struct{})
	// Ends with the last call; when that does not come within the timeout,
	// closing the publisher is what makes it end.
	go func() {
		defer close(done)
		s.calls.Wait()
	}()
	timer := time.NewTimer(s.closeTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		close(s.closing)
	}
	s.closeErr = s.pub.Close()
	close(s.closed)
	return s.closeErr
}
