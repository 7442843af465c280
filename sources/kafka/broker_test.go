//go:build kafkabroker

package kafka_test

import (
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
)

// TestBroker runs the shared tests and Watermill's suite against a real broker: that of
// KAFKA_BROKERS, or one of its own.
func TestBroker(t *testing.T) {
	addr := os.Getenv("KAFKA_BROKERS")
	if addr == "" {
		addr = kafkatest.StartReal(t, broker.Config{}).Addr()
	}
	addr, _, _ = strings.Cut(addr, ",")
	t.Run("tests", func(t *testing.T) { runShared(t, addr) })
	t.Run("Universal", func(t *testing.T) { testUniversal(t, addr, false) })
}
