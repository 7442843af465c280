package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// Every delivery of a record is the same message.
func TestRecords(t *testing.T) {
	cluster := ""
	uuidOf := func(record sarama.ConsumerMessage) string {
		t.Helper()
		p := partition{handler: &handler{subscription: &subscription{Subscriber: &Subscriber{config: Config{Unmarshaler: kafka.Marshaler{}}}}, cluster: cluster}}
		msg := testkit.Must(p.message(&record))(t)
		return msg.UUID
	}
	record := sarama.ConsumerMessage{Topic: "reports", Partition: 1, Offset: 7, Timestamp: time.Unix(1000, 0)}
	first := uuidOf(record)
	if first == "" || uuidOf(record) != first {
		t.Errorf("the UUIDs of one record are %q and %q", first, uuidOf(record))
	}
	seen := map[string]bool{first: true}
	for _, change := range []func(*sarama.ConsumerMessage){
		func(r *sarama.ConsumerMessage) { r.Topic = "report" },
		func(r *sarama.ConsumerMessage) { r.Partition++ },
		func(r *sarama.ConsumerMessage) { r.Offset++ },
		func(r *sarama.ConsumerMessage) { r.Timestamp = time.Unix(1001, 0) },
	} {
		other := record
		change(&other)
		if id := uuidOf(other); seen[id] {
			t.Errorf("two records have the UUID %s", id)
		} else {
			seen[id] = true
		}
	}
	for _, cluster = range []string{"one", "other"} {
		if id := uuidOf(record); seen[id] {
			t.Errorf("records of two clusters have the UUID %s", id)
		} else {
			seen[id] = true
		}
	}
	record.Headers = []*sarama.RecordHeader{{Key: []byte(wmkafka.UUIDHeaderKey), Value: []byte("its own")}}
	if id := uuidOf(record); id != "its own" {
		t.Errorf("a record with a UUID has %q", id)
	}
}

// byHand returns what a test wants.
type byHand struct{ made *message.Message }

func (u byHand) Unmarshal(*sarama.ConsumerMessage) (*message.Message, error) { return u.made, nil }

// An Unmarshaler may make messages by hand, and none without saying why.
func TestMessageMadeByHand(t *testing.T) {
	made := func(by *message.Message) (*message.Message, error) {
		s := &Subscriber{config: Config{Unmarshaler: byHand{by}}, logger: watermill.NopLogger{}}
		p := partition{handler: &handler{subscription: &subscription{Subscriber: s}}}
		return p.message(&sarama.ConsumerMessage{Topic: "reports"})
	}
	msg := testkit.Must(made(&message.Message{UUID: "1", Payload: []byte("small")}))(t)
	if msg.UUID != "1" || string(msg.Payload) != "small" || msg.Metadata == nil || msg.Acked() == nil || msg.Nacked() == nil {
		t.Errorf("%+v cannot be acked, nacked or given metadata, or is another one", msg)
	}
	if msg, err := made(nil); msg != nil || err == nil {
		t.Errorf("no message is %v, %v", msg, err)
	}
}

// The names are stored: changing them is an upgrade.
func TestNames(t *testing.T) {
	record := sarama.ConsumerMessage{Topic: "reports", Partition: 1, Offset: 7, Timestamp: time.Unix(1, 5e6)}
	for _, c := range []struct{ cluster, name string }{
		{"", "kafka reports 1 7 1005000000"},
		{"MkU3OEVBNTcwNTJENDM2Qk", "kafka MkU3OEVBNTcwNTJENDM2Qk reports 1 7 1005000000"},
	} {
		if name := (&partition{handler: &handler{cluster: c.cluster}}).name(&record); name != c.name {
			t.Errorf("got %q, want %q", name, c.name)
		}
	}
}

func TestOffsets(t *testing.T) {
	var o offsets
	for _, offset := range []int64{3, 4, 7, 9} { // a compacted topic has gaps
		o.add(offset)
	}
	for _, step := range []struct {
		done, next int64
		changed    bool
		span       int
	}{{4, 0, false, 4}, {9, 0, false, 4}, {3, 5, true, 2}, {3, 0, false, 2}, {7, 10, true, 0}} {
		next, changed := o.done(step.done)
		if _, span := o.span(); next != step.next || changed != step.changed || span != step.span {
			t.Errorf("done(%d) = %d, %v, span %d; want %d, %v, %d", step.done, next, changed, span, step.next, step.changed, step.span)
		}
	}
}

// What could not be read is over, also if the clock was set back since.
func TestReadErrorEndsAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	s := &subscription{Subscriber: &Subscriber{}}
	s.fails(errors.New("the partition has no leader"))
	s.alive()
	if _, err := s.ReadError(); err == nil {
		t.Error("it is over at once")
	}
	s.errorAt.Store(time.Now().Add(2 * time.Hour).UnixNano())
	s.alive()
	if _, err := s.ReadError(); err != nil {
		t.Errorf("it is not over: %v", err)
	}
}
