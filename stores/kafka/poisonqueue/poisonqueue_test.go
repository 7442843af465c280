package poisonqueue_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/poisonstoretest"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/poisonqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.SaramaLeaks()...) }

// newSink returns a sink whose new topics have a number of partitions.
func newSink(t *testing.T, addr, prefix string, partitions int32) *kafka.Sink {
	t.Helper()
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: prefix, Partitions: partitions}, nil))(t)
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

// open returns a queue with the default names.
func open(t *testing.T, config poisonqueue.Config, addr string) *poisonqueue.Queue {
	t.Helper()
	config.Brokers = []string{addr}
	queue := testkit.Must(poisonqueue.New(config))(t)
	t.Cleanup(func() {
		if err := queue.Close(); err != nil {
			t.Error(err)
		}
	})
	return queue
}

// place makes topics of their own for each test.
type place struct {
	addr  string
	run   string
	count int
}

// suite is the suite of all poison queues with a number of partitions.
func (p *place) suite(partitions int32, stop, restart func()) poisonstoretest.Suite {
	return poisonstoretest.Suite{Counts: true, Outages: stop != nil, New: func(t *testing.T) poisonstoretest.Queue {
		t.Helper()
		p.count++
		prefix := fmt.Sprintf("%s-%d", p.run, p.count)
		peer := func(t *testing.T) router.PoisonStore {
			t.Helper()
			return open(t, poisonqueue.Config{TopicPrefix: prefix, Timeout: 10 * time.Second}, p.addr)
		}
		return poisonstoretest.Queue{
			Store: peer(t), Sink: newSink(t, p.addr, prefix, partitions), Topic: router.DefaultPoisonTopic, Peer: peer, Break: stop, Repair: restart,
		}
	}}
}

func TestStore(t *testing.T) {
	for _, partitions := range []int32{1, 3} {
		t.Run(fmt.Sprintf("Partitions%d", partitions), func(t *testing.T) {
			t.Parallel()
			cluster := kafkatest.Start(t)
			p := &place{addr: cluster.Addr(), run: "t"}
			poisonstoretest.Run(t, p.suite(partitions, cluster.Stop, cluster.Restart))
		})
	}
}

func payloads(t *testing.T, store router.PoisonStore) []string {
	t.Helper()
	var list []string
	for p, err := range store.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(p.Message.Payload))
	}
	return list
}

// idAt returns the ID of the message at a place.
func idAt(t *testing.T, store router.PoisonStore, place string) string {
	t.Helper()
	for p, err := range store.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(p.ID, place+"-") {
			return p.ID
		}
	}
	t.Fatalf("the queue has nothing at %s", place)
	return ""
}

func publish(t *testing.T, sink *kafka.Sink, texts ...string) {
	t.Helper()
	for _, text := range texts {
		msg := message.NewMessage(text, []byte(text))
		msg.Metadata[gateway.KeyReceivingEndpointID] = text // another partition
		testkit.NoError(t, sink.Publish(router.DefaultPoisonTopic, msg))
	}
}

func adminOf(t *testing.T, addr string) *kadm.Client {
	t.Helper()
	return kadm.NewClient(kafkatest.Client(t, addr))
}

// A partition is not at its end because a broker that changes its leader does not say where it begins.
func TestBeginningUnknown(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink, queue := newSink(t, cluster.Addr(), "", 1), open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, sink, "a", "b")
	var failing atomic.Int32
	cluster.Fake().ControlKey(int16(kmsg.ListOffsets), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		if failing.Add(-1) < 0 {
			return nil, nil, false
		}
		answer := request.ResponseKind().(*kmsg.ListOffsetsResponse)
		topic := request.(*kmsg.ListOffsetsRequest).Topics[0].Topic
		answer.Topics = []kmsg.ListOffsetsResponseTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsResponseTopicPartition{{ErrorCode: kerr.NotLeaderForPartition.Code}}}}
		return answer, nil, true
	})
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		failing.Store(2) // one more than the client asks again by itself
		answer := request.ResponseKind().(*kmsg.FetchResponse)
		topic := request.(*kmsg.FetchRequest).Topics[0].Topic
		answer.Topics = []kmsg.FetchResponseTopic{{Topic: topic, Partitions: []kmsg.FetchResponseTopicPartition{{ErrorCode: kerr.OffsetOutOfRange.Code, RecordBatches: []byte{}}}}}
		return answer, nil, true
	})
	testkit.Equal(t, payloads(t, queue), []string{"a", "b"})
}

