package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/gateway"
)

func newEndpointsCommand(p *program) *cobra.Command {
	return group(&cobra.Command{
		Use:     "endpoints",
		GroupID: groupGateway,
		Short:   "create, change and delete endpoints of the application",
		Long: `An endpoint is a party of the communication in a tenant. It is created under an
external ID of your choice, such as urn:example:farm. bridge tenants lists them.`,
	}, newEndpointsPutCommand(p), newEndpointsDeleteCommand(p))
}

// endpointPut is what `endpoints put` is given.
type endpointPut struct {
	service                    service
	tenant                     string
	request                    gateway.PutEndpointRequest
	kind                       string
	sends, receives, exchanges []string
	subscribes                 []string
	asJSON                     bool
}

func newEndpointsPutCommand(p *program) *cobra.Command {
	var put endpointPut
	cmd := &cobra.Command{
		Use:   "put EXTERNAL-ID",
		Short: "create an endpoint, or change the one that is there",
		Long: `Creates the endpoint with this external ID, or makes the one that is there look like
this: what is not given is not kept. Everything is checked before it is sent.

The capabilities (--send, --receive, --send-receive) have to be among those of the
software version. A subscription (--subscribe) lets the endpoint receive what is
published without naming it; the type has to be one that it receives.

` + serviceHelp,
		Example: `  bridge endpoints put urn:example:farm --name 'Farm software' --receive doc:pdf --subscribe doc:pdf
  bridge endpoints put urn:example:terminal --send iso:11783:-10:taskdata:zip --send doc:pdf --json`,
		Args: exactly("EXTERNAL-ID"),
		RunE: func(cmd *cobra.Command, args []string) error { return put.run(cmd.Context(), p, args[0]) },
	}
	flags := cmd.Flags()
	put.service.define(cmd)
	flags.StringVar(&put.tenant, "tenant", "", "`ID` of the tenant (default: the only one there is)")
	flags.StringVar(&put.request.Name, "name", "", "`NAME` that users see (default: the gateway makes one)")
	kinds := []string{string(gateway.EndpointTypeCloudSoftware), string(gateway.EndpointTypeVirtualCommunicationUnit)}
	choice(cmd, &put.kind, "kind", "`KIND` of endpoint: cloud_software (default) or virtual_communication_unit", kinds...)
	flags.StringArrayVar(&put.sends, "send", nil, "message `TYPE` that it sends; may be repeated")
	flags.StringArrayVar(&put.receives, "receive", nil, "message `TYPE` that it receives; may be repeated")
	flags.StringArrayVar(&put.exchanges, "send-receive", nil, "message `TYPE` that it sends and receives; may be repeated")
	flags.StringArrayVar(&put.subscribes, "subscribe", nil, "message `TYPE` that it subscribes to; may be repeated")
	flags.StringVar(&put.request.ApplicationID, "application-id", "", "`ID` of the application (default: gateway.application_id of --config, or AGRIMILL_APPLICATION_ID)")
	flags.StringVar(&put.request.SoftwareVersionID, "software-version-id", "", "`ID` of the software version (default: gateway.software_version_id of --config, or AGRIMILL_SOFTWARE_VERSION_ID)")
	flags.BoolVar(&put.request.AllowDeleteByUser, "allow-delete-by-user", false, "let the user delete it")
	flags.StringVar(&put.request.ConnectionsURI, "connections-uri", "", "`URI` of the page where the user manages what is connected")
	flags.BoolVar(&put.asJSON, "json", false, "write JSON")
	return cmd
}

// putReport is the result as JSON.
type putReport struct {
	// Created tells a new endpoint from one that was changed.
	Created  bool             `json:"created"`
	Endpoint gateway.Endpoint `json:"endpoint"`
}

func (c *endpointPut) run(ctx context.Context, p *program, externalID string) error {
	settings, app, err := c.service.settings(p)
	if err != nil {
		return err
	}
	request := c.fill(app)
	if err := errors.Join(gateway.ValidateExternalID(externalID), request.Validate()); err != nil {
		return usagef("%s", err)
	}
	return c.service.useWith(p, settings, func(client *gateway.Client) error {
		tenant, err := (&lookup{lister: client}).tenant(ctx, c.tenant)
		if err != nil {
			return err
		}
		endpoint, created, err := client.PutEndpoint(ctx, tenant, externalID, request)
		if err != nil {
			return err
		}
		if c.asJSON {
			return p.writeJSON(putReport{created, endpoint})
		}
		what := "updated"
		if created {
			what = "created"
		}
		_, err = fmt.Fprintf(p.stdout, "%s endpoint %s (%s) in tenant %s\n", what, cell(endpoint.ID), cell(endpoint.ExternalID), cell(tenant))
		return err
	})
}

// fill returns the request that the flags make.
func (c *endpointPut) fill(app application) gateway.PutEndpointRequest {
	request := c.request
	if request.ApplicationID == "" {
		request.ApplicationID = app.id
	}
	if request.SoftwareVersionID == "" {
		request.SoftwareVersionID = app.softwareVersionID
	}
	request.EndpointType = gateway.EndpointType(c.kind)
	if c.kind == "" {
		request.EndpointType = gateway.EndpointTypeCloudSoftware
	}
	// A type that is given both ways is one capability.
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

func newEndpointsDeleteCommand(p *program) *cobra.Command {
	var from service
	var tenant string
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete EXTERNAL-ID",
		Short: "delete an endpoint",
		Long: `Deletes the endpoint with this external ID. It receives no more messages, and what was
not confirmed is not delivered again. Asks first; where nobody can be asked, --yes is
needed.

` + serviceHelp,
		Example: `  bridge endpoints delete urn:example:farm
  bridge endpoints delete urn:example:farm --yes`,
		Args: exactly("EXTERNAL-ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			externalID := args[0]
			if err := gateway.ValidateExternalID(externalID); err != nil {
				return usagef("%s", err)
			}
			if !yes && (!p.isTerminal(p.stdin) || !p.isTerminal(p.stderr)) {
				return usagef("a deletion cannot be undone, and there is nobody to ask: add --yes")
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
	cmd.Flags().StringVar(&tenant, "tenant", "", "`ID` of the tenant (default: the only one there is)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// errDeclined says that a question was not answered with yes.
var errDeclined = errors.New("nothing was done: the answer was not yes")

// confirm asks a person and returns nil for yes.
func (p *program) confirm(ctx context.Context, question string) error {
	if _, err := fmt.Fprintf(p.stderr, "%s [y/N] ", question); err != nil {
		return err
	}
	var answer string
	err := p.readStdin(ctx, func(stdin io.Reader) error {
		text, err := bufio.NewReader(io.LimitReader(stdin, 1<<10)).ReadString('\n')
		if !errors.Is(err, io.EOF) && err != nil {
			return err
		}
		answer = text
		return nil
	})
	if err != nil {
		p.notef("") // after the question
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}
