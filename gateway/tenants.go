package gateway

import (
	"context"
	"net/http"
)

const (
	opTenants         = "list authorized tenants"
	opTenantEndpoints = "list tenant endpoints"
)

// ListAuthorizedTenants returns every tenant that authorized the application, with the endpoints that the application can
// see (specification, "GET /tenants"). One in which the application owns no endpoint has an empty list.
//
// An unreadable entry hides none of the others: an endpoint, or the list of a tenant, is reported in
// [TenantInfo.Unreadable]; a tenant without a readable ID is skipped. All of them are logged. A response that is
// invalid as a whole is [ErrBadResponse].
func (c *Client) ListAuthorizedTenants(ctx context.Context) ([]TenantInfo, error) {
	x, err := c.get(ctx, opTenants, "/tenants")
	if err != nil {
		return nil, err
	}
	tenants, unreadable, err := decodeTenants(x.body)
	if err != nil {
		return nil, x.badResponse(err)
	}
	for _, t := range tenants {
		unreadable = append(unreadable, t.Unreadable...)
	}
	c.reportUnreadable(ctx, opTenants, unreadable)
	return tenants, nil
}

// ListTenantEndpoints returns the current endpoints of one tenant (specification, "GET /tenants/{tenantId}/endpoints"), those
// of the application with their routes. [Client.TenantEndpoints] also returns the entries that are unreadable.
func (c *Client) ListTenantEndpoints(ctx context.Context, tenantID string) ([]TenantEndpointInfo, error) {
	t, err := c.TenantEndpoints(ctx, tenantID)
	return t.Endpoints, err
}

// TenantEndpoints is [Client.ListTenantEndpoints] plus the entries that were skipped.
func (c *Client) TenantEndpoints(ctx context.Context, tenantID string) (TenantInfo, error) {
	if err := validateUUID("TenantID", tenantID); err != nil {
		return TenantInfo{}, &Error{Op: opTenantEndpoints, Err: err}
	}
	x, err := c.get(ctx, opTenantEndpoints, "/tenants/"+escapePathSegment(tenantID)+"/endpoints")
	if err != nil {
		return TenantInfo{}, err
	}
	t := TenantInfo{ID: tenantID}
	t.Endpoints, t.Unreadable, err = decodeEndpoints(x.body)
	if err != nil {
		return TenantInfo{}, x.badResponse(err)
	}
	c.reportUnreadable(ctx, opTenantEndpoints, t.Unreadable)
	return t, nil
}

// reportUnreadable logs what was skipped in a response, in one line.
func (c *Client) reportUnreadable(ctx context.Context, op string, unreadable []*EntryError) {
	if len(unreadable) > 0 {
		c.cfg.Logger.WarnContext(ctx, "gateway: parts of a response are unreadable and were skipped",
			"operation", op, "count", len(unreadable), "first_endpoint", unreadable[0].EndpointID, "first_error", unreadable[0])
	}
}

func (c *Client) get(ctx context.Context, op, path string) (*exchange, error) {
	return c.call(ctx, request{
		op:      op,
		method:  http.MethodGet,
		url:     c.base + path,
		header:  http.Header{"Accept": {"application/json"}},
		timeout: c.requestTimeout(0),
	})
}

// badResponse wraps the problem with a 2xx response.
func (x *exchange) badResponse(err error) error {
	return &Error{Op: x.req.op, StatusCode: x.status, Attempts: x.attempts, Err: err}
}
