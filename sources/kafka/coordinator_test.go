package kafka_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

// A coordinator that is not ready for a while, as after the start of its broker, is asked again, and nothing is reported.
func TestCoordinatorIsNotReady(t *testing.T) {
	t.Parallel()
	loading, absent, moved := kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator
	for request, answers := range map[kmsg.Key][]*kerr.Error{
		kmsg.FindCoordinator: {absent},
		kmsg.DescribeGroups:  {loading, absent, moved},
		kmsg.OffsetFetch:     {loading, absent, moved},
		kmsg.Heartbeat:       {loading, absent, moved},
	} {
		for _, answer := range answers {
			t.Run(request.Name()+"/"+answer.Message, func(t *testing.T) {
				t.Parallel() // it waits
				testCoordinatorIsNotReady(t, request, answer)
			})
		}
	}
}

func testCoordinatorIsNotReady(t *testing.T, request kmsg.Key, answer *kerr.Error) {
	cluster := kafkatest.Start(t)
	f := newTopic(t, cluster.Addr(), 1)
	f.put(1, 3)
	// In a cluster without this topic the client sleeps for two seconds each time that there is no coordinator.
	testkit.Must(kadm.NewClient(f.client).CreateTopic(t.Context(), 1, 1, nil, "__consumer_offsets"))(t)
	const more = 8 // than the client tries by itself
	notReady := func() *kfake.FaultHandle {
		return cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{request}, Err: answer, Count: more})
	}
	log := testkit.NewLog()
	s := f.subscriber(log)
	if request != kmsg.Heartbeat {
		fault := notReady()
		config := kafka.Config{Connection: sinkkafka.Connection{Brokers: []string{f.addr}}, TopicPrefix: sinkkafka.NoTopicPrefix, Topics: []string{f.name}, Group: f.name, Client: quick}
		if found, err := kafka.Look(config, "", log); err != nil || found.Waiting != 3 || fault.Hits() != more {
			t.Fatalf("Look: got %+v, %v, after %d answers that it is not ready", found, err, fault.Hits())
		}
	}
	fault := notReady()
	messages := f.subscribe(s)
	f.next(messages).Ack()
	testkit.NoError(t, fault.Wait(testkit.Context(t), more))
	f.next(messages).Ack()
	if _, err := s.ReadError(); err != nil {
		t.Errorf("reported: %v", err)
	}
	if lines := log.Lines(watermill.ErrorLogLevel); len(lines) > 0 {
		t.Errorf("logged: %v", lines)
	}
}

// One that does not become ready is reported after half a minute, and any other answer at once.
func TestCoordinatorStaysAway(t *testing.T) {
	for _, test := range []struct {
		answer error
		after  time.Duration
	}{
		{sarama.ErrOffsetsLoadInProgress, 30 * time.Second},
		{sarama.ErrGroupAuthorizationFailed, 0},
		{sarama.ErrOutOfBrokers, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			err := kafka.AskCoordinator(t.Context(), func() error { asked++; return test.answer })
			if took := time.Since(began); !errors.Is(err, test.answer) || took < test.after || took > test.after+time.Second {
				t.Errorf("got %v after %v, want %v after %v", err, took, test.answer, test.after)
			}
			if (asked > 1) != (test.after > 0) || asked > 100 {
				t.Errorf("%v: asked %d times", test.answer, asked)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		err := kafka.AskCoordinator(ctx, func() error { return sarama.ErrOffsetsLoadInProgress })
		if took := time.Since(began); !errors.Is(err, sarama.ErrOffsetsLoadInProgress) || took != 2*time.Second {
			t.Errorf("got %v after %v, want to end with the context", err, took)
		}
	})
}
