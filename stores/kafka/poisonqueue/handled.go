package poisonqueue

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/internal/brokers"
)

// maxForget is how many records that the queue's topic has no longer are forgotten with one deletion.
const maxForget = 100

// mark says which record of a place was deleted. The place may get another record when a replica becomes the leader that
// did not have the first (unclean.leader.election.enable), or when the brokers lost their disks' last writes.
type mark struct {
	queue  sarama.Uuid // the ID of the queue's topic
	epoch  int32       // that of the leader under which the place was known to have the record
	record string      // its digest
}

// String returns the value of the record that remembers it.
func (m mark) String() string { return fmt.Sprintf("%s %d %s", m.queue, m.epoch, m.record) }

// parseMark reads it. It is false for another topic of the queue, and for what this version does not understand: what cannot be
// compared must not hide anything.
func parseMark(value string, queue sarama.Uuid) (mark, bool) {
	var of string
	m := mark{queue: queue}
	_, err := fmt.Sscan(value, &of, &m.epoch, &m.record)
	return m, err == nil && of == queue.String()
}

// digest returns what tells a record from others that may get its place, of its time and all that it has.
func digest(r *sarama.ConsumerMessage) string {
	sum := sha256.New()
	add := func(part []byte) {
		_ = binary.Write(sum, binary.BigEndian, int64(len(part))) // a hash takes everything
		_, _ = sum.Write(part)
	}
	_ = binary.Write(sum, binary.BigEndian, r.Timestamp.UnixMilli())
	add(r.Key)
	add(r.Value)
	for _, h := range r.Headers {
		add(h.Key)
		add(h.Value)
	}
	return hex.EncodeToString(sum.Sum(nil)[:4])
}

// handled knows what was deleted, from a topic with a record for each: its key is the place, its value the
// [mark], or nothing once the queue's topic has the place no longer.
type handled struct {
	cluster *brokers.Cluster
	config  Config
	topic   string

	reading chan struct{} // has an entry while somebody reads the topic

	mu      sync.Mutex
	queue   sarama.Uuid                 // the ID of the queue's topic
	topics  sarama.Uuid                 // the ID of this topic
	next    map[int32]int64             // offsets of this topic
	places  map[int32]map[int64]mark    // by partition of the queue's topic
	extents map[int32]brokers.Partition // of the queue's topic
	clean   map[int32]int64             // below it, nothing is left to forget
}

func newHandled(c *brokers.Cluster, config Config) *handled {
	h := &handled{
		cluster: c, config: config, topic: config.handled(),
		reading: make(chan struct{}, 1), extents: map[int32]brokers.Partition{}, clean: map[int32]int64{},
	}
	h.reset(sarama.Uuid{}, sarama.Uuid{})
	return h
}

func (h *handled) reset(queue, own sarama.Uuid) {
	h.queue, h.topics = queue, own
	h.next, h.places = map[int32]int64{}, map[int32]map[int64]mark{}
	clear(h.clean)
}

// has reports whether a message was deleted, as of the last refresh, and whether that is sure: otherwise the record has to
// be read, for deleted, because somebody else became the leader since.
func (h *handled) has(p place) (marked, sure bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, marked := h.places[p.partition][p.offset]
	return marked, marked && m.epoch == h.extents[p.partition].Epoch
}

// deleted reports whether the record that was read at a place, in this epoch or later, was deleted. That another one had
// been there is forgotten.
func (h *handled) deleted(p place, r *sarama.ConsumerMessage, epoch int32) bool {
	marked, sure := h.has(p)
	if !marked || sure {
		return marked
	}
	record := digest(r)
	h.mu.Lock()
	defer h.mu.Unlock()
	m, marked := h.places[p.partition][p.offset]
	switch {
	case !marked:
		return false
	case m.record != record:
		delete(h.places[p.partition], p.offset)
		return false
	}
	m.epoch = epoch
	h.places[p.partition][p.offset] = m
	return true
}

