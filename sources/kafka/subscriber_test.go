package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(testkit.SuiteLeaks(), testkit.SaramaLeaks()...)...)
}

// quick makes a member that asks and commits often, and whose readers, which end with an answer, get one soon. It is not
// missed because the machine is busy.
func quick(c *sarama.Config) {
	c.Consumer.Group.Session.Timeout, c.Consumer.Group.Heartbeat.Interval = 30*time.Second, 200*time.Millisecond
	c.Consumer.Group.Rebalance.Timeout = 10 * time.Second
	c.Consumer.Offsets.AutoCommit.Interval = 50 * time.Millisecond
	c.Metadata.Retry.Backoff = 50 * time.Millisecond
	c.Consumer.Retry.Backoff = 50 * time.Millisecond
	c.Consumer.MaxWaitTime = 100 * time.Millisecond
}

// topic is a topic at a broker, with a group that reads it.
type topic struct {
	*testing.T
	addr, name string
	client     *kgo.Client
}

func newTopic(t *testing.T, addr string, partitions int32) *topic {
	t.Helper()
	client := kafkatest.Client(t, addr)
	name := fmt.Sprintf("t%d", time.Now().UnixNano())
	testkit.Must(kadm.NewClient(client).CreateTopic(t.Context(), partitions, 1, nil, name))(t)
	return &topic{t, addr, name, client}
}

// put stores n records "key number" in turn for each of the keys, each number of a key once.
func (f *topic) put(keys, n int) {
	f.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		key := fmt.Sprintf("k%d", i%keys)
		records[i] = &kgo.Record{Topic: f.name, Key: []byte(key), Value: fmt.Appendf(nil, "%s %d", key, i/keys)}
	}
	testkit.NoError(f, f.client.ProduceSync(f.Context(), records...).FirstErr())
}

func (f *topic) subscriber(logger watermill.LoggerAdapter, change ...func(*kafka.Config)) *kafka.Subscriber {
	f.Helper()
	config := kafka.Config{
		Connection: sinkkafka.Connection{Brokers: []string{f.addr}}, TopicPrefix: sinkkafka.NoTopicPrefix, Topics: []string{f.name}, Group: f.name,
		Client: quick, CloseTimeout: time.Second, MaxNackDelay: time.Millisecond,
	}
	for _, c := range change {
		c(&config)
	}
	s := testkit.Must(kafka.New(config, logger))(f)
	f.Cleanup(func() { _ = s.Close() })
	return s
}

func (f *topic) subscribe(s *kafka.Subscriber) <-chan *message.Message {
	f.Helper()
	messages := testkit.Must(s.Subscribe(context.Background(), ""))(f)
	return messages
}

func (f *topic) next(messages <-chan *message.Message) *message.Message {
	f.Helper()
	msg := testkit.Receive(f, "a message", messages)
	if msg == nil {
		f.Fatal("the subscription has ended")
	}
	return msg
}

// committed is the offset of the group in partition 0: 0 without one, -1 without an answer.
func (f *topic) committed() int64 {
	f.Helper()
	offsets, err := kadm.NewClient(f.client).FetchOffsets(context.Background(), f.name)
	if err != nil {
		return -1
	}
	if o, ok := offsets.Lookup(f.name, 0); ok {
		return max(0, o.At)
	}
	return 0
}

func (f *topic) eventuallyCommitted(want int64) {
	f.Helper()
	testkit.Eventually(f, fmt.Sprintf("offset %d is committed", want), func() bool { return f.committed() == want })
}

// shared are the tests that run against a broker in the process and against a real one.
var shared = map[string]func(t *testing.T, addr string){
	"Order": testOrder, "Offsets": testOffsets, "Span": testSpan, "Bytes": testBytes, "Stuck": testStuck, "Rebalance": testRebalance, "Close": testClose,
	"Transactions": testTransactions, "Start": testStart, "AddedPartition": testAddedPartition, "RetentionWhileRunning": testRetentionWhileRunning,
	"RecreatedTopic": testRecreatedTopic, "Topics": testTopics, "TwoSubscriptions": testTwoSubscriptions, "Look": testLook, "NoTopic": testNoTopic,
}

func TestShared(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	t.Run("tests", func(t *testing.T) { runShared(t, cluster.Addr()) })
}

func runShared(t *testing.T, addr string) {
	for name, test := range shared {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, addr)
		})
	}
}

