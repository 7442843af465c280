package pipeline

import (
	"cmp"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
)

// newFilter returns the filter of a route; nil if it accepts everything. to has what messages to the
// gateway do not name; for routes to a sink it is nil, and the receiving endpoint is compared.
func (n *names) newFilter(cfg config.Filter, to *publisher.Config) func(*message.Message) (bool, error) {
	if cfg.Empty() {
		return nil
	}
	files, refuses := config.NewPatterns("i", cfg.Filename...), n.newRefusal(cfg)
	endpointKey, sender, tenant := gateway.KeyReceivingEndpointID, "", ""
	if to != nil {
		endpointKey, sender, tenant = gateway.KeyEndpointID, to.EndpointID, to.TenantID
	}
	return func(msg *message.Message) (bool, error) {
		if !files.Match(msg.Metadata[gateway.KeyFilename]) {
			return false, nil
		}
		refused, err := refuses(cmp.Or(msg.Metadata[gateway.KeyTenantID], tenant), msg.Metadata[gateway.KeyMessageType], cmp.Or(msg.Metadata[endpointKey], sender))
		return refused == "" && err == nil, err
	}
}

// newRefusal returns the part of a filter that needs no message: the key that refuses a type
// to an endpoint of a tenant, empty if none does.
func (n *names) newRefusal(cfg config.Filter) func(tenant, messageType, endpoint string) (string, error) {
	types, tenants := config.NewPatterns("", cfg.Type...), config.NewPatterns("i", cfg.Tenant...)
	return func(tenant, messageType, endpoint string) (string, error) {
		switch {
		case !types.Match(messageType):
			return "type", nil
		case !tenants.Match(tenant):
			return "tenant", nil
		}
		if accepted, err := n.one(cfg.Endpoint, tenant, endpoint); !accepted {
			return "endpoint", err
		}
		return "", nil
	}
}
