package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/keyqueue"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/ratelog"
	"github.com/agrimill/agrimill/internal/warnlog"
)

const (
	// firstNackDelay is how long a message waits that was nacked once.
	firstNackDelay = 100 * time.Millisecond
	// aheadFactor is how many times MaxInFlight records of a partition are read ahead while as many can be handled.
	aheadFactor = 4
	// maxAhead is how many bytes of the records of a partition are held.
	maxAhead = 32 << 20
	// defaultMaxSpan is how many records one may hold back.
	defaultMaxSpan = 100_000
)

// partition is a claim of a session: one partition while it is ours.
type partition struct {
	*handler
	session sarama.ConsumerGroupSession
	topic   string
	number  int32
	queue   *keyqueue.Queue[*sarama.ConsumerMessage]
	full    ratelog.Line // of waitForRoom

	mu      sync.Mutex
	gone    bool // it is somebody else's: nothing of it counts any more
	offsets offsets
}

// ConsumeClaim implements [sarama.ConsumerGroupHandler]. It delivers the records of a partition until the session ends, waits
// for those that are open as long as the partition is ours, and then gives it up.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	p := &partition{handler: h, session: session, topic: claim.Topic(), number: claim.Partition()}
	p.queue = keyqueue.New(keyqueue.Config[*sarama.ConsumerMessage]{
		Out: p.out, MaxOpen: p.config.MaxInFlight, Message: p.message, Name: p.name, Stored: func(record *sarama.ConsumerMessage) time.Time { return record.Timestamp },
		Done: p.done, Left: func(*sarama.ConsumerMessage) {},
		Retry: backoff.Policy{Initial: min(firstNackDelay, p.config.MaxNackDelay), Max: p.config.MaxNackDelay},
	})
	intake, stop := context.WithCancel(session.Context())
	defer stop()
	work, cancel := context.WithCancel(context.WithoutCancel(p.intake))
	giveUp := func() {
		p.mu.Lock()
		p.gone = true
		p.mu.Unlock()
		cancel()
	}
	defer giveUp()
	delivered := make(chan struct{})
	go func() { // ends with intake and work
		defer close(delivered)
		p.queue.Deliver(intake, work)
	}()

	p.read(intake, claim.Messages())
	stop()
	timer := time.AfterFunc(p.config.CloseTimeout, giveUp)
	defer timer.Stop()
	if !stillMember(session.Context()) {
		giveUp()
	}
	select {
	case <-delivered:
	case <-h.lost:
		giveUp()
		<-delivered
	}
	return nil
}

// stillMember reports whether the partitions of a session that has ended are ours until we leave them.
func stillMember(session context.Context) bool {
	cause := context.Cause(session)
	return cause == nil || errors.Is(cause, context.Canceled) || errors.Is(cause, sarama.ErrRebalanceInProgress) ||
		errors.Is(cause, sarama.ErrSessionPartitionCountChanged) || errors.Is(cause, sarama.ErrSessionConsumeClaimExited)
}

// read takes records until intake ends or the partition is lost.
func (p *partition) read(intake context.Context, records <-chan *sarama.ConsumerMessage) {
	for p.waitForRoom(intake) {
		select {
		case record, ok := <-records:
			if !ok {
				return
			}
			p.mu.Lock()
			p.offsets.add(record.Offset)
			p.mu.Unlock()
			p.queue.Add(p.key(record), uint64(record.Offset), size(record), false, record)
		case <-intake.Done():
			return
		case <-p.lost:
			return
		}
	}
}

// size is how many bytes a record has, with its headers, which may have more than the payload.
func size(record *sarama.ConsumerMessage) int {
	n := len(record.Key) + len(record.Value)
	for _, header := range record.Headers {
		if header != nil {
			n += len(header.Key) + len(header.Value)
		}
	}
	return n
}

