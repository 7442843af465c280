package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sources/kafka"
)

// refuse has every fetch answered with an error for each partition until end is called.
func refuse(cluster *kafkatest.Cluster, because *kerr.Error) (end func()) {
	over := make(chan struct{})
	cluster.Fake().ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-over:
			return nil, nil, false
		default:
		}
		cluster.Fake().KeepControl()
		fetch := request.(*kmsg.FetchRequest)
		answer := fetch.ResponseKind().(*kmsg.FetchResponse)
		for _, topic := range fetch.Topics {
			refused := kmsg.FetchResponseTopic{Topic: topic.Topic, TopicID: topic.TopicID}
			for _, partition := range topic.Partitions {
				p := kmsg.NewFetchResponseTopicPartition()
				p.Partition, p.ErrorCode = partition.Partition, because.Code
				refused.Partitions = append(refused.Partitions, p)
			}
			answer.Topics = append(answer.Topics, refused)
		}
		return answer, nil, true
	})
	return func() { close(over) }
}

// deleteTopic deletes the topic until another one of its name is made by end.
func deleteTopic(f *topic) (end func()) {
	admin := kadm.NewClient(f.client)
	testkit.Must(admin.DeleteTopics(f.Context(), f.name))(f)
	return func() {
		testkit.Must(admin.CreateTopic(f.Context(), 1, 1, nil, f.name))(f)
		f.client.PurgeTopicsFromClient(f.name)
	}
}

// rejoin has the next heartbeat end the session.
func rejoin(cluster *kafkatest.Cluster) {
	cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownMemberID})
}

// assignNothing has the members rejoin, and their leader give them nothing until end is called, as one may that another
// client made and that knows of no partitions.
func assignNothing(f *topic, cluster *kafkatest.Cluster) (end func()) {
	over, assigned := make(chan struct{}), make(chan struct{}, 1)
	cluster.Fake().ControlKey(int16(kmsg.SyncGroup), func(request kmsg.Request) (kmsg.Response, error, bool) {
		select {
		case <-over:
		default:
			cluster.Fake().KeepControl()
			request.(*kmsg.SyncGroupRequest).GroupAssignment = nil
			wakeup.Token(assigned)
		}
		return nil, nil, false
	})
	rejoin(cluster)
	testkit.Ends(f.T, "the assignment", func() { <-assigned })
	return func() { close(over) }
}

// A subscription that can read nothing says why, and since when, and reads on when that is over.
func TestReadError(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fail func(f *topic, cluster *kafkatest.Cluster) (end func())
		says string
	}{
		"the brokers are away": {func(_ *topic, cluster *kafkatest.Cluster) func() {
			cluster.Stop()
			return cluster.Restart
		}, "unavailable"},
		"the topic may not be read": {func(_ *topic, cluster *kafkatest.Cluster) func() {
			return refuse(cluster, kerr.TopicAuthorizationFailed)
		}, "not authorized to access this topic"},
		"the topic is deleted": {func(f *topic, _ *kafkatest.Cluster) func() { return deleteTopic(f) }, "does not exist"},
		"the offsets may not be asked": {func(_ *topic, cluster *kafkatest.Cluster) func() {
			fault := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.TopicAuthorizationFailed, Count: -1})
			rejoin(cluster)
			return fault.Remove
		}, "not authorized to access this topic"},
		"the topic is deleted while nothing of it is assigned": {func(f *topic, cluster *kafkatest.Cluster) func() {
			assign := assignNothing(f, cluster)
			end := deleteTopic(f)
			return func() { assign(); end() }
		}, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			cluster := kafkatest.Start(t)
			f := newTopic(t, cluster.Addr(), 1)
			s := f.subscriber(nil)
			f.put(1, 1)
			messages := f.subscribe(s)
			f.next(messages).Ack()
			testkit.EventuallyNil(t, func() error { _, err := s.ReadError(); return err })
			began := time.Now()
			end := test.fail(f, cluster)
			testkit.Eventually(t, "it says "+test.says, func() bool {
				_, err := s.ReadError()
				return err != nil && strings.Contains(err.Error(), test.says)
			})
			if since, err := s.ReadError(); since.Before(began) {
				t.Errorf("since %v, want after %v: %v", since, began, err)
			}
			end()
			testkit.EventuallyNil(t, func() error { _, err := s.ReadError(); return err })
			f.put(1, 1)
			f.next(messages).Ack()
		})
	}
}

