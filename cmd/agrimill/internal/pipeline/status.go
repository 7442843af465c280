package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/spool"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/subscriber"
)

var _ admin.Source = (*Pipeline)(nil)

// Snapshot implements [admin.Source].
func (p *Pipeline) Snapshot() admin.Snapshot { return p.snapshot(p.subscriber.Open()) }

// Open implements [admin.Source].
func (p *Pipeline) Open() []subscriber.Open { return p.subscriber.Open() }

// snapshot is Snapshot with what is open.
func (p *Pipeline) snapshot(open []subscriber.Open) admin.Snapshot {
	p.snapshots.Lock()
	defer p.snapshots.Unlock()
	p.mu.Lock()
	g, phase, loaded, ended := p.generation, p.phase, p.loaded, p.err
	p.mu.Unlock()
	stats := p.subscriber.Stats()
	s := admin.Snapshot{
		Name: p.options.Name, Version: p.options.Version, Started: p.started, Time: time.Now(), Error: router.RedactError(ended, nil),
		Unprovided: p.unprovided(),
		Config:     loaded.ConfigState,
		Gateway:    p.gatewayState(g, stats),
		Subscriber: admin.SubscriberFrom(stats),
		Poison:     g.poisonQueue(),
	}
	if certificates := p.certificates.Load(); certificates != nil {
		s.Certificates = *certificates
	}
	s.Checks, s.CheckedAt = p.readiness.latest(s.Time)
	if c, looked := p.readiness.last(dedupCheck); looked && p.memory.on() {
		s.Dedup = admin.Dedup{Store: p.memory.kind, Target: p.memory.target, Up: c.OK, Since: c.Since, Error: c.Message}
	}
	s.Subscriber.MaxInFlight = g.config.Subscriber.MaxInFlight
	switch phase {
	case phaseNew:
		s.State = admin.StateStarting
	case phaseDraining:
		s.State = admin.StateDraining
	case phaseStopped:
		s.State = admin.StateStopped
	}
	s.Lease = p.leaseState(stats.Lease)
	for i, h := range p.Health() {
		if i >= len(g.routes) || g.routes[i].Name != h.Name {
			break // a reload happened in between; the next snapshot is consistent
		}
		route := g.routes[i]
		route.RouteHealth = h
		if waiting := g.backlogs[h.Name]; waiting != nil {
			route.Backlog = waiting.last.Load()
		}
		s.Routes = append(s.Routes, route)
	}
	s.AddOpen(open)
	for _, sink := range g.sinks {
		status := sink.status()
		i := slices.IndexFunc(s.Checks, func(c admin.Check) bool { return c.Name == "sink "+sink.name })
		if i >= 0 && wakeup.Raised(sink.Tried()) { // until then its state is not known
			status.Up, status.Error, status.CheckedAt = s.Checks[i].OK, s.Checks[i].Message, s.CheckedAt
		}
		s.Sinks = append(s.Sinks, status)
	}
	slices.SortFunc(s.Sinks, func(a, b admin.Sink) int { return strings.Compare(a.Name, b.Name) })
	p.nameWaits(g, s.Subscriber.Waits)
	s.UnconfirmedCourse = p.history.Unconfirmed()
	s.Verdict = p.steady.Judge(s)
	return s
}

func (p *Pipeline) gatewayState(g *generation, stats subscriber.Stats) admin.Gateway {
	s := admin.GatewayFrom(stats.Stream)
	if u, err := url.Parse(g.config.Gateway.BaseURL); err == nil {
		s.Host = u.Host
	}
	switch {
	case !g.receives():
		s.State = admin.GatewayUnused
	case p.lease != nil && stats.Lease.Role != subscriber.LeaseHolder:
		s.State, s.Since, s.LastError = admin.GatewayStandby, stats.Lease.Since, ""
	}
	s.Intermediaries = p.client.Intermediaries().Now
	limit := p.client.RateLimit()
	// The limit outlasts what it is for: it is lifted step by step.
	s.RateLimited, s.RateLimitedUntil = limit.Limited && time.Since(limit.LastWaited) < p.options.CheckInterval || !limit.PausedUntil.IsZero(), limit.PausedUntil
	return s
}

