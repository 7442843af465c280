package tracing_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Watermill's suite leaves the helpers behind with which it multiplies
	// subscribers: they send to a channel that it no longer reads.
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe."
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(multiplier+"func2"), goleak.IgnoreAnyFunction(multiplier+"func3"),
		// sarama, in watermill-kafka's subscriber, makes meters.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
