package nats

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/sinks"
)

// maxHeaderSize is the server's limit for the encoded headers of a message that
// JetStream stores.
const maxHeaderSize = 1<<16 - 1

// queueLength is how many messages may wait for the sender without blocking their
// callers on it. It only saves context switches.
const queueLength = 256

// prepare marshals and checks a message. What is sent shares the payload with it.
func (s *Sink) prepare(topic string, msg *message.Message) (*flight, error) {
	subject, id := subjectAndID(s.config.SubjectPrefix, topic, msg.Metadata[gateway.KeyDedupID])
	if err := checkSubject(subject); err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
	}
	if err := s.opening.Err(); err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrUnavailable, err)
	}
	ctx := msg.Context()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := payloadref.Lost(msg); err != nil {
		return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
	}
	var d *draft
	if s.drafts.own != nil {
		d = s.drafts.new()
		s.drafts.own.write(d, subject, id, msg)
	} else {
		natsMsg, err := msgctx.Marshaled(s.config.Marshaler.Marshal(subject, msg))
		if err == nil {
			err = checkSubject(natsMsg.Subject) // it may be another one
		}
		if err != nil {
			return nil, sinks.NewError(s.name, topic, sinks.ErrRejected, err)
		}
		d = &draft{msg: natsMsg, headerSize: natsMsg.Size() - len(natsMsg.Subject) - len(natsMsg.Reply) - len(natsMsg.Data)}
		subject, id = natsMsg.Subject, natsMsg.Header.Get(natsgo.MsgIdHdr)
	}
	limit := s.maxMessageSize()
	header := d.headerSize
	size := int64(header + len(d.msg.Data))
	if header > maxHeaderSize || limit > 0 && size > limit {
		s.drafts.recycle(d)
		return nil, sinks.NewError(s.name, topic, sinks.ErrTooLarge,
			fmt.Errorf("%d bytes, %d of them headers; the limits are %d and %d", size, header, limit, maxHeaderSize))
	}
	return &flight{topic: topic, subject: subject, id: id, draft: d, ctx: ctx}, nil
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
		s.acked(f, ack)
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

// fail classifies a failure, and has the stream looked at when it is gone, or does not have the subject any longer.
func (s *Sink) fail(f *flight, failure error) error {
	if errors.Is(failure, jetstream.ErrNoStreamResponse) {
		if s.covered(s.stream.Load()) { // it is gone, or has no leader; else it may well take other topics
			s.unlook(failure)
		}
		s.run.lookNow()
	}
	if errors.Is(failure, errNoAck) {
		// A server does not answer a publish that it does not allow; it says so
		// on the side.
		if refusal := s.violation.Load(); refusal != nil && !refusal.at.Before(f.sent) {
			failure = fmt.Errorf("%w; %w", failure, refusal.err)
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
	d, ok := s.drafts.take(f)
	defer s.drafts.recycle(d)
	if !ok {
		s.resolve(f, sinks.Receipt{}, context.Canceled)
		return
	}
	s.run.mu.Lock()
	f.after = s.run.highest
	s.run.mu.Unlock()
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

// takePlace has a message wait for its acknowledgment. It blocks while as many wait as
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
