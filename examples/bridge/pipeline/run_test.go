package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/examples/bridge/admin"
	"github.com/agrimill/agrimill/examples/bridge/pipeline"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/router"
)

const allRoute = `
routes:
  - {name: farm-data, from: {gateway: all}, to: {sink: farm}}
`

func TestFromGateway(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	w.send(taskData, 100)
	w.send(shapes, 50)
	w.waitConfirmed()
	s := b.Snapshot()
	if s.State != "" || s.Gateway.State != admin.GatewayConnected {
		t.Errorf("snapshot: %s", w.asJSON(s))
	}
	if h := s.Routes[0]; h.Delivered != 150 || h.To.Sink != "farm" || h.Direction != admin.FromGateway {
		t.Errorf("route: %s", w.asJSON(h))
	}
	if text := w.asJSON(s); strings.Contains(text, w.gate.Application().ClientSecret) {
		t.Error("the snapshot holds the secret")
	}
	tenants, err := b.Tenants(t.Context())
	if err != nil || len(tenants) != 1 || len(tenants[0].Endpoints) != 2 {
		t.Errorf("tenants: %s, %v", w.asJSON(tenants), err)
	}
	b.mustStop()
	w.checkStored()
	if s := b.Snapshot(); s.State != admin.StateStopped {
		t.Errorf("state %q after the end", s.State)
	}
	if err := b.Live(); err != nil {
		t.Errorf("Live: %v", err)
	}
	if b.isReady() {
		t.Error("ready after the end")
	}
	if err := b.Run(t.Context()); !errors.Is(err, pipeline.ErrStarted) {
		t.Errorf("Run again: %v", err)
	}
	b.logs.contains("bridge runs", "farm-data")
	b.logs.contains("bridge has ended", "confirmed=150")
}

// What waits at the gateway goes to every route, also to the one that subscribes
// last; at the start and with a reload.
func TestEveryRouteGetsEverything(t *testing.T) {
	w := newWorld(t)
	w.send(taskData, 200)
	routes := func(topics ...string) string {
		text := w.head() + w.natsSink() + "routes:\n"
		for _, topic := range topics {
			text += route("r-"+topic, "all", "", topic)
		}
		return text
	}
	b := w.start(routes("one", "two", "three", "four"))
	w.waitConfirmed()
	w.server.Stop()
	w.send(taskData, 200)
	b.logs.contains("what=route", "state=outage")
	b.reload(routes("one", "two", "three", "four", "five"))
	w.server.Restart()
	w.waitConfirmed()
	b.mustStop()
	for topic, want := range map[string]int{"one": 400, "two": 400, "three": 400, "four": 400, "five": 200} {
		if n := len(w.read("agrimill." + topic)); n != want {
			t.Errorf("topic %s has %d messages, want %d", topic, n, want)
		}
	}
}

// The sink breaks, which shows, and is repaired: nothing is lost.
func TestSinkBreaks(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	w.send(taskData, 20)
	w.waitConfirmed()

	w.server.Stop()
	w.send(taskData, 20)
	b.logs.contains("level=WARN", "what=sink", "name=farm", "state=down")
	b.logs.contains("level=WARN", "what=route", "name=farm-data", "state=outage")
	if b.isReady() {
		t.Error("ready without the sink")
	}
	if s := b.Snapshot(); s.Sinks[0].Up || s.Sinks[0].Error == "" || s.Routes[0].State != router.StateOutage {
		t.Errorf("snapshot: %s", w.asJSON(s))
	}
	if n := len(w.confirmed()); n != 20 {
		t.Errorf("%d messages are confirmed, want 20", n)
	}

	w.server.Restart()
	w.waitConfirmed()
	b.waitReady()
	b.logs.contains("level=INFO", "what=sink", "state=up", "was=down")
	b.mustStop()
	w.checkStored()
}

func TestStartsWithSinkDown(t *testing.T) {
	w := newWorld(t)
	w.server.Stop()
	w.send(taskData, 20)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.logs.contains("cannot be opened", "sink=farm")
	b.logs.contains("what=route", "state=outage")
	if b.isReady() {
		t.Error("ready without the sink")
	}
	w.server.Restart()
	w.waitConfirmed()
	b.waitReady()
	b.mustStop()
	w.checkStored()
}

// It can be stopped while nothing works.
func TestStopsWithEverythingDown(t *testing.T) {
	w := newWorld(t)
	w.server.Stop()
	w.send(taskData, 5)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.logs.contains("what=route", "state=outage")
	w.gate.Stop()
	began := time.Now()
	b.mustStop()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("stopping took %v", d)
	}
}

func TestStartsWithGatewayDown(t *testing.T) {
	w := newWorld(t)
	w.gate.Stop()
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.logs.contains("gateway cannot be asked")
	b.logs.contains("what=gateway", "state=disconnected")
	if b.isReady() {
		t.Error("ready without the gateway")
	}
	if _, err := b.Tenants(t.Context()); err == nil {
		t.Error("tenants are known")
	}
	if err := w.gate.Restart(); err != nil {
		t.Fatal(err)
	}
	w.send(taskData, 20)
	w.waitConfirmed()
	b.waitReady()
	b.mustStop()
	w.checkStored()
}

func TestRefused(t *testing.T) {
	for name, refuse := range map[string]func(*world) string{
		"credentials": func(w *world) string {
			return strings.Replace(w.head(), "${SECRET}", "${WRONG}", 1)
		},
		"application": func(w *world) string {
			w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 403})
			return w.head()
		},
		"stream": func(w *world) string {
			w.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403})
			return w.head()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			// The second route goes on when the stream ends; the pipeline may not.
			for _, more := range []string{"", w.outRoute()} {
				b := w.start(refuse(w) + w.natsSink() + allRoute + more)
				var refused *pipeline.RefusedError
				if err := b.wait(); !errors.Is(err, pipeline.ErrRefused) || !errors.As(err, &refused) || refused.Err == nil {
					t.Errorf("Run: %v", err)
				}
				if err := b.Live(); err == nil {
					t.Error("still alive")
				}
				b.logs.contains("level=ERROR", "bridge has ended", "the gateway refuses")
			}
		})
	}
}

