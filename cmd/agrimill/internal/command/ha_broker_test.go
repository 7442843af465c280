//go:build ha && kafkabroker

package command

import (
	"os"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest/broker"
)

// haBroker returns a real broker: that of KAFKA_BROKERS, or one of its own.
func haBroker(tb testing.TB) string {
	tb.Helper()
	if addr, _, _ := strings.Cut(os.Getenv("KAFKA_BROKERS"), ","); addr != "" {
		return addr
	}
	return kafkatest.StartReal(tb, broker.Config{}).Addr()
}
