package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/sinks"
)

// publish hands to the sink what next returns. It stands inside of the chain, so
// that the chain sees the sink's errors.
func (rt *route) publish(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		d := deliveryOf(msg)
		d.touched, d.filtered, d.rejected = false, false, false
		defer d.takeBack()
		if d.value.SentAt.IsZero() {
			d.value.SentAt = time.Now()
		}
		handling := msg.Context()
		ctx := d.publishing(d, handling)
		made := &d.made
		if made.begun {
			for i, m := range made.messages {
				made.messages[i] = outgoing(m) // the sink may still have the other one
				made.messages[i].SetContext(d.publishing(ctx, made.contexts[i]))
			}
		} else if n, err := rt.produce(next, d, msg); n == 0 || err != nil {
			return nil, err
		}
		if err := d.retrying.admit(made.topics); err != nil {
			return nil, err
		}
		if nack := d.value.Nack; nack != nil && nack.Leased {
			if err := d.Err(); err != nil {
				return nil, err
			}
			stoppoint.At(stoppoint.Publish)
		}
		pipeline := d.pipeline()
		if pipeline != nil && d.value.Nack.Behind && pipeline.Halted() {
			return nil, errHalted
		}
		if err := rt.durable.check(d); err != nil {
			return nil, err
		}
		made.begun = true
		if rt.durable != nil || rt.health.next != nil {
			d.begin()
		}
		if pipeline != nil {
			return nil, rt.sendPipelined(ctx, d, pipeline)
		}
		for start := 0; start < len(made.messages); {
			end := start + 1
			for end < len(made.messages) && made.topics[end] == made.topics[start] {
				end++
			}
			d.retrying.begin(made.topics[start])
			if err := rt.send(ctx, d, made.topics[start], made.messages[start:end]); err != nil {
				if part, ok := errors.AsType[partlyStored](err); ok {
					d.sent = start + part.Stored()
				}
				// What the sink will never take may be made otherwise.
				made.begun = rt.classify.class(err) != ClassPermanent
				return nil, err
			}
			d.sent, start = end, end
		}
		d.retrying.begin("")
		d.touched = true
		return nil, nil
	}
}

// partlyStored is an error of a sink that knows how many of the messages of a call it has stored, before the one that failed.
type partlyStored interface {
	error
	Stored() int
}

// produce calls next and makes ready for the sink what it returns, in d.made. It returns how many
// messages there are.
func (rt *route) produce(next message.HandlerFunc, d *delivery, msg *message.Message) (int, error) {
	handling := msg.Context()
	out, err := next(msg)
	msg.SetContext(handling) // what a handler makes of it is the handler's
	if err != nil {
		return 0, err
	}
	if len(out) == 0 {
		// Without a sink, the handler did all there is to do.
		d.filtered = d.filtered || rt.To != nil
		d.touched = !d.filtered
		return 0, nil
	}
	if rt.To == nil {
		return 0, ErrNoSink
	}
	ctx := d.publishing(d, handling)
	d.made.reset(len(out))
	d.sent = 0
	names := d.namer(msg, len(out))
	for i, m := range out {
		if m == nil {
			return 0, ErrNilMessage
		}
		if m == msg || len(out) > 1 || rt.typed {
			// A middleware passed it on, so it is not ours to change; or several share one map.
			m = outgoing(m)
		}
		d.made.messages[i], d.made.contexts[i] = m, m.Context()
		names.assignUUID(m, i)
		rt.prepare(ctx, d, m)
		if rt.typed {
			forgetPayload(m, msg)
		}
		var content []byte
		if d.key != (Key{}) {
			content = names.content(m)
		}
		if m.Metadata[gateway.KeyPayloadMode] != "" || len(m.Payload) >= describeFrom {
			if d.key != (Key{}) {
				m.Metadata[gateway.KeyDedupID] = hash(content).String() // names what goes into the claim check
			}
			if err := rt.preparePayload(ctx, d, m); err != nil {
				return 0, err
			}
		}
		topic, err := rt.TopicFunc(m)
		if err != nil {
			return 0, fmt.Errorf("topic: %w", err)
		}
		d.made.topics[i] = topic
		if rt.typed {
			m.Metadata[gateway.KeyMessageType] = topic
		}
		if d.key != (Key{}) {
			m.Metadata[gateway.KeyDedupID] = names.name(content, topic).String()
		}
	}
	return len(out), nil
}

// preparePayload sees to payloads that are not in the message, or are certainly
// too large for the sink.
func (rt *route) preparePayload(ctx context.Context, d *delivery, m *message.Message) error {
	description := rt.To.Describe()
	if description.OpensPayloads && len(m.Payload) == 0 {
		return nil
	}
	if err := rt.payloads.place(ctx, d, m, description.MaxMessageSize); err != nil {
		return err
	}
	if rt.payloads.store != nil && exceeds(rt.To, m) {
		return rt.payloads.checkIn(ctx, d, m)
	}
	return nil // without a claim check the sink says what is wrong
}

