package devicestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

const (
	// readEvery is how long a partition is not read once it has nothing more, and readAgain after an error.
	readEvery = 100 * time.Millisecond
	readAgain = time.Second
	// maxFetch is how many bytes are read at once. A larger batch of records comes whole.
	maxFetch = 1 << 20
)

// follow reads a partition from an offset on until the store is closed, and from its beginning when the offset is gone, or the topic was:
// one that is made again may have more by then than the one before.
func (s *Store) follow(partition int32, next int64) {
	for s.ctx.Err() == nil {
		records, after, err := s.cluster.Fetch(s.ctx, s.config.Topic, partition, next, maxFetch)
		for _, record := range records {
			s.take(context.Background(), record) // it is in memory
		}
		pause := readAgain
		switch {
		case err == nil && after > next:
			next = after
			continue
		case err == nil:
			pause = readEvery
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			next = 0
			s.gone.Store(true)
		case errors.Is(err, sarama.ErrOffsetOutOfRange):
			if oldest, err := s.cluster.Oldest(s.ctx, s.config.Topic, partition); err == nil {
				next = oldest
			}
		}
		_ = backoff.Sleep(s.ctx, pause)
	}
}

// unreadable logs what of a record cannot be read.
func (s *Store) unreadable(record *sarama.ConsumerMessage, reason string) {
	warnlog.Limited(&s.odd, warnlog.Or(s.config.Logger), "a part of the device descriptions cannot be read; it is left out",
		watermill.LogFields{"topic": record.Topic, "partition": record.Partition, "offset": record.Offset, "key": string(record.Key), "reason": reason})
}

// take takes in a record.
func (s *Store) take(ctx context.Context, record *sarama.ConsumerMessage) {
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
	times := make([]time.Time, 0, 1)
	for _, h := range record.Headers {
		switch string(h.Key) {
		case tenantHeader:
			d.Tenant = string(h.Value)
		case sentHeader:
			if at, ok := isotime.Parse(h.Value); ok {
				times = append(times, at)
			} else {
				s.unreadable(record, "a time it was sent")
			}
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
