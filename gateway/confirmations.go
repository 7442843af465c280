package gateway

import (
	"context"
	"net/http"
)

const opConfirm = "confirm messages"

// ConfirmMessages confirms messages of one tenant (specification, "POST
// /confirmations"): at least one. It returns nil when the service has answered
// 202: the confirmations are saved, the feed follows eventually, so a confirmed
// message may still come once more. A call whose answer was lost is repeated;
// confirming twice does no harm.
//
// One bad pair may make the service refuse the whole call with [ErrBadRequest];
// which one, it does not say.
func (c *Client) ConfirmMessages(ctx context.Context, tenantID string, confirmations []MessageConfirmation) error {
	err := validateUUID("TenantID", tenantID)
	if err == nil {
		err = validateConfirmations(confirmations)
	}
	if err := c.invalidCall(ctx, opConfirm, err); err != nil {
		return err
	}
	body := appendConfirmations(confirmations)
	header := c.tenantHeader(tenantID)
	header["Content-Type"] = []string{"application/json"}
	_, err = c.call(ctx, request{
		op:         opConfirm,
		method:     http.MethodPost,
		url:        c.base + "/confirmations",
		header:     header,
		open:       bytesBody(body),
		size:       int64(len(body)),
		inMemory:   true,
		ignoreBody: true,
		timeout:    c.requestTimeout(int64(len(body))),
	})
	return err
}

// appendConfirmations writes the body into one buffer of the right size. The
// IDs are UUIDs, so nothing needs escaping.
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
