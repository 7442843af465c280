package pipeline

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

// newFilter returns the filter of a route; nil if it accepts everything. sender is the
// endpoint of messages to the gateway that do not name theirs; for routes from the gateway
// it is empty, and the receiving endpoint is compared.
func newFilter(cfg config.Filter, sender string, outward bool) func(*message.Message) bool {
	if cfg.Empty() {
		return nil
	}
	names, refuses := config.NewPatterns("i", cfg.Filename...), newRefusal(cfg)
	endpointKey := gateway.KeyReceivingEndpointID
	if outward {
		endpointKey = gateway.KeyEndpointID
	}
	return func(msg *message.Message) bool {
		endpoint := msg.Metadata[endpointKey]
		if endpoint == "" {
			endpoint = sender
		}
		return names.Match(msg.Metadata[gateway.KeyFilename]) &&
			refuses(msg.Metadata[gateway.KeyTenantID], msg.Metadata[gateway.KeyMessageType], endpoint) == ""
	}
}

// newRefusal returns the part of a filter that needs no message: the key that refuses a type
// to an endpoint of a tenant, empty if none does.
func newRefusal(cfg config.Filter) func(tenant, messageType, endpoint string) string {
	types, tenants, endpoints := config.NewPatterns("", cfg.Type...), config.NewPatterns("i", cfg.Tenant...), config.NewPatterns("i", cfg.Endpoint...)
	return func(tenant, messageType, endpoint string) string {
		switch {
		case !types.Match(messageType):
			return "type"
		case !tenants.Match(tenant):
			return "tenant"
		case !endpoints.Match(endpoint):
			return "endpoint"
		}
		return ""
	}
}
