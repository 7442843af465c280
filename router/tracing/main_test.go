package tracing_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(testkit.SuiteLeaks(), testkit.SaramaLeaks()...)...)
}
