package kafka

import (
	"time"

	"github.com/rcrowley/go-metrics"
)

// NoMetrics is for the clients of tests: sarama's own metrics leave a goroutine
// behind.
func NoMetrics() metrics.Registry { return Connection{}.ClientConfig().MetricRegistry }

// RecordLimit is how large a record may be.
var RecordLimit = recordLimit

// LookAgain makes the next message of a topic look at it again, as if
// the last look was long ago.
func (s *Sink) LookAgain(called string) {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	known := s.byTopic[called]
	t := *known.topic
	t.looked = time.Time{}
	known.topic = &t
}
