//go:build ha

package command

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
)

// haBackID begins the context IDs of messages that feed stores; their number follows.
const haBackID = "00000000-0000-4000-8000-"

// carried is how many messages the instance has carried from Kafka to the gateway.
func (i *haInstance) carried() (n uint64) {
	_, text := haGet(i.origin + "/api/status")
	var status struct {
		Routes []struct {
			Name      string `json:"name"`
			Delivered uint64 `json:"delivered"`
		} `json:"routes"`
	}
	_ = json.Unmarshal(text, &status) // no answer: none
	for _, route := range status.Routes {
		if route.Name == "back" {
			n = route.Delivered
		}
	}
	return n
}

// feed stores a message in each partition of haKafka.back every haBurst, until stop is called. That
// returns when each was stored, by its number.
func (r *haRun) feed() (stop func() []time.Time) {
	r.Helper()
	producer := testkit.Must(kgo.NewClient(kgo.SeedBrokers(r.kafka.addr), kgo.RecordPartitioner(kgo.ManualPartitioner())))(r)
	r.Cleanup(producer.Close)
	end, sent := make(chan struct{}), make(chan []time.Time, 1)
	go func() { // ends with stop, or the test
		var stored []time.Time
		defer func() { sent <- stored }()
		tick := time.NewTicker(haBurst)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-end:
				return
			case <-r.Context().Done():
				return
			}
			for partition := range int32(haKeys) {
				id := fmt.Appendf(nil, haBackID+"%012d", len(stored))
				record := &kgo.Record{Topic: r.kafka.back(), Partition: partition, Key: id, Value: id, Headers: []kgo.RecordHeader{{Key: gateway.KeyContextID, Value: id}}}
				if err := producer.ProduceSync(r.Context(), record).FirstErr(); err != nil {
					r.Error(err)
					return
				}
				stored = append(stored, time.Now())
			}
		}
	}()
	return func() []time.Time {
		close(end)
		return <-sent
	}
}

// TestKilledConsumer: two instances share the partitions of a consumer group. One is killed, the holder
// or the other one: the other takes over its partitions, and nothing is lost. What the gateway had taken
// and nobody knew comes once more, under the same context ID.
func TestKilledConsumer(t *testing.T) {
	built, broker := newEndToEnd(t), haBroker(t)
	for _, victim := range []string{"holder", "standby"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			e := &endToEnd{TB: t, folder: t.TempDir(), agrimill: built.agrimill, natsServer: built.natsServer}
			r := newHARun(e, haForm{ttl: 2 * time.Second, kafka: broker, back: true})
			killed, left := r.roles()
			if victim == "standby" {
				killed, left = left, killed
			}
			stop := r.feed()
			var carried [2]uint64
			testkit.Eventually(t, "both carry messages to the gateway", func() bool {
				carried = [2]uint64{killed.carried(), left.carried()}
				return carried[0] > 100 && carried[1] > 100
			})
			at := killed.signal(syscall.SIGKILL)
			arrived := func() map[string]int {
				count := map[string]int{}
				for _, entry := range r.gate.Ledger() {
					count[entry.ContextID]++
				}
				return count
			}
			began := len(arrived())
			testkit.Eventually(t, "the other one goes on", func() bool { return len(arrived()) > began+500 })
			stored := stop()
			// A copy comes late: it waits until the reservation of the one that was killed is over.
			testkit.Eventually(t, "all are committed", func() bool {
				group := testkit.Must(r.kafka.admin.Lag(t.Context(), r.kafka.back()))(t)[r.kafka.back()]
				return group.Error() == nil && group.Lag.Total() == 0
			})
			if n := len(arrived()); n != len(stored) {
				t.Errorf("%d of %d have arrived", n, len(stored))
			}
			t.Logf("%.1f s after the kill", time.Since(at).Seconds())
			copies := 0
			for id, count := range arrived() {
				number, err := strconv.Atoi(strings.TrimPrefix(id, haBackID))
				if err != nil || number >= len(stored) {
					t.Fatalf("message %q was never sent", id)
				}
				// An offset is committed every second.
				if since := at.Sub(stored[number]); count > 2 || count == 2 && (since < 0 || since > 5*time.Second) {
					t.Errorf("message %s, stored %v before the kill, arrived %d times", id, since, count)
				}
				copies += count - 1
			}
			if copies > haKeys*10 {
				t.Errorf("%d messages arrived twice", copies)
			}
			t.Logf("%d messages, %d twice", len(stored), copies)
			// The confirmation of a copy waits for a file that it may be a part of.
			testkit.NoError(t, r.gate.WaitConfirmed(testkit.Context(t), len(stored)+copies))
			if status := left.stop(syscall.SIGTERM); status != statusOK {
				t.Errorf("%s ended with status %d", left.name, status)
			}
		})
	}
}
