package command

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
)

func newStatusCommand(p *program) *cobra.Command {
	var at adminAt
	cmd := &cobra.Command{
		Use:     "status [FILE]",
		GroupID: groupPipeline,
		Short:   "say whether a running agrimill is all right",
		Long: `Asks a running agrimill whether all is right and, if not, what is wrong, for whom, since when,
what happens to the data, and what to do: the same as its status page, /readyz and its log.

With --json: sentence, ready, the problems, the worst ones first, and the figures.

Exit status: 0 all is right; 1 no agrimill answered; 2 wrong usage or an invalid configuration;
4 it is ready, and there are problems; 5 it is not ready.`,
		Example: `  agrimill status agrimill.yaml
  agrimill status agrimill.yaml --json`,
		Args:              configArgument,
		ValidArgsFunction: configFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := at.server(p)
			if err != nil {
				return err
			}
			var status admin.Status
			if err := server.ask(cmd.Context(), "/api/status", url.Values{}, &status); err != nil {
				return err
			}
			written := p.write(statusJSON{status.Verdict, status.Figures}, func() error { return p.writeVerdict(&status) })
			return ended(written, status.Verdict.ExitStatus())
		},
	}
	at.flags(cmd)
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "write JSON")
	return cmd
}

type statusJSON struct {
	admin.Verdict
	Figures admin.Figures `json:"figures"`
}

func (p *program) writeVerdict(status *admin.Status) error {
	f := status.Figures
	oldest := ""
	if !f.Oldest.IsZero() {
		oldest = fmt.Sprintf(", the oldest for %s", status.Time.Sub(f.Oldest).Round(time.Second))
	}
	_, err := fmt.Fprintf(p.stdout, "%s\n\nreceived %d, stored %d, confirmed %d, unconfirmed %d%s\n",
		cell(status.Verdict.Sentence), f.Received, f.Stored, f.Confirmed, f.Unconfirmed, oldest)
	for i, problem := range status.Verdict.Problems {
		if err == nil && len(status.Verdict.Problems) > 1 {
			_, err = fmt.Fprintf(p.stdout, "\n%d. %s\n   runbook: %s\n", i+1, cell(problem.Text), cell(problem.Runbook))
		}
	}
	return err
}
