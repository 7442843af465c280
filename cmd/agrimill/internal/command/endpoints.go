package command

import "github.com/spf13/cobra"

func newEndpointsCommand(p *program) *cobra.Command {
	return group(&cobra.Command{
		Use:     "endpoints",
		GroupID: groupGateway,
		Short:   "create, update and delete the application's endpoints",
		Long: `An endpoint is a participant in a tenant's communication. You create it under an
external ID of your choice, such as urn:example:farm. agrimill tenants lists endpoints.`,
	}, newEndpointsPutCommand(p), newEndpointsDeleteCommand(p))
}