// Every partition is read, whichever has something.
func TestPartitions(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink, queue := newSink(t, cluster.Addr(), "", 8), open(t, poisonqueue.Config{}, cluster.Addr())
	var want []string
	for i := range 40 {
		want = append(want, fmt.Sprintf("%02d", i))
	}
	publish(t, sink, want...)
	got := payloads(t, queue)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	partitions := map[string]bool{}
	for p, err := range queue.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		partition, _, _ := strings.Cut(p.ID, "-")
		partitions[partition] = true
	}
	if len(partitions) < 2 {
		t.Errorf("all in one partition: the test tests nothing")
	}
	if n, err := router.DeletePoisoned(t.Context(), queue, router.PoisonSelection{All: true}); n != 40 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
}

// What was deleted from a topic is not missing in another one that gets its name, and an ID of the first one names nothing there.
func TestTopicMadeAgain(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	queue := open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "one", "two")
	old := idAt(t, queue, "0-1")
	if n, err := router.DeletePoisoned(t.Context(), queue, router.PoisonSelection{All: true}); n != 2 || err != nil {
		t.Fatalf("deleted %d, %v", n, err)
	}
	testkit.Must(adminOf(t, cluster.Addr()).DeleteTopics(t.Context(), "agrimill.poison"))(t)
	publish(t, newSink(t, cluster.Addr(), "", 1), "three", "four", "five")
	for name, err := range map[string]error{"Get": second(queue.Get(t.Context(), old)), "Delete": queue.Delete(t.Context(), old)} {
		if !errors.Is(err, router.ErrNotInQueue) {
			t.Errorf("%s by an ID of the former topic: %v", name, err)
		}
	}
	for _, store := range []router.PoisonStore{queue, open(t, poisonqueue.Config{}, cluster.Addr())} {
		testkit.Equal(t, payloads(t, store), []string{"three", "four", "five"})
	}
	if depth, err := queue.Depth(t.Context()); depth != 3 || err != nil {
		t.Errorf("depth %d, %v", depth, err)
	}
	testkit.NoError(t, queue.Delete(t.Context(), idAt(t, queue, "0-1")))
	testkit.Equal(t, payloads(t, open(t, poisonqueue.Config{}, cluster.Addr())), []string{"three", "five"})
}

func second[T any](_ T, err error) error { return err }

// What Kafka has deleted is forgotten, so that what is remembered is bounded by what the topic has.
func TestForgets(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	queue := open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "one", "two", "three", "four")
	for _, place := range []string{"0-0", "0-1"} {
		testkit.NoError(t, queue.Delete(t.Context(), idAt(t, queue, place)))
	}
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: "agrimill.poison", Partition: 0, At: 2, LeaderEpoch: -1})
	testkit.Must(adminOf(t, cluster.Addr()).DeleteRecords(t.Context(), offsets))(t)
	testkit.Equal(t, payloads(t, queue), []string{"three", "four"})
	if depth, err := queue.Depth(t.Context()); depth != 2 || err != nil {
		t.Errorf("depth %d, %v", depth, err)
	}
	testkit.NoError(t, queue.Delete(t.Context(), idAt(t, queue, "0-2")))
	last := map[string]string{} // what compaction leaves
	for _, record := range kafkatest.Read(t, cluster.Addr(), "agrimill.poison-handled") {
		if last[string(record.Key)] = string(record.Value); len(record.Value) == 0 {
			delete(last, string(record.Key))
		}
	}
	if _, ok := last["0-2"]; len(last) != 1 || !ok {
		t.Errorf("remembered: %v, want 0-2 alone", last)
	}
	testkit.Equal(t, payloads(t, open(t, poisonqueue.Config{}, cluster.Addr())), []string{"four"})
}

