package identitytest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

var fencingPrograms = flag.Int("fencing", 8, "how many are run in which holders of a lease store in Kafka one after the other")

// fencing is a program in which sinks with one transactional ID store the numbers, each until it is stored. One of them
// does at a time; what another one has on its way when its time is over stays there for as long as the program likes.
type fencing struct {
	t        *testing.T
	addr     string
	topic    string
	sinks    []*kafka.Sink
	holders  []*kafkatest.Holder // of the ways of the sinks
	releases [][]func()          // of what is on its way, by sink
	now      int                 // the sink that may store
	ctx      context.Context
	end      context.CancelFunc // of its time
	next     int
	log      []string
}

func (f *fencing) logf(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fencing) publish() error {
	msg := message.NewMessage("", []byte(strconv.Itoa(f.next)))
	msg.SetContext(f.ctx)
	return f.sinks[f.now].Publish(f.topic, msg)
}

// send tries to store the next number.
func (f *fencing) send() error {
	err := f.publish()
	f.logf("sink %d sends %d: %v", f.now, f.next, err)
	switch {
	case err == nil:
		f.next++
	case !errors.Is(err, sinks.ErrUnavailable):
		f.t.Errorf("sink %d sends %d: %v", f.now, f.next, err)
	}
	return err
}

// freeze has a request of the sink stay on its way, and hands over to another one, which stores the same number.
func (f *fencing) freeze(kind kmsg.Key, to int) {
	held, release := f.holders[f.now].Hold(kind)
	f.releases[f.now] = append(f.releases[f.now], release)
	result := make(chan error, 1)
	go func() { result <- f.publish() }()
	select {
	case <-held:
		f.logf("sink %d: %v %d stays on its way", f.now, kind.Name(), f.next)
		f.handOver(to)
		testkit.EventuallyNil(f.t, f.send) // and so nothing else is stored by the one before
	case err := <-result: // it has a producer already, or is fenced off
		f.logf("sink %d: %d: %v", f.now, f.next, err)
		if err == nil {
			f.next++
		}
		release()
	}
}

// goOn has what a sink has on its way go on.
func (f *fencing) goOn(sink int) {
	f.logf("sink %d: %d requests go on", sink, len(f.releases[sink]))
	for _, release := range f.releases[sink] {
		release()
	}
	f.releases[sink] = nil
}

func (f *fencing) goOnAll() {
	for sink := range f.releases {
		f.goOn(sink)
	}
}

func (f *fencing) handOver(to int) {
	f.end()
	f.goOn(to) // who is to store something cannot be frozen
	f.now = to
	f.ctx, f.end = context.WithCancel(f.t.Context())
	f.logf("sink %d may store", to)
}

func (f *fencing) run(random *rand.Rand, id string) {
	defer func() { f.end() }()
	const many = 3
	for range many {
		h := &kafkatest.Holder{}
		config := kafka.Config{
			Brokers: []string{f.addr}, TransactionalID: id, Partitions: 1, PublishTimeout: 2 * time.Second, CloseTimeout: time.Second,
			Configure: func(c *sarama.Config) { c.Net.Proxy.Enable, c.Net.Proxy.Dialer = true, h },
		}
		var sink *kafka.Sink
		testkit.EventuallyNil(f.t, func() (err error) {
			sink, err = kafka.New(config, nil)
			return err
		})
		defer func() { _ = sink.Close() }()
		f.sinks, f.holders = append(f.sinks, sink), append(f.holders, h)
	}
	f.releases = make([][]func(), many)
	defer f.goOnAll() // so that the sinks can be closed
	f.ctx, f.end = context.WithCancel(f.t.Context())
	kinds := []kmsg.Key{kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.EndTxn}
	for range 6 + random.IntN(10) {
		other := (f.now + 1 + random.IntN(many-1)) % many
		switch random.IntN(7) {
		case 0:
			f.handOver(other)
		case 1, 2:
			f.freeze(kinds[random.IntN(len(kinds))], other)
		case 3:
			f.goOn(random.IntN(many))
		default:
			_ = f.send()
		}
	}
	f.goOnAll()
	for range 2 {
		testkit.EventuallyNil(f.t, f.send)
	}
	for _, sink := range f.sinks { // which waits for what is under way
		if err := sink.Close(); err != nil {
			f.t.Error(err)
		}
	}
	var got []int
	for _, record := range kafkatest.Read(f.t, f.addr, kafka.DefaultTopicPrefix+"."+f.topic) {
		n, err := strconv.Atoi(string(record.Value))
		if err != nil {
			f.t.Fatal(err)
		}
		got = append(got, n)
	}
	last := 0
	for _, n := range got {
		if n != last+1 {
			f.t.Errorf("%s\nstored: %v", strings.Join(f.log, "\n"), got)
			return
		}
		last = n
	}
	if last != f.next-1 {
		f.t.Errorf("%s\nstored: %v, want them up to %d", strings.Join(f.log, "\n"), got, f.next-1)
	}
}

// TestFencingPrograms runs random programs in which a holder of a lease goes on after its time, with a request of any kind
// that was on its way: it is not stored beside what the next one has stored, and what was reported as stored is, once.
func TestFencingPrograms(t *testing.T) {
	t.Parallel()
	runFencing(t, kafkatest.Start(t).Addr())
}

func runFencing(t *testing.T, addr string) {
	run := strconv.Itoa(os.Getpid())
	for i := range *fencingPrograms {
		number := *seed + uint64(i)
		t.Run(strconv.FormatUint(number, 10), func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("run it alone with -seed %d -fencing 1", number)
				}
			})
			name := fmt.Sprintf("fencing%d-%s", number, run)
			f := &fencing{t: t, addr: addr, topic: name, next: 1}
			f.run(rand.New(rand.NewPCG(number, 0)), name)
		})
	}
}
