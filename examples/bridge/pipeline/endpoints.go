package pipeline

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/router"
)

// endpoints sees to it that the endpoints of the configuration exist, in one
// tenant or in every one that authorizes the application, also later.
type endpoints struct {
	logger *slog.Logger

	mu      sync.Mutex
	current []*endpoint
	stop    context.CancelFunc // ends those of the last start
	running sync.WaitGroup
}

// endpoint is one of the configuration.
type endpoint struct {
	tenant      string // empty: every one
	provisioner *gateway.Provisioner
	again       chan struct{} // holds a token when all tenants are to be looked at
}

// newEndpoint checks an endpoint of the configuration. It calls nothing.
func (p *Pipeline) newEndpoint(e config.Endpoint) (*endpoint, error) {
	provisioner, err := gateway.NewProvisioner(gateway.ProvisionerConfig{
		Client: &oneTenant{Client: p.client, tenant: e.Tenant, logger: p.endpoints.logger}, ExternalID: e.ExternalID, Endpoint: e.Request(), Recreate: e.Recreate,
		Logger: p.logger.With("part", "endpoints"),
	})
	if err != nil {
		return nil, err
	}
	return &endpoint{tenant: e.Tenant, provisioner: provisioner, again: make(chan struct{}, 1)}, nil
}

// start works on these endpoints from now on, instead of those before, until ctx
// ends. Those that are no longer configured stay with the gateway.
func (e *endpoints) start(ctx context.Context, list []*endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		e.stop()
	}
	ctx, e.stop = context.WithCancel(ctx)
	e.current = list
	for _, one := range list {
		// Both end with ctx.
		e.running.Go(func() { _ = one.provisioner.Run(ctx) })
		e.running.Go(func() { one.ensure(ctx, e.logger) })
	}
}

// wait waits until nothing is worked on; the context of start has to have ended.
func (e *endpoints) wait() { e.running.Wait() }

// ensure looks at all tenants, and again whenever events may have been missed.
func (e *endpoint) ensure(ctx context.Context, logger *slog.Logger) {
	policy := backoff.Policy{Min: minOpenWait, Max: maxOpenWait}
	for n := 0; ctx.Err() == nil; {
		// What fails in a tenant is told and tried again by the provisioner; it
		// is the list of tenants that has to be asked for until it comes.
		if err := e.provisioner.Ensure(ctx); err != nil && !isProvisionError(err) {
			if n == 0 && ctx.Err() == nil {
				logger.Debug("endpoints have to wait for the list of tenants", "error", router.RedactError(err, nil))
			}
			_ = policy.Wait(ctx, n)
			n++
			continue
		}
		n = 0
		select {
		case <-e.again:
		case <-ctx.Done():
		}
	}
}

// isProvisionError reports whether tenants were listed and failed one by one.
func isProvisionError(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	return ok && !slices.ContainsFunc(joined.Unwrap(), func(err error) bool {
		_, one := err.(*gateway.ProvisionError) //nolint:errorlint // it is what Ensure joins
		return !one
	})
}

// connected is the subscriber's hook: while the stream was down, events may have
// been missed.
func (e *endpoints) connected() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.current {
		select {
		case one.again <- struct{}{}:
		default: // it is going to look anyway
		}
	}
}

// event is the subscriber's hook for every event.
func (e *endpoints) event(event gateway.Event) {
	switch event.(type) {
	case *gateway.AuthorizationAdded, *gateway.AuthorizationRevoked, *gateway.EndpointDeleted:
	default:
		return // most events are data
	}
	e.mu.Lock()
	list := e.current
	e.mu.Unlock()
	for _, one := range list {
		if added, ok := event.(*gateway.AuthorizationAdded); ok && one.tenant != "" && !strings.EqualFold(added.Tenant.TenantID, one.tenant) {
			continue
		}
		one.provisioner.HandleEvent(event)
	}
}

// oneTenant is the client of an endpoint that is meant for one tenant: it
// lists no other one. An empty tenant means all.
type oneTenant struct {
	*gateway.Client
	tenant  string
	logger  *slog.Logger
	missing atomic.Bool // the tenant was not among those that authorized the application
}

// ListAuthorizedTenants implements gateway.TenantLister.
func (c *oneTenant) ListAuthorizedTenants(ctx context.Context) ([]gateway.TenantInfo, error) {
	list, err := c.Client.ListAuthorizedTenants(ctx)
	if c.tenant == "" || err != nil {
		return list, err
	}
	list = slices.DeleteFunc(list, func(t gateway.TenantInfo) bool { return !strings.EqualFold(t.TenantID, c.tenant) })
	if missing := len(list) == 0; missing && !c.missing.Swap(missing) {
		c.logger.Warn("the tenant has not authorized the application; its endpoint is made when it has", "tenant", c.tenant)
	} else if !missing {
		c.missing.Store(false)
	}
	return list, nil
}
