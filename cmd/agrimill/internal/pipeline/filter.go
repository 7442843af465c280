package pipeline

import (
	"cmp"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wildcard"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/expr"
	"github.com/agrimill/agrimill/router/farm"
)

// newFilter returns the filter of a route; nil if it accepts everything. to has what messages to the
// gateway do not name; for routes to a sink it is nil, and the receiving endpoint is compared.
func (n *names) newFilter(cfg config.Filter, to *publisher.Config) func(*message.Message) (bool, error) {
	if cfg.Empty() {
		return nil
	}
	files, refuses := wildcard.New("i", cfg.Filename...), n.newRefusal(cfg)
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
	types, tenants := wildcard.New("", cfg.Type...), wildcard.New("i", cfg.Tenant...)
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

// setExpressions sets what a route does by expressions. It comes before setFarm: they are asked before payloads are read,
// and see what setFarm has set.
func (p *Pipeline) setExpressions(cfg config.Route, route *router.Route) error {
	if cfg.Filter.Expr == "" && len(cfg.Set) == 0 {
		return nil
	}
	inspector, err := farm.NewInspector(farm.ReadConfig{Devices: p.devices.known, Payloads: p.claims})
	if err != nil {
		return err
	}
	if cfg.Filter.Expr != "" {
		filter, err := expr.NewFilter(cfg.Filter.Expr, inspector)
		if err != nil {
			return fmt.Errorf("filter: expr: %w", err)
		}
		route.Filter = both(route.Filter, filter.Select)
	}
	if len(cfg.Set) > 0 {
		setter, err := expr.NewSetter(cfg.Set, inspector)
		if err != nil {
			return fmt.Errorf("set: %w", err)
		}
		route.Middleware = append(route.Middleware, setter.Middleware)
	}
	return nil
}

// both accepts what first, if there is one, and then second accept.
func both(first, second func(*message.Message) (bool, error)) func(*message.Message) (bool, error) {
	if first == nil {
		return second
	}
	return func(msg *message.Message) (bool, error) {
		if selected, err := first(msg); err != nil || !selected {
			return false, err
		}
		return second(msg)
	}
}

// setFarm sets what a route does by what is in the payloads. A route that does nothing of the kind is left
// as it is.
func (p *Pipeline) setFarm(cfg config.Route, route *router.Route) (err error) {
	if cfg.Filter.Farm != nil {
		filterConfig := *cfg.Filter.Farm
		filterConfig.Devices, filterConfig.Payloads = p.devices.known, p.claims
		filter, err := farm.NewFilter(filterConfig)
		if err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		route.Filter = both(route.Filter, filter.Select)
		route.Middleware = append(route.Middleware, filter.Middleware)
	}
	if route.Transform, err = farm.NewTransform(cfg.Transform.WithDevices(p.devices.known).WithPayloads(p.claims)); err != nil {
		return fmt.Errorf("transform: %w", err)
	}
	return nil
}
