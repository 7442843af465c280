package poisonqueue_test

import (
	"testing"

	"github.com/agrimill/agrimill/internal/testkit/poisonqueue"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/poisonstoretest"
	"github.com/agrimill/agrimill/sinks"
)

// The queue keeps what is said of queues, and the Router what is said of replays.
func TestSuite(t *testing.T) {
	poisonstoretest.Run(t, poisonstoretest.Suite{New: func(*testing.T) poisonstoretest.Queue {
		queue := &poisonqueue.Queue{}
		return poisonstoretest.Queue{
			Store: queue, Sink: sinks.FromPublisher("queue", queue, sinks.PublisherConfig{}), Topic: router.DefaultPoisonTopic,
			Peer: func(*testing.T) router.PoisonStore { return queue },
		}
	}})
}
