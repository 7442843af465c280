package publisher

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks"
)

var (
	_ message.Publisher = (*Publisher)(nil)
	_ sinks.Sink        = (*Publisher)(nil)
)

// Publisher sends Watermill messages through the gateway. It is a [sinks.Sink], so
// that a route can send to it. Its methods are safe for concurrent use.
type Publisher struct {
	cfg    Config
	logger watermill.LoggerAdapter
	slots  chan struct{}

	life   *lifecycle.Life
	ctx    context.Context // ends when Close gives up waiting
	cancel context.CancelFunc
}

// New returns a Publisher. A nil logger is silent. The error reports every mistake.
func New(cfg Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	logger = warnlog.Or(logger)
	ctx, cancel := context.WithCancel(context.Background())
	return &Publisher{
		cfg: cfg, logger: logger, slots: make(chan struct{}, cfg.MaxRequests),
		life: lifecycle.New(), ctx: ctx, cancel: cancel,
	}, nil
}

// Publish sends the messages one after another, in the order given, and returns once the service has responded for each.
// It checks all of them first, and stops at the first that fails. The client retries failures of the network and the service
// before they become errors, within the context of the message.
//
// An error is a [*PublishError]; it matches the sentinels of package gateway. Unless a context ended the call it is also a
// [*sinks.Error]:
//
//   - sinks.ErrRejected for what [gateway.Refused] says is a no for good, a payload above the service's limit included,
//     and for a message that the Marshaler does not take. It is never sinks.ErrTooLarge, which asks for a claim check: the
//     service would get the same bytes.
//   - sinks.ErrClosed after Close, and when the client has been closed.
//   - sinks.ErrUnavailable for everything else. A payload whose address has expired is among them: it is redelivered with a
//     new one.
//
// When a context ended before anything was sent or failed, the error is that of the context alone. A call after Close fails with
// [ErrClosed] alone.
//
// Publish does not change the messages, so one message may be published several times at once, and keeps neither messages nor
// payloads after it returned.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if !p.life.Enter() {
		return sinkError(topic, ErrClosed)
	}
	defer p.life.Leave()

	var one [1]Outcome
	outcomes := one[:]
	if len(messages) != 1 {
		outcomes = make([]Outcome, len(messages))
	}
	ended, stop := msgctx.FirstEnd(messages) // the end of any of them ends the call
	defer stop()
	fail := func(i int, to string, err error) error {
		call := &PublishError{Outcomes: slices.Clone(outcomes), to: to}
		return call.fail(topic, i, messages[i], err, endOf(err, messages...))
	}
	ready := make([]prepared, len(messages))
	for i, msg := range messages {
		ready[i].slot.p = p
		if err := p.prepare(topic, msg, &ready[i]); err != nil {
			return fail(i, "", err) // errors must not contain illegal values
		}
	}
	for i, msg := range messages {
		var err error
		contextID := ready[i].request.ContextID
		outcomes[i], err = p.publish(ended, topic, msg, &ready[i])
		if err != nil {
			return fail(i, ready[i].addressees(), err)
		}
		ready[i] = prepared{} // frees what a Marshaler created
		sinks.ReportStored(msg, sinks.Receipt{ID: contextID})
	}
	return nil
}

// PublishAsync checks the message, waits until fewer than Config.MaxRequests requests are in progress, and sends it in the
// background, in no order. The receipt has the context ID.
func (p *Publisher) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	if !p.life.Enter() {
		return nil, sinkError(topic, ErrClosed)
	}
	defer p.life.Leave()
	call := &PublishError{Outcomes: make([]Outcome, 1)}
	m := &prepared{slot: slot{p: p}}
	err := p.prepare(topic, msg, m)
	if err == nil {
		err = m.slot.Take(msg.Context())
	}
	if err != nil {
		return nil, call.fail(topic, 0, msg, err, endOf(err, msg))
	}
	publication := &sinks.Publication{}
	p.life.Fork()
	go func() { // ends with the message's context and, by Close, with the publisher's
		defer p.life.Leave()
		contextID := m.request.ContextID
		var err error
		call.Outcomes[0], err = p.finish(msg.Context(), topic, msg, m)
		if err != nil {
			call.to = m.addressees()
			publication.Resolve(sinks.Receipt{}, call.fail(topic, 0, msg, err, endOf(err, msg)))
			return
		}
		publication.Resolve(sinks.Receipt{ID: contextID}, nil)
	}()
	return publication, nil
}

// publish sends one message once a slot is free.
func (p *Publisher) publish(ended context.Context, topic string, msg *message.Message, m *prepared) (Outcome, error) {
	ctx := msg.Context()
	if ended != ctx {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(ended, cancel)()
	}
	if err := m.slot.Take(ctx); err != nil {
		return NotSent, err
	}
	return p.finish(ctx, topic, msg, m)
}

// slot is the place of a message among Config.MaxRequests.
type slot struct {
	p    *Publisher
	held bool
}

// Take waits for a free slot. It implements [backoff.Slot].
func (s *slot) Take(ctx context.Context) error {
	p := s.p
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ctx.Done():
		return ErrClosed
	}
	s.held = true
	err := ctx.Err()
	if p.ctx.Err() != nil {
		err = ErrClosed
	}
	if err != nil { // both were ready
		s.Free()
	}
	return err
}

// Free implements [backoff.Slot].
func (s *slot) Free() {
	if s.held {
		s.held = false
		<-s.p.slots
	}
}

// finish sends one message that has a slot.
func (p *Publisher) finish(ctx context.Context, topic string, msg *message.Message, m *prepared) (Outcome, error) {
	outcome, err := p.send(ctx, m)
	if outcome != PartiallyDelivered {
		return outcome, err
	}
	if p.cfg.OnPartialDelivery != nil {
		p.cfg.OnPartialDelivery(msg, err)
	}
	if p.cfg.PartialDelivery == PartialDeliveryIsSent {
		p.logger.Info("message delivered to only some of its direct recipients", watermill.LogFields{
			"message_uuid": msg.UUID, "context_id": m.request.ContextID, "topic": topic,
		})
		err = nil
	}
	return outcome, err
}

// send sends one message and frees its slot, also while the client waits before it tries again.
func (p *Publisher) send(ctx context.Context, m *prepared) (Outcome, error) {
	defer m.slot.Free()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)() // Close gives up waiting
	req := m.request
	if open := m.open; open != nil { // the call may end before the body is opened
		req.Body = func() (io.ReadCloser, error) { return open(ctx) }
	}
	err := p.cfg.Client.SendMessage(backoff.WithSlot(ctx, &m.slot), req)
	outcome := outcomeOf(err)
	if outcome != PartiallyDelivered && p.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return outcome, ErrClosed
	}
	return outcome, m.nameKey(err)
}

// Close rejects further messages and waits for those in flight, for at most Config.CloseTimeout; then it cancels them, and
// their Publish returns [ErrClosed]. It is idempotent and may be called from several goroutines, but not from
// Config.OnPartialDelivery, Marshaler or ClaimCheck. It does not close the client.
func (p *Publisher) Close() error {
	p.life.Close(func() {
		timer := time.AfterFunc(p.cfg.CloseTimeout, p.cancel)
		defer timer.Stop()
		<-p.life.Idle()
		p.cancel()
	})
	return nil
}