// Whatever is nacked, the messages of each key are handled in their order, those of several
// keys at the same time.
func testOrder(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	const keys, n = 20, 2000
	f.put(keys, n)
	messages := f.subscribe(f.subscriber(nil))
	var mu sync.Mutex
	next, open, most := map[string]int{}, 0, 0
	done := make(chan struct{})
	var handlers sync.WaitGroup
	handle := func(msg *message.Message, nack bool) {
		mu.Lock()
		defer mu.Unlock()
		open--
		var key string
		var number int
		if _, err := fmt.Sscan(string(msg.Payload), &key, &number); err != nil || number != next[key] {
			t.Errorf("%q comes, want number %d of its key", msg.Payload, next[key])
		}
		if nack {
			msg.Nack()
			return
		}
		next[key]++
		total := 0
		for _, n := range next {
			total += n
		}
		msg.Ack()
		if total == n {
			close(done)
		}
	}
	for i := 0; ; i++ {
		select {
		case msg := <-messages:
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			handlers.Go(func() { handle(msg, i%17 == 5) })
			continue
		case <-done:
		case <-time.After(testkit.Patience):
			t.Fatalf("nothing came after %d", i)
		}
		break
	}
	handlers.Wait()
	if most < 2 {
		t.Error("one message was open at a time")
	}
	f.eventuallyCommitted(n)
}

// The committed offset is that of the lowest record that is not acked, and the next member
// begins there.
func testOffsets(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	f.put(10, 100)
	s := f.subscriber(nil)
	messages := f.subscribe(s)
	open := map[string]*message.Message{}
	for range 10 {
		msg := f.next(messages)
		open[string(msg.Payload)] = msg
	}
	open["k0 0"].Ack()
	open["k1 0"].Ack()
	for _, key := range []string{"k3", "k4"} {
		open[key+" 0"].Ack()
	}
	f.eventuallyCommitted(2)
	testkit.NoError(t, s.Close())
	if got := f.committed(); got != 2 {
		t.Errorf("offset %d is committed, want 2", got)
	}
	seen := map[string]bool{}
	messages = f.subscribe(f.subscriber(nil))
	for len(seen) < 98 {
		msg := f.next(messages)
		seen[string(msg.Payload)] = true
		msg.Ack()
	}
	if seen["k0 0"] || seen["k1 0"] {
		t.Error("what was committed came again")
	}
	f.eventuallyCommitted(100)
}

// A record that is never acked holds back so many offsets and no more, which the log says, and
// the partition goes on when it is acked.
func testSpan(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	const span, n = 500, 1500
	f.put(50, n)
	log := &logBuffer{}
	s := f.subscriber(watermill.NewSlogLogger(slog.New(slog.NewTextHandler(log, nil))), func(c *kafka.Config) { c.MaxInFlight = 10 })
	s.SetMaxSpan(span)
	messages := f.subscribe(s)
	stuck := f.next(messages) // k0 0
	passed := 0
	for passed < span*49/50 {
		f.next(messages).Ack()
		passed++
	}
	testkit.Eventually(t, "the log tells that the partition is paused", func() bool { return strings.Contains(log.String(), "Kafka partition paused") })
	select {
	case msg := <-messages:
		t.Errorf("%s came from a paused partition", msg.Payload)
	case <-time.After(200 * time.Millisecond):
	}
	if got := f.committed(); got != 0 {
		t.Errorf("offset %d is committed", got)
	}
	stuck.Ack()
	for range n - passed - 1 {
		f.next(messages).Ack()
	}
	f.eventuallyCommitted(n)
}

// Large records: no more of them are held than fit into maxAhead, however many may be in flight.
func testBytes(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	const n, size = 80, 900_000
	const most = (32<<20)/size + 1
	for i := range n {
		half := make([]byte, size/2)
		record := &kgo.Record{Topic: f.name, Key: fmt.Append(nil, i), Value: half, Headers: []kgo.RecordHeader{{Key: "h", Value: half}}}
		testkit.NoError(t, f.client.ProduceSync(t.Context(), record).FirstErr())
	}
	messages := f.subscribe(f.subscriber(nil))
	var open []*message.Message
	for range most {
		open = append(open, f.next(messages))
	}
	select {
	case <-messages:
		t.Fatalf("more than %d records are held", most)
	case <-time.After(200 * time.Millisecond):
	}
	for _, msg := range open {
		msg.Ack()
	}
	for range n - most {
		f.next(messages).Ack()
	}
	f.eventuallyCommitted(n)
}

