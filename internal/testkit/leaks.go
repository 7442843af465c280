package testkit

import "go.uber.org/goleak"

// SuiteLeaks returns what a leak check has to excuse in a package that runs Watermill's suite: it leaves helpers behind that
// send to a channel that it no longer reads, if a message comes twice.
func SuiteLeaks() []goleak.Option {
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe."
	return []goleak.Option{goleak.IgnoreAnyFunction(multiplier + "func2"), goleak.IgnoreAnyFunction(multiplier + "func3")}
}
