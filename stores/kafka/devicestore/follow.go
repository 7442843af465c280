package devicestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/isotime"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/router/farm"
)

// read takes in what a partition has, and goes on in the background.
func (s *store) read(ctx context.Context, partition int32) error {
	end, err := s.client.GetOffset(s.config.Topic, partition, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	first, err := s.client.GetOffset(s.config.Topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	from, err := s.consumer.ConsumePartition(s.config.Topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	following := false
	defer func() {
		if !following {
			finish(from)
		}
	}()
	// The last records before the end may be gone, or none of any store, so that nobody ever gets
	// there. What comes later is taken in as well.
	quiet := time.NewTimer(s.config.Timeout / 2)
	defer quiet.Stop()
	for next := first; next < end; {
		select {
		case record := <-from.Messages():
			if record == nil {
				return sarama.ErrClosedClient
			}
			s.take(ctx, record)
			next = record.Offset + 1
			quiet.Reset(endOfCompacted)
		case <-quiet.C:
			next = end
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	following = true
	s.reading.Go(func() { s.follow(partition, from) })
	return nil
}

// follow reads a partition until the store is closed. A reader ends when what it would read next is gone, such as with a
// topic that was deleted and made again.
func (s *store) follow(partition int32, from sarama.PartitionConsumer) {
	for {
		for open := true; open; {
			select {
			case record := <-from.Messages():
				if open = record != nil; open {
					s.take(context.Background(), record) // it is in memory
				}
			case <-s.ctx.Done():
				open = false
			}
		}
		finish(from)
		for again := false; !again; {
			if backoff.Sleep(s.ctx, readAgain) != nil {
				return
			}
			var err error
			from, err = s.consumer.ConsumePartition(s.config.Topic, partition, sarama.OffsetOldest)
			again = err == nil
		}
	}
}

// finish ends a reader.
func finish(from sarama.PartitionConsumer) {
	from.AsyncClose()
	for range from.Messages() { // until it has ended
	}
}

// readAgain is how long after it has ended a partition is read again.
const readAgain = time.Second

// endOfCompacted is how long nothing more comes at the end of a topic whose last records were
// compacted away.
const endOfCompacted = 2 * time.Second

// unreadable logs what of a record cannot be read.
func (s *store) unreadable(record *sarama.ConsumerMessage, reason string) {
	warnlog.Limited(&s.odd, warnlog.Or(s.config.Logger), "a part of the device descriptions cannot be read; it is left out",
		watermill.LogFields{"topic": record.Topic, "partition": record.Partition, "offset": record.Offset, "key": string(record.Key), "reason": reason})
}

// take takes in a record.
func (s *store) take(ctx context.Context, record *sarama.ConsumerMessage) {
	key, sum := string(record.Key), sha256.Sum256(record.Value)
	slash := strings.LastIndexByte(key, '/')
	switch {
	case slash < 0:
		s.unreadable(record, "the key has no teamset")
		return
	case len(record.Value) == 0: // it was deleted
		return
	case key[slash+1:] != hex.EncodeToString(sum[:]):
		s.unreadable(record, "another digest")
		return
	}
	teamset := key[:slash]
	d := farm.DeviceDescription{Payload: record.Value}
	for _, h := range record.Headers {
		if string(h.Key) == tenantHeader {
			d.Tenant = string(h.Value)
		}
	}
	times := make([]time.Time, 0, 1)
	for _, h := range record.Headers {
		if string(h.Key) != sentHeader {
			continue
		}
		if at, ok := isotime.Parse(h.Value); ok {
			times = append(times, at)
		} else {
			s.unreadable(record, "a time it was sent")
		}
	}
	if len(times) == 0 {
		times = append(times, record.Timestamp) // it was sent before, and after what was stored before it
	}
	for _, d.Sent = range times {
		_ = s.known.Put(ctx, teamset, d) // memory does not fail
	}
	if s.config.ReadOnly {
		return
	}
	known, _ := s.descriptions(ctx, teamset, sum)
	s.note(recordKey{teamset, sum}, slices.ContainsFunc(known, func(d farm.DeviceDescription) bool {
		return !slices.ContainsFunc(times, d.Sent.Equal)
	}))
}
