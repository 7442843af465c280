package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
)

func newEndpointsDeleteCommand(p *program) *cobra.Command {
	var from service
	var tenant string
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete EXTERNAL-ID",
		Short: "delete an endpoint",
		Long: `Deletes the endpoint with this external ID. It receives no more messages, and messages
that were not confirmed are not redelivered. Asks for confirmation; without a terminal,
--yes is required.

` + serviceHelp,
		Example: `  agrimill endpoints delete urn:example:farm
  agrimill endpoints delete urn:example:farm --yes`,
		Args: exactly("EXTERNAL-ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			externalID := args[0]
			if err := gateway.ValidateExternalID(externalID); err != nil {
				return mistaken(err, endpointFlags)
			}
			if !yes && (!p.isTerminal(p.stdin) || !p.isTerminal(p.stderr)) {
				return usagef("a deletion cannot be undone and stdin is not a terminal to confirm it: add --yes")
			}
			return from.use(p, func(client *gateway.Client) error {
				ctx := cmd.Context()
				tenant, err := (&lookup{lister: client}).tenant(ctx, tenant)
				if err != nil {
					return err
				}
				if !yes {
					if err := p.confirm(ctx, fmt.Sprintf("Delete endpoint %s in tenant %s for good?", cell(externalID), cell(tenant))); err != nil {
						return err
					}
				}
				if err := client.DeleteEndpoint(ctx, tenant, externalID); err != nil {
					return err
				}
				_, err = fmt.Fprintf(p.stdout, "deleted endpoint %s in tenant %s\n", cell(externalID), cell(tenant))
				return err
			})
		},
	}
	from.define(cmd)
	cmd.Flags().StringVar(&tenant, "tenant", "", "`ID` of the tenant (default: the only one)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}