// A partition that large records stop, because nothing takes them, is told.
func testStuck(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	const n, size = 50, 900_000
	for i := range n {
		record := &kgo.Record{Topic: f.name, Key: fmt.Append(nil, i), Value: make([]byte, size)}
		testkit.NoError(t, f.client.ProduceSync(t.Context(), record).FirstErr())
	}
	log := &logBuffer{}
	messages := f.subscribe(f.subscriber(watermill.NewSlogLogger(slog.New(slog.NewTextHandler(log, nil)))))
	for range (32<<20)/size + 1 {
		msg := f.next(messages)
		msgctx.NackOf(msg.Context()).Want(msgctx.SetAside)
		msg.Nack()
	}
	testkit.Eventually(t, "the log tells that the partition is paused", func() bool { return strings.Contains(log.String(), "Kafka partition paused: records of 32 MiB") })
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// unhurried gives messages that are open so much time when their partition or subscription ends.
func unhurried(closeTimeout time.Duration) func(*kafka.Config) {
	return func(c *kafka.Config) {
		c.CloseTimeout = closeTimeout
		c.Client = func(c *sarama.Config) {
			quick(c)
			c.Consumer.Group.Rebalance.Timeout = 2 * closeTimeout
		}
	}
}

// Another member joins while messages are open: one that is acked within CloseTimeout counts,
// and the context of the other one ends, its ack is void, and it comes again.
func testRebalance(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	f.put(2, 2)
	first := f.subscribe(f.subscriber(nil, unhurried(30*time.Second)))
	acked, late := f.next(first), f.next(first)
	second := f.subscriber(nil)
	messages := f.subscribe(second)
	acked.Ack()
	testkit.Receive(t, "the end of the context", late.Context().Done())
	late.Ack()
	// One of both has the partition now.
	var again *message.Message
	select {
	case again = <-first:
	case again = <-messages:
	case <-time.After(testkit.Patience):
		t.Fatal("the message did not come again")
	}
	if string(again.Payload) != string(late.Payload) {
		t.Errorf("%s came, want %s", again.Payload, late.Payload)
	}
	if got := f.committed(); got != 1 {
		t.Errorf("offset %d is committed, want 1", got)
	}
	again.Ack()
	f.eventuallyCommitted(2)
}

// What is open when the subscription ends can still be acked.
func testClose(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	f.put(1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	s := f.subscriber(nil, unhurried(testkit.Patience))
	messages := testkit.Must(s.Subscribe(ctx, ""))(t)
	msg := f.next(messages)
	cancel()
	select {
	case <-msg.Context().Done():
		t.Error("the message's context has ended")
	case <-messages:
		t.Error("the channel is closed while a message is open")
	case <-time.After(300 * time.Millisecond):
	}
	msg.Ack()
	if _, open := <-messages; open {
		t.Error("the channel is open after the end of the context")
	}
	if got := f.committed(); got != 1 {
		t.Errorf("offset %d is committed, want 1", got)
	}
	testkit.NoError(t, s.Close())
	if _, err := s.Subscribe(t.Context(), ""); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A broker that does not answer may have given the partitions to somebody else: what is open
// is given up before the session's time is over, and comes again.
func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 1)
	f.put(1, 1)
	messages := f.subscribe(f.subscriber(nil, func(c *kafka.Config) {
		c.Client = func(c *sarama.Config) {
			quick(c)
			c.Consumer.Group.Session.Timeout = 6 * time.Second // two thirds of it are waited for
		}
	}))
	msg := f.next(messages)
	cluster.Proxy.Hang()
	testkit.Receive(t, "the end of the context", msg.Context().Done())
	msg.Ack()
	cluster.Proxy.Resume()
	again := f.next(messages)
	again.Ack()
	f.eventuallyCommitted(1)
}

func TestBrokerOutage(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 1)
	f.put(5, 100)
	messages := f.subscribe(f.subscriber(nil))
	seen := map[string]bool{}
	take := func(n int) {
		for len(seen) < n {
			msg := f.next(messages)
			seen[string(msg.Payload)] = true
			msg.Ack()
		}
	}
	take(50)
	cluster.Proxy.Cut()
	take(75)
	cluster.Stop()
	cluster.Restart()
	take(100)
	f.eventuallyCommitted(100)

	cluster.Stop()
	if _, err := f.subscriber(nil, func(c *kafka.Config) { c.ConnectTimeout = time.Second }).Subscribe(t.Context(), ""); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a broker: %v", err)
	}
	cluster.Restart()
}

