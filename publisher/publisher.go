package publisher

import (
	"context"
	"errors"
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

	outcomes := make([]Outcome, len(messages))
	requests := make([]gateway.SendMessageRequest, len(messages))
	fail := func(i int, err error) error {
		return &PublishError{Outcomes: outcomes, Index: i, UUID: messages[i].UUID, Err: err}
	}
	for i, msg := range messages {
		req, err := p.request(msg.Context(), topic, msg)
		if err == nil {
			err = nameKey(p.cfg.Client.ValidateMessage(req))
		}
		if err != nil {
			return fail(i, err)
		}
		requests[i] = req
	}
	for i, msg := range messages {
		err := p.send(msg, requests[i])
		switch {
		case err == nil:
			outcomes[i] = Sent
		case errors.Is(err, gateway.ErrPartialDelivery):
			outcomes[i] = PartiallyDelivered
			if p.cfg.OnPartialDelivery != nil {
				p.cfg.OnPartialDelivery(msg, err)
			}
			if p.cfg.PartialDelivery == PartialDeliveryIsError {
				return fail(i, err)
			}
			p.logger.Info("A message was delivered to some of its direct recipients only", watermill.LogFields{"message_uuid": msg.UUID, "topic": topic})
		default:
			outcomes[i] = Failed
			return fail(i, err)
		}
	}
	return nil
}

// send sends one message when there is a free slot.
func (p *Publisher) send(msg *message.Message, req gateway.SendMessageRequest) error {
	ctx, cancel := context.WithCancel(msg.Context())
	defer cancel()
	stop := context.AfterFunc(p.ctx, cancel)
	defer stop()

	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return p.cause(ctx.Err())
	}
	defer func() { <-p.slots }()
	if err := p.cfg.Client.SendMessage(ctx, req); err != nil {
		return p.cause(err)
	}
	return nil
}

// cause tells a cancellation by Close apart from one by the message's context.
func (p *Publisher) cause(err error) error {
	if p.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return ErrClosed
	}
	return err
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
// [ErrClosed]. It is idempotent and may be called from several goroutines. It
// does not close the client.
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
