package devicestore_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/router/farm/devicestoretest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/devicestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.SaramaLeaks()...) }

func open(t testing.TB, addr string) *devicestore.Store {
	t.Helper()
	store := testkit.Must(devicestore.New(t.Context(), devicestore.Config{Connection: kafka.Connection{Brokers: []string{addr}}}))(t)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// last returns the last record of each key, which is what compaction leaves.
func last(t testing.TB, addr string) (left []*kgo.Record) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range slices.Backward(kafkatest.Read(t, addr, devicestore.DefaultTopic)) {
		if !seen[string(r.Key)] {
			seen[string(r.Key)], left = true, append(left, &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers})
		}
	}
	return left
}

// compacted returns a store with what compaction leaves.
func compacted(t testing.TB, addr string) *devicestore.Store {
	t.Helper()
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, devicestore.DefaultTopic))
	write(t, cluster.Addr(), last(t, addr)...)
	store := testkit.Must(devicestore.New(t.Context(), devicestore.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, ReadOnly: true}))(t)
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func write(t testing.TB, addr string, records ...*kgo.Record) {
	t.Helper()
	testkit.NoError(t, kafkatest.Client(t, addr).ProduceSync(t.Context(), records...).FirstErr())
}

// A record without a time that another process has stored meanwhile, or has had stored before, is not what stays.
func TestRecordThatLacksTimes(t *testing.T) {
	for _, c := range []struct {
		name   string
		before bool // it is there before the store is opened
	}{{"running", false}, {"restarted", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := kafkatest.Start(t)
			first := open(t, cluster.Addr())
			testkit.NoError(t, first.Put(t.Context(), "team", farm.DeviceDescription{Sent: time.Unix(1, 0), Payload: []byte("devices"), Tenant: "tenant"}))
			if c.before {
				testkit.NoError(t, first.Close())
			}
			other := *last(t, cluster.Addr())[0]
			other.Headers = []kgo.RecordHeader{{Key: "x-router-tenant-id", Value: []byte("tenant")}, {Key: "x-router-sent-timestamp", Value: []byte("1970-01-01T00:00:02Z")}}
			write(t, cluster.Addr(), &other)
			if c.before {
				open(t, cluster.Addr())
			}
			testkit.Eventually(t, "the last record has both times", func() bool {
				list, err := compacted(t, cluster.Addr()).Get(t.Context(), "team")
				return err == nil && len(list) == 2 && list[0].Sent.Unix() == 1 && list[1].Sent.Unix() == 2
			})
			// The order of what is known is no reason to write, nor is what was written for it.
			if records := kafkatest.Read(t, cluster.Addr(), devicestore.DefaultTopic); len(records) != 3 {
				t.Errorf("%d records, want 3", len(records))
			}
		})
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	var cluster *kafkatest.Cluster
	devicestoretest.Run(t, devicestoretest.Suite{
		New: func(t *testing.T) farm.DeviceStore {
			cluster = kafkatest.Start(t)
			return open(t, cluster.Addr())
		},
		Peer: func(t *testing.T, _ farm.DeviceStore) farm.DeviceStore { return open(t, cluster.Addr()) },
		Left: func(t *testing.T, _ farm.DeviceStore) farm.DeviceStore { return compacted(t, cluster.Addr()) },
	})
}

// What one process puts, one that runs beside it gets. No broker is to wait for that: what else is asked on the connection, such as
// by Put, would wait, too.
func TestRunningPeer(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		if fetch := request.(*kmsg.FetchRequest); fetch.MinBytes > 0 && fetch.MaxWaitMillis > 0 {
			t.Errorf("a fetch waits for %d bytes", fetch.MinBytes)
		}
		return nil, nil, false
	})
	one, other := open(t, cluster.Addr()), open(t, cluster.Addr())
	testkit.NoError(t, one.Put(t.Context(), "team", farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}))
	testkit.Eventually(t, "the other process has it", func() bool {
		list, err := other.Get(t.Context(), "team")
		return err == nil && len(list) == 1 && string(list[0].Payload) == "devices" && list[0].Sent.Unix() == 1000
	})
	testkit.NoError(t, other.Health(t.Context()))
}

// What the broker does not take is refused for good; a closed store is an outage.
func TestErrors(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	store := open(t, cluster.Addr())
	err := store.Put(t.Context(), "team", farm.DeviceDescription{Payload: make([]byte, 2<<20)})
	if !errors.Is(err, devicestore.ErrTooLarge) || router.ClassOf(err) != router.ClassPermanent {
		t.Errorf("got %v of class %v, want ErrTooLarge", err, router.ClassOf(err))
	}
	testkit.NoError(t, store.Close())
	if err := store.Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte("x")}); router.ClassOf(err) != router.ClassOutage {
		t.Errorf("got %v of class %v, want an outage", err, router.ClassOf(err))
	}
	if _, err := devicestore.New(t.Context(), devicestore.Config{Timeout: -1}); !errors.Is(err, devicestore.ErrConfig) {
		t.Errorf("got %v, want ErrConfig", err)
	}
}

