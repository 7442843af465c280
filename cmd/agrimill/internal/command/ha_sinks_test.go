//go:build ha

package command

import (
	"bytes"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/kafka"
	kafkasource "github.com/agrimill/agrimill/sources/kafka"
)

// haSink is where the messages go. It is looked at with nothing but a client of the broker.
type haSink interface {
	// config is the sink of an instance.
	config(i *haInstance) string
	// watch begins to look at what is sent to it, if that needs a beginning.
	watch()
	// check reads what it holds: what was confirmed, since before that, in the order of each key, and
	// once, where the sink knows copies. Otherwise it returns how many there are.
	check(confirmed map[string]time.Time) (copies int)
	// repeated counts the messages that came after a time, and not for the first time. It is called
	// after check.
	repeated(after time.Time) int
}

// haJudge looks at what a sink holds, in the order in which the sink tells it.
type haJudge struct {
	*haRun
	confirmed, missing map[string]time.Time
	latest             map[int]int // number, by key
}

func newHAJudge(r *haRun, confirmed map[string]time.Time) *haJudge {
	return &haJudge{haRun: r, confirmed: confirmed, missing: maps.Clone(confirmed), latest: map[int]int{}}
}

// see is called for each message that is no copy of one that came before.
func (j *haJudge) see(id string, stored time.Time, payload []byte) {
	j.Helper()
	if _, ok := j.missing[id]; !ok {
		j.Errorf("message %s is stored twice, or was never sent", id)
	}
	delete(j.missing, id)
	if at := j.confirmed[id]; at.Before(stored) {
		j.Errorf("message %s was confirmed %v before it was stored", id, stored.Sub(at))
	}
	number := testkit.Must(strconv.Atoi(string(payload)))(j)
	key := number % j.form.keys
	if before, ok := j.latest[key]; ok && number <= before {
		j.Errorf("message %d is behind %d of the same key", number, before)
	}
	j.latest[key] = number
}

// end is called when it has seen all.
func (j *haJudge) end() {
	j.Helper()
	if len(j.missing) > 0 {
		j.Errorf("%d messages are confirmed and not stored", len(j.missing))
	}
}

// haStream is a stream of JetStream, which drops copies.
type haStream struct {
	*haRun

	mu   sync.Mutex
	seen map[string]bool
	// again is when messages came that had come before.
	again []time.Time
}

func (s *haStream) config(i *haInstance) string {
	return fmt.Sprintf(`nats: {url: "nats://%s"}`, i.toNATS.Addr())
}

func (s *haStream) connect() *natsgo.Conn {
	s.Helper()
	conn := testkit.Must(natsgo.Connect("nats://127.0.0.1:" + s.port))(s)
	s.Cleanup(conn.Close)
	return conn
}

// watch sees what is sent to the stream, also what that drops.
func (s *haStream) watch() {
	s.Helper()
	conn := s.connect()
	s.seen = map[string]bool{}
	if _, err := conn.Subscribe("agrimill.>", func(msg *natsgo.Msg) {
		now, id := time.Now(), msg.Header.Get(jetstream.MsgIDHeader)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.seen[id] {
			s.again = append(s.again, now)
		}
		s.seen[id] = true
	}); err != nil {
		s.Fatal(err)
	}
	must(s, conn.Flush())
}

func (s *haStream) repeated(after time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.again {
		if at.After(after) {
			n++
		}
	}
	return n
}

func (s *haStream) check(confirmed map[string]time.Time) int {
	s.Helper()
	ctx := testkit.Context(s)
	js := testkit.Must(jetstream.New(s.connect()))(s)
	stream := testkit.Must(js.Stream(ctx, "AGRIMILL"))(s)
	consumer := testkit.Must(js.OrderedConsumer(ctx, "AGRIMILL", jetstream.OrderedConsumerConfig{}))(s)
	info := testkit.Must(stream.Info(ctx))(s)
	messages := testkit.Must(consumer.Messages())(s)
	defer messages.Stop()
	judge := newHAJudge(s.haRun, confirmed)
	for range info.State.Msgs {
		msg := testkit.Must(messages.Next(jetstream.NextContext(ctx)))(s)
		stored := testkit.Must(msg.Metadata())(s)
		judge.see(msg.Headers().Get(gateway.KeyContextID), stored.Timestamp, msg.Data())
	}
	judge.end()
	return 0
}

// haKafka is a cluster, with names in it that nobody else uses.
type haKafka struct {
	testing.TB
	addr   string
	prefix string // of the topics of the sink
	admin  *kadm.Client
}