// A subscription that may wait begins before its brokers are there. One that never finds them ends with its context.
func TestSubscribeBeforeTheBrokers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 1)
	f.put(1, 1)
	cluster.Stop()
	waits := func(c *kafka.Config) { c.RetryOnFailedConnect, c.ConnectTimeout = true, time.Second }
	s := f.subscriber(nil, waits)
	messages := f.subscribe(s)
	if _, err := s.ReadError(); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("ReadError says %v, want that the brokers are away", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	none := testkit.Must(f.subscriber(nil, waits).Subscribe(ctx, ""))(t)
	cancel()
	testkit.Ends(t, "the subscription", func() {
		for range none {
			t.Error("got a message")
		}
	})
	cluster.Restart()
	f.next(messages).Ack()
	f.eventuallyCommitted(1)
	testkit.EventuallyNil(t, func() error { _, err := s.ReadError(); return err })
}

// A subscription that waits warns once of what is missing, and ends when it learns that it cannot work.
func TestSubscriptionThatCannotWork(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 1)
	f.join("connect")
	away := cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	log := testkit.NewLog()
	s := f.subscriber(log, func(c *kafka.Config) { c.RetryOnFailedConnect, c.Topics = true, []string{f.name + "-late"} })
	messages := f.subscribe(s)
	testkit.NoError(t, away.Wait(t.Context(), 3))
	away.Remove()
	testkit.Ends(t, "the subscription", func() {
		for range messages {
			t.Error("got a message")
		}
	})
	if _, err := s.ReadError(); !errors.Is(err, kafka.ErrConfig) {
		t.Errorf("ReadError says %v, want that the group is in use", err)
	}
	if n := strings.Count(log.String(), "waits for what does not exist"); n != 1 || !strings.Contains(log.String(), "cannot work and has ended") {
		t.Errorf("warned %d times: %v", n, log)
	}
}

// joins has the members rejoin, and returns once they have done so.
func joins(f *topic, cluster *kafkatest.Cluster) {
	f.Helper()
	joined := make(chan struct{}, 1)
	cluster.Fake().ControlKey(int16(kmsg.SyncGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		wakeup.Token(joined)
		return nil, nil, false
	})
	rejoin(cluster)
	testkit.Ends(f.T, "the assignment", func() { <-joined })
}

// leaderless says that a partition has no leader: now says which one, and none from -1 on.
func leaderless(f *topic, cluster *kafkatest.Cluster, partition int32) (now func(partition int32)) {
	f.Helper()
	var which atomic.Int32
	which.Store(partition)
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr(f.name)}}
	known := testkit.Must(request.RequestWith(f.Context(), f.client))(f)
	cluster.Fake().ControlKey(int16(kmsg.Metadata), func(request kmsg.Request) (kmsg.Response, error, bool) {
		partition := which.Load()
		if partition < 0 {
			return nil, nil, false
		}
		cluster.Fake().KeepControl()
		metadata := request.(*kmsg.MetadataRequest)
		if metadata.Topics != nil && (len(metadata.Topics) != 1 || metadata.Topics[0].Topic == nil || *metadata.Topics[0].Topic != f.name) {
			return nil, nil, false
		}
		answer := *known
		answer.SetVersion(metadata.GetVersion())
		answer.Topics = slices.Clone(known.Topics)
		answer.Topics[0].Partitions = slices.Clone(answer.Topics[0].Partitions)
		for i := range answer.Topics[0].Partitions { // in any order
			if p := &answer.Topics[0].Partitions[i]; p.Partition == partition {
				p.Leader, p.ErrorCode = -1, kerr.LeaderNotAvailable.Code
			}
		}
		return &answer, nil, true
	})
	return which.Store
}