// A store that is made before its brokers says that there are none, and has what is in the topic once they are there. One that
// never finds them closes all the same.
func TestBeforeTheBrokers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	description := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	testkit.NoError(t, open(t, cluster.Addr()).Put(t.Context(), "team", description))
	cluster.Stop()
	config := devicestore.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, RetryOnFailedConnect: true}}
	for _, stays := range []bool{false, true} {
		store := testkit.Must(devicestore.New(t.Context(), config))(t)
		_, got := store.Get(t.Context(), "team")
		for what, err := range map[string]error{"Put": store.Put(t.Context(), "team", description), "Get": got, "Health": store.Health(t.Context())} {
			if !errors.Is(err, sinks.ErrNotConnected) || router.ClassOf(err) != router.ClassOutage {
				t.Errorf("%s: %v of class %v, want an outage", what, err, router.ClassOf(err))
			}
		}
		if stays {
			cluster.Restart()
			testkit.EventuallyNil(t, func() error { return store.Health(t.Context()) })
			if list, err := store.Get(t.Context(), "team"); err != nil || len(list) != 1 || string(list[0].Payload) != "devices" {
				t.Errorf("got %v, %v, want what the topic has", list, err)
			}
		}
		testkit.Ends(t, "Close", func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// nothingIn answers a fetch: the partitions end there, and have no records.
func nothingIn(request kmsg.Request, end int64) kmsg.Response {
	fetch := request.(*kmsg.FetchRequest)
	response := fetch.ResponseKind().(*kmsg.FetchResponse)
	for _, topic := range fetch.Topics {
		answer := kmsg.FetchResponseTopic{Topic: topic.Topic, TopicID: topic.TopicID}
		for _, partition := range topic.Partitions {
			p := kmsg.NewFetchResponseTopicPartition()
			p.Partition, p.HighWatermark, p.RecordBatches = partition.Partition, end, []byte{}
			answer.Partitions = append(answer.Partitions, p)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response
}

// A topic whose last records were compacted away is opened nevertheless.
func TestEndIsNeverReached(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	testkit.NoError(t, open(t, cluster.Addr()).Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte("devices")}))
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		return nothingIn(request, 1), nil, true
	})
	open(t, cluster.Addr())
}

// What a new leader does not show yet was not compacted away.
func TestLeaderIsBehind(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	first := open(t, cluster.Addr())
	testkit.NoError(t, first.Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte("devices")}))
	testkit.NoError(t, first.Close())
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		return nothingIn(request, 0), nil, true // once
	})
	list, err := open(t, cluster.Addr()).Get(t.Context(), "team")
	if err != nil || len(list) != 1 {
		t.Errorf("%d descriptions, %v; want 1", len(list), err)
	}
}

// A reader begins again when the topic was deleted and made again, whether it has less than before, or more.
func TestReaderBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, again := range map[string][]string{"less": {"three"}, "more": {"three", "four", "five"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testReaderBeginsAgain(t, again)
		})
	}
}

func testReaderBeginsAgain(t *testing.T, again []string) {
	cluster := kafkatest.Start(t)
	put := func(payloads ...string) {
		t.Helper()
		store := open(t, cluster.Addr())
		for _, payload := range payloads {
			testkit.NoError(t, store.Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte(payload)}))
		}
		testkit.NoError(t, store.Close())
	}
	put("one", "two")
	reader := open(t, cluster.Addr())
	testkit.Must(kadm.NewClient(kafkatest.Client(t, cluster.Addr())).DeleteTopics(t.Context(), devicestore.DefaultTopic))(t)
	var asked atomic.Int32
	cluster.Fake().ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		asked.Add(1)
		return nil, nil, false
	})
	testkit.Eventually(t, "it has given up asking, and begun again", func() bool { return asked.Load() > 5 })
	put(again...)
	testkit.Eventually(t, "all are read", func() bool {
		list, err := reader.Get(t.Context(), "team")
		return err == nil && len(list) == 2+len(again)
	})
}

// A topic that is made again and has as much as before until the next look at it is another one: what it has is read from
// the beginning, and what is put is stored there, also what the former one had.
func TestTopicMadeAgainBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	put := farm.DeviceDescription{Payload: []byte("one")}
	testkit.NoError(t, open(t, cluster.Addr()).Put(t.Context(), "team", put))
	store := open(t, cluster.Addr())
	cluster.Proxy.Hang()
	client := kafkatest.Client(t, cluster.Addr(), kgo.Dialer(cluster.Proxy.DialBroker))
	admin := kadm.NewClient(client)
	testkit.Must(admin.DeleteTopics(t.Context(), devicestore.DefaultTopic))(t)
	testkit.Must(admin.CreateTopic(t.Context(), 1, 1, nil, devicestore.DefaultTopic))(t)
	for _, payload := range []string{"two", "three"} {
		testkit.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{
			Topic: devicestore.DefaultTopic, Key: fmt.Appendf(nil, "team/%x", sha256.Sum256([]byte(payload))), Value: []byte(payload),
		}).FirstErr())
	}
	cluster.Proxy.Resume()
	testkit.NoError(t, store.Put(t.Context(), "team", put))
	if records := kafkatest.Read(t, cluster.Addr(), devicestore.DefaultTopic); len(records) < 3 || string(records[2].Value) != "one" {
		t.Errorf("%d records; what was put is not there", len(records))
	}
	testkit.Eventually(t, "all are read", func() bool {
		list, err := store.Get(t.Context(), "team")
		return err == nil && len(list) == 3
	})
}

