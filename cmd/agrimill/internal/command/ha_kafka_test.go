//go:build ha && !kafkabroker

package command

import (
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
)

// haBroker starts a broker in this process.
func haBroker(tb testing.TB) string { return kafkatest.Start(tb).Addr() }
