//go:build kafkabroker

package poisonqueue_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
	"github.com/agrimill/agrimill/router/poisonstoretest"
)

// TestBroker runs the suite against a real broker: that of KAFKA_BROKERS, or one of its own.
func TestBroker(t *testing.T) {
	addr, stop, restart := os.Getenv("KAFKA_BROKERS"), (func())(nil), (func())(nil)
	if addr == "" {
		real := kafkatest.StartReal(t, broker.Config{})
		addr, stop, restart = real.Addr(), real.Kill, real.Restart
	} else {
		addr, _, _ = strings.Cut(addr, ",")
		t.Logf("NOT RUN: outages, because the broker at %s is not ours to stop", addr)
	}
	for _, partitions := range []int32{1, 3} {
		if partitions > 1 {
			stop, restart = nil, nil // an outage is one, however many there are
		}
		t.Run(fmt.Sprintf("Partitions%d", partitions), func(t *testing.T) {
			p := &place{addr: addr, run: fmt.Sprintf("t%d", time.Now().UnixNano())}
			poisonstoretest.Run(t, p.suite(partitions, stop, restart))
		})
	}
}
