package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/gateway"
)

// gatewayChecks are the checks of the gateway. They share one list of tenants.
type gatewayChecks struct {
	cfg *config.Config
	// tenants asks the gateway, once.
	tenants func() ([]gateway.TenantInfo, error)
	ask     func(ctx context.Context)
}

func newGatewayChecks(c *checker) *gatewayChecks {
	g := &gatewayChecks{cfg: c.cfg}
	var once sync.Once
	var list []gateway.TenantInfo
	var failure error
	asked := make(chan struct{})
	g.ask = func(ctx context.Context) {
		once.Do(func() {
			list, failure = g.list(ctx)
			close(asked)
		})
	}
	g.tenants = func() ([]gateway.TenantInfo, error) {
		<-asked // ends with the time-out of the check that asks
		return list, failure
	}
	return g
}

// list gets a token and the tenants, without retries: who waits wants to know.
func (g *gatewayChecks) list(ctx context.Context) (list []gateway.TenantInfo, err error) {
	settings, err := g.cfg.Gateway.ClientConfig()
	if err != nil {
		return nil, err
	}
	settings.Retry.MaxAttempts = 1
	client, err := gateway.New(settings)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return client.ListAuthorizedTenants(ctx)
}

func (g *gatewayChecks) probes() []probe {
	list := []probe{
		{"gateway", "token", g.token},
		{"gateway", "tenants", g.listed},
	}
	for i, e := range g.cfg.Endpoints {
		list = append(list, probe{"endpoints", fmt.Sprintf("[%d] %s", i, e.ExternalID), func(context.Context) (finding, error) { return g.endpoint(e) }})
	}
	return list
}

// token tells whether there was a token.
func (g *gatewayChecks) token(ctx context.Context) (finding, error) {
	g.ask(ctx)
	_, err := g.tenants()
	switch {
	case errors.Is(err, gateway.ErrToken) && errors.Is(err, gateway.ErrUnauthorized):
		return finding{}, advise(err, "check gateway.client_id, gateway.client_secret and gateway.auth_style; the token endpoint is gateway.token_url")
	case errors.Is(err, gateway.ErrToken) && !errors.Is(err, gateway.ErrCertificate):
		return finding{}, advise(err, "is gateway.token_url the whole address of the token endpoint, and can it be reached from here?")
	case errors.Is(err, gateway.ErrToken):
		return finding{}, advise(err, "name the authority of the certificate in gateway.tls.ca_file")
	case errors.Is(err, context.DeadlineExceeded):
		return finding{}, advise(err, "the token endpoint or the service does not answer in time")
	case errors.Is(err, gateway.ErrUnauthorized):
		return finding{}, advise(err, "the service refuses the token: do token_url and base_url belong together, and are gateway.scopes right?")
	}
	return finding{detail: "the token endpoint accepts the client"}, nil
}

// listed tells whether the service answered.
func (g *gatewayChecks) listed(context.Context) (finding, error) {
	tenants, err := g.tenants()
	switch {
	case errors.Is(err, gateway.ErrToken), errors.Is(err, gateway.ErrUnauthorized), errors.Is(err, context.DeadlineExceeded):
		return finding{}, fmt.Errorf("%w: there is no token", errSkipped)
	case errors.Is(err, gateway.ErrCertificate):
		return finding{}, advise(err, "name the authority of the certificate in gateway.tls.ca_file")
	case errors.Is(err, gateway.ErrUnavailable):
		return finding{}, advise(err, "is gateway.base_url right, and can it be reached from here?")
	case errors.Is(err, gateway.ErrNotFound), errors.Is(err, gateway.ErrBadResponse):
		return finding{}, advise(err, "what answers at gateway.base_url is not the service")
	case err != nil:
		return finding{}, err
	}
	endpoints, mine := 0, 0
	for _, tenant := range tenants {
		endpoints += len(tenant.Endpoints)
		for _, e := range tenant.Endpoints {
			if e.OwnedByYourApplication {
				mine++
			}
		}
	}
	found := finding{detail: fmt.Sprintf("%s with %s, %d of this application", plural(len(tenants), "tenant"), plural(endpoints, "endpoint"), mine)}
	if len(tenants) == 0 {
		found.warn = "no tenant has authorized the application: nothing can be sent or received until one does"
	}
	return found, nil
}

