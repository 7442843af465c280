package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

// client returns a client that does not retry: the user is waiting for the result.
func (c *checker) client() (*gateway.Client, error) {
	settings, err := c.cfg.Gateway.ClientConfig()
	if err != nil {
		return nil, err
	}
	settings.Retry.MaxAttempts = 1
	return gateway.New(settings)
}

func (c *checker) list(ctx context.Context) (list []gateway.TenantInfo, err error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return client.ListAuthorizedTenants(ctx)
}

func (c *checker) gatewayProbes() []probe {
	list := []probe{
		{"gateway", "token", c.token},
		{"gateway", "tenants", c.listed},
	}
	if slices.ContainsFunc(c.cfg.Routes, func(r config.Route) bool { return r.From.Gateway != "" }) {
		list = append(list, probe{"gateway", "events", c.events})
	}
	for i, e := range c.cfg.Endpoints {
		list = append(list, probe{"endpoints", fmt.Sprintf("[%d] %s", i, e.ExternalID), func(context.Context) (finding, error) { return c.endpoint(e) }})
	}
	return list
}

func (c *checker) token(context.Context) (finding, error) {
	_, err := c.tenants()
	switch {
	case errors.Is(err, gateway.ErrToken), errors.Is(err, gateway.ErrUnauthorized), errors.Is(err, context.Canceled):
		return finding{}, err
	case errors.Is(err, context.DeadlineExceeded):
		return finding{}, advise(err, "the token endpoint or the service does not respond in time")
	}
	return finding{detail: "the token endpoint accepts the client"}, nil
}

func (c *checker) listed(context.Context) (finding, error) {
	tenants, err := c.tenants()
	switch {
	case errors.Is(err, gateway.ErrToken), errors.Is(err, gateway.ErrUnauthorized), errors.Is(err, context.DeadlineExceeded):
		return finding{}, fmt.Errorf("%w: no token", errSkipped)
	case errors.Is(err, gateway.ErrNotFound):
		return finding{}, advise(err, "something else is at gateway.base_url: check the addresses")
	case err != nil:
		return finding{}, err
	}
	mine := 0
	for _, tenant := range tenants {
		for _, e := range tenant.Endpoints {
			if e.OwnedByYourApplication {
				mine++
			}
		}
	}
	found := finding{detail: fmt.Sprintf("%s with %s, %d of this application", plural(len(tenants), "tenant"), plural(countEndpoints(tenants), "endpoint"), mine)}
	if len(tenants) == 0 {
		found.warn = "no tenant has authorized the application: nothing can be sent or received until one does"
	}
	return found, nil
}

// events checks that the event stream can be opened, for a moment and with a filter that
// passes no event that needs a confirmation.
func (c *checker) events(ctx context.Context) (finding, error) {
	if _, err := c.tenants(); errors.Is(err, gateway.ErrToken) || errors.Is(err, gateway.ErrUnauthorized) || errors.Is(err, gateway.ErrCertificate) {
		return finding{}, fmt.Errorf("%w: no list of tenants", errSkipped)
	}
	client, err := c.client()
	if err != nil {
		return finding{}, err
	}
	defer func() { _ = client.Close() }()
	opening, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	headTime := c.timeout / 5 // some services send the header only with the first event
	stream, err := client.ReceiveEvents(opening, gateway.ReceiveEventsRequest{
		Types:        []gateway.EventType{gateway.EventAuthorizationRevoked},
		AwaitingHead: func() { time.AfterFunc(headTime, func() { cancel(errNoHead) }) }, // a no-op once the request is done
	})
	switch {
	case err != nil && errors.Is(context.Cause(opening), errNoHead):
		return finding{detail: "the gateway accepts the request and has no events yet"}, nil
	case errors.Is(err, gateway.ErrForbidden):
		return finding{}, advise(err, "the gateway refuses this application: ask its operator")
	case err != nil:
		return finding{}, err
	}
	_ = stream.Close()
	return finding{detail: "the event stream can be opened"}, nil
}

var errNoHead = errors.New("no header of the event stream yet")

func (c *checker) endpoint(e config.Endpoint) (finding, error) {
	tenants, err := c.tenants()
	if err != nil {
		return finding{}, fmt.Errorf("%w: no list of tenants", errSkipped)
	}
	var there, missing int
	for _, tenant := range tenants {
		if e.Tenant != "" && !strings.EqualFold(e.Tenant, tenant.ID) {
			continue
		}
		id := config.ExternalID(e.ExternalID, tenant.ID)
		if slices.ContainsFunc(tenant.Endpoints, func(found gateway.TenantEndpointInfo) bool {
			return found.OwnedByYourApplication && found.ExternalID == id
		}) {
			there++
		} else {
			missing++
		}
	}
	switch {
	case there+missing == 0 && e.Tenant != "":
		return finding{}, advise(errors.New("the tenant has not authorized the application"), "ask the user of tenant %s to authorize the application, or correct endpoints.tenant", e.Tenant)
	case there+missing == 0:
		return finding{detail: "no tenant needs it yet"}, nil
	case missing == 0:
		return finding{detail: "exists in " + plural(there, "tenant")}, nil
	}
	return finding{detail: fmt.Sprintf("will be created in %s", plural(missing, "tenant"))}, nil
}

