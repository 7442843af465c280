package publisher

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
)

// Message is a message for [Publisher.Send], whose payload is not in memory.
type Message struct {
	// Type is the message type, as the topic of Publish.
	Type string
	// UUID is that from which the context ID is made, see [Publisher.ContextID]. Empty: each call of Send sends another
	// message.
	UUID string
	// Metadata becomes headers, as that of Publish, without the context ID of a received message, which names another payload.
	// Send does not change it. Optional.
	Metadata message.Metadata

	// Body is the payload, from where it stands to its end. It is not closed. One that has ReadAt and Seek, as files in a file
	// system have, is read again for each attempt, and stays where it stands. Any other, such as a pipe, can be read only once:
	// there is one attempt, whatever gateway.Config.Retry says.
	Body io.Reader
	// Size is the exact size of the payload in bytes, up to gateway.Config.MaxPayloadSize. A Body that is longer or
	// shorter is an error, and is never sent completely, also with the Size 0.
	Size int64
}

// Send sends one message whose payload is read while it is sent, in constant memory, and returns once the service has
// responded. It shares everything else with Publish: the configuration, Close, and the errors, of which a
// [*PublishError] says whether the message may have been sent. A Config.Marshaler cannot be used with it.
//
// A Read of Body that is under way when Send fails may end after Send has returned.
func (p *Publisher) Send(ctx context.Context, m Message) error {
	if !p.life.Enter() {
		return sinkError(m.Type, ErrClosed)
	}
	defer p.life.Leave()
	open, again := openBody(m.Body)
	if !again {
		ctx = gateway.SingleAttempt(ctx)
	}
	if m.UUID == "" {
		m.UUID = uuid.NewString() // so that an error can name it
	}
	msg := message.NewMessageWithContext(ctx, m.UUID, nil)
	maps.Copy(msg.Metadata, m.Metadata)
	if msg.Metadata.Get(gateway.KeyEventType) != "" { // of a message that was received, and had another body
		delete(msg.Metadata, gateway.KeyContextID)
		delete(msg.Metadata, gateway.KeyDedupID)
	}
	call := &PublishError{Outcomes: make([]Outcome, 1)}
	ready := &prepared{slot: slot{p: p}, request: gateway.SendMessageRequest{Body: open, Size: m.Size}}
	err := p.prepareSend(m.Type, msg, ready)
	if err == nil {
		err = ready.slot.Take(ctx)
	}
	if err == nil {
		call.Outcomes[0], err = p.finish(ctx, m.Type, msg, ready)
		call.to = ready.addressees()
	}
	if err != nil {
		return call.fail(m.Type, 0, msg, err, endOf(err, msg))
	}
	return nil
}

// prepareSend checks a message of Send and fills in the headers of its request.
func (p *Publisher) prepareSend(topic string, msg *message.Message, m *prepared) error {
	body, size := m.request.Body, m.request.Size
	switch {
	case msg.Context().Err() != nil:
		return msg.Context().Err()
	case body == nil:
		return &gateway.ValidationError{Field: "Body", Rule: "is required"}
	case p.cfg.Marshaler != nil:
		return &gateway.ValidationError{Field: "Body", Rule: "cannot be sent with a Marshaler, which needs the payload in memory: use Publish"}
	case msg.Metadata.Get(gateway.KeyPayloadMode) != "":
		return invalid(gateway.KeyPayloadMode, "must be absent: the payload is the Body")
	}
	if err := p.headers(topic, msg, &m.request); err != nil {
		return err
	}
	m.request.Body, m.request.Size = body, size
	return m.nameKey(p.cfg.Client.ValidateMessage(m.request))
}

// errReadOnce: a request was to be repeated within its attempt, with a fresh token or at another address.
var errReadOnce = errors.New("the Body can be read only once, and the request has to be repeated: send a file, or the message again with another Body")

// openBody returns how each attempt opens the body, and whether that works more than once.
func openBody(body io.Reader) (open func() (io.ReadCloser, error), again bool) {
	if body == nil {
		return nil, false
	}
	if at, ok := body.(interface {
		io.ReaderAt
		io.Seeker
	}); ok {
		if start, err := at.Seek(0, io.SeekCurrent); err == nil { // a pipe is an *os.File, too
			// Sections share nothing, so an attempt that was given up may still read.
			return func() (io.ReadCloser, error) {
				return io.NopCloser(io.NewSectionReader(at, start, math.MaxInt64-start)), nil
			}, true
		}
	}
	opened := make(chan struct{}, 1)
	return func() (io.ReadCloser, error) {
		select {
		case opened <- struct{}{}:
			return io.NopCloser(body), nil
		default:
			return nil, errReadOnce
		}
	}, false
}
