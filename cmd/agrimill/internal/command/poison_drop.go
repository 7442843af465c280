package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/router"
)

func newPoisonDropCommand(p *program) *cobra.Command {
	var drop poisonDrop
	cmd := &cobra.Command{
		Use:   "drop (ID... | filters | --all)",
		Short: "permanently delete poisoned messages",
		Long: `Dropped messages exist nowhere else: first save what you may need, with
"agrimill poison show --payload". If one of the IDs is not in the queue,
nothing is deleted. Payloads in a claim check are kept.

` + connectionHelp,
		Example: `  agrimill poison drop --config agrimill.yaml 17 18
  agrimill poison drop --config agrimill.yaml --type 'shp:*' --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error { return drop.run(cmd.Context(), p, args) },
	}
	drop.define(cmd, p, "deleted", "deleting")
	cmd.Flags().BoolVar(&drop.yes, "yes", false, "really delete everything; required with --all")
	return cmd
}

type poisonDrop struct {
	poisonAction
	yes bool
}

type dropReport struct {
	Selected int `json:"selected"`
	// Deleted are the IDs of the messages that were deleted.
	Deleted []string `json:"deleted"`
	// Gone counts messages that someone else removed in the meantime.
	Gone int `json:"gone"`
}

func (c *poisonDrop) run(ctx context.Context, p *program, args []string) error {
	if c.wanted.all && !c.yes && !c.dryRun {
		return usagef("--all permanently deletes every message in the poison queue: add --yes, or check first with --dry-run")
	}
	return c.poisonAction.run(ctx, p, args, func(queue router.PoisonStore, records []admin.PoisonedRecord) error {
		report, err := drop(ctx, queue, records)
		return errors.Join(err, p.write(report, func() error {
			text := fmt.Sprintf("%s selected: %d deleted", plural(report.Selected, "message"), len(report.Deleted))
			if report.Gone > 0 {
				text += fmt.Sprintf(", %d gone in the meantime", report.Gone)
			}
			_, err := fmt.Fprintln(p.stdout, text)
			return err
		}))
	})
}

func drop(ctx context.Context, queue router.PoisonStore, records []admin.PoisonedRecord) (dropReport, error) {
	report := dropReport{Selected: len(records), Deleted: []string{}}
	err := admin.DropEach(ctx, queue, idsOfRecords(records), func(result admin.ReplayResult) {
		if result.Outcome == admin.ReplayGone {
			report.Gone++
			return
		}
		report.Deleted = append(report.Deleted, result.ID)
	})
	return report, err
}
