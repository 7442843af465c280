package poisonqueue_test

import (
	"context"
	"fmt"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/kafka/poisonqueue"
)

// How a program lists the queue, replays what an update has repaired, and deletes the rest.
func Example() {
	repair := func(ctx context.Context, r *router.Router) error {
		queue, err := poisonqueue.New(poisonqueue.Config{Connection: kafka.Connection{Brokers: []string{"localhost:9092"}}})
		if err != nil {
			return err
		}
		defer func() { _ = queue.Close() }()
		for p, err := range queue.Messages(ctx) {
			if err != nil {
				return err
			}
			fmt.Println(p.ID, p.Route, p.Class, p.Attempts, p.First, p.Reason)
		}
		report, err := r.Replay(ctx, queue, router.PoisonSelection{
			Filter: func(p router.Poisoned) bool { return p.Route == "farm data" },
		})
		if err != nil {
			return err
		}
		fmt.Printf("%d sent, %d failed again\n", report.Sent, report.Poisoned)
		_, err = router.DeletePoisoned(ctx, queue, router.PoisonSelection{IDs: []string{"0-17-3f2a9c01"}})
		return err
	}
	_ = repair
}
