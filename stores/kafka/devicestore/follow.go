package devicestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
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
	// mendAfter is how long at least nobody writes again what a record lacks: each process waits for another time.
	mendAfter = 100 * time.Millisecond
)

// follow reads a partition from an offset on until the store is closed, and from its beginning when it has fewer, or the topic is
// gone or has another ID: one that is made again may have more by then than the one before, and brokers before 2.8 do not tell
// the ID. The last partition begins to follow those that come later. lacking are the keys whose last record lacks times that are known.
func (s *Store) follow(topic sarama.Uuid, partition int32, last bool, next int64, lacking map[recordKey]bool) {
	waited := false // for whoever wrote what is lacking, who may write it again
	for s.ctx.Err() == nil {
		now, partitions, err := s.cluster.Identify(s.ctx, s.config.Topic, partition)
		if err == nil && now != topic {
			topic, next = now, 0
		}
		if last && partitions > partition+1 {
			last = false
			s.reading.Go(func() { s.follow(now, partition+1, true, 0, map[recordKey]bool{}) })
		}
		records, after, err := s.cluster.Fetch(s.ctx, s.config.Topic, partition, next, 0, maxFetch)
		for _, record := range records {
			s.take(record, lacking)
		}
		pause := readAgain
		switch {
		case err == nil && after > next:
			next = after
			continue
		case err == nil && len(lacking) > 0 && !waited:
			waited, pause = true, mendAfter+rand.N(2*mendAfter)
		case err == nil:
			waited = false
			if s.mend(lacking) == nil {
				pause = readEvery
			}
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition), errors.Is(err, sarama.ErrOffsetOutOfRange):
			next = 0
		}
		_ = backoff.Sleep(s.ctx, pause)
	}
}

// unreadable logs what of a record cannot be read.
func (s *Store) unreadable(record *sarama.ConsumerMessage, reason string) {
	warnlog.Limited(&s.odd, warnlog.Or(s.config.Logger), "a part of the device descriptions cannot be read; it is left out",
		watermill.LogFields{"topic": record.Topic, "partition": record.Partition, "offset": record.Offset, "key": string(record.Key), "reason": reason})
}

// take takes in a record, and notes whether it lacks times.
func (s *Store) take(record *sarama.ConsumerMessage, lacking map[recordKey]bool) {
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
	var sent []time.Time
	for _, h := range record.Headers {
		switch string(h.Key) {
		case tenantHeader:
			d.Tenant = string(h.Value)
		case sentHeader:
			if at, ok := isotime.Parse(h.Value); ok {
				sent = append(sent, at)
			} else {
				s.unreadable(record, "a time it was sent")
			}
		}
	}
	if len(sent) == 0 {
		sent = append(sent, record.Timestamp) // it was sent before, and after what was stored before it
	}
	for _, d.Sent = range sent {
		_ = s.known.Put(context.Background(), teamset, d) // memory does not fail
	}
	k := recordKey{teamset, sum}
	delete(lacking, k)
	if !s.config.ReadOnly && lacks(sent, times(s.descriptions(k))) {
		lacking[k] = true
	}
}
