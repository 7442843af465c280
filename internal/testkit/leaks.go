package testkit

import "go.uber.org/goleak"

// SuiteLeaks returns what a leak check has to excuse in a package that runs Watermill's suite: it leaves helpers behind that
// send to a channel that it no longer reads, if a message comes twice.
func SuiteLeaks() []goleak.Option {
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe."
	return []goleak.Option{goleak.IgnoreAnyFunction(multiplier + "func2"), goleak.IgnoreAnyFunction(multiplier + "func3")}
}

// SaramaLeaks returns what a leak check has to excuse in a package that uses sarama, also inside watermill-kafka: a ticker of its meters for the
// life of the process, and a circuit breaker that sleeps for ten seconds after a leader was not found, whoever closes the client.
func SaramaLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		goleak.IgnoreAnyFunction("github.com/eapache/go-resiliency/breaker.(*Breaker).timer"),
	}
}