// send publishes messages of one topic, those that are too large through the
// claim check.
func (rt *route) send(ctx context.Context, d *delivery, topic string, messages []*message.Message) error {
	err := rt.To.Publish(topic, messages...)
	if !errors.Is(err, sinks.ErrTooLarge) {
		return sinkError(err)
	}
	if len(messages) > 1 {
		// It is not known which one it was.
		for i := range messages {
			if err := rt.send(ctx, d, topic, messages[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	if err = rt.checkInTooLarge(ctx, d, messages[0], err); err == nil {
		err = rt.To.Publish(topic, messages[0])
	}
	return sinkError(err)
}

// sendPipelined publishes what was made, and lets the messages behind it come as soon as all of it
// has its place.
func (rt *route) sendPipelined(ctx context.Context, d *delivery, pipeline msgctx.Pipeline) error {
	made := &d.made
	var room [1]*sinks.Publication
	publications := room[:0]
	var err error
	for i, m := range made.messages {
		if n := d.value.Nack.Overtaken; n > 0 {
			m.Metadata[sinks.KeyOvertaken] = strconv.Itoa(int(n))
		}
		d.retrying.begin(made.topics[i])
		var p *sinks.Publication
		if p, err = rt.place(ctx, d, made.topics[i], m); err != nil {
			break
		}
		publications = append(publications, p)
		p.Then(func(_ sinks.Receipt, err error) {
			// Without Config.Classify, which may block: the goroutine is the sink's. What is too large
			// may go through the claim check.
			if err != nil && (ClassOf(sinkError(err)) != ClassPermanent || errors.Is(err, sinks.ErrTooLarge)) {
				pipeline.Halt()
			}
		})
	}
	switch {
	case err == nil:
		d.placed = true
		pipeline.Placed()
	case len(publications) > 0:
		pipeline.Begun()
	}
	if err = sinks.Await(made.messages, publications, err); err != nil {
		err = rt.failedInFlight(ctx, d, publications, err)
		d.sent = storedFirst(publications)
		made.begun = rt.classify.class(err) != ClassPermanent
		return err
	}
	d.sent = len(made.topics)
	d.retrying.begin("")
	d.touched = true
	return nil
}

// storedFirst returns how many are stored before the first one that is not, as far as it is known.
func storedFirst(publications []*sinks.Publication) (n int) {
	for _, p := range publications {
		if !wakeup.Raised(p.Done()) {
			break
		}
		if _, err := p.Result(); err != nil {
			break
		}
		n++
	}
	return n
}

// errHalted is the reason of a message that was not published because one before it has failed.
var errHalted = WithClass(errors.New("a message before it has failed"), ClassOutage)

// place gives a message its place, through the claim check if it is too large.
func (rt *route) place(ctx context.Context, d *delivery, topic string, m *message.Message) (*sinks.Publication, error) {
	p, err := rt.To.PublishAsync(topic, m)
	if errors.Is(err, sinks.ErrTooLarge) {
		if err = rt.checkInTooLarge(ctx, d, m, err); err == nil {
			p, err = rt.To.PublishAsync(topic, m)
		}
	}
	return p, sinkError(err)
}

// failedInFlight finds out what has failed. What only the broker finds too large goes through the
// claim check in the next attempt.
func (rt *route) failedInFlight(ctx context.Context, d *delivery, publications []*sinks.Publication, err error) error {
	for i, p := range publications {
		if !wakeup.Raised(p.Done()) {
			continue // the message's context has ended
		}
		_, failure := p.Result()
		if failure == nil {
			continue
		}
		if d.retrying != nil {
			d.retrying.sending = d.made.topics[i]
		}
		if err = failure; errors.Is(err, sinks.ErrTooLarge) {
			if err = rt.checkInTooLarge(ctx, d, d.made.messages[i], err); err == nil {
				return Outage(failure)
			}
		}
		break
	}
	return sinkError(err)
}

// checkInTooLarge moves a payload that the sink did not take into the claim check. Without a payload it returns err: the
// metadata are too large.
func (rt *route) checkInTooLarge(ctx context.Context, d *delivery, m *message.Message, err error) error {
	switch {
	case len(m.Payload) == 0:
		return err
	case rt.payloads.store == nil:
		return fmt.Errorf("the payload of %d bytes does not fit into the sink: %w: %w", len(m.Payload), ErrNoClaimCheck, err)
	}
	if d.passed.given && m == &d.passed.Message {
		m.Metadata = maps.Clone(m.Metadata)
	}
	return rt.payloads.checkIn(ctx, d, m)
}

// sinkError makes an outage of an error that says nothing about its class: a
// sink that fails for reasons of its own, or takes too long, must not empty the stream
// into the poison queue.
func sinkError(err error) error {
	if err == nil {
		return nil
	}
	if ClassOf(err) == ClassHandler && !is[Classified](err) {
		return Outage(err)
	}
	return err
}

// prepare makes a message ready for the sink.
func (rt *route) prepare(ctx context.Context, d *delivery, m *message.Message) {
	m.SetContext(d.publishing(ctx, m.Context()))
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata)
	}
	// An ID that came with the message named it in the place it comes from;
	// what a handler made of it since may be several messages.
	delete(m.Metadata, gateway.KeyDedupID)
	// A message that is replayed, or comes again where it was received, leaves its history behind when it succeeds. Another one is a
	// record that was read from the poison queue.
	if m.Metadata[KeyPoisonCount] != "" && (d.replay != nil || m.Metadata[KeyPoisonTopic] == d.route.Topic) {
		for _, key := range poisonKeys {
			delete(m.Metadata, key)
		}
	}
}

// forgetPayload takes from a message that has another payload than received what the metadata received says of
// that one. The publisher derives a context ID of its own from one with an event type.
func forgetPayload(m, received *message.Message) {
	const reference = gateway.KeyPayloadReference
	if bytes.Equal(m.Payload, received.Payload) && m.Metadata[reference] == received.Metadata[reference] {
		return
	}
	for _, key := range []string{gateway.KeyContextID, gateway.KeySentTimestamp} {
		derived := key == gateway.KeyContextID && m.Metadata[gateway.KeyEventType] != ""
		if m.Metadata[key] == received.Metadata[key] && !derived {
			delete(m.Metadata, key)
		}
	}
}
