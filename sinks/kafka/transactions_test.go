package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// through makes a client connect through a holder.
func through(h *kafkatest.Holder) func(*sarama.Config) {
	return func(c *sarama.Config) { c.Net.Proxy.Enable, c.Net.Proxy.Dialer = true, h }
}

// payloads are those of the records of a topic, committed ones or all.
func payloads(t *testing.T, addr, topic string, committed bool) (list []string) {
	t.Helper()
	if committed {
		for _, record := range kafkatest.Read(t, addr, topic) {
			list = append(list, string(record.Value))
		}
		return list
	}
	ends, err := kadm.NewClient(client(t, addr)).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	reader := client(t, addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}), kgo.KeepControlRecords())
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for at := int64(0); at < end.Offset; {
		fetches := reader.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			at = record.Offset + 1
			if !record.Attrs.IsControl() {
				list = append(list, string(record.Value))
			}
		})
	}
	return list
}

// testFenced: of two sinks with the same ID, the one that began to store later keeps the other one off, at whatever
// point of its transaction that one is.
func testFenced(t *testing.T, addr, prefix string) {
	config := kafka.Config{Brokers: []string{addr}, TopicPrefix: prefix, Partitions: 1, TransactionalID: prefix + "-fenced"}
	for _, kind := range []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.EndTxn} {
		t.Run(kind.Name(), func(t *testing.T) {
			topic := kind.Name()
			var h kafkatest.Holder
			slow := config
			slow.Configure = through(&h)
			former, next := newSink(t, slow), newSink(t, config)
			mustPublish(t, former, topic, newMessage("1"))
			held, release := h.Hold(kind)
			defer release()
			result := make(chan error, 1)
			go func() { result <- former.Publish(topic, newMessage("late")) }()
			<-held
			mustPublish(t, next, topic, newMessage("2"))
			release()
			wantClass(t, <-result, sinks.ErrUnavailable)
			mustPublish(t, next, topic, newMessage("3"))
			if got, want := payloads(t, addr, prefix+"."+topic, true), []string{"1", "2", "3"}; !slices.Equal(got, want) {
				t.Errorf("committed: %q, want %q", got, want)
			}
			if all := payloads(t, addr, prefix+"."+topic, false); slices.Contains(all, "late") != (kind == kmsg.EndTxn) {
				t.Errorf("with what was aborted: %q", all)
			}
			// Who has been fenced off may come back.
			mustPublish(t, former, topic, newMessage("4"))
			wantClass(t, next.Publish(topic, newMessage("5")), sinks.ErrUnavailable)
			mustPublish(t, next, topic, newMessage("5"))
			if got, want := payloads(t, addr, prefix+"."+topic, true), []string{"1", "2", "3", "4", "5"}; !slices.Equal(got, want) {
				t.Errorf("committed: %q, want %q", got, want)
			}
		})
	}
}

// testNotFencing: whose context ends while its producer is being made stores nothing, and whose context has ended
// before fences nobody off.
func testNotFencing(t *testing.T, addr, prefix string) {
	config := kafka.Config{Brokers: []string{addr}, TopicPrefix: prefix, Partitions: 1, TransactionalID: prefix + "-not-fencing"}
	var h kafkatest.Holder
	slow := config
	slow.Configure = through(&h)
	former, next := newSink(t, slow), newSink(t, config)
	held, release := h.Hold(kmsg.InitProducerID)
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	msg := newMessage("late")
	msg.SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- former.Publish("topic", msg) }()
	<-held
	mustPublish(t, next, "topic", newMessage("1"))
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
	mustPublish(t, next, "topic", newMessage("2"))
	release() // and now it does fence the other one off
	testkit.EventuallyNil(t, func() error {
		if err := next.Publish("topic", newMessage("3")); err == nil {
			return errors.New("not fenced off yet")
		}
		return nil
	})
	mustPublish(t, next, "topic", newMessage("4"))
	got := slices.Compact(payloads(t, addr, prefix+".topic", true))
	if want := []string{"1", "2", "3", "4"}; !slices.Equal(got, want) && !slices.Equal(got, []string{"1", "2", "4"}) {
		t.Errorf("committed: %q, want %q", got, want)
	}
	for range 3 {
		late := newMessage("late")
		late.SetContext(ctx)
		if err := former.Publish("topic", late); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the error of the context", err)
		}
		mustPublish(t, next, "topic", newMessage("x"))
	}
}

// testNobodyWaits: what is late is not stored, whether it was sent or still waited behind that.
func testNobodyWaits(t *testing.T, addr, prefix string) {
	var h kafkatest.Holder
	sink := newSink(t, kafka.Config{
		Brokers: []string{addr}, TopicPrefix: prefix, Partitions: 1, TransactionalID: prefix + "-nobody", PublishTimeout: time.Second, Configure: through(&h),
	})
	testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage("0")) })
	held, release := h.Hold(kmsg.Produce)
	defer release()
	var late []*sinks.Publication
	for i := range 4 {
		p, err := sink.PublishAsync("topic", newMessage(fmt.Sprint("late ", i)))
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, p)
		<-held
	}
	for _, p := range late {
		_, err := p.Result()
		wantClass(t, err, sinks.ErrUnavailable)
	}
	release()
	testkit.EventuallyNil(t, func() error { return sink.Publish("topic", newMessage("1")) })
	if got, want := payloads(t, addr, prefix+".topic", true), []string{"0", "1"}; !slices.Equal(got, want) {
		t.Errorf("committed: %q, want %q", got, want)
	}
}

