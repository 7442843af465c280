package kafka

import (
	"errors"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
)

// tails knows the ends of partitions, as far as they were acknowledged. Brokers acknowledge the messages of a partition in the
// order of their offsets, so one that does not grow says that they have lost what was there.
type tails struct {
	mu     sync.Mutex
	ends   map[partition]int64 // the offset of the latest acknowledgment
	losses uint64
}

type partition struct {
	topic  string
	number int32
}

// errWentBack is what is logged with acknowledged messages that a partition no longer has.
var errWentBack = errors.New("the partition has fewer messages than it has acknowledged: a broker lost its power, its files were restored, or the topic was made again")

// stored takes in that a record was acknowledged, before anybody else learns of it.
func (s *Sink) stored(record *sarama.ProducerMessage) {
	p := partition{record.Topic, record.Partition}
	s.tails.mu.Lock()
	last, known := s.tails.ends[p]
	s.tails.ends[p] = record.Offset
	var lost uint64
	if known && record.Offset <= last {
		lost = uint64(last - record.Offset + 1)
	}
	s.tails.losses += lost
	s.tails.mu.Unlock()
	if lost == 0 {
		return
	}
	s.logger.Error("the broker has lost acknowledged messages", errWentBack, watermill.LogFields{
		"kafka_topic": record.Topic, "partition": record.Partition, "lost": lost, "first_offset": record.Offset, "last_offset": last,
	})
	if s.config.Lost != nil {
		s.config.Lost(record.Topic, record.Partition, record.Offset, last)
	}
}

// Lost returns how many messages the partitions have acknowledged and were found not to have any longer when the next one was
// stored there: they went back in time, because brokers lost their power, or their files were restored, or because the topic was made anew.
func (s *Sink) Lost() uint64 {
	s.tails.mu.Lock()
	defer s.tails.mu.Unlock()
	return s.tails.losses
}