// What of the topics cannot be read when the group shares the partitions does not hold up the rest, is told, and is read once it is
// there.
func TestRestIsRead(t *testing.T) {
	t.Parallel()
	t.Run("a topic is gone", func(t *testing.T) {
		t.Parallel()
		cluster := kafkatest.Start(t)
		f, other := newTopic(t, cluster.Addr(), 1), newTopic(t, cluster.Addr(), 1)
		s := f.subscriber(nil, func(c *kafka.Config) { c.Topics = append(c.Topics, other.name) })
		messages := f.subscribe(s)
		f.put(1, 1)
		f.next(messages).Ack()
		end := deleteTopic(other)
		joins(f, cluster)
		f.put(1, 1)
		f.next(messages).Ack()
		testkit.Eventually(t, "ReadError says it", func() bool {
			_, err := s.ReadError()
			return err != nil && strings.Contains(err.Error(), other.name) && strings.Contains(err.Error(), "does not exist")
		})
		end()
		other.put(1, 1)
		other.next(messages).Ack()
		testkit.EventuallyNil(t, func() error { _, err := s.ReadError(); return err })
	})
	t.Run("another topic is gone than was missing", func(t *testing.T) {
		t.Parallel()
		cluster := kafkatest.Start(t)
		f, late := newTopic(t, cluster.Addr(), 1), newTopic(t, cluster.Addr(), 1)
		create := deleteTopic(late)
		s := f.subscriber(nil, func(c *kafka.Config) { c.Topics = append(c.Topics, late.name) })
		messages := f.subscribe(s)
		create()
		late.put(1, 1)
		late.next(messages).Ack()
		deleteTopic(f)
		testkit.Eventually(t, "ReadError says which", func() bool {
			_, err := s.ReadError()
			return err != nil && strings.Contains(err.Error(), "topic "+f.name+":")
		})
	})
	t.Run("a partition has no leader", func(t *testing.T) {
		t.Parallel()
		cluster := kafkatest.Start(t)
		f := newTopic(t, cluster.Addr(), 2)
		s := f.subscriber(nil)
		messages := f.subscribe(s)
		f.add(0, 0, 1)
		f.next(messages).Ack()
		f.add(1, 0, 1)
		f.next(messages).Ack()
		now := leaderless(f, cluster, 1)
		joins(f, cluster)
		f.add(0, 1, 1)
		f.next(messages).Ack()
		testkit.Eventually(t, "ReadError says it", func() bool {
			_, err := s.ReadError()
			return err != nil && strings.Contains(err.Error(), "partition 1")
		})
		now(0)
		f.add(1, 1, 1)
		f.next(messages).Ack()
		testkit.Eventually(t, "ReadError says it of the other one", func() bool {
			_, err := s.ReadError()
			return err != nil && strings.Contains(err.Error(), "partition 0")
		})
		now(-1)
		f.add(0, 2, 1)
		f.next(messages).Ack()
		testkit.EventuallyNil(t, func() error { _, err := s.ReadError(); return err })
	})
	t.Run("a partition of a group that is not new has no leader at the start", func(t *testing.T) {
		t.Parallel()
		cluster := kafkatest.Start(t)
		f := newTopic(t, cluster.Addr(), 2)
		f.add(0, 0, 2)
		f.commit(0, 1)
		leaderless(f, cluster, 1)
		messages := f.subscribe(f.subscriber(nil, func(c *kafka.Config) { c.Start = kafka.StartNewest }))
		f.next(messages).Ack()
	})
}
