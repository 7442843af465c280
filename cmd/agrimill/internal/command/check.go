package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
)

const defaultCheckTimeout = 10 * time.Second

// States of a check.
const (
	checkOK      = "ok"
	checkWarning = "warning" // works, but deserves a look
	checkFailed  = "failed"
	checkSkipped = "skipped" // not tried, because something else failed
)

type checkResult struct {
	// Part is the section, Name the item in it.
	Part string `json:"part"`
	Name string `json:"name,omitempty"`
	// State is one of the constants.
	State string `json:"state"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
	// Detail describes what was found, or why the check failed.
	Detail string `json:"detail,omitempty"`
	// Advice suggests what to do.
	Advice string `json:"advice,omitempty"`
}

type checkReport struct {
	File string `json:"file"`
	// OK says that nothing failed.
	OK     bool          `json:"ok"`
	Checks []checkResult `json:"checks"`
}

type checkError struct {
	err    error
	advice string
}

// Error is the text of the failure, without the advice.
func (e *checkError) Error() string { return e.err.Error() }

// Unwrap returns the failure.
func (e *checkError) Unwrap() error { return e.err }

func advise(err error, format string, args ...any) error {
	return &checkError{err, fmt.Sprintf(format, args...)}
}

type finding struct {
	detail string
	// warn is advice about something doubtful; empty if all is well.
	warn string
}

type probe struct {
	part, name string
	run        func(ctx context.Context) (finding, error)
}

type checker struct {
	cfg     *config.Config
	timeout time.Duration
	tenants func() ([]gateway.TenantInfo, error) // requests the list once
}

func newCheckCommand(p *program) *cobra.Command {
	c := &checker{}
	cmd := &cobra.Command{
		Use:     "check FILE",
		GroupID: groupPipeline,
		Short:   "test the connections of a configuration",
		Long: `Validates a configuration and then tests what it names: it gets a token, lists the tenants,
looks up the endpoints that routes name, and opens what run opens: each sink, each source of a
route, the stores of dedup, ha and devices, the claim check, the journal, the address of the
status page and the trace collector, with the warnings of run. It leaves nothing behind: what run
would create at startup (endpoints, streams, buckets, files) is reported as not there yet. It
neither receives nor sends messages.

The table shows what each check found and how long it took, followed by advice on
failures.

Exit status: 0 nothing failed, 1 something failed, 2 wrong usage or an invalid configuration.`,
		Example: `  agrimill check agrimill.yaml
  agrimill check --json --timeout 3s agrimill.yaml`,
		Args:              exactly("configuration FILE"),
		ValidArgsFunction: configFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.timeout <= 0 {
				return usagef("--timeout must be positive")
			}
			loaded, err := p.loadConfig(args[0])
			if err != nil {
				return err
			}
			c.cfg = loaded
			for _, warning := range loaded.Warnings {
				p.notef("%s", redact(errors.New(warning.String())))
			}
			report := checkReport{File: args[0], OK: true, Checks: c.run(cmd.Context())}
			status := statusOK
			if slices.ContainsFunc(report.Checks, func(r checkResult) bool { return r.State == checkFailed }) {
				report.OK, status = false, statusFailed
			}
			return ended(p.write(report, func() error { return p.writeChecks(report) }), status)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&p.asJSON, "json", false, "write JSON")
	flags.DurationVar(&c.timeout, "timeout", defaultCheckTimeout, "how long (`DURATION`) each check may take")
	return cmd
}

// run performs all checks, several at a time, and returns their results in the order of the
// sections.
func (c *checker) run(ctx context.Context) []checkResult {
	c.tenants = sync.OnceValues(func() ([]gateway.TenantInfo, error) {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		return c.list(ctx)
	})
	probes := c.probes()
	results := make([]checkResult, len(probes))
	var group errgroup.Group
	group.SetLimit(8)
	for i, probe := range probes {
		group.Go(func() error {
			results[i] = c.try(ctx, probe)
			return nil
		})
	}
	_ = group.Wait() // none returns an error
	return results
}

func (c *checker) probes() []probe {
	return slices.Concat(c.gatewayProbes(), c.sinkProbes(), c.routeProbes(), c.storeProbes())
}

// errSkipped: a prerequisite of the check failed.
var errSkipped = errors.New("not tried")

func (c *checker) try(ctx context.Context, p probe) checkResult {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	began := time.Now()
	found, err := p.run(ctx)
	result := checkResult{Part: p.part, Name: p.name, State: checkOK, Seconds: time.Since(began).Round(time.Millisecond).Seconds(), Detail: found.detail}
	var with *checkError
	switch {
	case errors.Is(err, errSkipped):
		result.State, result.Detail = checkSkipped, router.RedactError(err, nil)
	case err != nil:
		result.State, result.Detail, result.Advice = checkFailed, strings.TrimPrefix(router.RedactError(err, nil), "sink "+p.name+": "), admin.Advice(err)
		if errors.As(err, &with) {
			result.Advice = with.advice
		}
	case found.warn != "":
		result.State, result.Advice = checkWarning, found.warn
	}
	return result
}

func (p *program) writeChecks(report checkReport) error {
	table := p.table("PART", "NAME", "STATE", "TIME", "DETAIL")
	failed := 0
	for _, r := range report.Checks {
		if r.State == checkFailed {
			failed++
		}
		took := time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond)
		table.row(r.Part, shorten(r.Name, 40), r.State, took, shorten(r.Detail, 160))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var text strings.Builder
	for _, r := range report.Checks {
		if r.Advice != "" {
			fmt.Fprintf(&text, "%s: %s\n", cell(strings.TrimSpace(r.Part+" "+r.Name)), cell(r.Advice))
		}
	}
	summary := "nothing failed"
	if failed > 0 {
		summary = fmt.Sprintf("%s failed", plural(failed, "check"))
	}
	if text.Len() > 0 {
		summary = text.String() + "\n" + summary
	}
	_, err := fmt.Fprintf(p.stdout, "\n%s\n", summary)
	return err
}
