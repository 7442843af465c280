package pipeline

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/tracing"
)

// generation is what a reload replaces: the router with the routes of one configuration, and its sinks, but for unchanged ones.
type generation struct {
	config    *config.Config
	router    *router.Router
	routes    []admin.Route // without their health
	sinks     map[string]*sink
	gateway   message.Subscriber // shared by all routes from the gateway
	poison    *sink
	backlogs  map[string]*backlog // by route name
	depth     backlog             // of the poison queue
	oldest    atomic.Pointer[time.Time]
	endpoints []*endpoint
}

// newGeneration checks a configuration and builds its parts without connecting. kept has
// sinks that may be reused.
func (p *Pipeline) newGeneration(cfg *config.Config, kept map[string]*sink) (g *generation, err error) {
	defer func() {
		if err != nil && !mayPass(err) {
			err = configError{err}
		}
	}()
	g = &generation{config: cfg, sinks: map[string]*sink{}, backlogs: map[string]*backlog{}}
	g.gateway = p.tracing.Subscriber(tracing.SystemGateway, shared{p.subscriber, p})
	for name := range cfg.Sinks {
		is := sinkOf(cfg, name)
		if s := kept[name]; s != nil && reflect.DeepEqual(s.made, is) { // its configuration, and what is in the files that it names
			g.sinks[name] = s
			continue
		}
		if g.sinks[name], err = p.newSink(name, cfg.Sinks[name]); err != nil {
			return nil, err
		}
		g.sinks[name].made = is
	}
	g.poison, g.depth.ask = g.sinks[cfg.Poison.Sink], g.poisonDepth
	for _, e := range cfg.Endpoints {
		made, err := p.newEndpoint(e)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", e.ExternalID, err)
		}
		g.endpoints = append(g.endpoints, made)
	}

	routerConfig := cfg.RouterConfig()
	routerConfig.Poison = g.poison.watched
	routerConfig.Observer = p.tracing.Observer(p.journal.Observer(p.observer))
	routerConfig.Chain = p.tracing.Chain(nil)
	routerConfig.CloseTimeout, routerConfig.ClaimCheck = budgetOf(cfg).router, p.claims
	if cfg.Dedup.Store != config.DedupOff {
		routerConfig.Dedup.Store, routerConfig.Dedup.Owner = p.memory, p.owner
		outward := map[string]bool{}
		for _, route := range cfg.Routes {
			outward[route.Name] = route.To.Gateway != nil
		}
		routerConfig.Dedup.KeyFunc = keys(p.inward, outward)
	}
	if g.router, err = router.New(routerConfig, p.libraryLogger(p.logger.With("part", "router"))); err != nil {
		return nil, err
	}
	for _, route := range cfg.Routes {
		if err := p.addRoute(g, route); err != nil {
			return nil, errors.Join(fmt.Errorf("route %s: %w", route.Name, err), g.router.Close())
		}
	}
	return g, nil
}

func (p *Pipeline) addRoute(g *generation, cfg config.Route) error {
	route := router.Route{Name: cfg.Name, Durable: cfg.Durable}
	info := admin.Route{Direction: admin.BrokerToSink}
	if err := p.setFrom(g, cfg, &route, &info); err != nil {
		return err
	}
	if err := p.setTo(g, cfg, &route, &info); err != nil {
		return errors.Join(err, route.From.Close())
	}
	if g.config.OnHolder(cfg) {
		route.To = &fenced{route.To, p.turns}
	}
	if err := errors.Join(p.setExpressions(cfg, &route), p.setFarm(cfg, &route)); err != nil {
		return errors.Join(err, route.From.Close(), route.To.Close())
	}
	if err := g.router.Add(route); err != nil {
		return errors.Join(err, route.From.Close(), route.To.Close())
	}
	info.Name = cfg.Name
	g.routes = append(g.routes, info)
	return nil
}

func (p *Pipeline) setFrom(g *generation, cfg config.Route, route *router.Route, info *admin.Route) (err error) {
	logger := p.libraryLogger(p.logger.With("route", cfg.Name))
	info.From.Kind = cfg.From.Kind()
	switch from := cfg.From; {
	case from.NATS != nil:
		source, err := newNATSSource(cfg.Name, *from.NATS, budgetOf(g.config), logger)
		if err != nil {
			return err
		}
		route.From, route.Topic = source, from.NATS.Subject
		g.backlogs[cfg.Name] = &backlog{ask: source.Backlog}
	case from.Kafka != nil:
		route.From, err = newKafkaSource(*from.Kafka, budgetOf(g.config), logger)
		route.Topic = strings.Join(from.Kafka.Topics, ",")
	default:
		route.From = g.gateway
		route.Topic = from.GatewayTopic()
		info.Direction = admin.FromGateway
	}
	info.From.Detail = route.Topic
	if err == nil && cfg.From.Gateway == "" && g.config.OnHolder(cfg) {
		route.From = &inTurn{Subscriber: route.From, logger: p.logger.With("route", cfg.Name), turns: p.turns}
	}
	if err == nil && cfg.From.Gateway == "" {
		route.From = p.tracing.Subscriber(info.From.Kind, route.From)
	}
	return err
}

// setTo sets where the messages of a route go, and the first part of its filter.
func (p *Pipeline) setTo(g *generation, cfg config.Route, route *router.Route, info *admin.Route) error {
	to := cfg.To.Gateway
	if to == nil {
		target := g.sinks[cfg.To.Sink]
		route.To, route.ToTopic = target.watched, cfg.To.Topic
		route.Filter = p.names.newFilter(cfg.Filter, nil)
		info.To = admin.Place{Kind: target.kind, Sink: target.name, Detail: cfg.To.Topic}
		return nil
	}
	publisherConfig := g.config.PublisherConfig(*to)
	publisherConfig.Client, publisherConfig.ClaimCheck = p.client, p.claims
	publisherConfig.CloseTimeout = budgetOf(g.config).router / 10
	route.Filter = p.names.newFilter(cfg.Filter, &publisherConfig)
	info.To = admin.Place{Kind: "gateway", Detail: publisherConfig.EndpointID}
	addressed := p.names.addressed(&publisherConfig, cfg.Set)
	pub, err := publisher.New(publisherConfig, p.libraryLogger(p.logger.With("route", cfg.Name)))
	if err != nil {
		return err
	}
	route.To = p.tracing.Sink(tracing.SystemGateway, pub)
	if addressed != nil {
		addressed.Sink, route.To, route.Middleware = route.To, addressed, append(route.Middleware, addressed.wait)
	}
	route.ToTopic = to.Type
	info.Direction = admin.ToGateway
	return nil
}