// remembered returns the last record of the topic that remembers.
func remembered(t *testing.T, addr string) *kgo.Record {
	t.Helper()
	records := kafkatest.Read(t, addr, "agrimill.poison-handled")
	if len(records) == 0 {
		t.Fatal("nothing is remembered")
	}
	return records[len(records)-1]
}

// remember writes a record of the topic that remembers.
func remember(t *testing.T, addr string, record *kgo.Record) {
	t.Helper()
	testkit.NoError(t, kafkatest.Client(t, addr).ProduceSync(t.Context(), &kgo.Record{
		Topic: "agrimill.poison-handled", Key: record.Key, Value: record.Value, Headers: record.Headers,
	}).FirstErr())
}

func elect(t *testing.T, addr string) {
	t.Helper()
	topic := kadm.TopicsSet{}
	topic.Add("agrimill.poison", 0)
	results, err := adminOf(t, addr).ElectLeaders(t.Context(), kadm.ElectPreferredReplica, topic)
	if err == nil {
		err = results["agrimill.poison"][0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

// After an unclean election a place may have another record than the one that was deleted. What says so moves here from one
// message to another, as if the records had.
func TestPlaceWithAnotherRecord(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	early := open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "one", "two", "three")
	deleted := idAt(t, early, "0-0")
	testkit.NoError(t, early.Delete(t.Context(), deleted))
	another := idAt(t, early, "0-2")
	mark := remembered(t, cluster.Addr())
	testkit.Equal(t, payloads(t, early), []string{"two", "three"})
	elect(t, cluster.Addr())
	if got := payloads(t, early); !slices.Equal(got, []string{"two", "three"}) {
		t.Errorf("got %q after an election that changed nothing", got)
	}
	mark.Key = []byte("0-2")
	remember(t, cluster.Addr(), mark)
	for name, queue := range map[string]*poisonqueue.Queue{"another process": open(t, poisonqueue.Config{}, cluster.Addr()), "this process": early} {
		if depth, err := queue.Depth(t.Context()); depth != 1 || err != nil {
			t.Errorf("%s: depth %d, %v before anything is read", name, depth, err)
		}
		if p, err := queue.Get(t.Context(), another); err != nil || string(p.Message.Payload) != "three" {
			t.Errorf("%s: got %v, %v", name, p.ID, err)
		}
		if got := payloads(t, queue); !slices.Equal(got, []string{"two", "three"}) {
			t.Errorf("%s: got %q", name, got)
		}
		if depth, err := queue.Depth(t.Context()); depth != 2 || err != nil {
			t.Errorf("%s: depth %d, %v", name, depth, err)
		}
		if _, err := queue.Get(t.Context(), deleted); !errors.Is(err, router.ErrNotInQueue) {
			t.Errorf("%s: got %v of what was deleted", name, err)
		}
	}
	// It can be deleted, for everybody.
	testkit.NoError(t, early.Delete(t.Context(), another))
	for range 2 {
		elect(t, cluster.Addr())
		testkit.Equal(t, payloads(t, open(t, poisonqueue.Config{}, cluster.Addr())), []string{"two"})
	}
}

// Each of time, key, payload and headers tells a record from another.
func TestWhatTellsRecordsApart(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	publish(t, newSink(t, cluster.Addr(), "", 1), "one")
	client := kafkatest.Client(t, cluster.Addr(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	at := time.UnixMilli(1_700_000_000_000)
	record := func(change func(*kgo.Record)) *kgo.Record {
		r := &kgo.Record{Topic: "agrimill.poison", Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}}, Timestamp: at}
		change(r)
		return r
	}
	testkit.NoError(t, client.ProduceSync(t.Context(),
		record(func(*kgo.Record) {}), record(func(*kgo.Record) {}),
		record(func(r *kgo.Record) { r.Timestamp = at.Add(time.Millisecond) }), record(func(r *kgo.Record) { r.Key = []byte("l") }),
		record(func(r *kgo.Record) { r.Value = []byte("w") }), record(func(r *kgo.Record) { r.Headers[0].Value = []byte("2") }),
		record(func(r *kgo.Record) { r.Headers[0].Key = "i" }), record(func(r *kgo.Record) { r.Key, r.Value = []byte("kv"), nil }),
	).FirstErr())
	queue := open(t, poisonqueue.Config{}, cluster.Addr())
	testkit.NoError(t, queue.Delete(t.Context(), idAt(t, queue, "0-1")))
	mark := remembered(t, cluster.Addr())
	elect(t, cluster.Addr())
	for _, offset := range []int{2, 3, 4, 5, 6, 7, 8} {
		mark.Key = fmt.Appendf(nil, "0-%d", offset)
		remember(t, cluster.Addr(), mark)
	}
	var got []string
	for p, err := range open(t, poisonqueue.Config{}, cluster.Addr()).Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.ID[:3])
	}
	slices.Sort(got)
	if want := []string{"0-0", "0-3", "0-4", "0-5", "0-6", "0-7", "0-8"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: 0-2 is the same as 0-1", got, want)
	}
}

