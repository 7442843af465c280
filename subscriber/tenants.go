package subscriber

import (
	"context"
	"sync"
)

// tenantLookup is the default TenantResolver: Sync calls GET /tenants and caches
// the answer.
type tenantLookup struct {
	client Client

	mu      sync.RWMutex
	tenants map[string]string // endpoint ID in lower case → tenant ID
}

func newTenantLookup(client Client) *tenantLookup {
	return &tenantLookup{client: client}
}

// TenantOf implements TenantResolver.
func (l *tenantLookup) TenantOf(endpointID string) (string, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	tenant, ok := l.tenants[lower(endpointID)]
	return tenant, ok
}

// Sync implements TenantResolver.
func (l *tenantLookup) Sync(ctx context.Context) error {
	list, err := l.client.ListAuthorizedTenants(ctx)
	if err != nil {
		return err
	}
	tenants := make(map[string]string)
	for _, tenant := range list {
		for _, endpoint := range tenant.Endpoints {
			tenants[lower(endpoint.ID)] = tenant.ID
		}
		for _, endpoint := range tenant.Unreadable {
			tenants[lower(endpoint.EndpointID)] = tenant.ID
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenants = tenants
	return nil
}
