package command

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
)

func newWhyCommand(p *program) *cobra.Command {
	var at adminAt
	var q why.Question
	cmd := &cobra.Command{
		Use:     "why [FILE]",
		GroupID: groupPipeline,
		Short:   "find out why nothing arrives",
		Long: `Asks a running agrimill to walk the chain that messages of a type take from a tenant to a sink:
the authorization, this application's endpoint, its capability and subscription, the route in the
gateway, the event stream, and the routes of the configuration with their filters. It names the
first link that is missing, and what to do. It changes nothing and sends nothing.

The gateway does not tell subscriptions, nor endpoints that this application must not see.

Exit status: 0 nothing is missing, as far as can be known; 1 something is, or agrimill did not
answer; 2 wrong usage or an invalid configuration.`,
		Example: `  agrimill why --config agrimill.yaml --type iso:11783:-10:taskdata:zip
  agrimill why --config agrimill.yaml --type doc:pdf --from Terminal`,
		Args:              configArgument,
		ValidArgsFunction: configFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Type == "" {
				return usagef("--type is required: the message type that does not arrive")
			}
			if err := checkTenant(q.Tenant); err != nil {
				return err
			}
			server, err := at.server(p)
			if err != nil {
				return err
			}
			var answer why.Answer
			if err := server.ask(cmd.Context(), "/api/why", url.Values{"tenant": {q.Tenant}, "type": {q.Type}, "from": {q.From}}, &answer); err != nil {
				return err
			}
			status := statusOK
			if answer.Missing != "" {
				status = statusFailed
			}
			return ended(p.write(answer, func() error { return p.writeChain(answer) }), status)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Tenant, "tenant", "", "`ID` of the tenant (default: the only one)")
	flags.StringVar(&q.Type, "type", "", "message `TYPE` that does not arrive")
	flags.StringVar(&q.From, "from", "", "`ENDPOINT` that sends it: ID, external ID or name (default: any)")
	flags.BoolVar(&p.asJSON, "json", false, "write JSON")
	at.flags(cmd)
	return cmd
}

func (p *program) writeChain(answer why.Answer) error {
	table := p.table()
	for _, link := range answer.Links {
		table.row(link.Name, link.State, link.Detail)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	end := "Nothing is missing, as far as can be known. agrimill trace finds single messages."
	if i := slices.IndexFunc(answer.Links, func(l why.Link) bool { return l.Name == answer.Missing }); i >= 0 {
		end = fmt.Sprintf("The %s is missing: %s. Next: %s.", answer.Missing, cell(answer.Links[i].Detail), cell(answer.Links[i].Remedy))
	}
	_, err := fmt.Fprintf(p.stdout, "\n%s\n", end)
	return err
}
