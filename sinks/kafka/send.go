package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/payloadref"
	"github.com/agrimill/agrimill/internal/stoppoint"
	"github.com/agrimill/agrimill/sinks"
)

// begin checks all messages before it gives the first its place. Its error is the
// reason why there are fewer publications than messages.
func (s *Sink) begin(topic string, messages []*message.Message, publications []*sinks.Publication) ([]*sinks.Publication, error) {
	if err := msgctx.Missing(messages...); err != nil {
		return nil, sinks.NewError(s.config.Name, topic, sinks.ErrRejected, err)
	}
	if err := endOf(messages, nil); err != nil {
		return nil, err
	}
	w := wait{sink: s, topic: topic, deadline: time.Now().Add(s.config.PublishTimeout)}
	defer w.leave()
	var room [1]*delivery
	deliveries, t, err := s.prepare(&w, messages, room[:0])
	for i, d := range deliveries {
		if err != nil {
			break
		}
		d.known = t
		if err = s.send(&w, messages, i, d); err == nil {
			publications = append(publications, &d.Publication)
		}
	}
	if err != nil {
		// A context of a message, and not one inside the client: that is a time-out of its own.
		if ended := endOf(messages, err); ended != nil && s.background.Err() == nil {
			return publications, ended
		}
		err = s.noteFailure(s.classed(topic, err))
	}
	return publications, err
}

// noteFailure has the cluster watched when err is an outage.
func (s *Sink) noteFailure(err error) error {
	if errors.Is(err, sinks.ErrUnavailable) && s.opening.Err() == nil { // else somebody looks already
		if unanswered(err) {
			s.unreached.Store(true)
		}
		s.watch(s.background, s.look)
	}
	return err
}

// prepare makes the records and looks whether the topic takes them. Errors are as they came; begin makes those of Publish.
func (s *Sink) prepare(w *wait, messages []*message.Message, deliveries []*delivery) ([]*delivery, *topic, error) {
	t, err := s.waitForTopic(w, messages)
	if err != nil {
		return nil, nil, err
	}
	largest := 0
	for _, msg := range messages {
		d := &delivery{sink: s, topic: w.topic}
		if err := s.marshal(d, t.name, msg); err != nil {
			return nil, nil, fmt.Errorf("marshaler: %w", sinks.NewError(s.config.Name, t.name, sinks.ErrRejected, err))
		}
		d.size = d.record.ByteSize(recordVersion)
		deliveries = append(deliveries, d)
		largest = max(largest, d.size)
	}
	if largest > t.lane.limits.limit && time.Since(t.looked) > staleAfter {
		w.leave()
		s.forget(t) // the limit may have been raised
		if t, err = s.waitForTopic(w, messages); err != nil {
			return nil, nil, err
		}
	}
	if largest > t.lane.limits.limit {
		return nil, nil, sinks.NewError(s.config.Name, t.name, sinks.ErrTooLarge,
			fmt.Errorf("%d bytes with headers and the record's own; the limit is %d", largest+batchOverhead, t.limit))
	}
	return deliveries, t, nil
}

// marshal makes the record of a message. It shares nothing with the message: the
// producer may still have it when the caller has its message back.
func (s *Sink) marshal(d *delivery, name string, msg *message.Message) error {
	if err := payloadref.Lost(msg); err != nil {
		return err
	}
	own, ok := s.config.Marshaler.(Marshaler)
	if !ok {
		if err := d.foreign(s.config.Marshaler, name, msg); err != nil {
			return err
		}
	}
	// No key is nil, not an empty one: that would be a key like any other, and send all such messages to one partition.
	var key string
	if d.record.Key == nil {
		key = s.config.PartitionKey(msg)
	}
	if ok {
		d.record.Headers, d.value, d.key = own.marshal(msg, key)
		d.record.Value = &d.value
	} else if key != "" {
		d.key = sarama.ByteEncoder(key)
	}
	if key != "" {
		d.record.Key = &d.key
	}
	d.record.Topic, d.record.Metadata, d.record.Offset = name, d, unknownOffset
	return nil
}

