package nats

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/msgctx"
)

// place is where a message is in a stream. A recreated stream counts from one again; the
// timestamp makes the difference.
type place struct {
	sequence uint64
	stored   int64
}

// delivery is a message that the server has delivered.
type delivery struct {
	stream string
	place  place
	raw    *received // the latest delivery; guarded by subscription.mu
	acked  bool      // but the server could not be told yet; guarded by subscription.mu
	left   bool      // and to be sent back; guarded by subscription.mu
}

// message makes a message of a delivery. Its UUID is the same for every delivery.
func (s *subscription) message(d *delivery) (*message.Message, error) {
	s.taken.mu.Lock()
	raw := d.raw
	s.taken.mu.Unlock()
	err := raw.headerError()
	var msg *message.Message
	if err == nil {
		msg, err = msgctx.Unmarshaled(s.config.Unmarshaler.Unmarshal(&natsgo.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data}))
	}
	if err != nil {
		s.logger.Error("message cannot be read; it will be tried again", err,
			watermill.LogFields{"stream": d.stream, "sequence": d.place.sequence, "subject": raw.Subject})
		return nil, err
	}
	msgctx.FromBroker(msg, "4a2e55f8-29d3-4bd9-8d2f-1a2f1f9d1c53", d.name)
	return msg, nil
}

// name is the same for every delivery of a message. The time it was stored distinguishes a recreated
// stream, and another server, from the one before.
func (d *delivery) name() string {
	return fmt.Sprintf("%s %d %d", d.stream, d.place.sequence, d.place.stored)
}
