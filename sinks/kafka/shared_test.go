package kafka_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// sharedTests run against the cluster in the process and against a real broker.
// Each gets a prefix of its own, so that one broker will do for all.
var sharedTests = []struct {
	name string
	test func(t *testing.T, addr, prefix string)
}{
	{"Partitions", testPartitions},
	{"NoKey", testNoKey},
	{"CreatedTopics", testCreatedTopics},
	{"MissingTopic", testMissingTopic},
	{"CollidingTopic", testCollidingTopic},
	{"ImpossibleReplication", testImpossibleReplication},
	{"DeletedTopic", testDeletedTopic},
	{"AtTheLimit", testAtTheLimit},
	{"LimitOfTopic", testLimitOfTopic},
	{"LargerThanBrokersTake", testLargerThanBrokersTake},
	{"SmallMessagesFillNoBatchTooLarge", testSmallMessagesFillNoBatchTooLarge},
	{"WatermillSubscriber", testWatermillSubscriber},
	{"RecordOnTheWire", testRecordOnTheWire},
}

// newSink makes a sink that is closed when the test ends.
func newSink(t *testing.T, config kafka.Config) *kafka.Sink {
	t.Helper()
	sink := testkit.Must(kafka.New(config, nil))(t)
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return sink
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}

// forEndpoint makes a message with an order key.
func forEndpoint(endpoint, payload string) *message.Message {
	msg := newMessage(payload)
	msg.Metadata[gateway.KeyReceivingEndpointID] = endpoint
	return msg
}

func mustPublish(t *testing.T, sink sinks.Sink, topic string, messages ...*message.Message) {
	t.Helper()
	testkit.NoError(t, sink.Publish(topic, messages...))
}

// wantClass fails the test unless err is of this class and no other.
func wantClass(t *testing.T, err, class error) {
	t.Helper()
	if (err == nil) != (class == nil) {
		t.Fatalf("got %v, want class %v", err, class)
	}
	for _, other := range []error{sinks.ErrTooLarge, sinks.ErrRejected, sinks.ErrUnavailable, sinks.ErrClosed} {
		if errors.Is(err, other) != (other == class) {
			t.Fatalf("got %v, want class %q alone", err, class)
		}
	}
}

func createTopic(t *testing.T, addr, topic string, partitions int32, config map[string]*string) {
	t.Helper()
	testkit.Must(kadm.NewClient(kafkatest.Client(t, addr)).CreateTopic(t.Context(), partitions, 1, config, topic))(t)
}

func random(t *testing.T, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	_, _ = rand.Read(b) // never fails
	return b
}

// testPartitions: the key is the receiving endpoint, and the partition is the
// one that other clients choose for it.
func testPartitions(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, Partitions: 7})
	var keys []string
	for i := range 40 {
		keys = append(keys, fmt.Sprintf("endpoint %d", i))
		mustPublish(t, sink, "ours", forEndpoint(keys[i], "x"))
	}
	createTopic(t, addr, prefix+".theirs", 7, nil)
	other := kafkatest.Client(t, addr, kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	for _, key := range keys {
		testkit.NoError(t, other.ProduceSync(t.Context(), &kgo.Record{Topic: prefix + ".theirs", Key: []byte(key)}).FirstErr())
	}
	want, used := map[string]int32{}, map[int32]bool{}
	for _, record := range kafkatest.Read(t, addr, prefix+".theirs") {
		want[string(record.Key)] = record.Partition
	}
	records := kafkatest.Read(t, addr, prefix+".ours")
	if len(records) != len(keys) {
		t.Fatalf("%d records, want %d", len(records), len(keys))
	}
	for _, record := range records {
		used[record.Partition] = true
		if partition, ok := want[string(record.Key)]; !ok || record.Partition != partition {
			t.Errorf("key %q is in partition %d, want %d", record.Key, record.Partition, partition)
		}
	}
	if len(used) < 4 {
		t.Errorf("40 keys use %d of 7 partitions", len(used))
	}
}

// testNoKey: without a value there is no key, which is not an empty one.
func testNoKey(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, Partitions: 4})
	const count = 100
	for range count {
		mustPublish(t, sink, "nokey", newMessage("x"))
	}
	perPartition := map[int32]int{}
	for _, record := range kafkatest.Read(t, addr, prefix+".nokey") {
		if record.Key != nil {
			t.Fatalf("key %q, want none", record.Key)
		}
		perPartition[record.Partition]++
	}
	for partition, n := range perPartition {
		if n == count {
			t.Errorf("all messages are in partition %d", partition)
		}
	}

	off := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, PartitionKey: kafka.NoPartitionKey})
	mustPublish(t, off, "off", forEndpoint("e", "x"))
	byTenant := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, PartitionKey: kafka.MetadataKey(gateway.KeyTenantID)})
	msg := forEndpoint("e", "x")
	msg.Metadata[gateway.KeyTenantID] = "tenant"
	mustPublish(t, byTenant, "tenant", msg)
	if records := kafkatest.Read(t, addr, prefix+".off"); len(records) != 1 || records[0].Key != nil {
		t.Errorf("NoPartitionKey: got %+v", records)
	}
	if records := kafkatest.Read(t, addr, prefix+".tenant"); len(records) != 1 || string(records[0].Key) != "tenant" {
		t.Errorf("MetadataKey: got %+v", records)
	}
}