// What a newer version says in a way that is not understood hides nothing.
func TestMarkOfAnotherVersion(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	queue := open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "one", "two")
	testkit.NoError(t, queue.Delete(t.Context(), idAt(t, queue, "0-0")))
	mark := remembered(t, cluster.Addr())
	topic, _, _ := strings.Cut(string(mark.Value), " ")
	mark.Key, mark.Value = []byte("0-1"), []byte(topic+" newer")
	remember(t, cluster.Addr(), mark)
	for _, store := range []*poisonqueue.Queue{queue, open(t, poisonqueue.Config{}, cluster.Addr())} {
		testkit.Equal(t, payloads(t, store), []string{"two"})
		if depth, err := store.Depth(t.Context()); depth != 1 || err != nil {
			t.Errorf("depth %d, %v", depth, err)
		}
	}
}

// Without the right to create the topic that remembers, deleting is an error that says what to do, and looking works.
func TestProvision(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	queue := open(t, poisonqueue.Config{Provision: kafka.ProvisionNone}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "one")
	id := idAt(t, queue, "0-0")
	if err := queue.Delete(t.Context(), id); err == nil || !strings.Contains(err.Error(), "agrimill.poison-handled") || !strings.Contains(err.Error(), "cleanup.policy compact") {
		t.Errorf("got %v", err)
	}
	testkit.Equal(t, payloads(t, queue), []string{"one"})
	created := open(t, poisonqueue.Config{ReplicationFactor: 1}, cluster.Addr())
	testkit.NoError(t, created.Delete(t.Context(), id))
	configs := testkit.Must(adminOf(t, cluster.Addr()).DescribeTopicConfigs(t.Context(), "agrimill.poison-handled"))(t)
	compacted := false
	for _, entry := range configs[0].Configs {
		compacted = compacted || entry.Key == "cleanup.policy" && entry.MaybeValue() == "compact"
	}
	if !compacted {
		t.Error("the topic is not compacted")
	}
	if got := payloads(t, queue); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

// byHand makes messages without message.NewMessage, and none of "nothing", without saying why.
type byHand struct{}

func (byHand) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	if string(record.Value) == "nothing" {
		return nil, nil
	}
	return &message.Message{UUID: "1", Payload: record.Value}, nil
}

// An Unmarshaler may make messages by hand, and none without saying why.
func TestMessagesMadeByHand(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	publish(t, newSink(t, cluster.Addr(), "", 1), "something", "nothing")
	read := open(t, poisonqueue.Config{}, cluster.Addr())
	queue := open(t, poisonqueue.Config{Unmarshaler: byHand{}}, cluster.Addr())
	if p := testkit.Must(queue.Get(t.Context(), idAt(t, read, "0-0")))(t); string(p.Message.Payload) != "something" || p.Message.Metadata == nil || p.Message.Acked() == nil {
		t.Errorf("got %+v", p.Message)
	}
	if p, err := queue.Get(t.Context(), idAt(t, read, "0-1")); err == nil || errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("got %+v, %v", p, err)
	}
}

