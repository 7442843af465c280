package gateway

import "context"

// ValidateMessage reports what [Client.SendMessage] would refuse before sending
// req, as the same error: an [*Error] that wraps a [*ValidationError]. It does
// not block and sends nothing.
func (c *Client) ValidateMessage(req SendMessageRequest) error {
	return c.invalidCall(context.Background(), opSend, req.validate(c.cfg.MaxPayloadSize))
}
