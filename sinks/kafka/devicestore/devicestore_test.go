package devicestore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/router/farm/devicestoretest"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/kafka/devicestore"
)

func TestMain(m *testing.M) {
	// Of sarama, for the life of the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

func open(t testing.TB, addr string) *devicestore.Store {
	t.Helper()
	store, err := devicestore.New(t.Context(), devicestore.Config{Connection: kafka.Connection{Brokers: []string{addr}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestStore(t *testing.T) {
	var cluster *kafkatest.Cluster
	devicestoretest.Run(t, devicestoretest.Suite{
		New: func(t *testing.T) farm.DeviceStore {
			cluster = kafkatest.Start(t)
			return open(t, cluster.Addr())
		},
		Peer: func(t *testing.T, _ farm.DeviceStore) farm.DeviceStore { return open(t, cluster.Addr()) },
	})
}

// What one process puts, one that runs beside it gets.
func TestRunningPeer(t *testing.T) {
	cluster := kafkatest.Start(t)
	one, other := open(t, cluster.Addr()), open(t, cluster.Addr())
	if err := one.Put(t.Context(), "team", farm.DeviceDescription{Sent: time.Unix(1000, 0), Payload: []byte("devices")}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the other process has it", func() bool {
		list, err := other.Get(t.Context(), "team")
		return err == nil && len(list) == 1 && string(list[0].Payload) == "devices" && list[0].Sent.Unix() == 1000
	})
	if err := other.Health(t.Context()); err != nil {
		t.Error(err)
	}
}

// What the broker does not take is refused for good; a closed store is an outage.
func TestErrors(t *testing.T) {
	cluster := kafkatest.Start(t)
	store := open(t, cluster.Addr())
	err := store.Put(t.Context(), "team", farm.DeviceDescription{Payload: make([]byte, 2<<20)})
	if !errors.Is(err, devicestore.ErrTooLarge) || router.Classify(err) != router.ClassPermanent {
		t.Errorf("got %v of class %v, want ErrTooLarge", err, router.Classify(err))
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if err := store.Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte("x")}); router.Classify(err) != router.ClassOutage {
		t.Errorf("got %v of class %v, want an outage", err, router.Classify(err))
	}
	if _, err := devicestore.New(t.Context(), devicestore.Config{Timeout: -1}); !errors.Is(err, devicestore.ErrConfig) {
		t.Errorf("got %v, want ErrConfig", err)
	}
}

// A topic of which nothing can be read up to its end is opened nevertheless.
func TestEndIsNeverReached(t *testing.T) {
	cluster := kafkatest.Start(t)
	if err := open(t, cluster.Addr()).Put(t.Context(), "team", farm.DeviceDescription{Payload: []byte("devices")}); err != nil {
		t.Fatal(err)
	}
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		return request.ResponseKind(), nil, true // without records, for ever
	})
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second) // before Timeout, at half of which it gives up
	defer cancel()
	store, err := devicestore.New(ctx, devicestore.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Timeout: 8 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// A reader whose place in the topic is gone begins again: the topic was deleted and made again, say.
func TestReaderBeginsAgain(t *testing.T) {
	cluster := kafkatest.Start(t)
	one, other := open(t, cluster.Addr()), open(t, cluster.Addr())
	var refused atomic.Int32
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.Fake().KeepControl()
		fetch := request.(*kmsg.FetchRequest)
		if refused.Add(1) > 2 { // one for each reader
			return nil, nil, false
		}
		response := fetch.ResponseKind().(*kmsg.FetchResponse)
		for _, topic := range fetch.Topics {
			answer := kmsg.NewFetchResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, partition := range topic.Partitions {
				part := kmsg.NewFetchResponseTopicPartition()
				part.Partition, part.ErrorCode = partition.Partition, kerr.OffsetOutOfRange.Code
				answer.Partitions = append(answer.Partitions, part)
			}
			response.Topics = append(response.Topics, answer)
		}
		return response, nil, true
	})
	testkit.Eventually(t, "the readers have lost their places", func() bool { return refused.Load() >= 2 })
	for i, store := range []*devicestore.Store{one, other} {
		if err := store.Put(t.Context(), "team", farm.DeviceDescription{Payload: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, store := range []*devicestore.Store{one, other} {
		testkit.Eventually(t, "both are read", func() bool {
			list, err := store.Get(t.Context(), "team")
			return err == nil && len(list) == 2
		})
	}
}
