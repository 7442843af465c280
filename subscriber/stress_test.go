//go:build stress

package subscriber_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
)

// TestUniversalSuiteStress is the suite's stress variant: `make torture PART=stress`.
func TestUniversalSuiteStress(t *testing.T) {
	m := &multiverse{byID: map[string]*universe{}}
	tests.TestPubSubStressTest(t, features(), m.pubSub, nil)
}