// topicConfig reads settings of a topic.
func topicConfig(t *testing.T, addr, topic string) map[string]string {
	t.Helper()
	configs := testkit.Must(kadm.NewClient(kafkatest.Client(t, addr)).DescribeTopicConfigs(t.Context(), topic))(t)
	values := map[string]string{}
	for _, config := range configs {
		if config.Err != nil {
			t.Fatal(config.Err)
		}
		for _, entry := range config.Configs {
			values[entry.Key] = entry.MaybeValue()
		}
	}
	return values
}

func testCreatedTopics(t *testing.T, addr, prefix string) {
	config := kafka.Config{
		Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, Partitions: 3, ReplicationFactor: 1,
		TopicConfig: map[string]string{"retention.ms": "86400000", "max.message.bytes": "200000"},
	}
	sink := newSink(t, config)
	var group sync.WaitGroup
	for range 8 { // all want it at the same time
		group.Go(func() {
			if err := sink.Publish("created", newMessage("x")); err != nil {
				t.Errorf("Publish: %v", err)
			}
		})
	}
	group.Go(func() { // and so does another process
		other, err := kafka.New(config, nil)
		if err != nil {
			t.Errorf("New: %v", err)
			return
		}
		if err := other.Publish("created", newMessage("x")); err != nil {
			t.Errorf("Publish: %v", err)
		}
		_ = other.Close()
	})
	group.Wait()
	topics := testkit.Must(kadm.NewClient(kafkatest.Client(t, addr)).ListTopics(t.Context(), prefix+".created"))(t)
	if n := len(topics[prefix+".created"].Partitions); n != 3 {
		t.Errorf("%d partitions, want 3", n)
	}
	have := topicConfig(t, addr, prefix+".created")
	if have["retention.ms"] != "86400000" || have["max.message.bytes"] != "200000" {
		t.Errorf("settings %v", have)
	}
	if n := len(kafkatest.Read(t, addr, prefix+".created")); n != 9 {
		t.Errorf("%d messages, want 9", n)
	}
}

func testMissingTopic(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, Provision: kafka.ProvisionNone})
	err := sink.Publish("missing", newMessage("x"))
	wantClass(t, err, sinks.ErrUnavailable)
	if !strings.Contains(err.Error(), "no such topic: "+prefix+".missing") {
		t.Errorf("the error does not tell the topic: %v", err)
	}
	if records := kafkatest.Read(t, addr, prefix+".missing"); records != nil {
		t.Error("the topic exists")
	}
	createTopic(t, addr, prefix+".missing", 1, nil)
	testkit.EventuallyNil(t, func() error { return sink.Publish("missing", newMessage("x")) })
}

// testCollidingTopic: Kafka refuses a name that differs from another one's in
// '.' and '_' alone.
func testCollidingTopic(t *testing.T, addr, prefix string) {
	createTopic(t, addr, prefix+"_taken", 1, nil)
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix})
	wantClass(t, sink.Publish("taken", newMessage("x")), sinks.ErrRejected)
}

func testImpossibleReplication(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, ReplicationFactor: 9})
	wantClass(t, sink.Publish("impossible", newMessage("x")), sinks.ErrUnavailable)
}

func testDeletedTopic(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix})
	mustPublish(t, sink, "deleted", newMessage("before"))
	testkit.Must(kadm.NewClient(kafkatest.Client(t, addr)).DeleteTopic(t.Context(), prefix+".deleted"))(t)
	testkit.EventuallyNil(t, func() error {
		if err := sink.Publish("deleted", newMessage("after")); err != nil {
			return err
		}
		// A real broker may still have stored it in the topic that it is deleting.
		records := kafkatest.Read(t, addr, prefix+".deleted")
		if len(records) == 0 || string(records[0].Value) != "after" {
			return fmt.Errorf("%d records, want those of another topic", len(records))
		}
		return nil
	})
}

var codecs = []sarama.CompressionCodec{
	sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy, sarama.CompressionLZ4, sarama.CompressionZSTD,
}

