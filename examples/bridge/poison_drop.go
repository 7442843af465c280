package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/router"
)

func newPoisonDropCommand(p *program) *cobra.Command {
	var drop poisonDrop
	cmd := &cobra.Command{
		Use:   "drop (ID... | filters | --all)",
		Short: "delete poisoned messages for good",
		Long: `What is dropped is nowhere else: save what may be needed first, with
"bridge poison show --payload FILE ID". If one of the IDs is not in the queue,
nothing is deleted. A payload in a claim check stays there.

` + environmentHelp,
		Example: `  bridge poison drop 17 18
  bridge poison drop --type 'shp:*' --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error { return drop.run(cmd.Context(), p, args) },
	}
	flags := cmd.Flags()
	drop.connection.define(cmd)
	drop.wanted.define(cmd)
	flags.BoolVar(&drop.yes, "yes", false, "really delete everything; needed with --all")
	flags.BoolVar(&drop.dryRun, "dry-run", false, "list what would be deleted, and delete nothing")
	flags.BoolVar(&drop.asJSON, "json", false, "write JSON")
	return cmd
}

type poisonDrop struct {
	connection          connection
	wanted              selection
	yes, dryRun, asJSON bool
}

// dropReport is the result as JSON.
type dropReport struct {
	Selected int `json:"selected"`
	// Deleted are the IDs of the messages that were deleted.
	Deleted []string `json:"deleted"`
	// Gone counts those that somebody else took off in the meantime.
	Gone int `json:"gone"`
}

func (c *poisonDrop) run(ctx context.Context, p *program, args []string) error {
	if err := c.wanted.prepare(args, p.now()); err != nil {
		return err
	}
	if c.wanted.all && !c.yes && !c.dryRun {
		return usagef("--all deletes every message of the poison queue for good: add --yes, or look first with --dry-run")
	}
	return c.connection.use(ctx, p, false, func(at opened) error {
		records, err := c.wanted.records(ctx, at.queue)
		if err != nil {
			return err
		}
		if c.dryRun {
			return p.writeRecords(records, c.asJSON)
		}
		report, err := drop(ctx, at.queue, records)
		return errors.Join(err, p.writeDropReport(report, c.asJSON))
	})
}

func drop(ctx context.Context, queue router.PoisonStore, records []record) (dropReport, error) {
	report := dropReport{Selected: len(records), Deleted: []string{}}
	for _, r := range records {
		switch err := queue.Delete(ctx, r.ID); {
		case errors.Is(err, router.ErrNotInQueue):
			report.Gone++
		case err != nil:
			return report, fmt.Errorf("poisoned message %q: %w", r.ID, err)
		default:
			report.Deleted = append(report.Deleted, r.ID)
		}
	}
	return report, nil
}

func (p *program) writeDropReport(report dropReport, asJSON bool) error {
	if asJSON {
		return p.writeJSON(report)
	}
	text := fmt.Sprintf("%s selected: %d deleted", plural(report.Selected, "message"), len(report.Deleted))
	if report.Gone > 0 {
		text += fmt.Sprintf(", %d gone in the meantime", report.Gone)
	}
	_, err := fmt.Fprintln(p.stdout, text)
	return err
}
