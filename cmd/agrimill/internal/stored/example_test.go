package stored_test

import (
	"context"
	"fmt"
	"log"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/internal/spool"
)

// The payload of a message that the journal of a running agrimill knows.
func Example() {
	show := func(ctx context.Context, cfg *config.Config, m *journal.Message) error {
		reader := stored.NewReader(cfg, m, stored.Options{Limits: spool.Limits{Max: 64 << 20}})
		defer func() { _ = reader.Close() }() // only read
		for _, c := range stored.CopiesOf(cfg, m) {
			if err := reader.Read(ctx, c); err != nil {
				log.Print(c, ": ", stored.Absent(err)) // not there any more, or it could not be asked
				continue
			}
			fmt.Println(c.Message.UUID, c.Payload.Size)
			return c.Payload.Close()
		}
		return fmt.Errorf("no copy: %s", stored.WhyNot(m, 0))
	}
	err := show(context.Background(), &config.Config{}, &journal.Message{State: "filtered by records; confirmed"})
	fmt.Println(err)
	// Output: no copy: the journal knows of no place that has it (it is filtered by records; confirmed), and the gateway keeps nothing that was confirmed
}