// endpoint looks for an endpoint that the bridge makes.
func (g *gatewayChecks) endpoint(e config.Endpoint) (finding, error) {
	tenants, err := g.tenants()
	if err != nil {
		return finding{}, fmt.Errorf("%w: the tenants are not known", errSkipped)
	}
	var there, missing int
	for _, tenant := range tenants {
		if e.Tenant != "" && !strings.EqualFold(e.Tenant, tenant.TenantID) {
			continue
		}
		id := strings.ReplaceAll(e.ExternalID, gateway.TenantPlaceholder, tenant.TenantID)
		if slices.ContainsFunc(tenant.Endpoints, func(found gateway.TenantEndpointInfo) bool { return found.ExternalID == id }) {
			there++
		} else {
			missing++
		}
	}
	switch {
	case there+missing == 0 && e.Tenant != "":
		return finding{}, advise(errors.New("the tenant has not authorized the application"), "let the user of tenant %s authorize the application, or correct endpoints.tenant", e.Tenant)
	case there+missing == 0:
		return finding{detail: "there is no tenant for it yet"}, nil
	case missing == 0:
		return finding{detail: "is there in " + plural(there, "tenant")}, nil
	}
	return finding{detail: fmt.Sprintf("will be created in %s", plural(missing, "tenant"))}, nil
}

// sender looks for the endpoint that a route sends from, and for its recipients.
func (g *gatewayChecks) sender(to config.ToGateway) (finding, error) {
	tenants, err := g.tenants()
	switch {
	case err != nil:
		return finding{}, fmt.Errorf("%w: the tenants are not known", errSkipped)
	case to.Endpoint == "":
		return finding{detail: "each message names its sender"}, nil
	}
	var sender *gateway.TenantEndpointInfo
	known := map[string]bool{}
	for _, tenant := range tenants {
		for _, e := range tenant.Endpoints {
			known[strings.ToLower(e.ID)] = true
			if strings.EqualFold(e.ID, to.Endpoint) {
				sender = &e
			}
		}
	}
	switch {
	case sender == nil:
		return finding{}, advise(fmt.Errorf("there is no endpoint %s", to.Endpoint), "bridge tenants lists the endpoints with their IDs; one that the bridge makes has its ID only then")
	case !sender.OwnedByYourApplication:
		return finding{}, advise(fmt.Errorf("the endpoint %s belongs to another application", to.Endpoint), "to.gateway.endpoint has to be an endpoint of this application")
	case to.Tenant != "" && !strings.EqualFold(sender.TenantID, to.Tenant):
		return finding{}, advise(fmt.Errorf("the endpoint %s belongs to another tenant", to.Endpoint), "its tenant is %s: correct to.gateway.tenant", sender.TenantID)
	case len(sender.Capabilities.CanSend) == 0:
		return finding{}, advise(fmt.Errorf("the endpoint %s can send nothing", to.Endpoint), "add what it sends to its capabilities, with the direction SEND")
	case !strings.ContainsAny(to.Type, "{}") && !slices.Contains(sender.Capabilities.CanSend, to.Type):
		return finding{}, advise(fmt.Errorf("the endpoint %s cannot send %s", to.Endpoint, to.Type), "add it to its capabilities, or correct to.gateway.type")
	}
	for _, id := range to.Recipients {
		if !known[strings.ToLower(id)] {
			return finding{
				detail: fmt.Sprintf("%s sends; the recipient %s is not known", sender.Name, id),
				warn:   "a recipient that the service does not show cannot be reached: bridge tenants lists those that can be",
			}, nil
		}
	}
	return finding{detail: sender.Name + " sends"}, nil
}