// testAtTheLimit: the largest message that the sink lets pass, which nothing
// compresses, passes the broker as well.
func testAtTheLimit(t *testing.T, addr, prefix string) {
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, Compression: codec})
			limit := int(sink.Describe().MaxMessageSize)
			empty, err := kafka.Marshaler{}.Marshal("", newMessage(""))
			if err != nil {
				t.Fatal(err)
			}
			largest := kafka.RecordLimit(limit, codec) - empty.ByteSize(2)
			if largest < limit-3000 || limit < 1_000_000 {
				t.Errorf("the largest payload is %d with a limit of %d", largest, limit)
			}
			topic, payload := "limit"+codec.String(), random(t, largest+1)
			err = sink.Publish(topic, newMessage(string(payload)))
			wantClass(t, err, sinks.ErrTooLarge)
			if !strings.Contains(err.Error(), "the limit is") {
				t.Errorf("the broker refused what the sink let pass: %v", err)
			}
			mustPublish(t, sink, topic, newMessage(string(payload[:largest])))
			records := kafkatest.Read(t, addr, prefix+"."+topic, kgo.FetchMaxBytes(100<<20))
			if len(records) != 1 || !bytes.Equal(records[0].Value, payload[:largest]) {
				t.Errorf("%d records", len(records))
			}
		})
	}
}

func testLimitOfTopic(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix})
	small := "5000"
	createTopic(t, addr, prefix+".small", 1, map[string]*string{"max.message.bytes": &small})
	mustPublish(t, sink, "small", newMessage(strings.Repeat("x", 4000)))
	large := strings.Repeat("x", 6000)
	wantClass(t, sink.Publish("small", newMessage("a"), newMessage(large)), sinks.ErrTooLarge)
	mustPublish(t, sink, "other", newMessage(large))
	if n := len(kafkatest.Read(t, addr, prefix+".small")); n != 1 {
		t.Errorf("%d messages, want 1: nothing of a call that fails before sending", n)
	}
	// Somebody lowers the limit behind the sink's back: the broker refuses, and
	// the sink learns why.
	mustPublish(t, sink, "lowered", newMessage(large))
	alter(t, addr, prefix+".lowered", "max.message.bytes", "5000")
	testkit.EventuallyNil(t, func() error {
		if err := sink.Publish("lowered", newMessage(large)); !errors.Is(err, sinks.ErrTooLarge) {
			return fmt.Errorf("got %w, want ErrTooLarge", err)
		}
		return nil
	})
	testkit.EventuallyNil(t, func() error { return sink.Publish("lowered", newMessage("small")) })
}

func alter(t *testing.T, addr, topic, name, value string) {
	t.Helper()
	results := testkit.Must(kadm.NewClient(kafkatest.Client(t, addr)).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: name, Value: &value}}, topic))(t)
	for _, result := range results {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
}

// testLargerThanBrokersTake: MaxMessageSize is set on the topics it creates.
func testLargerThanBrokersTake(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, MaxMessageSize: 4 << 20})
	payload := random(t, 3<<20)
	mustPublish(t, sink, "large", newMessage(string(payload)))
	records := kafkatest.Read(t, addr, prefix+".large", kgo.FetchMaxBytes(50<<20), kgo.FetchMaxPartitionBytes(50<<20))
	if len(records) != 1 || !bytes.Equal(records[0].Value, payload) {
		t.Fatalf("%d records", len(records))
	}
}

// testSmallMessagesFillNoBatchTooLarge: many messages that are small together
// make no batch that the topic refuses.
func testSmallMessagesFillNoBatchTooLarge(t *testing.T, addr, prefix string) {
	small := "5000"
	createTopic(t, addr, prefix+".batches", 1, map[string]*string{"max.message.bytes": &small})
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix})
	var messages []*message.Message
	for range 500 {
		messages = append(messages, newMessage(string(random(t, 500))))
	}
	mustPublish(t, sink, "batches", messages...)
	if n := len(kafkatest.Read(t, addr, prefix+".batches")); n != len(messages) {
		t.Errorf("%d messages, want %d", n, len(messages))
	}
}

