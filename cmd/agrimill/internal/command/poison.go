package command

import (
	"context"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wildcard"
	"github.com/agrimill/agrimill/router"
	kafkaqueue "github.com/agrimill/agrimill/stores/kafka/poisonqueue"
)

func newPoisonCommand(p *program) *cobra.Command {
	return group(&cobra.Command{
		Use:     "poison",
		GroupID: groupPoison,
		Short:   "manage the poison queue in NATS JetStream or Kafka",
		Long: `A message that cannot be handled is moved to the poison queue and confirmed, so
it exists nowhere else. Listing and showing messages leaves the queue unchanged.`,
	}, newPoisonListCommand(p), newPoisonShowCommand(p), newPoisonReplayCommand(p), newPoisonDropCommand(p))
}

type filters struct {
	routes, types []string
	class         string
	since         time.Time
	limit         int
	patterns      wildcard.Patterns // types
}

func (f *filters) define(cmd *cobra.Command, now func() time.Time) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.routes, "route", nil, "only messages poisoned by the route `NAME`; may be repeated")
	flags.StringArrayVar(&f.types, "type", nil, "only this message `TYPE`; * matches any characters, ? exactly one; may be repeated")
	choice(cmd, &f.class, "class", "only this `CLASS`: permanent or handler", router.ClassPermanent.String(), router.ClassHandler.String())
	flags.Func("since", "only messages that last failed at or after this `TIME`: 90m, 2d, 2026-11-20, 2026-11-20T08:00:00Z", func(text string) (err error) {
		f.since, err = parseSince(text, now())
		return err
	})
	flags.IntVar(&f.limit, "limit", 0, "at most the `N` oldest messages; 0 means no limit")
}

func (f *filters) prepare() error {
	if f.limit < 0 {
		return usagef("--limit must not be negative")
	}
	f.patterns = wildcard.New("", f.types...)
	return nil
}

// any reports whether a filter was given. A limit does not count.
func (f *filters) any() bool {
	return len(f.routes) > 0 || len(f.types) > 0 || f.class != "" || !f.since.IsZero()
}

func (f *filters) match(p router.Poisoned) bool {
	messageType := p.Message.Metadata[gateway.KeyMessageType]
	return (len(f.routes) == 0 || slices.Contains(f.routes, p.Route)) &&
		f.patterns.Match(messageType) &&
		(f.class == "" || f.class == p.Class) &&
		!p.Last.Before(f.since)
}

// selection is filters, or IDs, or everything. It must be explicit, so that forgetting it
// selects nothing rather than everything.
type selection struct {
	filters
	all bool
	ids []string
}

func (s *selection) define(cmd *cobra.Command, now func() time.Time) {
	cmd.Flags().BoolVar(&s.all, "all", false, "every message in the queue")
	s.filters.define(cmd, now)
}

func (s *selection) prepare(ids []string) error {
	given := 0
	for _, is := range []bool{s.all, len(ids) > 0, s.any()} {
		if is {
			given++
		}
	}
	if given != 1 {
		return usagef("select messages by ID, by filter (--route, --class, --type, --since), or with --all")
	}
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
		if !slices.Contains(s.ids, id) {
			s.ids = append(s.ids, id)
		}
	}
	return s.filters.prepare()
}

// poisonAction has the flags of a command that does something with selected messages.
type poisonAction struct {
	connection connection
	wanted     selection
	dryRun     bool
}

func (a *poisonAction) define(cmd *cobra.Command, p *program, done, doing string) {
	a.connection.define(cmd)
	a.wanted.define(cmd, p.now)
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "list what would be "+done+", without "+doing+" it")
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "write the result as JSON")
}

// run calls act with the messages that are selected, unless --dry-run only lists them.
func (a *poisonAction) run(ctx context.Context, p *program, args []string, act func(router.PoisonStore, []admin.PoisonedRecord) error) error {
	if err := a.wanted.prepare(args); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a closed stdout or stderr is no reason to stop after the first message
	return a.connection.use(ctx, p, func(queue router.PoisonStore) error {
		records, err := a.wanted.records(ctx, queue)
		switch {
		case err != nil:
			return err
		case a.dryRun:
			return p.writeRecords(records)
		}
		return act(queue, records)
	})
}

func checkID(id string) error {
	if n, err := strconv.ParseUint(id, 10, 64); (err != nil || n == 0) && !kafkaqueue.ValidID(id) {
		return usagef("%q is not an ID: IDs are numbers, such as 17, or 0-17-3f2a9c01 in Kafka; see agrimill poison list", id)
	}
	return nil
}

// records returns the selected messages, oldest first, without their payloads.
func (s *selection) records(ctx context.Context, queue router.PoisonStore) ([]admin.PoisonedRecord, error) {
	selected := []admin.PoisonedRecord{}
	want := router.PoisonSelection{IDs: s.ids}
	if len(s.ids) == 0 {
		want.Filter = s.match
	}
	for poisoned, err := range router.SelectPoisoned(ctx, queue, want) {
		if err != nil {
			return nil, err
		}
		selected = append(selected, admin.NewPoisonedRecord(poisoned))
		if len(selected) == s.limit {
			break
		}
	}
	return selected, nil
}

func idsOfRecords(records []admin.PoisonedRecord) []string {
	ids := make([]string, len(records))
	for i, r := range records {
		ids[i] = r.ID
	}
	return ids
}