// A queue that was closed says so, and closing what never connected is no error.
func TestClose(t *testing.T) {
	queue := testkit.Must(poisonqueue.New(poisonqueue.Config{Connection: kafka.Connection{Brokers: []string{"127.0.0.1:1"}}}))(t)
	for range 2 {
		testkit.NoError(t, queue.Close())
	}
	if _, err := queue.Get(t.Context(), "0-0-00000000"); !errors.Is(err, poisonqueue.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// What is being deleted while the queue is closed fails, and nothing else does.
func TestCloseWhileDeleting(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	const messages = 8
	sink := newSink(t, cluster.Addr(), "closing", 1)
	var ids []string
	for i := range messages {
		publish(t, sink, strconv.Itoa(i))
		ids = append(ids, idAt(t, open(t, poisonqueue.Config{TopicPrefix: "closing"}, cluster.Addr()), fmt.Sprintf("0-%d", i)))
	}
	for range 5 {
		queue := open(t, poisonqueue.Config{TopicPrefix: "closing"}, cluster.Addr())
		var deleting sync.WaitGroup
		one := make(chan struct{}, 2*messages)
		for i := range 2 * messages { // the same one twice
			deleting.Go(func() {
				for {
					err := queue.Delete(t.Context(), ids[i%messages])
					one <- struct{}{}
					if errors.Is(err, poisonqueue.ErrClosed) {
						return
					}
					if err != nil && !errors.Is(err, router.ErrNotInQueue) {
						t.Errorf("got %v", err)
					}
				}
			})
		}
		<-one
		go func() { // ends with deleting
			for range one {
			}
		}()
		testkit.NoError(t, queue.Close())
		deleting.Wait()
		close(one)
	}
}

func TestConfig(t *testing.T) {
	good := kafka.Connection{Brokers: []string{"localhost:9092"}}
	for name, config := range map[string]poisonqueue.Config{
		"Brokers":           {},
		"Topic":             {Connection: good, Topic: "a..b"},
		"Provision":         {Connection: good, Provision: 7},
		"ReplicationFactor": {Connection: good, ReplicationFactor: -1},
		"Timeout":           {Connection: good, Timeout: -1},
	} {
		if err := config.Validate(); !errors.Is(err, poisonqueue.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	testkit.NoError(t, (poisonqueue.Config{Connection: good, TopicPrefix: kafka.NoTopicPrefix}).Validate())
}

// What a new leader does not show yet is in the queue: who replays would take it for deleted, and replay it again the next time.
func TestLeaderIsBehind(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	queue := open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "a")
	id := idAt(t, queue, "0-0")
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) { // once
		answer := request.ResponseKind().(*kmsg.FetchResponse)
		topic := request.(*kmsg.FetchRequest).Topics[0].Topic
		answer.Topics = []kmsg.FetchResponseTopic{{Topic: topic, Partitions: []kmsg.FetchResponseTopicPartition{{RecordBatches: []byte{}}}}}
		return answer, nil, true
	})
	testkit.NoError(t, queue.Delete(t.Context(), id))
}

// A new leader that does not know yet where its partition ends is asked again.
func TestLeaderKnowsNoEnd(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	queue := open(t, poisonqueue.Config{}, cluster.Addr())
	publish(t, newSink(t, cluster.Addr(), "", 1), "a")
	var failing atomic.Int32
	failing.Store(2) // one more than the client asks again by itself
	cluster.Fake().ControlKey(int16(kmsg.ListOffsets), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		if failing.Add(-1) < 0 {
			return nil, nil, false
		}
		answer := request.ResponseKind().(*kmsg.ListOffsetsResponse)
		topic := request.(*kmsg.ListOffsetsRequest).Topics[0].Topic
		answer.Topics = []kmsg.ListOffsetsResponseTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsResponseTopicPartition{{ErrorCode: kerr.OffsetNotAvailable.Code}}}}
		return answer, nil, true
	})
	testkit.Equal(t, payloads(t, queue), []string{"a"})
}