// testWatermillSubscriber: the stock subscriber of watermill-kafka reads what the sink writes, with
// its own unmarshaler and with ours: every message, with its UUID, metadata and payload, also one
// whose payload is in a claim check. Its own one knows no escaped names, and takes the attributes
// of CloudEvents for metadata.
func testWatermillSubscriber(t *testing.T, addr, prefix string) {
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"}))(t)
	defer func() { _ = store.Close() }()
	reference := testkit.Must(store.Put(t.Context(), "0f3a", strings.NewReader("large")))(t)
	small, large, escaped := forEndpoint("e", "PK\x03\x04\r\n\x00\xff"), forEndpoint("e", ""), forEndpoint("e", "payload")
	small.Metadata["header"], small.Metadata[gateway.KeyFilename] = "two\r\nlines", "Hof Grün.zip"
	large.Metadata[gateway.KeyPayloadMode], large.Metadata[gateway.KeyPayloadReference] = gateway.PayloadModeClaimCheck, reference
	escaped.Metadata[wmkafka.UUIDHeaderKey] = "not the UUID"

	events := &cloudevents.Config{}
	mapping := testkit.Must(cloudevents.New(*events))(t)
	for name, c := range map[string]struct {
		topic       string
		events      *cloudevents.Config
		unmarshaler wmkafka.Unmarshaler
		exact       bool
	}{
		"own":                    {"own", nil, wmkafka.DefaultMarshaler{}, false},
		"ours":                   {"ours", nil, kafka.Marshaler{}, true},
		"own, with CloudEvents":  {"own-events", events, wmkafka.DefaultMarshaler{}, false},
		"ours, with CloudEvents": {"ours-events", events, kafka.Marshaler{CloudEvents: mapping}, true},
	} {
		t.Run(name, func(t *testing.T) {
			sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, CloudEvents: c.events})
			mustPublish(t, sink, c.topic, small.Copy(), large.Copy(), escaped.Copy())
			config := wmkafka.DefaultSaramaSubscriberConfig()
			config.Version = sarama.V2_8_0_0 // the default is older than what Kafka 4 speaks
			config.Consumer.Offsets.Initial = sarama.OffsetOldest
			config.Consumer.Fetch.Min = 1
			config.MetricRegistry = kafka.NoMetrics()
			subscriber := testkit.Must(wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
				Brokers: []string{addr}, Unmarshaler: c.unmarshaler, OverwriteSaramaConfig: config, NackResendSleep: wmkafka.NoSleep,
			}, nil))(t)
			messages := testkit.Must(subscriber.Subscribe(testkit.Context(t), prefix+"."+c.topic))(t)
			left := map[string]*message.Message{}
			for _, msg := range []*message.Message{small, large, escaped} {
				left[msg.UUID] = msg
			}
			for len(left) > 0 {
				got, ok := <-messages
				if !ok {
					t.Fatal("no message")
				}
				want := left[got.UUID]
				if want == nil {
					t.Fatalf("the UUID %q was not sent, or came twice", got.UUID)
				}
				delete(left, got.UUID)
				if string(got.Payload) != string(want.Payload) {
					t.Errorf("got %q, want %q", got.Payload, want.Payload)
				}
				same := maps.Equal(got.Metadata, want.Metadata)
				if want != escaped && !c.exact {
					same = has(got.Metadata, want.Metadata)
				}
				if same != (want != escaped || c.exact) {
					t.Errorf("got %q, want %q", got.Metadata, want.Metadata)
				}
				if want == large {
					wantOpened(t, store, got, "large")
				}
				got.Ack() // which ends its context
			}
			if err := subscriber.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// has reports whether all of want is in got.
func has(got, want message.Metadata) bool {
	for key, value := range want {
		if v, ok := got[key]; !ok || v != value {
			return false
		}
	}
	return true
}

// wantOpened checks the payload of a message that is in a claim check.
func wantOpened(t *testing.T, store *claimcheck.Store, msg *message.Message, want string) {
	t.Helper()
	payload, _, err := store.OpenMessage(msg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = payload.Close() }()
	if content, err := io.ReadAll(payload); err != nil || string(content) != want {
		t.Errorf("the claim check opens %q, %v", content, err)
	}
}

// testRecordOnTheWire looks at what a client sees that knows nothing of us.
func testRecordOnTheWire(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix})
	msg := forEndpoint("endpoint", "")
	msg.Metadata["a"] = "\x00\xff"
	msg.Metadata["empty"] = ""
	msg.Metadata[wmkafka.UUIDHeaderKey] = "odd"
	start := time.Now().Add(-time.Second)
	mustPublish(t, sink, "wire", msg)
	records := kafkatest.Read(t, addr, prefix+".wire")
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	record := records[0]
	if record.Value == nil || len(record.Value) != 0 {
		t.Errorf("the value is %v, want an empty one and not null", record.Value)
	}
	if record.Timestamp.Before(start) || record.Timestamp.After(time.Now().Add(time.Second)) {
		t.Errorf("timestamp %v", record.Timestamp)
	}
	want := map[string]string{
		wmkafka.UUIDHeaderKey:                   msg.UUID,
		gateway.KeyReceivingEndpointID:          "endpoint",
		"a":                                     "\x00\xff",
		"empty":                                 "",
		"agrimill-key-" + wmkafka.UUIDHeaderKey: "odd",
	}
	if len(record.Headers) != len(want) {
		t.Errorf("headers %q", record.Headers)
	}
	for _, header := range record.Headers {
		if value, ok := want[header.Key]; !ok || value != string(header.Value) || header.Value == nil {
			t.Errorf("header %q is %q, want %q", header.Key, header.Value, value)
		}
	}
}