func (g *generation) poisonQueue() admin.Poison {
	q := admin.Poison{
		Sink: g.poison.name, Kind: g.poison.kind, Topic: g.config.Poison.Topic,
		Depth: g.depth.last.Load(),
	}
	switch {
	case q.Kind != "nats" && q.Kind != "kafka":
		q.DepthNote = "a sink of kind " + q.Kind + " does not report the number of messages"
	case q.Depth == nil:
		q.Unreadable, q.DepthNote = true, "the queue has not been read yet"
		if failure := g.depth.failure.Load(); failure != nil {
			q.DepthNote = "the queue cannot be read: " + *failure
		}
	}
	if oldest := g.oldest.Load(); oldest != nil && q.Depth != nil && *q.Depth > 0 {
		q.Oldest = *oldest
	}
	return q
}

func (p *Pipeline) nameWaits(g *generation, all []admin.Waits) {
	for _, waits := range all {
		for i := range waits.Longest {
			waits.Longest[i].Name = p.waitName(g, waits.Kind, waits.Longest[i].What)
		}
	}
}

// waitName returns what people call what waits; empty if they call it by what it is.
func (p *Pipeline) waitName(g *generation, kind subscriber.WaitKind, what string) string {
	switch kind {
	case subscriber.WaitTenant:
		return p.tenantName(what)
	case subscriber.WaitKey:
		return p.endpointName(what)
	case subscriber.WaitSubscription:
		topic, tenant, _ := strings.Cut(what, ", tenant ")
		var routes []string
		for _, r := range g.config.Routes {
			if r.From.Gateway != "" && r.From.GatewayTopic() == topic {
				routes = append(routes, strconv.Quote(r.Name))
			}
		}
		name := "the route " + cmp.Or(strings.Join(routes, ", "), topic)
		if tenant != "" {
			name += " for " + p.tenantName(tenant)
		}
		return name
	}
	return ""
}

// endpointName returns what people call an endpoint; empty for an order key that is no endpoint.
func (p *Pipeline) endpointName(id string) string {
	e, known := p.directory.Endpoint(id)
	if !known {
		return ""
	}
	return fmt.Sprintf("the endpoint %q", cmp.Or(e.Name, e.ExternalID, id))
}

// tenantName returns what people may call a tenant, which has no name itself: the endpoints of this application in it, or
// else the first one.
func (p *Pipeline) tenantName(id string) string {
	if id == "" {
		return ""
	}
	list := p.directory.Mine(id)
	if len(list) == 0 {
		for _, t := range p.directory.Tenants() {
			if strings.EqualFold(t.ID, id) {
				list = t.Endpoints
			}
		}
	}
	if len(list) == 0 {
		return "the tenant " + id
	}
	text := fmt.Sprintf("the tenant of %q", cmp.Or(list[0].Name, list[0].ExternalID, list[0].ID))
	if more := len(list) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + " (" + id + ")"
}

func (g *generation) receives() bool {
	return slices.ContainsFunc(g.routes, func(r admin.Route) bool { return r.Direction == admin.FromGateway })
}

// status returns the sink, except for whether it is up.
func (s *sink) status() admin.Sink {
	status := admin.Sink{Name: s.name, Kind: s.kind, Target: s.target}
	if inner, err := s.Get(); err == nil {
		d := inner.Describe()
		status.Durability, status.DurabilityNote = d.Durability.String(), d.DurabilityNote
		if notices, ok := inner.(interface{ Lost() uint64 }); ok {
			lost := notices.Lost()
			status.Lost = &lost
		}
	}
	return status
}

// checkGateway reports whether the event stream is open or, if no route receives from the
// gateway, whether it has accepted the credentials.
func (p *Pipeline) checkGateway(ctx context.Context, g *generation) admin.Check {
	c := admin.Check{Name: "gateway"}
	stream := p.subscriber.Stats().Stream
	switch {
	case (!g.receives() || p.standsBy()) && !wakeup.Raised(p.authorized):
		c.Message = "has not responded yet"
	case !g.receives():
		c.OK, c.Message = true, "no route receives from it"
	case p.standsBy():
		// Who gave up the lease did not reach the gateway, and perhaps nobody does.
		if lease := p.subscriber.Stats().Lease; lease.GivenUp > 0 {
			if err := p.askGateway(ctx, lease.Since); err != nil {
				return found("gateway", err)
			}
		}
		c.OK, c.Message = true, cmp.Or(p.lease.holder(), "the instance that holds the lease")+" has the event stream"
	case stream.AwaitingHead && stream.RefusedSince.IsZero():
		// The stream itself proves nothing yet. What proves that the service is up is the
		// list of tenants, requested when the stream was opened, and every later call.
		if err := p.askGateway(ctx, stream.Since); err != nil {
			return found("gateway", err)
		}
		c.OK, c.Message = true, "the event stream is awaiting its header; other calls succeed"
	case stream.Connected && !stream.AwaitingHead:
		c.OK = true
	case stream.LastError != nil:
		c.Message = router.RedactError(stream.LastError, nil)
	default:
		c.Message = "the event stream is not open yet"
	}
	return c
}

