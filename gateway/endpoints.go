package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
)

const (
	opPutEndpoint    = "put endpoint"
	opDeleteEndpoint = "delete endpoint"
)

// PutEndpoint creates the endpoint with this external ID, or reconfigures it (specification, "PUT
// /endpoints/{externalId}"). created reports which; if an attempt failed without a response and was retried, false may
// also mean that the failed attempt created it. The request is validated first ([ErrInvalid]); the deprecated type
// farming_software is accepted, with a single warning.
func (c *Client) PutEndpoint(ctx context.Context, tenantID, externalID string, req PutEndpointRequest) (endpoint Endpoint, created bool, err error) {
	if err := c.invalidCall(ctx, opPutEndpoint, cmp.Or(validateEndpointCall(tenantID, externalID), req.Validate())); err != nil {
		return Endpoint{}, false, err
	}
	if string(req.EndpointType) == deprecatedEndpointType {
		c.warnDeprecated.Do(func() {
			c.cfg.Logger.WarnContext(ctx, "gateway: endpoint type farming_software is deprecated and will be removed from the service; use cloud_software")
		})
	}
	if req.Capabilities == nil {
		req.Capabilities = []EndpointCapability{}
	}
	if req.Subscriptions == nil {
		req.Subscriptions = []EndpointSubscription{}
	}
	body, err := json.Marshal(req)
	if err != nil {
		return Endpoint{}, false, &Error{Op: opPutEndpoint, Err: err}
	}
	header := c.tenantHeader(tenantID)
	header["Content-Type"] = []string{"application/json"}
	header["Accept"] = []string{"application/json"}
	x, err := c.call(ctx, request{
		op:      opPutEndpoint,
		method:  http.MethodPut,
		url:     c.endpointURL(externalID),
		header:  header,
		size:    int64(len(body)),
		content: body,
		timeout: c.requestTimeout(int64(len(body))),
	})
	if err != nil {
		return Endpoint{}, false, err
	}
	endpoint, unreadable, err := decodeEndpoint(x.body)
	if err != nil {
		return Endpoint{}, false, x.badResponse(err)
	}
	c.reportUnreadable(ctx, opPutEndpoint, unreadable)
	return endpoint, x.status == http.StatusCreated, nil
}

// DeleteEndpoint deletes the endpoint with this external ID (specification, "DELETE /endpoints/{externalId}").
// [ErrNotFound] means that there is none, possibly because an attempt without a response has deleted it.
func (c *Client) DeleteEndpoint(ctx context.Context, tenantID, externalID string) error {
	if err := c.invalidCall(ctx, opDeleteEndpoint, validateEndpointCall(tenantID, externalID)); err != nil {
		return err
	}
	_, err := c.call(ctx, request{
		op:         opDeleteEndpoint,
		method:     http.MethodDelete,
		url:        c.endpointURL(externalID),
		header:     c.tenantHeader(tenantID),
		ignoreBody: true,
		timeout:    c.requestTimeout(0),
	})
	return err
}

func validateEndpointCall(tenantID, externalID string) error {
	return cmp.Or(validateUUID("TenantID", tenantID), ValidateExternalID(externalID))
}

func (c *Client) endpointURL(externalID string) string {
	return c.base + "/endpoints/" + escapePathSegment(externalID)
}