// count returns how many messages of a partition were deleted, as of the last refresh.
func (h *handled) count(p brokers.Partition) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var n int64
	for offset := range h.places[p.ID] {
		if p.Oldest <= offset && offset < p.Newest {
			n++
		}
	}
	return n
}

// refresh reads what was deleted since the last time, by whomever, from the topic of a queue.
func (h *handled) refresh(ctx context.Context, queue brokers.Topic) error {
	select {
	case h.reading <- struct{}{}:
		defer func() { <-h.reading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	at, err := h.cluster.Look(ctx, h.topic)
	if err != nil {
		return fmt.Errorf("topic %s: %w", h.topic, err)
	}
	h.mu.Lock()
	again := h.queue != queue.ID || h.topics != at.ID
	for _, p := range at.Partitions {
		again = again || p.Newest < h.next[p.ID] // another topic of this name, of brokers without IDs
	}
	if again || len(at.Partitions) == 0 {
		h.reset(queue.ID, at.ID)
	}
	for _, p := range queue.Partitions {
		h.extents[p.ID] = p
	}
	h.mu.Unlock()
	for _, p := range at.Partitions {
		if err := h.read(ctx, p); err != nil {
			return fmt.Errorf("topic %s: %w", h.topic, err)
		}
	}
	return nil
}

// read reads a partition to its end.
func (h *handled) read(ctx context.Context, p brokers.Partition) error {
	h.mu.Lock()
	offset := h.next[p.ID]
	h.mu.Unlock()
	_, err := h.cluster.Read(ctx, h.topic, p, offset, func(records []*sarama.ConsumerMessage, next int64) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, r := range records {
			if at, ok := parsePlace(string(r.Key)); ok {
				m, deleted := parseMark(string(r.Value), h.queue)
				h.set(at, m, deleted)
			}
		}
		h.next[p.ID] = next
	})
	return err
}

// set is called with mu.
func (h *handled) set(p place, m mark, deleted bool) {
	switch {
	case !deleted:
		delete(h.places[p.partition], p.offset)
		return
	case h.places[p.partition] == nil:
		h.places[p.partition] = map[int64]mark{}
	}
	h.places[p.partition][p.offset] = m
}

// add records that a message was deleted, and forgets a few that Kafka has deleted since.
func (h *handled) add(ctx context.Context, p place, m mark) error {
	h.mu.Lock()
	gone := h.gone(p.partition)
	h.mu.Unlock()
	err := h.cluster.Ask(ctx, func(client sarama.Client) error {
		err := client.RefreshMetadata(h.topic)
		switch {
		case err == nil:
		case !errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			return err
		case h.config.Provision == kafka.ProvisionNone:
			return fmt.Errorf("%w: it remembers what is deleted; create it with cleanup.policy compact", err)
		default:
			if err := brokers.Create(ctx, client, h.topic, h.config.ReplicationFactor); err != nil {
				return err
			}
		}
		records := []*sarama.ProducerMessage{{
			Topic: h.topic, Key: sarama.StringEncoder(p.String()), Value: sarama.StringEncoder(m.String()),
		}}
		for _, old := range gone {
			records = append(records, &sarama.ProducerMessage{Topic: h.topic, Key: sarama.StringEncoder(old.String())})
		}
		return h.cluster.Send(records)
	})
	if err != nil {
		return fmt.Errorf("poisonqueue: topic %s: %w", h.topic, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queue == m.queue {
		h.set(p, m, true)
		for _, old := range gone {
			h.set(old, mark{}, false)
		}
	}
	return nil
}

// gone returns a few places that the queue's topic has no longer. It is called with mu.
func (h *handled) gone(partition int32) []place {
	oldest := h.extents[partition].Oldest
	if h.clean[partition] >= oldest {
		return nil
	}
	var list []place
	for offset := range h.places[partition] {
		if offset < oldest && len(list) < maxForget {
			list = append(list, place{partition, offset})
		}
	}
	if len(list) == 0 {
		h.clean[partition] = oldest
	}
	return list
}
