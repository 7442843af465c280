package admin_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/stored"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/spool"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	taskData = "iso:11783:-10:taskdata:zip"
	shapes   = "shp:shape:zip"

	// Names that would be HTML, were they taken for it. The filename also turns
	// the direction of the text.
	hostileRoute    = `shapes <img src=x onerror="window.pwned=1">`
	hostileFilename = "\u202e<svg onload=window.pwned=2>.zip"
	hostileEndpoint = `<b>farm</b> & "software"`
	// secret is what no page may show.
	secret = "very-secret-of-the-farm"
)

// agrimill is a pipeline of real parts: gateway → subscriber → two routes →
// JetStream, and one from JetStream to the gateway. Shape files are poisoned
// until repaired is set.
type agrimill struct {
	*testing.T
	gate             *gatewaytest.Server
	nats             *natstest.Server
	client           *gateway.Client
	directory        *gateway.Directory
	sub              *subscriber.Subscriber
	router           *router.Router
	sink             *nats.Sink
	queue            *poisonqueue.Queue
	registry         *prometheus.Registry
	journal          *journal.Journal
	history          *history.History
	terminal, office gateway.Endpoint
	started          time.Time
	repaired         atomic.Bool

	mu     sync.Mutex
	health admin.Sink
}

var _ admin.Source = (*agrimill)(nil)

func newInstance(t *testing.T) *agrimill {
	t.Helper()
	b := &agrimill{T: t, started: time.Now(), registry: prometheus.NewRegistry()}
	b.journal, b.history = testkit.Must(journal.New(journal.Config{}))(t), history.New(nil)
	b.gate = gatewaytest.New(t, gatewaytest.Config{})
	b.nats = natstest.Start(t)
	all := []string{taskData, shapes}
	b.terminal = b.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal of the tractor", Send: all, Receive: all, Subscribe: []string{shapes}})
	b.office = b.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: all, Subscribe: []string{taskData, shapes}, Send: []string{taskData}})

	config := b.gate.ClientConfig()
	config.Retry.MaxAttempts = 2
	b.client = testkit.Must(gateway.New(config))(t)
	t.Cleanup(func() { testkit.NoError(b, b.client.Close()) })
	b.directory = gateway.NewDirectory(b.client)
	b.sub = testkit.Must(subscriber.New(subscriber.Config{
		Client: b.client, Tenants: b.directory,
		Hooks:     subscriber.Hooks{Event: b.journal.Event, Confirmed: b.journal.Confirmed, ConfirmationRejected: b.journal.Rejected},
		Confirm:   subscriber.ConfirmConfig{MaxAge: 5 * time.Millisecond},
		Reconnect: subscriber.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}, nil))(t)
	b.sink = testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: b.nats.URL()}}, nil))(t)
	b.queue = testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: b.sink.Conn(), Timeout: time.Second}))(t)
	b.router = testkit.Must(router.New(router.Config{
		Poison: b.sink, CloseTimeout: 8 * time.Second, Observer: b.journal.Observer(nil),
		Retry: router.RetrySettings{MaxAttempts: 2, InitialBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond},
	}, nil))(t)
	t.Cleanup(func() { testkit.NoError(b, b.router.Close()) })
	back := testkit.Must(publisher.New(publisher.Config{Client: b.client, TenantID: b.gate.Tenant(), EndpointID: b.office.ID}, nil))(t)
	from := testkit.Must(sourcenats.New(sourcenats.Config{Connection: nats.Connection{URL: b.nats.URL()}, Stream: nats.DefaultStream, Durable: "back", NewOnly: true}, nil))(t)
	for _, route := range []router.Route{
		{Name: "task data", From: b.sub, Topic: taskData, To: b.sink},
		{Name: hostileRoute, From: b.sub, Topic: shapes, To: b.sink, Transform: b.shapes},
		{Name: "back", From: from, Topic: "out.>", To: back, ToTopic: "{type}"},
	} {
		testkit.NoError(b, b.router.Add(route))
	}
	b.registry.MustRegister(metrics.NewRouterCollector(b.router), metrics.NewSubscriberCollector(b.sub))
	return b
}

