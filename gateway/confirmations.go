package gateway

import (
	"cmp"
	"context"
	"net/http"
)

const opConfirm = "confirm messages"

// ConfirmMessages confirms at least one message of one tenant (specification, "POST /confirmations"). It returns nil
// once the service has answered 202: they are saved, but the feed follows eventually, so a confirmed message may be
// delivered once more. Confirming twice is harmless, so a call whose response is lost is retried.
//
// A single invalid pair may make the service refuse the whole call with [ErrBadRequest], without saying which one it is.
func (c *Client) ConfirmMessages(ctx context.Context, tenantID string, confirmations []MessageConfirmation) error {
	if err := c.invalidCall(ctx, opConfirm, cmp.Or(validateUUID("TenantID", tenantID), validateConfirmations(confirmations))); err != nil {
		return err
	}
	body := appendConfirmations(confirmations)
	header := c.tenantHeader(tenantID)
	header["Content-Type"] = []string{"application/json"}
	_, err := c.call(ctx, request{
		op:         opConfirm,
		method:     http.MethodPost,
		url:        c.base + "/confirmations",
		header:     header,
		size:       int64(len(body)),
		content:    body,
		ignoreBody: true,
		timeout:    c.requestTimeout(int64(len(body))),
	})
	return err
}

// appendConfirmations writes the body into a single buffer. The IDs are UUIDs, so nothing needs escaping.
func appendConfirmations(confirmations []MessageConfirmation) []byte {
	const (
		head, middle, id = `{"confirmations":[`, `{"message_id":"`, `","endpoint_id":"`
		tail, end        = `"}`, `]}`
	)
	const each = len(middle) + 36 + len(id) + 36 + len(tail) + len(",")
	b := make([]byte, 0, len(head)+len(confirmations)*each+len(end))
	b = append(b, head...)
	for i := range confirmations {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, middle...)
		b = append(b, confirmations[i].MessageID...)
		b = append(b, id...)
		b = append(b, confirmations[i].EndpointID...)
		b = append(b, tail...)
	}
	return append(b, end...)
}
