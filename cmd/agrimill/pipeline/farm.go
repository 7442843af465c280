package pipeline

import (
	"fmt"

	"github.com/agrimill/agrimill/cmd/agrimill/config"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
)

// setFarm sets what a route does by what is in the payloads. A route that does nothing of the kind is left
// as it is.
func (p *Pipeline) setFarm(cfg config.Route, route *router.Route) (err error) {
	if cfg.Filter.Farm != nil {
		filterConfig := *cfg.Filter.Farm
		if p.claimCheck != nil {
			filterConfig.Payloads = p.claimCheck
		}
		filter, err := farm.NewFilter(filterConfig)
		if err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		route.Select = filter.Select
		route.Middleware = append(route.Middleware, filter.Middleware)
	}
	transform := cfg.Transform
	if p.claimCheck != nil {
		transform = transform.WithPayloads(p.claimCheck)
	}
	if route.Transform, err = farm.NewTransform(transform); err != nil {
		return fmt.Errorf("transform: %w", err)
	}
	return nil
}