// waitForRoom waits until another record can be held; false when intake has ended or the partition is lost.
func (p *partition) waitForRoom(intake context.Context) bool {
	paused := false
	for {
		held, bytes := p.queue.Held()
		p.mu.Lock()
		first, span := p.offsets.span()
		p.mu.Unlock()
		fields := watermill.LogFields{"topic": p.topic, "partition": p.number, "offset": first}
		switch {
		case span >= p.maxSpan && !paused:
			paused = true
			warnlog.Warn(p.logger, "Kafka partition paused: too many records wait for one that is not acknowledged", fields)
		case bytes >= maxAhead && !paused && p.queue.Stuck():
			if _, paused = p.full.Next(); paused {
				warnlog.Warn(p.logger, "Kafka partition paused: records of 32 MiB wait for one that is not acknowledged", fields)
			}
		case span >= p.maxSpan:
		case bytes < maxAhead && (held < p.config.MaxInFlight*aheadFactor || p.queue.Idle()):
			if paused {
				p.logger.Info("Kafka partition goes on", fields)
			}
			return true
		}
		select {
		case <-p.queue.Freed():
		case <-intake.Done():
			return false
		case <-p.lost:
			return false
		}
	}
}

func (p *partition) key(record *sarama.ConsumerMessage) string {
	if p.config.KeyHeader != "" {
		for _, header := range slices.Backward(record.Headers) { // of several the last one counts, as in the metadata
			if header != nil && string(header.Key) == p.config.KeyHeader && len(header.Value) > 0 {
				return string(header.Value)
			}
		}
	}
	return string(record.Key)
}

func (p *partition) message(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := msgctx.Unmarshaled(p.config.Unmarshaler.Unmarshal(record))
	if err != nil {
		p.logger.Error("record cannot be read; it will be tried again", err,
			watermill.LogFields{"topic": p.topic, "partition": p.number, "offset": record.Offset})
		return nil, err
	}
	msgctx.FromBroker(msg, "8f0f5d9c-6a3e-4c79-9d38-0f8d5c0f8a57", func() string { return p.place(record) })
	return msg, nil
}

// name names a record by its place, the same for every delivery.
func (p *partition) name(record *sarama.ConsumerMessage) string { return "kafka " + p.place(record) }

// place is where a record is. The timestamp distinguishes a recreated topic from the previous one,
// and where brokers do not know the ID of their cluster, that of another cluster.
func (p *partition) place(record *sarama.ConsumerMessage) string {
	cluster := p.cluster
	if cluster != "" {
		cluster += " " // which no topic has
	}
	return fmt.Sprintf("%s%s %d %d %d", cluster, record.Topic, record.Partition, record.Offset, record.Timestamp.UnixNano())
}

// done notes that a record is handled, as long as the partition is ours.
func (p *partition) done(record *sarama.ConsumerMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	if next, ok := p.offsets.done(record.Offset); ok {
		p.session.MarkOffset(p.topic, p.number, next, p.notes[p.topic])
	}
}

// offsets knows which records are done.
type offsets struct {
	open []tracked // from the lowest that is not done, ascending
}

type tracked struct {
	offset int64
	done   bool
}

// add notes a record, whose offset is higher than those before; there may be gaps.
func (o *offsets) add(offset int64) { o.open = append(o.open, tracked{offset: offset}) }

// done notes that a record is done, and returns the offset below which all are, if it has changed.
func (o *offsets) done(offset int64) (next int64, changed bool) {
	i, found := slices.BinarySearchFunc(o.open, offset, func(t tracked, offset int64) int { return int(t.offset - offset) })
	if !found {
		return 0, false
	}
	o.open[i].done = true
	for len(o.open) > 0 && o.open[0].done {
		next, changed = o.open[0].offset+1, true
		o.open = o.open[1:]
	}
	return next, changed
}

// span returns the lowest offset that is not done, and how many records there are from there on, which is what is held in
// memory: offsets without a record, as after compaction, cost nothing.
func (o *offsets) span() (first int64, n int) {
	if len(o.open) == 0 {
		return 0, 0
	}
	return o.open[0].offset, len(o.open)
}
