package kafka

import (
	"sync"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/duequeue"
	"github.com/agrimill/agrimill/sinks"
)

const (
	// batchOverhead is what a batch of one record has beside the record.
	batchOverhead = 61
	// recordVersion is the version of records since Kafka 0.11.
	recordVersion = 2
)

// producerKey says for which topics a producer is: sarama closes a batch by one limit for all topics, and a broker
// refuses a batch that is larger than its topic allows.
type producerKey struct {
	limit int  // of a record, see recordLimit
	alone bool // one message per request
}

// producer is one of sarama that tells each message's sender how it went.
type producer struct {
	client sarama.Client
	async  sarama.AsyncProducer
	done   sync.WaitGroup // of the goroutines that pass on the results
}

// delivery is a message in flight, and all that is needed of it, in one allocation.
type delivery struct {
	sinks.Publication
	sink   *Sink
	topic  string // of the call
	known  *topic
	record sarama.ProducerMessage
	key    sarama.ByteEncoder        // of the record, unless the marshaler has one of its own
	value  sarama.ByteEncoder        // likewise
	size   int                       // of the record
	due    duequeue.Entry[*delivery] // in deadlines
}

// room is what the message takes of Config.MaxPendingBytes: its size, but so much that there is no room for more than
// Config.MaxPending, and no more than there is.
func (d *delivery) room() int64 {
	c := &d.sink.config
	return min(max(int64(d.size), (c.MaxPendingBytes+int64(c.MaxPending)-1)/int64(c.MaxPending)), c.MaxPendingBytes)
}

// expire ends the wait for a result. The producer may still be sending it.
func (d *delivery) expire() {
	d.end(sinks.Receipt{}, d.sink.noteFailure(d.sink.classed(d.topic, errTimeout)))
}

// end resolves the publication. Only the first result counts.
func (d *delivery) end(receipt sinks.Receipt, err error) {
	if d.Resolve(receipt, err) {
		d.sink.life.Leave()
	}
}

// newProducer connects. No more than pending messages may be under way.
func newProducer(brokers []string, config *sarama.Config, key producerKey, pending int, finish func(*sarama.ProducerMessage, error)) (*producer, error) {
	config.Producer.MaxMessageBytes = key.limit
	if key.alone {
		config.Producer.Flush.MaxMessages = 1
	}
	client, err := sarama.NewClient(brokers, config)
	if err != nil {
		return nil, err
	}
	async, err := sarama.NewAsyncProducerFromClient(client)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	p := &producer{client: client, async: async}
	// sarama sends the next batch only when all results of the last one are taken, so finish has a goroutine of its own, with
	// room for every message that can be under way: none waits for the one before it.
	results := make(chan sarama.ProducerError, pending) // without Err: stored
	var readers sync.WaitGroup
	// All end when the producer is closed and has no message left.
	readers.Go(func() {
		for record := range async.Successes() {
			results <- sarama.ProducerError{Msg: record}
		}
	})
	readers.Go(func() {
		for failed := range async.Errors() {
			results <- *failed
		}
	})
	p.done.Go(func() {
		readers.Wait()
		close(results)
	})
	p.done.Go(func() {
		for r := range results {
			finish(r.Msg, r.Err)
		}
	})
	return p, nil
}

// close waits for all messages under way. Nobody may be sending.
func (p *producer) close() {
	p.async.AsyncClose()
	p.done.Wait()
	_ = p.client.Close()
}

// recordLimit returns how large a record may be, as ByteSize counts it, for a topic with this max.message.bytes. A batch
// that cannot be compressed grows by a few bytes per block.
func recordLimit(messageLimit int, codec sarama.CompressionCodec) int {
	limit := messageLimit - batchOverhead
	if codec != sarama.CompressionNone {
		limit -= messageLimit/1024 + 64
	}
	return max(limit, 1)
}