// A broker that does not answer holds up nobody who reads what another one leads.
func TestBrokerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	cluster := testkit.Must(kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(1, devicestore.DefaultTopic)))(t)
	t.Cleanup(cluster.Close)
	leader := cluster.LeaderFor(devicestore.DefaultTopic, 0)
	one := open(t, cluster.ListenAddrs()[leader])
	other := testkit.Must(devicestore.New(t.Context(), devicestore.Config{
		Connection: kafka.Connection{Brokers: []string{cluster.ListenAddrs()[leader]}}, Timeout: time.Hour,
	}))(t)
	t.Cleanup(func() { testkit.NoError(t, other.Close()) })
	cluster.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, nil, cluster.CurrentNode() != leader
	})
	for i := range 10 {
		testkit.NoError(t, one.Put(t.Context(), "team", farm.DeviceDescription{Payload: fmt.Append(nil, i)}))
		testkit.Eventually(t, "the other process has it", func() bool {
			list, err := other.Get(t.Context(), "team")
			return err == nil && len(list) == i+1
		})
	}
}

// Partitions that are added are read like the others.
func TestAddedPartitions(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	store := open(t, cluster.Addr())
	client := kafkatest.Client(t, cluster.Addr(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	testkit.Must(kadm.NewClient(client).CreatePartitions(t.Context(), 2, devicestore.DefaultTopic))(t)
	for partition, payload := range []string{"one", "two", "three"} {
		testkit.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{
			Topic: devicestore.DefaultTopic, Partition: int32(partition), Key: fmt.Appendf(nil, "team/%x", sha256.Sum256([]byte(payload))), Value: []byte(payload),
		}).FirstErr())
	}
	testkit.Eventually(t, "all are read", func() bool {
		list, err := store.Get(t.Context(), "team")
		return err == nil && len(list) == 3
	})
}

// Whoever only looks creates nothing, and changes nothing.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	config := devicestore.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, ReadOnly: true}
	if _, err := devicestore.New(t.Context(), config); !errors.Is(err, devicestore.ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
	if topics := cluster.Fake().TopicInfo(devicestore.DefaultTopic); topics != nil {
		t.Error("the topic was created")
	}
	put := farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}
	testkit.NoError(t, open(t, cluster.Addr()).Put(t.Context(), "team", put))
	store := testkit.Must(devicestore.New(t.Context(), config))(t)
	if list, err := store.Get(t.Context(), "team"); err != nil || len(list) != 1 {
		t.Errorf("%d descriptions, %v", len(list), err)
	}
	testkit.ErrorIs(t, store.Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte("other")}), devicestore.ErrReadOnly)
	testkit.NoError(t, store.Close())
	if records := kafkatest.Read(t, cluster.Addr(), devicestore.DefaultTopic); len(records) != 1 {
		t.Errorf("%d records, want 1", len(records))
	}
}

// A broker that does not answer holds up no Close.
func TestCloseWithoutAnswers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	store := testkit.Must(devicestore.New(t.Context(), devicestore.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Timeout: time.Hour}))(t)
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		wakeup.Token(asked)
		<-answer
		return nil, nil, false
	})
	<-asked
	testkit.Ends(t, "Close", func() { testkit.NoError(t, store.Close()) })
	close(answer)
}

// Put does not wait once its topic, which was deleted, was made again, and stores there also what the former one had.
func TestPutIntoATopicThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	store := open(t, cluster.Addr())
	put := func(payload string) error {
		return store.Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte(payload)})
	}
	testkit.NoError(t, put("one"))
	admin := kadm.NewClient(kafkatest.Client(t, cluster.Addr()))
	testkit.Must(admin.DeleteTopics(t.Context(), devicestore.DefaultTopic))(t)
	for range 3 {
		if err := put("two"); !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			t.Fatalf("got %v, want that there is no topic", err)
		}
	}
	testkit.Must(admin.CreateTopic(t.Context(), 1, 1, nil, devicestore.DefaultTopic))(t)
	testkit.NoError(t, put("two"))
	testkit.Eventually(t, "what it had is there again", func() bool { // once the reader has heard that it was gone
		testkit.NoError(t, put("one"))
		records := kafkatest.Read(t, cluster.Addr(), devicestore.DefaultTopic)
		return slices.ContainsFunc(records, func(r *kgo.Record) bool { return string(r.Value) == "one" })
	})
}
