package kafka_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

// add stores n records in a partition, "partition offset" each if the topic is new. Each time it uses a client of its own: one
// may go on for long with the ID of a topic that is gone.
func (f *topic) add(partition int32, from, n int) {
	f.Helper()
	added := 0
	testkit.EventuallyNil(f, func() error {
		client := kafkatest.Client(f, f.addr, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for ; added < n; added++ {
			record := &kgo.Record{Topic: f.name, Partition: partition, Value: fmt.Appendf(nil, "%d %d", partition, from+added)}
			err := client.ProduceSync(f.Context(), record).FirstErr()
			if err != nil && !errors.Is(err, kerr.UnknownTopicID) { // a broker may not know yet that it was created again
				f.Fatal(err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *topic) commit(partition int32, at int64) {
	f.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(f.name, partition, at, -1)
	f.commitAll(offsets)
}

func (f *topic) commitAll(offsets kadm.Offsets) {
	f.Helper()
	client := kafkatest.Client(f, f.addr) // f.client may know a topic that is gone
	// The coordinator may not know a topic yet that was just made.
	testkit.EventuallyNil(f, func() error { return kadm.NewClient(client).CommitAllOffsets(f.Context(), f.name, offsets) })
}

// deleteBefore does what retention does.
func (f *topic) deleteBefore(partition int32, at int64) {
	f.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(f.name, partition, at, -1)
	if deleted, err := kadm.NewClient(f.client).DeleteRecords(f.Context(), offsets); err != nil || deleted.Error() != nil {
		f.Fatal(err, deleted.Error())
	}
}

// take acks messages until one is the last, and returns the payloads in their order.
func (f *topic) take(messages <-chan *message.Message, last string) (got []string) {
	f.Helper()
	for !slices.Contains(got, last) {
		msg := f.next(messages)
		got = append(got, string(msg.Payload))
		msg.Ack()
	}
	return got
}

// Where each partition is read from, by what the group has and what is there of the topic: partition 0 gets five records,
// partition 1 two, and both another one after Subscribe.
func testStart(t *testing.T, addr string) {
	const none = -2
	const gone, beyond = "Kafka records were deleted before they were acknowledged", "Kafka offset is beyond the end"
	for name, c := range map[string]struct {
		committed [2]int64
		deleted   int64 // of partition 0
		from      [2]int
		newFrom   [2]int // with StartNewest; zero: not tried
		log       string
	}{
		"new group":                        {committed: [2]int64{none, none}, newFrom: [2]int{5, 2}},
		"new group after retention":        {committed: [2]int64{none, none}, deleted: 3, from: [2]int{3, 0}, newFrom: [2]int{5, 2}},
		"goes on":                          {committed: [2]int64{3, 1}, from: [2]int{3, 1}, newFrom: [2]int{3, 1}},
		"at the end":                       {committed: [2]int64{5, 2}, from: [2]int{5, 2}},
		"offsets of one partition":         {committed: [2]int64{3, none}, from: [2]int{3, 0}, newFrom: [2]int{3, 0}},
		"reset to none":                    {committed: [2]int64{-1, 1}, from: [2]int{0, 1}, newFrom: [2]int{0, 1}},
		"deleted unread":                   {committed: [2]int64{1, 2}, deleted: 4, from: [2]int{4, 2}, log: gone + " deleted=3"},
		"deleted, all of it":               {committed: [2]int64{1, 2}, deleted: 5, from: [2]int{5, 2}, log: gone + " deleted=4"},
		"deleted what was read":            {committed: [2]int64{4, 2}, deleted: 4, from: [2]int{4, 2}},
		"beyond the end":                   {committed: [2]int64{50, 2}, from: [2]int{0, 2}, log: beyond},
		"beyond the end, after retention":  {committed: [2]int64{50, 2}, deleted: 2, from: [2]int{2, 2}, log: beyond},
		"beyond the end of a second topic": {committed: [2]int64{5, 50}, from: [2]int{5, 0}, log: beyond},
	} {
		readers := map[kafka.Start][2]int{kafka.StartOldest: c.from}
		if c.newFrom != [2]int{} {
			readers[kafka.StartNewest] = c.newFrom
		}
		for start, from := range readers {
			t.Run(fmt.Sprint(name, " ", start), func(t *testing.T) {
				t.Parallel()
				f := newTopic(t, addr, 2)
				f.add(0, 0, 5)
				f.add(1, 0, 2)
				for partition, at := range c.committed {
					if at != none {
						f.commit(int32(partition), at)
					}
				}
				if c.deleted > 0 {
					f.deleteBefore(0, c.deleted)
				}
				config := kafka.Config{
					Connection: sinkkafka.Connection{Brokers: []string{addr}}, TopicPrefix: sinkkafka.NoTopicPrefix, Group: f.name, Start: start, Client: quick,
				}
				log := testkit.NewLog()
				found := testkit.Must(kafka.Look(config, f.name, log))(t)
				testkit.Equal(t, found, kafka.Found{Partitions: 2, New: c.committed[0] < 0 && c.committed[1] < 0, Waiting: int64(7 - from[0] - from[1])})
				hasLine(t, log, c.log)
				log = testkit.NewLog()
				s := testkit.Must(kafka.New(config, log))(t)
				defer func() { _ = s.Close() }()
				messages := testkit.Must(s.Subscribe(t.Context(), f.name))(t)
				f.add(0, 5, 1)
				f.add(1, 2, 1)
				f.expect(messages, from)
				hasLine(t, log, c.log)
			})
		}
	}
}

// expect takes what there is from these offsets on: up to 5 in partition 0, and to 2 in partition 1.
func (f *topic) expect(messages <-chan *message.Message, from [2]int) {
	f.Helper()
	var want, got []string
	for partition, end := range []int{6, 3} {
		for i := from[partition]; i < end; i++ {
			want = append(want, fmt.Sprint(partition, " ", i))
		}
	}
	for len(got) < len(want) {
		msg := f.next(messages)
		got = append(got, string(msg.Payload))
		msg.Ack()
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		f.Errorf("got %q, want %q", got, want)
	}
}

// hasLine wants one line of a text and the field behind it, or nothing that warns without a text.
func hasLine(t *testing.T, log *testkit.Log, text string) {
	t.Helper()
	text, field, _ := strings.Cut(text, " deleted=")
	n := 0
	for _, line := range log.Lines(watermill.ErrorLogLevel, watermill.InfoLogLevel) {
		warns := strings.Contains(line.Msg, "deleted") || strings.Contains(line.Msg, "beyond") || strings.Contains(line.Msg, "created again")
		if !warns {
			continue
		}
		n++
		if text == "" || !strings.Contains(line.Msg, text) || field != "" && fmt.Sprint(line.Fields["deleted"]) != field {
			t.Errorf("got the line %q with %v, want %q %s", line.Msg, line.Fields, text, field)
		}
	}
	if want := min(1, len(text)); n != want {
		t.Errorf("got %d lines, want %d: %s", n, want, log)
	}
}

// A partition that is added while the group reads is read from its beginning, whatever Start says.
func testAddedPartition(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	f.add(0, 0, 3)
	s := f.subscriber(nil, func(c *kafka.Config) { c.Start = kafka.StartNewest })
	messages := f.subscribe(s)
	f.add(0, 3, 1)
	if got := f.take(messages, "0 3"); len(got) != 1 {
		t.Errorf("got %q, want the record after Subscribe only", got)
	}
	f.eventuallyCommitted(4)
	testkit.Must(kadm.NewClient(f.client).CreatePartitions(t.Context(), 1, f.name))(t)
	// A broker may not know yet what was added.
	testkit.Eventually(f, "the partition is there", func() bool {
		topics, err := kadm.NewClient(f.client).ListTopics(t.Context(), f.name)
		return err == nil && len(topics[f.name].Partitions) == 2
	})
	f.add(1, 0, 3)
	if err := s.Close(); err != nil { // a member looks for partitions every ten minutes
		t.Fatal(err)
	}
	messages = f.subscribe(f.subscriber(nil, func(c *kafka.Config) { c.Start = kafka.StartNewest }))
	if got := f.take(messages, "1 2"); !slices.Equal(got, []string{"1 0", "1 1", "1 2"}) {
		t.Errorf("got %q of the added partition", got)
	}
}

// Retention overtakes a consumer: what is left is read, and the log says how many offsets are gone.
func testRetentionWhileRunning(t *testing.T, addr string) {
	f := newTopic(t, addr, 1)
	f.add(0, 0, 1)
	log := testkit.NewLog()
	messages := f.subscribe(f.subscriber(log, func(c *kafka.Config) { c.Start, c.MaxInFlight = kafka.StartNewest, 1 }))
	f.add(0, 1, 1)
	stuck := f.next(messages) // 0 1
	const ahead = 4 + 10      // what is read ahead, and more
	f.add(0, 2, ahead)
	f.deleteBefore(0, 10)
	stuck.Ack()
	f.add(0, 2+ahead, 1)
	got := f.take(messages, fmt.Sprint("0 ", 2+ahead))
	for i := 10; i <= 2+ahead; i++ {
		if want := fmt.Sprint("0 ", i); !slices.Contains(got, want) {
			t.Errorf("%s did not come: %q", want, got)
		}
	}
	f.eventuallyCommitted(3 + ahead)
}

// A topic that is deleted and created again is read from its beginning, however many records it has by then, by a
// member that went on all the time and by one that comes later.
func testRecreatedTopic(t *testing.T, addr string) {
	for _, start := range []kafka.Start{kafka.StartOldest, kafka.StartNewest} {
		// One that runs notices by a heartbeat, or, when there is none meanwhile, because its offset is gone.
		for name, heartbeat := range map[string]time.Duration{"running false": 0, "running true": 0, "running, without a heartbeat": 20 * time.Second} {
			t.Run(fmt.Sprint(start, " ", name), func(t *testing.T) {
				t.Parallel()
				running := name != "running false"
				f := newTopic(t, addr, 1)
				f.add(0, 0, 1)
				f.commit(0, 0)
				change := func(c *kafka.Config) {
					c.Start, c.Client = start, func(c *sarama.Config) {
						quick(c)
						c.Consumer.Group.Heartbeat.Interval = cmp.Or(heartbeat, c.Consumer.Group.Heartbeat.Interval)
					}
				}
				log := testkit.NewLog()
				s := f.subscriber(log, change)
				messages := f.subscribe(s)
				f.add(0, 1, 2)
				f.take(messages, "0 2")
				f.eventuallyCommitted(3)
				if !running {
					testkit.NoError(t, s.Close())
				}
				offsets := testkit.Must(kadm.NewClient(f.client).FetchOffsets(t.Context(), f.name))(t)
				f.recreate()
				if heartbeat > 0 {
					testkit.Eventually(t, "the offset is gone", func() bool { return strings.Contains(log.String(), "outside the range of offsets") })
				}
				f.add(0, 10, 6)
				if !running {
					f.eventuallyCommitted(0)       // brokers forget the offsets with the topic, or a while later
					f.commitAll(offsets.Offsets()) // as if they did not
					messages = f.subscribe(f.subscriber(log, change))
				}
				seen := map[string]bool{}
				for len(seen) < 6 { // some may come before and after it is noticed
					msg := f.next(messages)
					seen[string(msg.Payload)] = true
					msg.Ack()
				}
				f.eventuallyCommitted(6)
				testkit.Contains(t, log.String(), "deleted and created again")
			})
		}
	}
}

// recreate returns when the broker tells the new topic from the old one, which takes records as long as it does not.
func (f *topic) recreate() {
	f.Helper()
	admin := kadm.NewClient(f.client)
	id := func() (id kadm.TopicID) {
		if topics, err := admin.ListTopics(f.Context(), f.name); err == nil {
			id = topics[f.name].ID
		}
		return id
	}
	before := id()
	testkit.Must(admin.DeleteTopic(f.Context(), f.name))(f)
	testkit.EventuallyNil(f, func() error {
		_, err := admin.CreateTopic(context.Background(), 1, 1, nil, f.name)
		return err
	})
	testkit.Eventually(f, "the broker knows the new topic", func() bool {
		now := id()
		return now != before && now != kadm.TopicID{}
	})
}

// The topic of Subscribe says what is read; Topics are for an empty one.
func testTopics(t *testing.T, addr string) {
	a, b, c := newTopic(t, addr, 1), newTopic(t, addr, 1), newTopic(t, addr, 1)
	for _, f := range []*topic{a, b, c} {
		if err := f.client.ProduceSync(t.Context(), kgo.KeySliceRecord(nil, []byte(f.name))).FirstErr(); err == nil {
			t.Fatal("a record without a topic is stored")
		}
		testkit.NoError(t, f.client.ProduceSync(t.Context(), &kgo.Record{Topic: f.name, Value: []byte(f.name)}).FirstErr())
	}
	for name, test := range map[string]struct {
		config []string
		topic  string
		want   []string // nil: refused
	}{
		"configured":                {[]string{a.name, b.name}, "", []string{a.name, b.name}},
		"one of the configured":     {[]string{a.name, b.name}, b.name, []string{b.name}},
		"some of the configured":    {[]string{a.name, b.name, c.name}, b.name + "," + c.name, []string{b.name, c.name}},
		"without configuration":     {nil, a.name, []string{a.name}},
		"several":                   {nil, a.name + "," + b.name, []string{a.name, b.name}},
		"none at all":               {nil, "", nil},
		"another one":               {[]string{a.name}, b.name, nil},
		"one of them another one":   {[]string{a.name}, a.name + "," + b.name, nil},
		"the same twice":            {nil, a.name + "," + a.name, nil},
		"no topic":                  {nil, "a..b", nil},
		"the prefix of sinks alone": {nil, sinkkafka.NoTopicPrefix, nil},
		"an empty one in the list":  {nil, a.name + ",", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.Must(kafka.New(kafka.Config{
				Connection: sinkkafka.Connection{Brokers: []string{addr}}, TopicPrefix: sinkkafka.NoTopicPrefix, Topics: test.config, Client: quick,
				Group: strings.NewReplacer("/", "-", "#", "-").Replace(a.name + t.Name()),
			}, nil))(t)
			defer func() { _ = s.Close() }()
			messages, err := s.Subscribe(t.Context(), test.topic)
			if test.want == nil {
				testkit.ErrorIs(t, err, kafka.ErrConfig)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			f := *a
			f.T = t
			var got []string
			for range test.want {
				msg := f.next(messages)
				got = append(got, string(msg.Payload))
				msg.Ack()
			}
			slices.Sort(got)
			if want := slices.Sorted(slices.Values(test.want)); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if again, err := s.Subscribe(t.Context(), test.topic); !errors.Is(err, kafka.ErrConfig) {
				t.Errorf("a second subscription of the topic: %v, %v, want ErrConfig", again, err)
			}
		})
	}
}

// Two handlers of one Subscriber each get all messages of their topic and no others, and a topic is free again once its
// subscription has ended.
func testTwoSubscriptions(t *testing.T, addr string) {
	a, b := newTopic(t, addr, 1), newTopic(t, addr, 1)
	a.put(1, 20)
	b.put(1, 20)
	s := a.subscriber(nil, func(c *kafka.Config) { c.Topics = []string{a.name, b.name} })
	ctx, cancel := context.WithCancel(t.Context())
	var all [2]<-chan *message.Message
	for i, f := range []*topic{a, b} {
		all[i] = testkit.Must(s.Subscribe(ctx, f.name))(t)
	}
	for i, f := range []*topic{a, b} {
		for n := 0; n < 20; {
			msg := f.next(all[i])
			if want := fmt.Sprintf("k0 %d", n); string(msg.Payload) != want {
				continue // again, after a rebalance
			}
			msg.Ack()
			n++
		}
	}
	cancel()
	again := testkit.Must(s.Subscribe(t.Context(), a.name))(t)
	a.put(1, 1)
	a.next(again).Ack()
}

// Brokers forget what was committed a while after they have deleted the topic: what a session has read of it before that
// means nothing.
func TestOffsetsAreForgottenMeanwhile(t *testing.T) {
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 1)
	f.add(0, 0, 6)
	f.commit(0, 3)
	asked := 0
	cluster.Fake().ControlKey(int16(kmsg.OffsetFetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		asked++
		if asked == 1 { // the client, for the session
			return nil, nil, false
		}
		fetch := request.(*kmsg.OffsetFetchRequest)
		answer := fetch.ResponseKind().(*kmsg.OffsetFetchResponse)
		forgotten := kmsg.NewOffsetFetchResponseTopicPartition()
		forgotten.Offset = -1
		answer.Topics = []kmsg.OffsetFetchResponseTopic{{Topic: f.name, Partitions: []kmsg.OffsetFetchResponseTopicPartition{forgotten}}}
		return answer, nil, true
	})
	f.take(f.subscribe(f.subscriber(nil)), "0 0")
	if asked != 2 {
		t.Errorf("offsets were asked for %d times, want 2: the test is about what is between them", asked)
	}
}

// A subscription of a topic that does not exist fails, with those that look alike, and creates nothing. Once the topic exists,
// nothing that was stored in it is skipped; a subscription that may wait gets it as well.
func testNoTopic(t *testing.T, addr string) {
	for name, change := range map[string]func(*kafka.Config){
		"oldest":     func(*kafka.Config) {},
		"newest":     func(c *kafka.Config) { c.Start = kafka.StartNewest },
		"waits":      func(c *kafka.Config) { c.RetryOnFailedConnect = true },
		"has others": func(c *kafka.Config) { c.Topics = append(c.Topics, c.Group) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTopic(t, addr, 1)
			other := *f
			other.name = f.name + "x" // closer to it than to topics of other tests
			s := f.subscriber(nil, func(c *kafka.Config) { c.Topics = []string{other.name}; change(c) })
			messages, err := s.Subscribe(t.Context(), "")
			if fails := name == "oldest" || name == "newest"; fails != errors.Is(err, kafka.ErrNoTopic) || fails != errors.Is(err, sinks.ErrUnavailable) ||
				fails && !strings.Contains(err.Error(), "there are "+f.name) {
				t.Fatalf("got %v, want the topic %s first of those that there are (%t)", err, f.name, fails)
			}
			if err == nil {
				testkit.Eventually(t, "ReadError says it", func() bool {
					_, err := s.ReadError()
					return err != nil && strings.Contains(err.Error(), "no such topic: "+other.name+"; there are "+f.name)
				})
			}
			admin := kadm.NewClient(f.client)
			if topics, err := admin.ListTopics(t.Context()); err != nil || topics.Has(other.name) {
				t.Errorf("the topic was made, or %v", err)
			}
			testkit.Must(admin.CreateTopic(t.Context(), 1, 1, nil, other.name))(t)
			other.add(0, 0, 3)
			if err != nil {
				testkit.EventuallyNil(t, func() (err error) { // brokers learn of it one after the other
					messages, err = s.Subscribe(t.Context(), "")
					return err
				})
			}
			if got := other.take(messages, "0 2"); !slices.Equal(got, []string{"0 0", "0 1", "0 2"}) {
				t.Errorf("got %q, want all three", got)
			}
		})
	}
}