// testPlainTopics: they have no marks of transactions.
func testPlainTopics(t *testing.T, addr, prefix string) {
	sink := newSink(t, kafka.Config{
		Brokers: []string{addr}, TopicPrefix: prefix, Partitions: 1, TransactionalID: prefix + "-plain", PlainTopics: []string{"poison"},
	})
	for topic, want := range map[string]int64{"poison": 3, "topic": 6} {
		for i := range 3 {
			mustPublish(t, sink, topic, newMessage(fmt.Sprint(i)))
		}
		if got := payloads(t, addr, prefix+"."+topic, true); !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("%s: %q", topic, got)
		}
		if depth, err := sink.Depth(t.Context(), topic); err != nil || depth != want {
			t.Errorf("%s: %d records, %v; want %d", topic, depth, err, want)
		}
	}
}

// TestErrorsOfCoordinators: what the coordinator of a transaction says has its class, and what is to be
// repeated is.
func TestErrorsOfCoordinators(t *testing.T) {
	t.Parallel()
	for _, key := range []kmsg.Key{kmsg.FindCoordinator, kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.EndTxn} {
		for _, c := range []answer{
			{kerr.CoordinatorNotAvailable, 2, nil},
			{kerr.CoordinatorLoadInProgress, 2, nil},
			{kerr.ConcurrentTransactions, 2, nil},
			{kerr.CoordinatorNotAvailable, -1, sinks.ErrUnavailable},
			{kerr.TransactionalIDAuthorizationFailed, -1, sinks.ErrUnavailable},
			{kerr.ProducerFenced, -1, sinks.ErrUnavailable},
			{kerr.InvalidProducerEpoch, -1, sinks.ErrUnavailable},
			{kerr.InvalidProducerIDMapping, -1, sinks.ErrUnavailable},
			{kerr.InvalidTransactionTimeout, -1, sinks.ErrUnavailable},
			{kerr.UnknownServerError, -1, sinks.ErrUnavailable},
		} {
			if key == kmsg.FindCoordinator && (c.code == kerr.ConcurrentTransactions || c.code == kerr.CoordinatorLoadInProgress) {
				continue // it does not say so
			}
			t.Run(fmt.Sprint(key.Name(), c.code.Message, c.count), func(t *testing.T) {
				t.Parallel()
				cluster := kafkatest.Start(t)
				config := kafka.Config{Brokers: []string{cluster.Addr()}, TransactionalID: "tests"}
				if c.want != nil {
					config.PublishTimeout = 2 * time.Second
				}
				mustPublish(t, newSink(t, config), "topic", newMessage("before"))
				c.test(t, cluster, newSink(t, config), key)
			})
		}
	}
}

