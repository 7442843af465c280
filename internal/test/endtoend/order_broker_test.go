//go:build kafkabroker

package endtoend

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
	"github.com/agrimill/agrimill/sinks"
)

// TestBrokerOrder is TestOrder with a real Kafka broker, which is killed as well.
func TestBrokerOrder(t *testing.T) {
	for _, ingest := range []sinks.Ingest{sinks.IngestPlain, sinks.IngestPipelined} {
		for seed := range orderRuns(ingest) {
			t.Run(fmt.Sprintf("%s/%d", ingest, seed), func(t *testing.T) {
				real := kafkatest.StartReal(t, broker.Config{})
				b := kafkaOrderBroker(t, real, real.Proxy)
				b.faults["is killed"] = func() { real.Kill(); shortly(); real.Restart() }
				testOrder(t, b, ingest, rand.New(rand.NewPCG(uint64(seed), 17)))
			})
		}
	}
}
