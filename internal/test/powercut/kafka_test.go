//go:build powercut

package powercut

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	kafkabroker "github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
	"github.com/agrimill/agrimill/sinks"
)

// kafkaMachine is one with a Kafka broker, see [machine].
type kafkaMachine struct {
	*testing.T
	*kafkabroker.Broker
	dir string
}

func (m *kafkaMachine) kill() { m.Kill() }
func (m *kafkaMachine) writeBack() {
	copyFiles(m.T, filepath.Join(m.dir, "data"), filepath.Join(m.dir, "synced"))
}
func (m *kafkaMachine) lose() {
	copyFiles(m.T, filepath.Join(m.dir, "synced"), filepath.Join(m.dir, "data"))
}

func (m *kafkaMachine) start() {
	if err := m.Restart(context.Background()); err != nil {
		m.Error(err)
	}
}

// kafkaCluster is one broker or several.
type kafkaCluster struct {
	*testing.T
	brokers []*kafkaMachine
	client  *kgo.Client
}

// kafkaBrokers returns what starts as many brokers, with the layer.
func kafkaBrokers(t *testing.T, n int, synced sinks.Synced) func(*testing.T) (broker, setup) {
	layer := filepath.Join(t.TempDir(), "layer.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-x", "c", "-o", layer, "layer.c.txt").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func(t *testing.T) (broker, setup) {
		c := &kafkaCluster{T: t, brokers: make([]*kafkaMachine, n)}
		var controllers, addrs []string
		for _, port := range testkit.FreePorts(t, n) {
			controllers = append(controllers, fmt.Sprintf("127.0.0.1:%d", port))
		}
		var all sync.WaitGroup
		for i := range n {
			dir := t.TempDir()
			config := kafkabroker.Config{Dir: dir, Node: i, Controllers: controllers, Env: []string{
				"LD_PRELOAD=" + layer, "POWERCUT_STORE=" + filepath.Join(dir, "data"), "POWERCUT_SHADOW=" + filepath.Join(dir, "synced"),
			}}
			all.Go(func() {
				b, err := kafkabroker.Start(context.Background(), config)
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(b.Kill)
				c.brokers[i] = &kafkaMachine{t, b, dir}
			})
		}
		all.Wait()
		if t.Failed() {
			t.FailNow()
		}
		for _, m := range c.brokers {
			addrs = append(addrs, m.Addr())
		}
		c.client = kafkatest.Client(t, addrs[0], kgo.SeedBrokers(addrs...))
		return c, setup{Kafka: true, URL: strings.Join(addrs, ","), Synced: synced, Replicas: n}
	}
}

func (c *kafkaCluster) machines() (machines []machine) {
	for _, m := range c.brokers {
		machines = append(machines, m)
	}
	return machines
}

// topics returns those of agrimill, once all brokers have what one has.
func (c *kafkaCluster) topics() (topics kadm.TopicDetails) {
	c.Helper()
	testkit.Eventually(c.T, "the brokers have the same", func() bool {
		meta, err := kadm.NewClient(c.client).Metadata(c.Context())
		if err != nil || len(meta.Brokers) < len(c.brokers) {
			return false
		}
		topics = meta.Topics
		topics.FilterInternal()
		for _, topic := range topics {
			for _, p := range topic.Partitions {
				if topic.Err != nil || p.Err != nil || p.Leader < 0 || len(p.ISR) < len(c.brokers) {
					return false
				}
			}
		}
		return true
	})
	return topics
}

func (c *kafkaCluster) settles() { c.topics() }

func (c *kafkaCluster) stored() map[string]int {
	c.Helper()
	found := map[string]int{}
	for name := range c.topics() {
		for _, record := range kafkatest.Read(c.T, c.brokers[0].Addr(), name) {
			for _, h := range record.Headers {
				if h.Key == gateway.KeyMessageID {
					found[string(h.Value)]++
				}
			}
		}
	}
	return found
}
