package publisher

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

var _ message.Publisher = (*Publisher)(nil)

// Publisher sends Watermill messages through the gateway. Its methods are safe
// for concurrent use.
type Publisher struct {
	cfg    Config
	logger watermill.LoggerAdapter
	slots  chan struct{}

	ctx     context.Context // ends when Close gives up waiting
	cancel  context.CancelFunc
	drained chan struct{} // closed when nothing is under way any more

	mu       sync.Mutex
	closed   bool
	underway int // calls of Publish
}

// New returns a Publisher. A nil logger is silent. The error tells everything
// that is wrong with the configuration.
func New(cfg Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Publisher{
		cfg: cfg, logger: logger, slots: make(chan struct{}, cfg.MaxRequests),
		ctx: ctx, cancel: cancel, drained: make(chan struct{}),
	}, nil
}

// Publish sends the messages, one after the other in the order given, and
// returns when the service has answered for each. It stops at the first that
// fails. Failures of the network and the service are retried by the client
// before they become errors, within the context of the message.
//
// All messages are checked before the first is sent. The error is a
// [*PublishError]: with gateway.ErrInvalid for a message that breaks a rule,
// gateway.ErrNoRecipients when nobody could be reached, and
// gateway.ErrPartialDelivery when some were; see the sentinels of package
// gateway. After Close it is [ErrClosed].
//
// Context ID and sent timestamp are written into the metadata. Publish keeps
// neither messages nor payloads after it returned.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if !p.begin() {
		return ErrClosed
	}
	defer p.end()

	call := &PublishError{Outcomes: make([]Outcome, len(messages))}
	fail := func(i int, err error) error {
		call.Index, call.Err = i, err
		if messages[i] != nil {
			call.UUID = messages[i].UUID
		}
		return call
	}
	ready := make([]prepared, len(messages))
	for i, msg := range messages {
		var err error
		if ready[i], err = p.prepare(topic, msg); err != nil {
			return fail(i, err)
		}
	}
	for i, msg := range messages {
		outcome, err := p.send(msg, &ready[i])
		ready[i] = prepared{} // what a Marshaler made is not needed any more
		call.Outcomes[i] = outcome
		if outcome == PartiallyDelivered {
			if p.cfg.OnPartialDelivery != nil {
				p.cfg.OnPartialDelivery(msg, err)
			}
			if p.cfg.PartialDelivery == PartialDeliveryIsSent {
				p.logger.Info("A message was delivered to some of its direct recipients only", watermill.LogFields{
					"message_uuid": msg.UUID, "context_id": msg.Metadata.Get(gateway.KeyContextID), "topic": topic,
				})
				err = nil
			}
		}
		if err != nil {
			return fail(i, err)
		}
	}
	return nil
}

// send sends one message when there is a free slot.
func (p *Publisher) send(msg *message.Message, m *prepared) (Outcome, error) {
	ctx, cancel := context.WithCancel(msg.Context())
	defer cancel()
	stop := context.AfterFunc(p.ctx, cancel)
	defer stop()

	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return NotSent, p.cause(ctx)
	}
	defer func() { <-p.slots }()
	if ctx.Err() != nil { // both were ready
		return NotSent, p.cause(ctx)
	}
	req := m.request
	if m.open != nil {
		req.Body = func() (io.ReadCloser, error) { return m.open(ctx) }
	}
	err := p.cfg.Client.SendMessage(ctx, req)
	switch {
	case err == nil:
		return Sent, nil
	case errors.Is(err, gateway.ErrPartialDelivery):
		return PartiallyDelivered, err
	case p.ctx.Err() != nil && errors.Is(err, context.Canceled):
		return Failed, ErrClosed
	}
	return Failed, m.nameKey(err)
}

// cause tells a cancellation by Close apart from one by the message's context.
func (p *Publisher) cause(ctx context.Context) error {
	if p.ctx.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

func (p *Publisher) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.underway++
	return true
}

func (p *Publisher) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underway--
	if p.closed && p.underway == 0 {
		close(p.drained)
	}
}

// Close refuses further messages and waits for those under way, at most for
// Config.CloseTimeout; then it cancels them, and their Publish returns
// [ErrClosed]. It is idempotent and may be called from several goroutines, but
// not from Config.OnPartialDelivery, Marshaler or ClaimCheck, which it would
// wait for. It does not close the client.
func (p *Publisher) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.underway == 0 {
			close(p.drained)
		}
	}
	p.mu.Unlock()

	timer := time.AfterFunc(p.cfg.CloseTimeout, p.cancel)
	defer timer.Stop()
	<-p.drained
	p.cancel()
	return nil
}