func newHAKafka(tb testing.TB, addr string) *haKafka {
	tb.Helper()
	k := &haKafka{TB: tb, addr: addr, prefix: "ha-" + uuid.NewString()}
	client := testkit.Must(kgo.NewClient(kgo.SeedBrokers(k.addr)))(tb)
	tb.Cleanup(client.Close)
	k.admin = kadm.NewClient(client)
	testkit.Must(k.admin.CreateTopic(tb.Context(), haKeys, 1, nil, k.back()))(tb)
	return k
}

// back is a topic with a partition for each key, and the consumer group that reads it.
func (k *haKafka) back() string { return "back-" + k.prefix }

// topics are those of the sink.
func (k *haKafka) topics() (names []string) {
	k.Helper()
	list := testkit.Must(k.admin.ListTopics(k.Context()))(k)
	for _, name := range list.Names() {
		if strings.HasPrefix(name, k.prefix+".") {
			names = append(names, name)
		}
	}
	return names
}

// haTopics are the topics in Kafka, which keeps copies. They have the time at which the broker has
// stored a record.
type haTopics struct {
	*haRun
	again []time.Time // when copies were stored
}

func (s *haTopics) config(*haInstance) string {
	return fmt.Sprintf("kafka: {brokers: %q, topic_prefix: %s, topic_config: {message.timestamp.type: LogAppendTime}}", s.kafka.addr, s.kafka.prefix)
}

func (s *haTopics) watch() {} // the topics keep everything

func (s *haTopics) repeated(after time.Time) (n int) {
	for _, at := range s.again {
		if !at.Before(after.Truncate(time.Millisecond)) { // the broker's are of that resolution
			n++
		}
	}
	return n
}

// check also has readers that compare the dedup ID read the topics: each message comes to them once.
func (s *haTopics) check(confirmed map[string]time.Time) int {
	s.Helper()
	topics := s.kafka.topics()
	judge, readers, first := newHAJudge(s.haRun, confirmed), newHAJudge(s.haRun, confirmed), map[string]*kgo.Record{}
	for _, topic := range topics {
		records := kafkatest.Read(s.TB, s.kafka.addr, topic)
		s.read(topic, len(records), readers)
		for _, record := range records {
			header := haHeaders(record)
			id := header[gateway.KeyDedupID]
			if id == "" {
				s.Errorf("a record of %s has no dedup ID", topic)
			}
			before := first[id]
			if before == nil {
				first[id] = record
				judge.see(header[gateway.KeyContextID], record.Timestamp, record.Value)
				continue
			}
			s.again = append(s.again, record.Timestamp)
			if !bytes.Equal(record.Key, before.Key) || !bytes.Equal(record.Value, before.Value) ||
				header[gateway.KeyMessageID] == "" || header[gateway.KeyMessageID] != haHeaders(before)[gateway.KeyMessageID] {
				s.Errorf("a copy of message %s is another message", header[gateway.KeyContextID])
			}
		}
	}
	judge.end()
	readers.end()
	return len(s.again)
}

func haHeaders(record *kgo.Record) map[string]string {
	headers := map[string]string{}
	for _, header := range record.Headers {
		headers[header.Key] = string(header.Value)
	}
	return headers
}

// read reads a topic as a consumer does that takes the dedup ID for the name of a message.
func (s *haTopics) read(topic string, records int, judge *haJudge) {
	s.Helper()
	ctx := testkit.Context(s)
	source := testkit.Must(kafkasource.New(kafkasource.Config{
		Connection: kafka.Connection{Brokers: []string{s.kafka.addr}}, TopicPrefix: kafka.NoTopicPrefix, Topics: []string{topic}, Group: s.kafka.prefix + ".readers",
	}, nil))(s)
	defer func() { _ = source.Close() }()
	dedup := testkit.Must(router.NewDedup(router.DedupConfig{Scope: "readers", DedupSettings: router.DedupSettings{
		KeyFunc: func(scope string, msg *message.Message) (router.Keys, error) {
			return router.Keys{Delivery: router.KeyOf(scope, msg.Metadata[gateway.KeyReceivedDedupID])}, nil
		},
	}}, nil))(s)
	handle := dedup.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		judge.see(msg.Metadata[gateway.KeyContextID], time.Time{}, msg.Payload)
		return nil, nil
	})
	messages := testkit.Must(source.Subscribe(ctx, topic))(s)
	for n := range records {
		select {
		case msg := <-messages:
			if _, err := handle(msg); err != nil {
				s.Error(err)
			}
			msg.Ack()
		case <-ctx.Done():
			s.Fatalf("%d of %d records of %s were read", n, records, topic)
		}
	}
}
