package gateway

import (
	"context"
	"net/http"
)

const (
	opTenants         = "list authorized tenants"
	opTenantEndpoints = "list tenant endpoints"
)

// ListAuthorizedTenants returns every tenant that authorized the application,
// with its endpoints as far as the application sees them (specification, "GET
// /tenants"). It is the operation for start-up and recovery. A tenant in which
// the application owns no endpoint is there with an empty list. An answer that
// lacks required fields is an error that names them ([ErrBadResponse]).
func (c *Client) ListAuthorizedTenants(ctx context.Context) ([]TenantInfo, error) {
	x, err := c.get(ctx, opTenants, "/tenants")
	if err != nil {
		return nil, err
	}
	tenants, err := decodeTenants(x.body)
	if err != nil {
		return nil, x.badResponse(err)
	}
	return tenants, nil
}

// ListTenantEndpoints returns the current endpoints of one tenant
// (specification, "GET /tenants/{tenantId}/endpoints"), those of the
// application with their routes. Errors are those of [Client.ListAuthorizedTenants].
func (c *Client) ListTenantEndpoints(ctx context.Context, tenantID string) ([]TenantEndpointInfo, error) {
	if err := validateUUID("TenantID", tenantID); err != nil {
		return nil, &Error{Op: opTenantEndpoints, Err: err}
	}
	x, err := c.get(ctx, opTenantEndpoints, "/tenants/"+escapePathSegment(tenantID)+"/endpoints")
	if err != nil {
		return nil, err
	}
	endpoints, err := decodeEndpoints(x.body)
	if err != nil {
		return nil, x.badResponse(err)
	}
	return endpoints, nil
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

// badResponse wraps what is wrong with an answer of status 2xx.
func (x *exchange) badResponse(err error) error {
	return &Error{Op: x.req.op, StatusCode: x.status, Attempts: x.attempts, Err: err}
}