// foreign makes the record of a message with a marshaler that may keep parts of what it is given.
func (d *delivery) foreign(marshaler wmkafka.Marshaler, name string, msg *message.Message) error {
	own := message.NewMessageWithContext(msg.Context(), msg.UUID, bytes.Clone(msg.Payload))
	own.Metadata = maps.Clone(msg.Metadata)
	record, err := msgctx.Marshaled(marshaler.Marshal(name, own))
	if err != nil {
		return err
	}
	d.record = *record // what the marshaler returned is its own
	if at := record.Timestamp; !at.IsZero() && at.Before(time.Unix(0, 0)) {
		return errors.New("the timestamp is before 1970, which no batch can have")
	}
	return errors.Join(encode(&d.record.Key, &d.key), encode(&d.record.Value, &d.value))
}

// encode encodes it: what the producer cannot encode would be an outage to it, and not the fault of the message.
func encode(e *sarama.Encoder, to *sarama.ByteEncoder) (err error) {
	if *e != nil {
		*to, err = (*e).Encode()
		*e = to
	}
	return err
}

// waitForTopic returns what is known about a topic, once it is, and enters its lane.
func (s *Sink) waitForTopic(w *wait, messages []*message.Message) (*topic, error) {
	for {
		t, f := s.lookUp(w.topic)
		if f != nil {
			err := w.block(messages, func(ctx context.Context) error {
				select {
				case <-f.done:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if err != nil {
				return nil, err
			}
			if f.err != nil {
				return nil, f.err
			}
		} else if t.lane.life.Enter() {
			w.in = t.lane
			return t, nil
		}
		// There was a look at the topic, or somebody takes one, and has closed the lane since.
	}
}

// send hands message i to the producer, unless its context has ended.
func (s *Sink) send(w *wait, messages []*message.Message, i int, d *delivery) error {
	if room := d.room(); !s.pending.TryAcquire(room) { // few have to wait
		if err := w.block(messages, func(ctx context.Context) error { return s.pending.Acquire(ctx, room) }); err != nil {
			return err
		}
	}
	// The context may have ended during the wait, and while the record was made.
	if err := messages[i].Context().Err(); err != nil {
		s.pending.Release(d.room())
		return err
	}
	s.life.Fork()            // until it is resolved
	d.known.lane.life.Fork() // until the producer is done with it
	s.deadlines.add(d, w.deadline)
	stoppoint.At(stoppoint.Write)
	d.known.lane.producer.async.Input() <- &d.record // it is taken at once: there is room in the queues behind
	return nil
}

// unknownOffset stays in a record that brokers say they have already: they do not say where.
const unknownOffset = -1

// finish is called by the producers for each message they are done with.
func (s *Sink) finish(record *sarama.ProducerMessage, err error) {
	d := record.Metadata.(*delivery)
	s.deadlines.remove(d)
	s.pending.Release(d.room())
	if err == nil {
		if s.told.Load() != 0 {
			s.told.Store(0)
		}
		var receipt sinks.Receipt
		if record.Offset != unknownOffset {
			s.stored(record)
			receipt = sinks.Receipt{Topic: record.Topic, Partition: record.Partition, Offset: record.Offset}
		}
		d.known.lane.life.Leave()
		stoppoint.At(stoppoint.Stored)
		d.end(receipt, nil)
		return
	}
	if errors.Is(err, sarama.ErrInvalidTimestamp) && !record.Timestamp.IsZero() { // the marshaler's; else it is the clock that is wrong
		err = fmt.Errorf("%w: %w", sarama.ErrInvalidRecord, err)
	}
	err = s.judge(d.known, d.size, err)
	d.known.lane.life.Leave() // now the next look at the topic knows what the error says of it
	d.end(sinks.Receipt{}, s.noteFailure(s.classed(d.topic, err)))
}

// judge looks at what a producer said about a message of this size.
func (s *Sink) judge(t *topic, size int, err error) error {
	if (isTooLarge(err) || errors.Is(err, sarama.ErrInvalidRecord)) && !t.lane.limits.alone {
		// One message spoils a batch for all others in it, which may be anybody's. What is to blame shows when they come again,
		// one by one. A limit that was lowered shows then too, before anything is sent.
		s.sendAlone(t)
		return sinks.NewError(s.config.Name, t.name, sinks.ErrUnavailable,
			fmt.Errorf("batch refused; its messages are sent individually: %v", err)) //nolint:errorlint // has to match one class only
	}
	if isTooLarge(err) {
		s.forget(t)
		return sinks.NewError(s.config.Name, t.name, sinks.ErrTooLarge, fmt.Errorf("%w: %d bytes", err, size+batchOverhead))
	}
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		s.forget(t) // deleted, so to be created again
	}
	return err
}
