package identitytest

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

var switchPrograms = flag.Int("switches", 8, "how many are run in which the Kafka sink changes its producer")

// late is a program in which a sink changes the producer of its topic while requests are in
// flight. Of one key it sends the numbers, each until it is stored, as a route does.
type late struct {
	t       *testing.T
	cluster *kafkatest.Cluster
	topic   string
	sink    *kafka.Sink
	keys    [2]string // of the partitions: that of the numbers, and another one
	next    int
	hold    *kfake.FaultHandle
	log     []string
}

func (l *late) logf(format string, args ...any) { l.log = append(l.log, fmt.Sprintf(format, args...)) }

func (l *late) publish(key int, payload string) error {
	msg := message.NewMessage(payload, []byte(payload))
	msg.Metadata[gateway.KeyReceivingEndpointID] = l.keys[key]
	return l.sink.Publish(l.topic, msg)
}

// send tries to store the next number.
func (l *late) send() error {
	err := l.publish(0, strconv.Itoa(l.next))
	l.logf("send %d: %v", l.next, err)
	if err == nil {
		l.next++
	} else if !errors.Is(err, sinks.ErrUnavailable) {
		l.t.Errorf("send %d: %v", l.next, err)
	}
	return err
}

// keep has the broker refuse, so that they are sent again, the requests of the producer that is the next one
// to send a number, until release. Those of another producer pass.
func (l *late) keep() {
	if l.hold != nil {
		return
	}
	l.logf("keep")
	first := int64(-1)
	l.hold = l.cluster.Fake().Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Produce}, Topic: l.name(), Partitions: []int32{0}, Err: kerr.NotEnoughReplicas, Count: -1,
		When: func(request kmsg.Request) bool {
			for _, topic := range request.(*kmsg.ProduceRequest).Topics {
				for _, p := range topic.Partitions {
					if topic.Topic == l.name() && p.Partition == 0 {
						id := int64(binary.BigEndian.Uint64(p.Records[43:51]))
						if first < 0 {
							first = id
						}
						return id == first
					}
				}
			}
			return false
		},
	})
}

func (l *late) release() {
	if l.hold != nil {
		l.logf("release")
		l.hold.Remove()
		l.hold = nil
	}
}

// change has the broker refuse a batch for good, after which the sink sends what comes next alone, with another producer.
func (l *late) change() {
	l.logf("another producer: %v", l.publish(1, "guilty"))
}

func (l *late) name() string { return kafka.DefaultTopicPrefix + "." + l.topic }

// stored returns the numbers that are stored, in their order.
func (l *late) stored() (numbers []int) {
	for _, record := range kafkatest.Read(l.t, l.cluster.Addr(), l.name()) {
		if n, err := strconv.Atoi(string(record.Value)); err == nil && record.Partition == 0 && string(record.Key) == l.keys[0] && n > 0 {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// TestKafkaSwitchPrograms runs random programs in which the producer of a topic is replaced while the one before it still
// sends, again and again: no copy is stored behind its successor, and what was reported as stored is.
func TestKafkaSwitchPrograms(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	client := testkit.Must(kgo.NewClient(kgo.SeedBrokers(cluster.Addr())))(t)
	t.Cleanup(client.Close)
	cluster.Fake().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: func(request kmsg.Request) bool {
		for _, topic := range request.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				if strings.Contains(string(p.Records), "guilty") {
					return true
				}
			}
		}
		return false
	}})
	for i := range *switchPrograms {
		number := *seed + uint64(i)
		t.Run(strconv.FormatUint(number, 10), func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("run it with -seed %d -switches %d", *seed, i+1)
				}
			})
			l := &late{t: t, cluster: cluster, topic: fmt.Sprint("switch", number), next: 1}
			testkit.Must(kadm.NewClient(client).CreateTopic(t.Context(), 2, 1, nil, l.name()))(t)
			l.run(rand.New(rand.NewPCG(number, 0)))
		})
	}
}

func (l *late) run(random *rand.Rand) {
	const timeout = 300 * time.Millisecond
	testkit.EventuallyNil(l.t, func() (err error) { // other programs' requests may be slow at that moment
		l.sink, err = kafka.New(kafka.Config{
			Connection: kafka.Connection{Brokers: []string{l.cluster.Addr()}}, PublishTimeout: timeout,
			Configure: func(c *sarama.Config) { // it is still at it when the time is up
				c.Producer.Retry.BackoffFunc = func(int, int) time.Duration { return timeout / 2 }
			},
		}, nil)
		return err
	})
	defer func() { _ = l.sink.Close() }()
	found := map[int32]bool{}
	for i := 0; len(found) < 2; i++ {
		l.keys[0] = fmt.Sprint("key ", i)
		testkit.EventuallyNil(l.t, func() error { return l.publish(0, "0") })
		for _, record := range kafkatest.Read(l.t, l.cluster.Addr(), l.name()) {
			found[record.Partition] = true
			l.keys[record.Partition] = string(record.Key)
		}
	}

	for range 4 + random.IntN(5) {
		switch random.IntN(5) {
		case 0:
			l.keep()
		case 1:
			l.change()
		case 2:
			l.release()
		default:
			_ = l.send()
		}
	}
	l.release()
	for range 2 {
		testkit.EventuallyNil(l.t, l.send)
	}
	if err := l.sink.Close(); err != nil { // which waits for what is under way
		l.t.Error(err)
	}
	got := l.stored()
	last := 0
	for _, n := range got {
		if n != last && n != last+1 {
			l.t.Errorf("%s\nstored: %v", strings.Join(l.log, "\n"), got)
			return
		}
		last = n
	}
	if last != l.next-1 {
		l.t.Errorf("%s\nstored: %v, want them up to %d", strings.Join(l.log, "\n"), got, l.next-1)
	}
}