// sender looks up the endpoint that a route sends from, and its recipients.
func (c *checker) sender(to config.ToGateway) (finding, error) {
	tenants, err := c.tenants()
	switch {
	case err != nil:
		return finding{}, fmt.Errorf("%w: no list of tenants", errSkipped)
	case to.EndpointID == "":
		return c.recipients(tenants, to, "each message names its sender"), nil
	}
	found := c.find(tenants, to.TenantID, to.EndpointID)
	if len(found) == 0 && to.TenantID != "" && !c.creates(tenants, to.TenantID, to.EndpointID) {
		found = c.find(tenants, "", to.EndpointID)
	}
	if len(found) == 0 {
		return c.unknown(tenants, to.TenantID, to.EndpointID)
	}
	sender := found[max(0, slices.IndexFunc(found, func(e gateway.TenantEndpointInfo) bool { return e.OwnedByYourApplication }))]
	switch {
	case !sender.OwnedByYourApplication:
		return finding{}, advise(fmt.Errorf("endpoint %s belongs to another application", to.EndpointID), "to.gateway.endpoint must be an endpoint of this application")
	case to.TenantID != "" && !strings.EqualFold(sender.TenantID, to.TenantID):
		return finding{}, advise(fmt.Errorf("endpoint %s belongs to another tenant", to.EndpointID), "its tenant is %s: correct to.gateway.tenant", sender.TenantID)
	case len(sender.Capabilities.CanSend) == 0:
		return finding{}, advise(fmt.Errorf("endpoint %s cannot send anything", to.EndpointID), "add what it sends to its capabilities, with direction SEND")
	case !strings.ContainsAny(to.Type, "{}") && !slices.Contains(sender.Capabilities.CanSend, to.Type):
		return finding{}, advise(fmt.Errorf("endpoint %s cannot send %s", to.EndpointID, to.Type), "add it to its capabilities, or correct to.gateway.type")
	}
	return c.recipients(tenants, to, sender.Name+" sends"), nil
}

// recipients looks up the recipients of a route, of whose sender something was found.
func (c *checker) recipients(tenants []gateway.TenantInfo, to config.ToGateway, sender string) finding {
	for _, id := range to.DirectRecipients {
		if len(c.find(tenants, to.TenantID, id)) == 0 && !c.creates(tenants, to.TenantID, id) {
			return finding{
				detail: fmt.Sprintf("%s; recipient %s is unknown", sender, id),
				warn:   "a recipient that the service does not list is unreachable, and messages for an external ID wait; agrimill tenants shows the reachable ones",
			}
		}
	}
	return finding{detail: sender}
}

// find returns the endpoints with an ID or, as run finds them, an external ID, in one tenant or, if that is empty, in all.
func (c *checker) find(tenants []gateway.TenantInfo, tenant, id string) (found []gateway.TenantEndpointInfo) {
	directory := gateway.NewDirectory(nil)
	for _, t := range tenants {
		if tenant != "" && !strings.EqualFold(t.ID, tenant) {
			continue
		}
		directory.HandleEvent(&gateway.EndpointsListChanged{TenantID: t.ID, Endpoints: t.Endpoints})
		named, _ := directory.EndpointNamed(t.ID, id)
		for _, e := range t.Endpoints {
			if strings.EqualFold(e.ID, cmp.Or(named, id)) {
				found = append(found, e)
			}
		}
	}
	return found
}

// creates reports whether run creates an endpoint with this external ID in a tenant or, if that is empty, in any.
func (c *checker) creates(tenants []gateway.TenantInfo, tenant, id string) bool {
	return slices.ContainsFunc(c.cfg.Endpoints, func(e config.Endpoint) bool {
		in := cmp.Or(tenant, e.Tenant)
		return (e.Tenant == "" || strings.EqualFold(e.Tenant, in)) && (e.ExternalID == id || slices.ContainsFunc(tenants, func(t gateway.TenantInfo) bool {
			return (in == "" || strings.EqualFold(in, t.ID)) && config.ExternalID(e.ExternalID, t.ID) == config.ExternalID(id, t.ID)
		}))
	})
}

// unknown is what is found of an endpoint that is not listed.
func (c *checker) unknown(tenants []gateway.TenantInfo, tenant, id string) (finding, error) {
	if c.creates(tenants, tenant, id) {
		return finding{detail: id + " will be created"}, nil
	}
	return finding{}, advise(fmt.Errorf("no endpoint %s", id), "agrimill tenants lists the endpoints with their IDs and external IDs; messages for an external ID wait until it exists")
}

// filtered looks up the endpoints that a filter names.
func (c *checker) filtered(ids []string) (finding, error) {
	tenants, err := c.tenants()
	if err != nil {
		return finding{}, fmt.Errorf("%w: no list of tenants", errSkipped)
	}
	for _, id := range ids {
		if len(c.find(tenants, "", id)) == 0 {
			if _, err := c.unknown(tenants, "", id); err != nil {
				return finding{}, err
			}
		}
	}
	return finding{detail: "selects " + plural(len(ids), "endpoint")}, nil
}
