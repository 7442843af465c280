package command

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
)

type endpointPut struct {
	service                    service
	tenant                     string
	request                    gateway.PutEndpointRequest
	kind                       string
	sends, receives, exchanges []string
	subscribes                 []string
}

func newEndpointsPutCommand(p *program) *cobra.Command {
	var put endpointPut
	cmd := &cobra.Command{
		Use:   "put EXTERNAL-ID",
		Short: "create or update an endpoint",
		Long: `Creates the endpoint with this external ID, or replaces all its properties: those that
are not given are lost. Everything is checked before it is sent.

The capabilities (--send, --receive, --send-receive) must be among those of the software
version. A subscription (--subscribe) lets the endpoint receive messages that are
published without naming it; it must be a type that the endpoint can receive.

` + serviceHelp,
		Example: `  agrimill endpoints put urn:example:farm --name 'Farm software' --receive doc:pdf --subscribe doc:pdf
  agrimill endpoints put urn:example:terminal --send iso:11783:-10:taskdata:zip --send doc:pdf --json`,
		Args: exactly("EXTERNAL-ID"),
		RunE: func(cmd *cobra.Command, args []string) error { return put.run(cmd.Context(), p, args[0]) },
	}
	flags := cmd.Flags()
	put.service.define(cmd)
	flags.StringVar(&put.tenant, "tenant", "", "`ID` of the tenant (default: the only one)")
	flags.StringVar(&put.request.Name, "name", "", "`NAME` that users see (default: chosen by the gateway)")
	kinds := []string{string(gateway.EndpointTypeCloudSoftware), string(gateway.EndpointTypeVirtualCommunicationUnit)}
	choice(cmd, &put.kind, "kind", "`KIND` of endpoint: cloud_software (default) or virtual_communication_unit", kinds...)
	flags.StringArrayVar(&put.sends, "send", nil, "message `TYPE` that it sends; may be repeated")
	flags.StringArrayVar(&put.receives, "receive", nil, "message `TYPE` that it receives; may be repeated")
	flags.StringArrayVar(&put.exchanges, "send-receive", nil, "message `TYPE` that it sends and receives; may be repeated")
	flags.StringArrayVar(&put.subscribes, "subscribe", nil, "message `TYPE` that it subscribes to; may be repeated")
	flags.StringVar(&put.request.ApplicationID, "application-id", "", "`ID` of the application (default: gateway.application_id of --config, or AGRIMILL_APPLICATION_ID)")
	flags.StringVar(&put.request.SoftwareVersionID, "software-version-id", "", "`ID` of the software version (default: gateway.software_version_id of --config, or AGRIMILL_SOFTWARE_VERSION_ID)")
	flags.BoolVar(&put.request.AllowDeleteByUser, "allow-delete-by-user", false, "allow the user to delete it")
	flags.StringVar(&put.request.ConnectionsURI, "connections-uri", "", "`URI` of the page where the user manages connections")
	flags.BoolVar(&p.asJSON, "json", false, "write JSON")
	return cmd
}

type putReport struct {
	// Created distinguishes a new endpoint from an updated one.
	Created  bool             `json:"created"`
	Endpoint gateway.Endpoint `json:"endpoint"`
}

func (c *endpointPut) run(ctx context.Context, p *program, externalID string) error {
	return c.service.use(p, func(client *gateway.Client) error {
		request := c.fill(c.service.app)
		if err := cmp.Or(gateway.ValidateExternalID(externalID), request.Validate()); err != nil {
			return mistaken(err, endpointFlags)
		}
		if err := possible(request); err != nil {
			return err
		}
		tenant, err := (&lookup{lister: client}).tenant(ctx, c.tenant)
		if err != nil {
			return err
		}
		endpoint, created, err := client.PutEndpoint(ctx, tenant, externalID, request)
		if err != nil {
			return err
		}
		return p.write(putReport{created, endpoint}, func() error {
			what := "updated"
			if created {
				what = "created"
			}
			_, err := fmt.Fprintf(p.stdout, "%s endpoint %s (%s) in tenant %s\n", what, cell(endpoint.ID), cell(endpoint.ExternalID), cell(tenant))
			return err
		})
	})
}

// possible refuses what the gateway may accept although it has no effect: several types in one, and subscriptions to
// what the endpoint cannot receive.
func possible(request gateway.PutEndpointRequest) error {
	received := map[string]bool{}
	for _, c := range request.Capabilities {
		if strings.ContainsAny(c.MessageType, "*?,") {
			return usagef("%q is no message type: there are no wildcards; repeat the flag for each type", c.MessageType)
		}
		received[c.MessageType] = c.Direction.CanReceive()
	}
	for _, s := range request.Subscriptions {
		if !received[s.MessageType] {
			return usagef("--subscribe %s has no effect: the endpoint cannot receive it; add --receive %[1]s", s.MessageType)
		}
	}
	return nil
}

var endpointFlags = map[string]string{
	"externalId": "EXTERNAL-ID", "name": "--name", "application_id": "--application-id", "software_version_id": "--software-version-id",
	"capabilities": "the TYPE of --send, --receive or --send-receive", "subscriptions": "the TYPE of --subscribe", "connections_uri": "--connections-uri",
}

func (c *endpointPut) fill(app application) gateway.PutEndpointRequest {
	request := c.request
	request.ApplicationID = cmp.Or(request.ApplicationID, app.id)
	request.SoftwareVersionID = cmp.Or(request.SoftwareVersionID, app.softwareVersionID)
	request.EndpointType = cmp.Or(gateway.EndpointType(c.kind), gateway.EndpointTypeCloudSoftware)
	// A type given for both directions is one capability.
	directions := map[string]gateway.Direction{}
	var types []string
	add := func(list []string, direction gateway.Direction) {
		for _, t := range list {
			switch had, ok := directions[t]; {
			case !ok:
				types = append(types, t)
				directions[t] = direction
			case had != direction:
				directions[t] = gateway.DirectionSendReceive
			}
		}
	}
	add(c.exchanges, gateway.DirectionSendReceive)
	add(c.sends, gateway.DirectionSend)
	add(c.receives, gateway.DirectionReceive)
	for _, t := range types {
		request.Capabilities = append(request.Capabilities, gateway.EndpointCapability{MessageType: t, Direction: directions[t]})
	}
	for i, t := range c.subscribes {
		if !slices.Contains(c.subscribes[:i], t) {
			request.Subscriptions = append(request.Subscriptions, gateway.EndpointSubscription{MessageType: t})
		}
	}
	return request
}
