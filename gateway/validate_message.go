package gateway

import "context"

// ValidateMessage returns the error with which [Client.SendMessage] would refuse
// req before sending it: an [*Error] that wraps a [*ValidationError]. It does
// not block and sends nothing.
func (c *Client) ValidateMessage(req SendMessageRequest) error {
	return c.invalidCall(context.Background(), opSend, req.validate(&c.cfg))
}
