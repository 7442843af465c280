package admin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
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

// agrimill is a pipeline that runs: gateway → two routes → JetStream, and one from JetStream to the gateway. Shape files are
// poisoned until repair is called.
type agrimill struct {
	*testing.T
	*pipeline.Pipeline
	gate             *gatewaytest.Server
	nats             *natstest.Server
	js               jetstream.JetStream
	registry         *prometheus.Registry
	terminal, office gateway.Endpoint
}

var _ admin.Source = (*agrimill)(nil)

func newInstance(t *testing.T) *agrimill {
	t.Helper()
	b := &agrimill{T: t, registry: prometheus.NewRegistry(), gate: gatewaytest.New(t, gatewaytest.Config{}), nats: natstest.Start(t)}
	conn := testkit.Must(natstest.Connect(b.nats.URL()))(t)
	t.Cleanup(conn.Close)
	b.js = testkit.Must(natstest.JetStream(conn))(t)
	all := []string{taskData, shapes}
	b.terminal = b.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal of the tractor", Send: all, Receive: all, Subscribe: []string{shapes}})
	b.office = b.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: all, Subscribe: []string{taskData, shapes}, Send: []string{taskData}})
	b.Pipeline = testkit.Must(pipeline.New(t.Context(), b.config(), pipeline.Options{
		Name: "farm", Version: "v0.0.0-test", Registry: b.registry, CheckInterval: 100 * time.Millisecond, ReadyGrace: time.Nanosecond, TenantsInterval: 10 * time.Millisecond,
	}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Pipeline.Run(ctx) }() // ends with ctx
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, pipeline.ErrUnfinished) {
			t.Error(err)
		}
	})
	testkit.Eventually(t, "all is right", func() bool {
		v := b.Snapshot().Verdict
		return v.Ready && len(v.Problems) == 0
	})
	return b
}

// config is the configuration of an instance. No file has such a name of a route.
func (b *agrimill) config() *config.Config {
	b.Helper()
	c := b.gate.ClientConfig()
	cfg := testkit.Must(config.Parse("agrimill.yaml", fmt.Appendf(nil, `
gateway: {base_url: %[1]s, token_url: %[2]s, client_id: %[3]s, client_secret: "${SECRET}", retry: {max_attempts: 2}}
retry: {max_attempts: 2, initial_backoff: 10ms, max_backoff: 100ms}
sinks: {farm: {nats: {url: %[4]s}}}
poison: {sink: farm}
admin: {address: off}
routes:
  - {name: a, from: {gateway: "%[5]s"}, to: {sink: farm}}
  - {name: b, from: {gateway: "%[6]s"}, to: {sink: farm}}
  - {name: back, from: {nats: {url: %[4]s, stream: AGRIMILL, subject: "agrimill.out.>"}}, to: {gateway: {tenant: %[7]s, endpoint: %[8]s}}}
`, c.BaseURL, c.TokenURL, c.ClientID, b.nats.URL(), taskData, shapes, b.gate.Tenant(), b.office.ID),
		config.Options{Env: func(string) string { return string(c.ClientSecret) }}))(b.T)
	cfg.Subscriber.Confirm.MaxAge = 5 * time.Millisecond
	cfg.Subscriber.Reconnect = subscriber.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	cfg.Routes[0].Name, cfg.Routes[1].Name = "task data", hostileRoute
	cfg.Routes[1].Filter.Expr = `int("no number " + filename) == 0`
	return cfg
}

// repair has the route take shape files.
func (b *agrimill) repair() {
	b.Helper()
	cfg := b.config()
	cfg.Routes[1].Filter.Expr = ""
	testkit.Must(b.Reload(b.Context(), cfg))(b.T)
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
	testkit.NoError(b, b.gate.WaitConfirmed(testkit.Context(b), n))
}

// Tenants implements [admin.Source]. The gateway here takes no such names; another one might.
func (b *agrimill) Tenants(ctx context.Context) ([]admin.Tenant, error) {
	tenants, err := b.Pipeline.Tenants(ctx)
	for _, tenant := range tenants {
		for i := range tenant.Endpoints {
			if tenant.Endpoints[i].ID == b.office.ID {
				tenant.Endpoints[i].Name = hostileEndpoint
			}
		}
	}
	return tenants, err
}

// stored counts the messages of the stream, those of the poison queue excepted.
func (b *agrimill) stored() int {
	b.Helper()
	stream := testkit.Must(b.js.Stream(b.Context(), nats.DefaultStream))(b.T)
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