// TestTransactionsHoldTogether: messages that come while a transaction is under way are stored by the next one, all
// together.
func TestTransactionsHoldTogether(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Brokers: []string{cluster.Addr()}, Partitions: 1, TransactionalID: "tests"})
	mustPublish(t, sink, "topic", newMessage("first"))
	ended := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, Observe: true, Count: -1})
	cluster.Proxy.Hang()
	var publications []*sinks.Publication
	for i := range 100 {
		p, err := sink.PublishAsync("topic", newMessage(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		publications = append(publications, p)
	}
	cluster.Proxy.Resume()
	for _, p := range publications {
		if _, err := p.Result(); err != nil {
			t.Fatal(err)
		}
	}
	got := payloads(t, cluster.Addr(), "agrimill.topic", true)
	for i, payload := range got[1:] {
		if payload != fmt.Sprint(i) {
			t.Fatalf("stored: %q", got)
		}
	}
	if len(got) != 101 || ended.Hits() > 3 {
		t.Errorf("%d messages in %d transactions", len(got), ended.Hits())
	}
}

// TestTwoSinksFight: two that work at the same time with the same ID make progress, and lose nothing.
func TestTwoSinksFight(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	const each = 50
	var group sync.WaitGroup
	var failures atomic.Int64
	for s := range 2 {
		sink := newSink(t, kafka.Config{Brokers: []string{cluster.Addr()}, Partitions: 1, TransactionalID: "tests"})
		group.Go(func() {
			pause := time.NewTicker(time.Duration(s+1) * 5 * time.Millisecond)
			defer pause.Stop()
			for i := 0; i < each; <-pause.C {
				switch err := sink.Publish("topic", newMessage(fmt.Sprint(s, " ", i))); {
				case err == nil:
					i++
				case errors.Is(err, sinks.ErrUnavailable):
					failures.Add(1)
				default:
					t.Errorf("Publish: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	next := map[byte]int{}
	for _, payload := range payloads(t, cluster.Addr(), "agrimill.topic", true) {
		s := payload[0]
		if payload != fmt.Sprint(string(s), " ", next[s]) {
			t.Fatalf("got %q, want the %dth of %c", payload, next[s], s)
		}
		next[s]++
	}
	if next['0'] != each || next['1'] != each || failures.Load() == 0 {
		t.Errorf("%v messages, %d failures", next, failures.Load())
	}
}

// testFencedWithoutKey: a message without a key goes to the partition of its ID, where the one before is fenced off.
func testFencedWithoutKey(t *testing.T, addr, prefix string) {
	config := kafka.Config{
		Brokers: []string{addr}, TopicPrefix: prefix, Partitions: 8, TransactionalID: prefix + "-no-key", PartitionKey: kafka.NoPartitionKey,
	}
	var h kafkatest.Holder
	slow := config
	slow.Configure = through(&h)
	former, next := newSink(t, slow), newSink(t, config)
	used := map[int32]bool{}
	for i := range 10 {
		numbered := func() *message.Message {
			msg := newMessage(fmt.Sprint(i))
			msg.Metadata[sinks.KeyDedupID] = fmt.Sprint("message ", i)
			return msg
		}
		held, release := h.Hold(kmsg.EndTxn)
		result := make(chan error, 1)
		go func() { result <- former.Publish("topic", numbered()) }()
		<-held
		testkit.EventuallyNil(t, func() error { return next.Publish("topic", numbered()) }) // the last one may have fenced it off
		release()
		wantClass(t, <-result, sinks.ErrUnavailable)
	}
	seen := map[string]int{}
	for _, record := range kafkatest.Read(t, addr, prefix+".topic") {
		seen[string(record.Value)]++
		used[record.Partition] = true
	}
	for i := range 10 {
		if n := seen[fmt.Sprint(i)]; n != 1 {
			t.Errorf("message %d is there %d times", i, n)
		}
	}
	if len(used) < 3 {
		t.Errorf("all went to partitions %v", used)
	}
}

// TestRestOfATransactionIsAborted: after the first message that fails nothing more is sent, and all are told.
func TestRestOfATransactionIsAborted(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Brokers: []string{cluster.Addr()}, Partitions: 1, TransactionalID: "tests"})
	mustPublish(t, sink, "topic", newMessage("first"))
	payload := string(random(t, 60_000))
	stored := 1
	for round := range 6 {
		var requests atomic.Int64
		fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.PolicyViolation, Count: 1, When: func(kmsg.Request) bool {
			return requests.Add(1) > int64(1+round)
		}})
		cluster.Proxy.Hang()
		var publications []*sinks.Publication
		for range 200 {
			p, err := sink.PublishAsync("topic", newMessage(payload))
			if err != nil {
				t.Fatal(err)
			}
			publications = append(publications, p)
		}
		cluster.Proxy.Resume()
		failed := 0
		for _, p := range publications {
			if _, err := p.Result(); err != nil {
				wantClass(t, err, sinks.ErrUnavailable)
				failed++
			}
		}
		fault.Remove()
		if failed == 0 || failed == len(publications) {
			t.Errorf("%d of %d messages failed", failed, len(publications))
		}
		stored += len(publications) - failed
	}
	if n := len(kafkatest.Read(t, cluster.Addr(), "agrimill.topic")); n != stored {
		t.Errorf("%d messages are there, %d were reported as stored", n, stored)
	}
}

// TestChoosingAPartitionAsksNobody: a call takes no longer than its context, whatever the brokers said of the topic.
func TestChoosingAPartitionAsksNobody(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Brokers: []string{cluster.Addr()}, PublishTimeout: 10 * testkit.Patience, CloseTimeout: time.Second, TransactionalID: "tests"})
	mustPublish(t, sink, "topic", newMessage("first"))
	fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: "agrimill.topic", Err: kerr.TopicAuthorizationFailed, Count: -1})
	if err := sink.Health(t.Context()); err == nil {
		t.Error("healthy")
	}
	fault.Remove()
	cluster.Proxy.Hang()
	defer cluster.Proxy.Resume()
	var p *sinks.Publication
	testkit.Ends(t, "PublishAsync", func() {
		var err error
		if p, err = sink.PublishAsync("topic", newMessage("second")); err != nil {
			t.Error(err)
		}
	})
	if err := sink.Close(); err != nil {
		t.Error(err)
	}
	_, err := p.Result()
	wantClass(t, err, sinks.ErrClosed)
}

// TestCloseWithoutACoordinator: a cluster that names no coordinator holds up nobody.
func TestCloseWithoutACoordinator(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	sink := newSink(t, kafka.Config{Brokers: []string{cluster.Addr()}, CloseTimeout: 300 * time.Millisecond, PublishTimeout: 10 * testkit.Patience, TransactionalID: "tests"})
	fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.CoordinatorNotAvailable, Count: -1})
	p, err := sink.PublishAsync("topic", newMessage("x"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := fault.Wait(ctx, 2); err != nil {
		t.Fatal(err)
	}
	testkit.Ends(t, "Close", func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	_, err = p.Result()
	wantClass(t, err, sinks.ErrClosed)
}
