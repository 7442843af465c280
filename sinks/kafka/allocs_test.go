package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/semaphore"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/testkit"
)

// queue is a producer that leaves messages in its queue.
type queue struct {
	sarama.AsyncProducer
	input chan *sarama.ProducerMessage
}

func (q *queue) Input() chan<- *sarama.ProducerMessage { return q.input }

// TestAllocationsOfMessage: a message costs three allocations until it is with the producer, which are
// its headers, its bytes, and all the rest.
func TestAllocationsOfMessage(t *testing.T) {
	config := Config{}.WithDefaults()
	s := &Sink{
		config: config, life: lifecycle.New(), background: context.Background(),
		pending: semaphore.NewWeighted(config.MaxPendingBytes),
		tails:   tails{ends: map[partition]int64{}},
	}
	offset := int64(0)
	q := &queue{input: make(chan *sarama.ProducerMessage, 1)}
	known := &topic{
		called: "topic", name: "agrimill.topic", looked: time.Now(),
		lane: &lane{producer: &producer{async: q}, limits: producerKey{limit: 1 << 20}, life: lifecycle.New()},
	}
	s.byTopic = map[string]*knownTopic{known.called: {topic: known}}
	const id = "1ae0fd9c-8d46-4b8a-9e52-000000000001"
	msg := message.NewMessage(id, make([]byte, 1024))
	msg.Metadata = message.Metadata{
		gateway.KeyEventType: "MESSAGE_RECEIVED", gateway.KeyMessageID: id, gateway.KeyReceivingEndpointID: id, gateway.KeyTenantID: id,
		gateway.KeyContextID: id, gateway.KeyMessageType: "iso:11783:-10:taskdata:zip", gateway.KeySentTimestamp: "2024-05-05T10:11:12Z", gateway.KeyDedupID: id,
	}
	msg.SetContext(t.Context())
	got := testing.AllocsPerRun(1000, func() {
		p := testkit.Must(s.PublishAsync("topic", msg))(t)
		record := <-q.input
		record.Offset, offset = offset, offset+1
		s.finish(record, nil)
		testkit.Must(p.Wait(t.Context()))(t)
	})
	s.deadlines.stop()
	if got > 4 { // one more for who waits
		t.Errorf("%.0f allocations, want at most 4", got)
	}
}