// The broker goes away while partitions change hands: nothing is lost, and nothing of a key is
// skipped.
func TestRebalanceInOutage(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 2)
	const keys, n = 6, 120
	f.put(keys, n)
	next := map[string]int{}
	seen := 0
	take := func(msg *message.Message) {
		var key string
		var number int
		testkit.Must(fmt.Sscan(string(msg.Payload), &key, &number))(t)
		switch {
		case number > next[key]:
			t.Errorf("%s comes before %d of its key", msg.Payload, next[key])
		case number == next[key]: // otherwise again, because its ack was lost
			next[key]++
			seen++
		}
		msg.Ack()
	}
	first := f.subscribe(f.subscriber(nil))
	for seen < n/4 {
		take(f.next(first))
	}
	open := f.next(first) // while the second one joins
	joining := f.subscriber(nil)
	var second <-chan *message.Message
	join := func() (err error) {
		second, err = joining.Subscribe(context.Background(), "")
		return err
	}
	joined := make(chan error, 1)
	go func() { joined <- join() }() // ends when the broker answers, or does not
	cluster.Proxy.Cut()
	cluster.Stop()
	take(open)
	cluster.Restart()
	if err := <-joined; errors.Is(err, sinks.ErrUnavailable) {
		testkit.EventuallyNil(t, join)
	} else if err != nil {
		t.Fatal(err)
	}
	take(f.next(second)) // nothing else is handled until it has a partition
	for seen < n {
		select {
		case msg := <-first:
			take(msg)
		case msg := <-second:
			take(msg)
		case <-time.After(testkit.Patience):
			t.Fatalf("nothing came after %d of %d", seen, n)
		}
	}
}

func TestConfig(t *testing.T) {
	valid := kafka.Config{Connection: sinkkafka.Connection{Brokers: []string{"a:9092"}}, Topics: []string{"a"}, Group: "a"}
	for name, change := range map[string]func(*kafka.Config){
		"brokers": func(c *kafka.Config) { c.Brokers = nil }, "topics": func(c *kafka.Config) { c.Topics = []string{"a", "b", "a"} },
		"spellings": func(c *kafka.Config) { c.Topics = []string{"a b", sinkkafka.TopicName(sinkkafka.NoTopicPrefix, "a b")} },
		"topic":     func(c *kafka.Config) { c.Topics = []string{"a..b"} }, "prefix": func(c *kafka.Config) { c.TopicPrefix = "a b" }, "group": func(c *kafka.Config) { c.Group = "" },
		"in flight": func(c *kafka.Config) { c.MaxInFlight = -1 }, "nack delay": func(c *kafka.Config) { c.MaxNackDelay = -1 },
		"close timeout": func(c *kafka.Config) { c.CloseTimeout = time.Minute },
		"client":        func(c *kafka.Config) { c.Client = func(c *sarama.Config) { c.Consumer.Fetch.Min = -1 } },
	} {
		config := valid
		change(&config)
		if _, err := kafka.New(config, nil); !errors.Is(err, kafka.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	testkit.Must(kafka.New(valid, nil))(t)
}

// TestUniversalSuite runs Watermill's own suite for every Pub/Sub, with our sink and this
// source. TestBroker sends all its messages.
func TestUniversalSuite(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	t.Run("suite", func(t *testing.T) { testUniversal(t, cluster.Addr(), true) })
}

// testUniversal sends fewer messages if it is short.
func testUniversal(t *testing.T, addr string, short bool) {
	features := tests.Features{
		ConsumerGroups:                      true,
		ExactlyOnceDelivery:                 false,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true, // a rebalance delivers again what is open
		Persistent:                          true,
		RequireSingleInstance:               false,
		NewSubscriberReceivesOldMessages:    false, // what the group has acked does not come again
		ContextPreserved:                    false,
		ForceShort:                          short,
	}
	run := fmt.Sprintf("u%d", time.Now().UnixNano())
	group := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		sink := testkit.Must(sinkkafka.New(sinkkafka.Config{Connection: sinkkafka.Connection{Brokers: []string{addr}}, Partitions: 1}, nil))(t)
		source, err := kafka.New(kafka.Config{
			// The suite subscribes to topics that nobody has published to.
			Connection: sinkkafka.Connection{Brokers: []string{addr}, RetryOnFailedConnect: true}, Group: run + group, Client: quick,
			MaxNackDelay: 10 * time.Millisecond,
			CloseTimeout: 200 * time.Millisecond, // the suite closes with messages open that it never acks
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = errors.Join(sink.Close(), source.Close()) })
		return sink, source
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "suite") }, group)
}

