package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/backoff"
)

// coordinatorLimit is how long a coordinator may not be ready: longer than brokers usually take to choose one and load the offsets.
const coordinatorLimit = 30 * time.Second

// coordinatorPolicy is how often one is asked that is not ready.
var coordinatorPolicy = backoff.Policy{Initial: 20 * time.Millisecond, Max: time.Second}

// askCoordinator asks the coordinator of a group, again while it is not ready, until the limit or the end of ctx.
func askCoordinator(ctx context.Context, client sarama.Client, group string, question func() error) error {
	began := time.Now()
	for n := 0; ; n++ {
		err := question()
		if !passes(err, began) || coordinatorPolicy.Wait(ctx, n) != nil {
			return err
		}
		if !errors.Is(err, sarama.ErrOffsetsLoadInProgress) {
			_ = client.RefreshCoordinator(group) // an error shows in the question
		}
	}
}

// passes reports whether an error will pass by itself: a coordinator is not ready, and all was well a while ago.
func passes(err error, well time.Time) bool {
	return notReady(err) && time.Since(well) < coordinatorLimit
}

// notReady reports whether the coordinator of a group is being chosen, or has not loaded its offsets yet.
func notReady(err error) bool {
	return errors.Is(err, sarama.ErrOffsetsLoadInProgress) || errors.Is(err, sarama.ErrConsumerCoordinatorNotAvailable) || errors.Is(err, sarama.ErrNotCoordinatorForConsumer)
}
