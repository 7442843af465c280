package subscriber

import (
	"context"
	"sync"
)

// tenantLookup is the default TenantResolver: it asks GET /tenants when it is
// told to, and remembers the answer.
type tenantLookup struct {
	client Client

	mu      sync.RWMutex
	tenants map[string]string // endpoint ID → tenant ID
}

func newTenantLookup(client Client) *tenantLookup {
	return &tenantLookup{client: client}
}

// TenantOf implements TenantResolver.
func (l *tenantLookup) TenantOf(endpointID string) (string, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	tenant, ok := l.tenants[endpointID]
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
			tenants[endpoint.ID] = tenant.TenantID
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenants = tenants
	return nil
}