// askGateway returns why the gateway did not answer the last call, and one now; nil if it did answer, not before a time.
func (p *Pipeline) askGateway(ctx context.Context, since time.Time) error {
	last := p.client.LastCall()
	if last.Err == nil && !last.At.Before(since) {
		return nil
	}
	if err := p.directory.Sync(ctx); err != nil {
		return cmp.Or(last.Err, err)
	}
	return nil
}

// Tenants implements [admin.Source]. It returns those in the directory, which the event
// stream keeps up to date, and requests a refresh for the next call.
func (p *Pipeline) Tenants(context.Context) ([]admin.Tenant, error) {
	if !wakeup.Raised(p.authorized) {
		return nil, errors.New("the gateway has not responded yet")
	}
	wakeup.Token(p.looked)
	return admin.TenantsFrom(p.directory.Tenants(), p.directory.Scopes), nil
}

// Journal implements [admin.Source].
func (p *Pipeline) Journal() *journal.Journal { return p.journal }

// History implements [admin.Source].
func (p *Pipeline) History() *history.History { return p.history }

// Settings implements [admin.Source].
func (p *Pipeline) Settings() []admin.Setting {
	p.mu.Lock()
	cfg := p.loaded.config
	p.mu.Unlock()
	return cfg.Settings()
}

func (p *Pipeline) fromGateway() []journal.Route {
	var routes []journal.Route
	for _, r := range p.now().config.Routes {
		if r.From.Gateway == "" {
			continue
		}
		topic := r.From.GatewayTopic()
		routes = append(routes, journal.Route{Name: r.Name, Topic: topic, Takes: func(event gateway.EventType, messageType string) bool {
			return subscriber.Takes(topic, event, messageType)
		}})
	}
	return routes
}

// Payloads implements [admin.Source].
func (p *Pipeline) Payloads() gateway.PayloadOpener { return p.claims }

// Devices implements [admin.Source].
func (p *Pipeline) Devices() *farm.Devices { return p.devices.known }

// PoisonStore implements [admin.Source]. The queue can be read if it is in NATS or Kafka, once that
// has been reached.
func (p *Pipeline) PoisonStore() router.PoisonStore { return p.now().poisonStore() }

// CountPoisoned implements [admin.Source].
func (p *Pipeline) CountPoisoned(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	p.now().depth.look(ctx)
}

// poisonStore returns the poison queue, nil if it cannot be read or is not open yet.
func (g *generation) poisonStore() poisonStore { return g.poison.poisonStore(g.config.Poison.Topic) }

// errNoDepth: the depth of the poison queue is unknown.
var errNoDepth = errors.New("its sink is not open, or does not report how many messages it holds")

// poisonDepth asks the broker how many messages are in the poison queue, and since when.
func (g *generation) poisonDepth(ctx context.Context) (int64, error) {
	var since *time.Time // nil: unknown
	defer func() { g.oldest.Store(since) }()
	queue := g.poisonStore()
	if queue == nil {
		return 0, errNoDepth
	}
	depth, err := queue.Depth(ctx)
	if err != nil {
		return 0, err
	}
	if oldest, err := queue.Oldest(ctx); err == nil && !oldest.IsZero() {
		since = &oldest
	}
	return depth, nil
}

// storedConnectTimeout is how long to wait for a broker to show what is in a message: somebody waits for it, and there may be
// other places to look at.
const storedConnectTimeout = 3 * time.Second

// Stored implements [admin.Source], with the brokers and buckets of the running configuration, and connections of its own.
func (p *Pipeline) Stored(ctx context.Context, m *journal.Message) iter.Seq2[admin.StoredCopy, error] {
	return stored.Each(ctx, p.now().config, m, stored.Options{
		// All of it in memory: there may be no directory for temporary files.
		Limits:         spool.Limits{Max: admin.MaxStored, Memory: admin.MaxStored},
		ConnectTimeout: storedConnectTimeout,
		Claims:         p.claimCheck,
	})
}