// Credentials that were accepted once and are refused later are an outage.
func TestRefusedLater(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	fault := w.gate.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: 401})
	w.gate.ExpireTokens()
	w.gate.CutStreams()
	b.logs.contains("what=gateway", "state=disconnected")
	w.send(taskData, 5)
	fault.Lift()
	w.waitConfirmed()
	b.mustStop()
	w.checkStored()
}

func TestConfigurationErrors(t *testing.T) {
	w := newWorld(t)
	cfg := w.parse(w.head() + w.natsSink() + allRoute)
	cfg.Poison.Sink = "nowhere"
	if _, err := pipeline.New(t.Context(), cfg, pipeline.Options{}); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("poison: %v", err)
	}
	cfg = w.parse(w.head() + w.natsSink() + allRoute)
	cfg.Routes[0].To.Sink = "nowhere"
	if _, err := pipeline.New(t.Context(), cfg, pipeline.Options{}); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("sink: %v", err)
	}
	cfg = w.parse(w.head() + w.natsSink() + allRoute)
	cfg.Gateway.BaseURL = "nonsense"
	if _, err := pipeline.New(t.Context(), cfg, pipeline.Options{}); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("gateway: %v", err)
	}
	cfg = w.parse(w.head() + w.natsSink() + allRoute)
	if _, err := pipeline.New(t.Context(), cfg, pipeline.Options{CheckInterval: -1}); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("options: %v", err)
	}
	// One that is never run.
	p, err := pipeline.New(t.Context(), cfg, pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Reload(t.Context(), cfg); !errors.Is(err, pipeline.ErrNotRunning) {
		t.Errorf("Reload: %v", err)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if err := p.Run(t.Context()); !errors.Is(err, pipeline.ErrStarted) {
		t.Errorf("Run after Close: %v", err)
	}
}

// Confirmations that cannot be sent are told, and nothing is lost: a second
// pipeline recognises what the first one has stored.
func TestStopsWithoutConfirming(t *testing.T) {
	w := newWorld(t)
	text := w.head() + w.natsSink() + allRoute
	text = strings.Replace(text, "shutdown: {timeout: 20s}", "shutdown: {timeout: 3s}\ndedup: {bbolt: {path: "+t.TempDir()+"/dedup}}", 1)
	fault := w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
	b := w.start(text)
	w.send(taskData, 10)
	w.eventually("all are stored", func() bool { return b.Snapshot().Routes[0].Delivered == 10 })
	if err := b.stop(); err == nil {
		t.Error("Run tells nothing of what it could not confirm")
	}
	if n := len(w.confirmed()); n != 0 {
		t.Errorf("%d messages are confirmed", n)
	}
	fault.Lift()
	again := w.start(text)
	w.waitConfirmed()
	again.mustStop()
	w.checkStored()
	// A request of the first one that was under way may have been taken in the end.
	if h := again.Snapshot().Routes[0]; h.Duplicates == 0 || h.Delivered != 0 {
		t.Errorf("route: %s", w.asJSON(h))
	}
}

func TestEndsBeforeItBegins(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p, err := pipeline.New(t.Context(), w.parse(w.head()+w.natsSink()+allRoute), pipeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(ctx); err != nil {
		t.Errorf("Run with a context that has ended: %v", err)
	}
}

// A sink that does not answer holds nothing up for longer than the time to end.
func TestStopsWhileSinkHangs(t *testing.T) {
	w := newWorld(t)
	text := strings.Replace(w.head()+w.natsSink()+allRoute, "shutdown: {timeout: 20s}", "shutdown: {timeout: 5s}", 1)
	b := w.start(text)
	b.waitReady()
	w.send(taskData, 5)
	w.waitConfirmed()
	w.proxy.Hang()
	w.send(taskData, 5)
	w.eventually("messages are under way", func() bool { return b.Snapshot().Routes[0].InFlight > 0 })
	began := time.Now()
	_ = b.stop() // it may tell that not everything was finished
	if d := time.Since(began); d > 6*time.Second {
		t.Errorf("stopping took %v", d)
	}
	w.proxy.Resume()
	w.checkHeld()
	again := w.start(text)
	w.waitConfirmed()
	again.mustStop()
	w.checkHeld()
}

// Nor does one that does not even let itself be opened.
func TestStopsWhileSinkOpens(t *testing.T) {
	w := newWorld(t)
	w.proxy.Hang()
	b := w.start(w.head() + fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, connect_timeout: 1s}}\npoison: {sink: farm}\n", w.proxy.URL()) +
		strings.Replace(allRoute, "routes:", "dedup: {nats_kv: {url: \""+w.proxy.URL()+"\", connect_timeout: 1s}}\nroutes:", 1))
	w.send(taskData, 5)
	b.logs.contains("what=route", "state=outage")
	began := time.Now()
	b.mustStop()
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("stopping took %v", d)
	}
	if n := len(w.confirmed()); n != 0 {
		t.Errorf("%d messages are confirmed", n)
	}
}

// What cannot be decoded goes to the poison queue.
func TestQuarantine(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	w.gate.EmitRaw(w.gate.Application(), []byte("event: MESSAGE_RECEIVED\ndata: {\"id\": 17}\n\n"))
	w.eventually("it is in the poison queue", func() bool { return len(w.read("agrimill.poison")) == 1 })
	b.mustStop()
}
