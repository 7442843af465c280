package command

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
)

func newWhyCommand(p *program) *cobra.Command {
	var configPath string
	var asJSON bool
	var q why.Question
	cmd := &cobra.Command{
		Use:     "why",
		GroupID: groupPipeline,
		Short:   "find out why nothing arrives",
		Long: `Walks the chain that messages of a type take from a tenant to a sink: the authorization, this
application's endpoint, its capability and subscription, the route in the gateway, the event
stream, and the routes of the configuration with their filters. It names the first link that is
missing, and what to do. It changes nothing and sends nothing.

The gateway tells neither subscriptions nor endpoints that this application must not see. The
stream is that of a running agrimill, asked at admin.address.

Exit status: 0 nothing is missing, as far as can be known; 1 something is, or it failed;
2 wrong usage or an invalid configuration.`,
		Example: `  agrimill why --config agrimill.yaml --type iso:11783:-10:taskdata:zip
  agrimill why --config agrimill.yaml --type doc:pdf --from Terminal`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case configPath == "" || q.Type == "":
				return usagef("--config and --type are required: the routes and endpoints to look at, and what does not arrive")
			case q.Tenant != "" && !isUUID(q.Tenant):
				return usagef("--tenant must be the ID (UUID) of a tenant; agrimill tenants lists them")
			}
			cfg, err := p.loadConfig(configPath)
			if err != nil {
				return err
			}
			answer, err := whyNothing(cmd.Context(), cfg, q)
			if err != nil {
				return err
			}
			return p.writeWhy(answer, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Tenant, "tenant", "", "`ID` of the tenant (default: the only one)")
	flags.StringVar(&q.Type, "type", "", "message `TYPE` that does not arrive")
	flags.StringVar(&q.From, "from", "", "`ENDPOINT` that sends it: ID, external ID or name (default: any)")
	flags.BoolVar(&asJSON, "json", false, "write JSON")
	configFlag(cmd, &configPath)
	return cmd
}

// whyNothing asks the gateway and, if there is one, a running agrimill.
func whyNothing(ctx context.Context, cfg *config.Config, q why.Question) (why.Answer, error) {
	tenants, listErr := listTenants(ctx, cfg)
	if q.Tenant == "" {
		switch {
		case listErr != nil:
			return why.Answer{}, fmt.Errorf("--tenant is needed, because the gateway does not tell its tenants: %w", listErr)
		case len(tenants) != 1:
			return why.Answer{}, usagef("--tenant is required: %s authorized the application", plural(len(tenants), "tenant"))
		}
		q.Tenant = tenants[0].ID
	}
	var running *admin.Snapshot
	var runErr error
	if cfg.Admin.Address != config.AdminOff {
		var snapshot admin.Snapshot
		server, err := (&adminAt{}).of(cfg)
		if runErr = err; err == nil {
			runErr = server.ask(ctx, "/api/status", nil, &snapshot)
		}
		if runErr == nil {
			running = &snapshot
		}
	}
	if err := context.Cause(ctx); err != nil {
		return why.Answer{}, err
	}
	facts := pipeline.WhyFacts(cfg, running)
	facts.Tenants = tenants
	if listErr != nil {
		facts.TenantsErr = router.RedactError(listErr, nil)
	}
	if runErr != nil {
		facts.Stream = why.Link{State: why.StateUnknown, Detail: cell(runErr.Error()), Remedy: "if agrimill should run here, start it: agrimill run"}
	}
	return why.Walk(q, facts), nil
}

// listTenants asks without retries: a person waits.
func listTenants(ctx context.Context, cfg *config.Config) (list []gateway.TenantInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	checks := gatewayChecks{cfg: cfg}
	return checks.list(ctx)
}

// writeWhy writes the chain, and fails if a link is missing.
func (p *program) writeWhy(answer why.Answer, asJSON bool) error {
	if asJSON {
		if err := p.writeJSON(answer); err != nil {
			return err
		}
	} else if err := p.writeChain(answer); err != nil {
		return err
	}
	if answer.Missing != "" {
		return exitWith(statusFailed)
	}
	return nil
}

func (p *program) writeChain(answer why.Answer) error {
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, link := range answer.Links {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", link.Name, link.State, cell(link.Detail))
	}
	err := table.Flush()
	for _, link := range answer.Links {
		if link.Name == answer.Missing {
			_, failure := fmt.Fprintf(p.stdout, "\nThe %s is missing: %s.\n", link.Name, cell(link.Remedy))
			return errors.Join(err, failure)
		}
	}
	_, failure := fmt.Fprintf(p.stdout, "\nNothing is missing, as far as can be known. agrimill trace finds single messages.\n")
	return errors.Join(err, failure)
}