// run starts the pipeline. It ends with the test.
func (b *agrimill) run() {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.router.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	running.Go(func() {
		for ctx.Err() == nil {
			b.lookAtSink(ctx)
			b.history.Update(admin.SamplesFrom(b.Snapshot(), b.Open()), b.journal)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	wait, stop := context.WithTimeout(b.Context(), testkit.Patience)
	defer stop()
	select {
	case <-b.router.Running():
	case <-wait.Done():
		b.Fatal("the router does not run")
	}
	testkit.NoError(b, b.gate.WaitStreams(wait, 1))
}

// shapes cannot read a file until it is repaired. Its error shows what a page
// could fall for.
func (b *agrimill) shapes(msg *message.Message) ([]*message.Message, error) {
	if b.repaired.Load() {
		return []*message.Message{msg}, nil
	}
	return nil, router.Permanent(errors.New(`no shape <img src=x onerror="window.pwned=3"> at https://farm.example/shape?token=` + secret))
}

func (b *agrimill) lookAtSink(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	err := b.sink.Health(ctx)
	d := b.sink.Describe()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.health = admin.Sink{
		Name: "farm", Kind: "nats", Target: b.sink.Conn().ConnectedAddr(), Up: err == nil, CheckedAt: time.Now(),
		Error: router.RedactError(err, nil), Durability: d.Durability.String(), DurabilityNote: d.DurabilityNote,
	}
}

// send sends n messages and returns without waiting for them.
func (b *agrimill) send(n int, messageType, filename string) {
	b.Helper()
	for range n {
		b.sendPayload(messageType, filename, []byte("payload: "+secret+time.Now().String()))
	}
}

func (b *agrimill) sendPayload(messageType, filename string, payload []byte) {
	b.Helper()
	testkit.Must(b.gate.Send(gatewaytest.SendRequest{
		From: b.terminal.ID, MessageType: messageType, Recipients: []string{b.office.ID}, Payload: payload, Filename: filename,
	}))(b.T)
}

func (b *agrimill) waitConfirmed(n int) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), testkit.Patience)
	defer cancel()
	testkit.NoError(b, b.gate.WaitConfirmed(ctx, n))
}

