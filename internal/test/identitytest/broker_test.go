//go:build kafkabroker

package identitytest

import (
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	kafkabroker "github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
)

// TestBrokerPrograms is TestKafkaPrograms with a real broker: that of KAFKA_BROKERS, or one of its
// own.
func TestBrokerPrograms(t *testing.T) {
	addr, shared := os.Getenv("KAFKA_BROKERS"), true
	if addr == "" {
		addr, shared = kafkatest.StartReal(t, kafkabroker.Config{}).Addr(), false
	}
	addr, _, _ = strings.Cut(addr, ",")
	runKafka(t, addr, shared)
}
