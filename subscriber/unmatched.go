package subscriber

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// Unmatched says what happens to messages that everybody who got them has refused.
type Unmatched int

const (
	// UnmatchedConfirm confirms them, so they are gone. It is the default.
	UnmatchedConfirm Unmatched = iota
	// UnmatchedQuarantine stores each in Config.Quarantine, with payload and metadata, and confirms
	// it then. A message and the file that it is part of are refused, and stored, one by one.
	// While the quarantine fails they wait like nacked messages.
	UnmatchedQuarantine
)

var unmatchedNames = []string{"confirm", "quarantine"}

// String returns confirm or quarantine.
func (u Unmatched) String() string { return enum.Text(u, unmatchedNames) }

// UnmarshalText parses the output of String.
func (u *Unmatched) UnmarshalText(text []byte) error { return enum.Parse(u, text, unmatchedNames) }

// Refuse says that the handler of msg does not want it. The ack that has to follow then counts as
// a refusal: a message that everybody refused is treated as [Config.Unmatched] says. A nack is
// not affected. The filters of routes of package router do this themselves. It reports whether the
// message is one of a [Subscriber], or a copy in the context of one.
func Refuse(msg *message.Message) bool {
	nack := msgctx.NackOf(msg.Context())
	if nack == nil {
		return false
	}
	nack.Refuse()
	return true
}

// answered records what an ack by sub means, and returns the outcome: that of a message which nobody
// wants depends on the quarantine.
func (s *Subscriber) answered(sub *subscription, it *core.Item, refused bool) msgctx.Outcome {
	d := ownerOf(it.Message)
	if len(d.IDs) == 0 || !refused && s.cfg.Unmatched != UnmatchedQuarantine {
		return msgctx.Acked
	}
	s.mu.Lock()
	it.Refused = refused
	last := refused && s.cfg.Unmatched == UnmatchedQuarantine && s.core.RefusedByAll(it)
	s.mu.Unlock()
	if !last {
		return msgctx.Acked
	}
	outcome := s.quarantineUnmatched(sub, d, int(it.Nacks))
	if outcome == msgctx.Acked { // the quarantine has it, so somebody does
		s.stats.unmatched.Add(1)
		s.mu.Lock()
		it.Refused = false
		s.mu.Unlock()
	}
	return outcome
}

// quarantineUnmatched stores d, which everybody refused, in the quarantine, and returns Acked once it is
// there. If it is not, the message is nacked; if it never will be, because the store takes
// nothing of its size, it is set aside.
func (s *Subscriber) quarantineUnmatched(sub *subscription, d *delivery, nacks int) msgctx.Outcome {
	q := s.quarantine
	if s.cfg.Payload.Mode == PayloadLazy { // one payload in memory at a time
		select {
		case q.reading <- struct{}{}:
			defer func() { <-q.reading }()
		case <-sub.drained.Done():
			return msgctx.Left
		}
	}
	r, err := s.newUnmatchedRecord(sub.drained, d)
	switch {
	case err == nil:
		return q.store(sub.drained, r, nacks)
	case sub.drained.Err() != nil:
		return msgctx.Left
	case errors.Is(err, ErrPayloadTooLarge):
		s.undeliverable(d.event, err)
		s.stats.setAside.Add(1)
		return msgctx.SetAside
	}
	s.logger.Info("a message that every filter refused could not be read for the quarantine; retrying",
		eventFields(d.event).Add(watermill.LogFields{"error": err}))
	return msgctx.Nacked
}

// newUnmatchedRecord returns the record of d, with its payload, which is read if need be.
func (s *Subscriber) newUnmatchedRecord(ctx context.Context, d *delivery) (*quarantined, error) {
	msg, err := s.newMessage(d) // the other one belongs to its handler
	if err != nil {
		return nil, err
	}
	body := []byte(msg.Payload)
	if msg.Metadata[gateway.KeyPayloadMode] == gateway.PayloadModeLazy {
		if body, err = s.readPayload(ctx, d); err != nil {
			return nil, err
		}
		delete(msg.Metadata, gateway.KeyPayloadMode)
		msg.Metadata[gateway.KeyPayloadSize] = strconv.Itoa(len(body))
	}
	if body == nil {
		body = []byte{} // nil is for a notice
	}
	id := d.identity()
	return &quarantined{
		digest: sha256.Sum256(id[:]), class: QuarantineUnmatched, reason: "the filters of all routes refused the message",
		event: string(d.event.Type()), body: body, received: time.Now(), endpoint: d.endpoint, tenant: d.tenant,
		messages: d.messages, metadata: msg.Metadata,
	}, nil
}

// readPayload reads a payload that nobody has downloaded.
func (s *Subscriber) readPayload(ctx context.Context, d *delivery) ([]byte, error) {
	payload, _, err := s.opener(d)(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = payload.Close() }() // reading has returned every error that matters
	body, err := io.ReadAll(io.LimitReader(payload, s.cfg.Payload.MaxInline+1))
	if err == nil && int64(len(body)) > s.cfg.Payload.MaxInline {
		err = fmt.Errorf("%w (more than %d bytes)", ErrPayloadTooLarge, s.cfg.Payload.MaxInline)
	}
	return body, err
}