// Snapshot implements [admin.Source].
func (b *agrimill) Snapshot() admin.Snapshot {
	stats := b.sub.Stats()
	s := admin.Snapshot{
		Name: "farm", Version: "v0.0.0-test", Started: b.started,
		Gateway: admin.GatewayFrom(stats.Stream), Subscriber: admin.SubscriberFrom(stats),
		Poison: admin.Poison{Sink: "farm", Topic: router.DefaultPoisonTopic},
	}
	s.Gateway.Host = "gateway.example:443"
	s.Gateway.Intermediaries = b.client.Intermediaries().Now
	s.Subscriber.MaxInFlight = 1000
	for _, health := range b.router.Health() {
		route := admin.Route{RouteHealth: health, Direction: admin.FromGateway,
			From: admin.Place{Kind: "gateway", Detail: taskData}, To: admin.Place{Kind: "nats", Sink: "farm", Detail: router.DefaultToTopic}}
		switch health.Name {
		case hostileRoute:
			route.From.Detail = shapes
		case "back":
			var backlog int64
			route.Direction, route.Backlog = admin.ToGateway, &backlog
			route.From, route.To = admin.Place{Kind: "nats", Detail: "agrimill.out.>"}, admin.Place{Kind: "gateway", Detail: hostileEndpoint}
		}
		s.Routes = append(s.Routes, route)
	}
	s.AddOpen(b.Open())
	s.Time, s.UnconfirmedCourse = time.Now(), []int{s.Subscriber.Unconfirmed}
	s.Checks = b.checks(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.health.Name != "" {
		s.Sinks = []admin.Sink{b.health}
	}
	return s
}

// checks are those of the snapshot, without asking anybody.
func (b *agrimill) checks(s admin.Snapshot) []admin.Check {
	b.mu.Lock()
	sink := b.health
	b.mu.Unlock()
	checks := []admin.Check{
		{Name: "gateway", OK: s.Gateway.State != admin.GatewayDisconnected, Message: s.Gateway.LastError, Since: s.Gateway.Since},
		{Name: "gateway answers", OK: len(s.Gateway.Intermediaries) == 0, Message: "confirm messages: status 404"},
		{Name: "sink farm", OK: sink.Up || sink.CheckedAt.IsZero(), Message: sink.Error, Since: sink.CheckedAt},
	}
	for _, r := range s.Routes {
		checks = append(checks, admin.Check{Name: "route " + r.Name, OK: r.State != router.StateOutage, Message: r.LastError, Since: r.Since})
	}
	return checks
}

// Tenants implements [admin.Source].
func (b *agrimill) Tenants(context.Context) ([]admin.Tenant, error) {
	tenants := b.directory.Tenants()
	for _, tenant := range tenants {
		for i := range tenant.Endpoints {
			// The gateway here takes no such names; another one might.
			if tenant.Endpoints[i].ID == b.office.ID {
				tenant.Endpoints[i].Name = hostileEndpoint
			}
		}
	}
	return admin.TenantsFrom(tenants, b.directory.Scopes), nil
}

// Journal implements [admin.Source].
func (b *agrimill) Journal() *journal.Journal { return b.journal }

// Settings implements [admin.Source].
func (b *agrimill) Settings() []admin.Setting { return nil }

// History implements [admin.Source].
func (b *agrimill) History() *history.History { return b.history }

// Open implements [admin.Source].
func (b *agrimill) Open() []subscriber.Open { return b.sub.Open() }

// Why implements [admin.Source].
func (b *agrimill) Why(q why.Question) why.Answer {
	return why.Walk(q, why.Facts{
		Tenants: b.directory.Tenants(), Stream: why.Link{State: why.StateOK, Detail: "the event stream is open"},
		Routes: []why.Route{{
			Name: "task data", Topic: taskData, Takes: func(messageType string) bool { return messageType == taskData },
			Refuses: func(string, string, string) string { return "" },
		}},
	})
}

// Payloads implements [admin.Source].
func (b *agrimill) Payloads() gateway.PayloadOpener { return nil }
func (b *agrimill) Devices() *farm.Devices          { return nil }

// Stored implements [admin.Source].
func (b *agrimill) Stored(ctx context.Context, m *journal.Message) iter.Seq2[admin.StoredCopy, error] {
	cfg := &config.Config{
		Sinks:  map[string]config.Sink{"farm": {NATS: &config.NATS{Config: nats.Config{Connection: nats.Connection{URL: b.nats.URL()}}}}},
		Routes: []config.Route{{Name: "task data"}},
	}
	cfg.Poison.Sink, cfg.Routes[0].To.Sink = "farm", "farm"
	return stored.Each(ctx, cfg, m, stored.Options{Limits: spool.Limits{Max: admin.MaxStored, Memory: admin.MaxStored}})
}

// PoisonStore implements [admin.Source].
func (b *agrimill) PoisonStore() router.PoisonStore { return b.queue }

// Replay implements [admin.Source].
func (b *agrimill) Replay(ctx context.Context, queue router.PoisonStore, ids []string) (router.ReplayReport, error) {
	return b.router.Replay(ctx, queue, router.PoisonSelection{IDs: ids})
}

// stored counts the messages of the stream, those of the poison queue excepted.
func (b *agrimill) stored() int {
	b.Helper()
	js := testkit.Must(jetstream.New(b.sink.Conn()))(b.T)
	stream := testkit.Must(js.Stream(b.Context(), nats.DefaultStream))(b.T)
	info := testkit.Must(stream.Info(b.Context(), jetstream.WithSubjectFilter(">")))(b.T)
	n := 0
	for subject, count := range info.State.Subjects {
		if subject != nats.DefaultSubjectPrefix+"."+router.DefaultPoisonTopic {
			n += int(count)
		}
	}
	return n
}

// serve starts a Server over a source. It ends with the test.
func serve(t testing.TB, config admin.Config, source admin.Source) *admin.Server {
	t.Helper()
	if config.Address == "" {
		config.Address = "127.0.0.1:0"
	}
	server := testkit.Must(admin.New(config, source))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return server
}
