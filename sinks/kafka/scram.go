package kafka

import (
	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

var _ sarama.SCRAMClient = (*scramClient)(nil)

// scramClient makes the client of xdg-go/scram one of sarama. One is made for each connection.
type scramClient struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

// Begin prepares the exchange.
func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return err
	}
	c.ClientConversation = client.NewConversation()
	return nil
}
