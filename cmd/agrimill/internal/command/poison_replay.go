package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/router"
)

func newPoisonReplayCommand(p *program) *cobra.Command {
	var replay poisonReplay
	cmd := &cobra.Command{
		Use:   "replay (ID... | filters | --all)",
		Short: "deliver poisoned messages again and remove those that arrived",
		Long: `Each message goes through the route that poisoned it, as currently configured: its topic,
its sink or the gateway, its claim check. The queue keeps a message whose route is not in the
configuration, or whose filter no longer accepts it. Without --force, it also keeps a message
that has reached some of its recipients: they would get it again.
A message is removed from the queue after its sink has stored it. A message that fails again
goes to the end of the queue under a new ID, with its history. During an outage the
command waits; SIGINT, SIGTERM or --timeout leave the rest in the queue. If one of the
IDs is not in the queue, nothing is replayed. The status page replays in the same way.

The exit status is also 1 if a message returned to the queue or stayed in it.

` + connectionHelp,
		Example: `  agrimill poison replay --config agrimill.yaml 17
  agrimill poison replay --config agrimill.yaml --route task-data --dry-run
  agrimill poison replay --config agrimill.yaml --all --timeout 10m`,
		RunE: func(cmd *cobra.Command, args []string) error { return replay.run(cmd.Context(), p, args) },
	}
	flags := cmd.Flags()
	replay.define(cmd, p, "replayed", "replaying")
	flags.DurationVar(&replay.timeout, "timeout", 0, "give up after this `DURATION`; 0 means never")
	flags.BoolVar(&replay.force, "force", false, "replay messages that have reached some of their recipients, too, which get them again")
	flags.BoolVarP(&replay.verbose, "verbose", "v", false, "write a line for each message, not only for those that are still in the queue")
	return cmd
}

type poisonReplay struct {
	poisonAction
	timeout        time.Duration
	force, verbose bool
}

type replayReport struct {
	admin.ReplayCounts
	Results []admin.ReplayResult `json:"results"`
}

func (c *poisonReplay) run(ctx context.Context, p *program, args []string) error {
	if c.timeout < 0 {
		return usagef("--timeout must not be negative")
	}
	ctx, cancel := limited(ctx, c.timeout)
	defer cancel()
	return c.poisonAction.run(ctx, p, args, func(queue router.PoisonStore, records []admin.PoisonedRecord) (err error) {
		report := newReplayReport(records)
		if len(records) > 0 {
			report, err = c.throughRoutes(ctx, p, queue, records)
		}
		return errors.Join(err, p.write(report, func() error {
			_, err := fmt.Fprintf(p.stdout, "%s selected: %d delivered, %d duplicate, %d poisoned again, %d kept, %d gone\n",
				plural(report.Selected, "message"), report.Delivered, report.Duplicate, report.Poisoned, report.Kept, report.Gone)
			return err
		}))
	})
}

func (c *poisonReplay) throughRoutes(ctx context.Context, p *program, queue router.PoisonStore, records []admin.PoisonedRecord) (report replayReport, err error) {
	var routes []string
	for _, r := range records {
		routes = append(routes, r.Route)
	}
	replayer, err := pipeline.NewReplayer(ctx, c.connection.loaded, routes, pipeline.Options{Observer: waits{p}, ForceReplays: c.force})
	switch {
	case errors.Is(err, pipeline.ErrConfig):
		return newReplayReport(records), invalid(err)
	case err != nil:
		return newReplayReport(records), notReplayed(err, len(records))
	}
	defer func() { err = errors.Join(err, replayer.Close()) }()
	return replayEach(ctx, p, replayer, queue, records, c.verbose)
}

type waits struct{ *program }

// Observe implements [router.Observer].
func (w waits) Observe(e router.Event) {
	switch e.Kind {
	case router.EventOutageBegan:
		w.notef("waiting: %s", e.Text)
	case router.EventOutageEnded:
		if e.Class == router.ClassShutdown {
			return // it was stopped in it
		}
		w.notef("continuing after %s", e.Delay.Round(time.Second))
	}
}

// replayEach replays messages one by one, shows how far it is on a terminal, and prints the outcome of those that are still in the
// queue, or of each. It returns an error unless every message was delivered.
func replayEach(ctx context.Context, p *program, replayer admin.Replayer, queue router.PoisonStore, records []admin.PoisonedRecord, verbose bool) (replayReport, error) {
	report := newReplayReport(records)
	bar := p.newBar("replaying", int64(len(records)), progressbar.OptionShowIts())
	err := admin.ReplayEach(ctx, replayer, queue, idsOfRecords(records), func(result admin.ReplayResult) {
		report.Add(result.Outcome)
		report.Results = append(report.Results, result)
		text := fmt.Sprintf("%d/%d  %s  %s", len(report.Results), len(records), result.ID, result.Outcome)
		if result.Reason != "" {
			text += ": " + cell(result.Reason)
		}
		left := result.Outcome != admin.ReplayDelivered && result.Outcome != admin.ReplayDuplicate
		if left || verbose {
			_ = bar.Clear()
			p.notef("%s", text)
		}
		_ = bar.Set(len(report.Results))
	})
	_ = bar.Finish() // which removes it
	if err != nil {
		return report, notReplayed(err, len(records)-len(report.Results))
	}
	if n := report.Poisoned + report.Kept; n > 0 {
		return report, fmt.Errorf("%s of %d still in the poison queue", plural(n, "message"), len(records))
	}
	return report, nil
}

func notReplayed(err error, left int) error {
	return fmt.Errorf("%w; %s not replayed", err, plural(left, "message"))
}

func newReplayReport(records []admin.PoisonedRecord) replayReport {
	return replayReport{ReplayCounts: admin.ReplayCounts{Selected: len(records)}, Results: []admin.ReplayResult{}}
}
