package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
)

// endpoints ensures that the configured endpoints exist, in one tenant or in every tenant
// that authorizes the application, now or later.
type endpoints struct {
	logger *slog.Logger
	turns  *turns // it is their turn; nil: always

	mu      sync.Mutex
	current []*endpoint
	stop    context.CancelFunc // stops those of the last start
	running sync.WaitGroup
}

type endpoint struct {
	client      *oneTenant
	provisioner *gateway.Provisioner
}

// newEndpoint validates a configured endpoint. It makes no requests.
func (p *Pipeline) newEndpoint(e config.Endpoint) (*endpoint, error) {
	client := &oneTenant{Client: p.client, tenant: e.Tenant, logger: p.endpoints.logger, turns: p.turns}
	provisioner, err := gateway.NewProvisioner(gateway.ProvisionerConfig{
		Client: client, ExternalID: e.ExternalID, Endpoint: e.Request(), Recreate: e.Recreate,
		Logger: p.logger.With("part", "endpoints"),
		OnResult: func(r gateway.ProvisionResult) {
			if errors.Is(r.Err, gateway.ErrEndpointDeleted) && !e.AllowDeleteByUser {
				client.fail(r.TenantID, r.ExternalID, r.Err)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return &endpoint{client: client, provisioner: provisioner}, nil
}

// start maintains these endpoints from now on instead of the previous ones, until ctx ends.
// Endpoints that are no longer configured are left alone.
func (e *endpoints) start(ctx context.Context, list []*endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		e.stop()
	}
	ctx, e.stop = context.WithCancel(ctx)
	e.current = list
	for _, one := range list {
		e.running.Go(func() { // ends with ctx
			e.turns.each(ctx, func(ctx context.Context, _ *turn) { _ = one.provisioner.Run(ctx) })
		})
	}
}

// connected is the subscriber's hook: events may have been missed while the stream was
// down.
func (e *endpoints) connected() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.current {
		one.provisioner.Refresh()
	}
}

// event is the subscriber's hook for every event.
func (e *endpoints) event(event gateway.Event) {
	switch event := event.(type) {
	case *gateway.AuthorizationRevoked:
		e.logger.Warn("the tenant has revoked the authorization; its endpoints are gone, with what they had not received", "tenant", event.TenantID, "scope", event.Scope)
	case *gateway.AuthorizationAdded, *gateway.EndpointDeleted, *gateway.EndpointsListChanged:
	default:
		return // most events are data
	}
	e.mu.Lock()
	list := e.current
	e.mu.Unlock()
	for _, one := range list {
		if added, ok := event.(*gateway.AuthorizationAdded); ok && one.client.tenant != "" && !strings.EqualFold(added.Tenant.ID, one.client.tenant) {
			continue
		}
		one.provisioner.HandleEvent(event)
	}
}

// oneTenant is the client for an endpoint in one tenant: it lists no other tenant. An empty
// tenant means all. It makes endpoints only if it is this instance's turn.
type oneTenant struct {
	*gateway.Client
	turns   *turns
	tenant  string
	logger  *slog.Logger
	missing atomic.Bool // the tenant is not among those that authorized the application
	failed  sync.Map    // by tenant: admin.Unprovided, with its ID
}

// ListAuthorizedTenants implements gateway.TenantLister.
func (c *oneTenant) ListAuthorizedTenants(ctx context.Context) ([]gateway.TenantInfo, error) {
	list, err := c.Client.ListAuthorizedTenants(ctx)
	if c.tenant == "" || err != nil {
		return list, err
	}
	list = slices.DeleteFunc(list, func(t gateway.TenantInfo) bool { return !strings.EqualFold(t.ID, c.tenant) })
	if missing := len(list) == 0; missing && !c.missing.Swap(missing) {
		c.logger.Warn("the tenant has not authorized the application; its endpoint will be created once it does", "tenant", c.tenant)
	} else if !missing {
		c.missing.Store(false)
	}
	return list, nil
}

// PutEndpoint implements gateway.ProvisionClient.
func (c *oneTenant) PutEndpoint(ctx context.Context, tenantID, externalID string, req gateway.PutEndpointRequest) (gateway.Endpoint, bool, error) {
	if err := c.turns.err(); err != nil {
		return gateway.Endpoint{}, false, err
	}
	made, created, err := c.Client.PutEndpoint(ctx, tenantID, externalID, req)
	if err == nil {
		c.failed.Delete(tenantID)
	} else if ctx.Err() == nil {
		c.fail(tenantID, externalID, err)
	}
	return made, created, err
}

// fail takes in why an endpoint is not as configured.
func (c *oneTenant) fail(tenantID, externalID string, err error) {
	deleted := errors.Is(err, gateway.ErrEndpointDeleted)
	now := admin.Unprovided{
		Tenant: tenantID, ExternalID: externalID, Since: time.Now(), Error: router.RedactError(err, nil),
		Retried: !gateway.Refused(err) && !deleted, Deleted: deleted,
	}
	if before, failed := c.failed.Load(tenantID); failed {
		now.Since = before.(admin.Unprovided).Since
	}
	c.failed.Store(tenantID, now)
}

// unprovided is what the gateway refused of what could not be made or changed, or else what is tried again, in tenants that
// authorize the application.
func (p *Pipeline) unprovided() (worst admin.Unprovided) {
	if p.standsBy() {
		return worst // another one makes them
	}
	p.endpoints.mu.Lock()
	current := p.endpoints.current
	p.endpoints.mu.Unlock()
	authorized := sync.OnceValue(func() map[string]bool {
		known := map[string]bool{}
		for _, t := range p.directory.Tenants() {
			known[strings.ToLower(t.ID)] = true
		}
		return known
	})
	for _, one := range current {
		one.client.failed.Range(func(_, value any) bool {
			u := value.(admin.Unprovided)
			switch {
			case !authorized()[strings.ToLower(u.Tenant)], worst.Count > 0 && u.Retried && !worst.Retried:
				return true
			case worst.Count == 0, worst.Retried && !u.Retried:
				worst = u
			case u.Since.Before(worst.Since):
				u.Count, worst = worst.Count, u
			}
			worst.Count++
			return true
		})
	}
	worst.Tenant = p.tenantName(worst.Tenant)
	return worst
}