// TestDeliveriesAreNamed: each delivery of a message has the same name, and no other message
// has it, however equal.
func TestDeliveriesAreNamed(t *testing.T) {
	t.Parallel()
	f := newTopic(t, kafkatest.Start(t, kfake.ClusterID("one")).Addr(), 1)
	record := &kgo.Record{Topic: f.name, Value: []byte("same")}
	for range 2 {
		testkit.NoError(t, f.client.ProduceSync(t.Context(), record).FirstErr())
	}
	var names []string
	take := func(messages <-chan *message.Message) *message.Message {
		msg := f.next(messages)
		names = append(names, msgctx.Delivery(msg.Context()))
		if stored := msgctx.Stored(msg.Context()); stored.IsZero() || stored.After(time.Now()) {
			t.Errorf("stored at %v", stored)
		}
		return msg
	}
	s := f.subscriber(nil)
	messages := f.subscribe(s)
	take(messages).Nack()
	take(messages).Ack()
	take(messages).Nack() // the other one, which the next subscription gets again
	testkit.NoError(t, s.Close())
	s = f.subscriber(nil)
	take(f.subscribe(s)).Ack()
	testkit.NoError(t, s.Close())
	if names[0] == "" || names[0] != names[1] || names[1] == names[2] || names[2] != names[3] {
		t.Errorf("names of two equal messages, each delivered twice: %q", names)
	}
}

// TestDeliveriesOfTwoClusters: records of two clusters with the same topic, partition, offset and
// timestamp have different names, and the same name as before when their cluster has been restarted.
func TestDeliveriesOfTwoClusters(t *testing.T) {
	t.Parallel()
	at, first := time.UnixMilli(1_700_000_000_000), ""
	for _, id := range []string{"one", "two"} {
		cluster := kafkatest.Start(t, kfake.ClusterID(id))
		f := newTopic(t, cluster.Addr(), 1)
		if first == "" {
			first = f.name
		} else if _, err := kadm.NewClient(f.client).CreateTopic(t.Context(), 1, 1, nil, first); err != nil {
			t.Fatal(err)
		}
		f.name = first
		testkit.NoError(t, f.client.ProduceSync(t.Context(), &kgo.Record{Topic: f.name, Value: []byte("same"), Timestamp: at}).FirstErr())
		place := fmt.Sprintf("%s 0 0 %d", f.name, at.UnixNano())
		for round := range 2 {
			s := f.subscriber(nil, func(c *kafka.Config) { c.Group = fmt.Sprint(round) })
			msg := f.next(f.subscribe(s))
			if name := msgctx.Delivery(msg.Context()); name != "kafka "+id+" "+place {
				t.Errorf("got %q", name)
			}
			msg.Ack()
			testkit.NoError(t, s.Close())
			cluster.Stop()
			cluster.Restart()
		}
	}
}

// What was aborted is not delivered, and what is committed only then.
func testTransactions(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	writer := kafkatest.Client(t, addr, kgo.TransactionalID(f.name), kgo.DefaultProduceTopic(f.name))
	messages := f.subscribe(f.subscriber(nil))
	begin := func(payload string) {
		t.Helper()
		testkit.NoError(t, writer.BeginTransaction())
		testkit.NoError(t, writer.ProduceSync(t.Context(), kgo.StringRecord(payload)).FirstErr())
	}
	end := func(how kgo.TransactionEndTry) {
		t.Helper()
		testkit.NoError(t, writer.EndTransaction(t.Context(), how))
	}
	for n := range 3 {
		begin(fmt.Sprint("aborted ", n))
		end(kgo.TryAbort)
		want := fmt.Sprint("committed ", n)
		begin(want)
		select {
		case msg := <-messages:
			t.Errorf("%s is delivered before it is committed", msg.Payload)
			msg.Ack()
		case <-time.After(300 * time.Millisecond):
		}
		end(kgo.TryCommit)
		msg := f.next(messages)
		if string(msg.Payload) != want {
			t.Errorf("got %s, want %s", msg.Payload, want)
		}
		msg.Ack()
		f.eventuallyCommitted(int64(4*n + 3)) // with the marks that end transactions
	}
}
