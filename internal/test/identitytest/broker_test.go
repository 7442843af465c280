//go:build kafkabroker

package identitytest

import (
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	kafkabroker "github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
)

// realBroker is that of KAFKA_BROKERS, or one of the test's own.
func realBroker(t *testing.T) (addr string, shared bool) {
	t.Helper()
	if addr, _, _ = strings.Cut(os.Getenv("KAFKA_BROKERS"), ","); addr != "" {
		return addr, true
	}
	return kafkatest.StartReal(t, kafkabroker.Config{}).Addr(), false
}

// TestBrokerPrograms is TestKafkaPrograms with a real broker.
func TestBrokerPrograms(t *testing.T) {
	addr, shared := realBroker(t)
	runKafka(t, addr, shared)
}
