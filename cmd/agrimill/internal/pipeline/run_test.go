package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

const allRoute = `
routes:
  - {name: farm-data, from: {gateway: all}, to: {sink: farm}}
`

func TestFromGateway(t *testing.T) {
	w, b := newRunning(t)
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
	if err := b.Snapshot().Error; err != "" {
		t.Errorf("the status has %s", err)
	}
	if b.isReady() {
		t.Error("ready after the end")
	}
	testkit.ErrorIs(t, b.Run(t.Context()), pipeline.ErrStarted)
	b.logs.contains("agrimill is running", "farm-data")
	b.logs.contains("agrimill stopped", "confirmed=150")
	b.logs.contains("level=WARN", "sink=farm", "durability disk: ") // a sink's warning is one in the log
}

// Nobody waits for a second regular look at what is ready a moment after the first.
func TestReadyAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.look = 2 * testkit.Patience
	b := w.start(w.head() + w.natsSink() + allRoute)
	testkit.Eventually(t, "the status says that it is ready", func() bool { return b.Snapshot().Verdict.Ready })
	b.mustStop()
}

// No event tells that an endpoint was renamed; who looks at the tenants sees it all the
// same.
func TestRenamedEndpoint(t *testing.T) {
	w, b := newRunning(t)
	named := func(name string) bool {
		tenants, err := b.Tenants(t.Context())
		if err != nil {
			return false // not listed yet
		}
		return slices.ContainsFunc(tenants[0].Endpoints, func(e admin.Endpoint) bool { return e.ID == w.receiver.ID && e.Name == name })
	}
	testkit.Eventually(w, "the endpoint is there", func() bool { return named("farm software") })
	types := []string{taskData, shapes, pictures}
	w.gate.AddEndpoint(gatewaytest.EndpointConfig{
		ExternalID: w.receiver.ExternalID, Name: "renamed", Receive: types, Send: types, Subscribe: types,
	})
	testkit.Eventually(w, "the endpoint has its new name", func() bool { return named("renamed") })
	b.mustStop()
}

// What waits at the gateway goes to every route, also to the one that subscribes
// last; at the start and with a reload.
func TestEveryRouteGetsEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(taskData, 60)
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
	w.send(taskData, 60)
	b.waitOutage("")
	b.reload(routes("one", "two", "three", "four", "five"))
	w.restart()
	w.waitConfirmed()
	b.mustStop()
	for topic, want := range map[string]int{"one": 120, "two": 120, "three": 120, "four": 120, "five": 60} {
		if n := len(w.read("agrimill." + topic)); n != want {
			t.Errorf("topic %s has %d messages, want %d", topic, n, want)
		}
	}
}

func TestStartsWithSinkDown(t *testing.T) {
	w := newWorld(t)
	w.server.Stop()
	w.send(taskData, 20)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.logs.contains("level=WARN", "unavailable; retrying", "sink=farm")
	b.waitOutage("")
	if b.isReady() {
		t.Error("ready without the sink")
	}
	b.logs.contains("level=DEBUG", "waiting for the first connection", "route=farm-data")
	b.logs.lacks("level=ERROR") // it is only starting
	w.restart()
	b.waitReady()
	b.finish()
}

// It can be stopped while nothing works.
func TestStopsWithEverythingDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Stop()
	w.send(taskData, 5)
	b := w.start(unhurried(w.head()) + w.natsSink() + allRoute)
	b.waitOutage("")
	b.waitReceived(5)
	testkit.Eventually(w, "the poison queue cannot be read, with the reason", func() bool {
		q := b.Snapshot().Poison
		return q.Depth == nil && q.Unreadable && strings.HasPrefix(q.DepthNote, "the queue cannot be read: ")
	})
	w.gate.Stop()
	b.stopsUnfinished(pipeline.UnfinishedError{Open: 5})
}

// stopsUnfinished ends the pipeline, which has to tell what was left open.
func (b *agrimill) stopsUnfinished(want pipeline.UnfinishedError) {
	b.w.Helper()
	err := b.stop()
	var open *pipeline.UnfinishedError
	if !errors.Is(err, pipeline.ErrUnfinished) || !errors.As(err, &open) {
		b.w.Fatalf("Run: %v, want what was left open", err)
	}
	got := *open
	got.Err = nil
	if got != want {
		b.w.Errorf("left open: %+v, want %+v", got, want)
	}
	b.logs.contains("level=WARN", "agrimill stopped with unfinished messages", fmt.Sprintf("returned=%d", want.Returned),
		fmt.Sprintf("open=%d", want.Open), fmt.Sprintf("set_aside=%d", want.SetAside), fmt.Sprintf("held=%d", want.Held), fmt.Sprintf("unconfirmed=%d", want.Unconfirmed))
}

func TestStartsWithGatewayDown(t *testing.T) {
	w := newWorld(t, func(c *gatewaytest.Config) {
		c.Listen, c.PayloadListen = testkit.FreeAddress(t), testkit.FreeAddress(t)
	})
	w.gate.Stop()
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.logs.contains("list of tenants unavailable; retrying")
	b.waitDisconnected()
	if b.isReady() {
		t.Error("ready without the gateway")
	}
	if _, err := b.Tenants(t.Context()); err == nil {
		t.Error("tenants are known")
	}
	testkit.NoError(t, w.gate.Restart())
	b.logs.contains("list of tenants available")
	w.send(taskData, 20)
	b.waitReady()
	b.finish()
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*world) string{
		"credentials": func(w *world) string {
			return strings.Replace(w.head(), "${SECRET}", "${WRONG}", 1)
		},
		"stream": func(w *world) string {
			w.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403})
			return strings.Replace(w.head(), "subscriber:", "subscriber:\n  stream_refused_for: 300ms", 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			// The second route continues when the stream ends; the pipeline may not.
			for _, more := range []string{"", w.outRoute()} {
				b := w.start(refuse(w) + w.natsSink() + allRoute + more)
				if err := b.wait(); !errors.Is(err, pipeline.ErrRefused) || !errors.Is(err, map[string]error{"credentials": gateway.ErrUnauthorized, "stream": subscriber.ErrStreamRefused}[name]) {
					t.Errorf("Run: %v", err)
				}
				if b.Snapshot().Error == "" {
					t.Error("the status does not say why it ended")
				}
				b.logs.contains("level=ERROR", "agrimill stopped", "the gateway refuses")
			}
		})
	}
}

// While the gateway is being deployed, its ingress answers everything: agrimill goes
// on, says what is the matter, and nothing is dropped, poisoned or taken for done.
func TestIngressAnswersForTheGateway(t *testing.T) {
	t.Parallel()
	page := []byte("<html>default backend</html>")
	faults := map[string]gatewaytest.Fault{
		"404":                {Status: 404, Body: page, ContentType: "text/html"},
		"403":                {Status: 403, Body: page, ContentType: "text/html"},
		"400":                {Status: 400, Body: page, ContentType: "text/html"},
		"200":                {Status: 200, Body: page, ContentType: "text/html"},
		"404 with a message": {Status: 404, Message: "no Route matched with those values"},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ingress := w.gate.Inject(gatewaytest.OpAny, fault)
			b := w.start(w.head() + w.natsSink() + allRoute) // it is there from the beginning
			b.waitDisconnected()
			if b.isReady() {
				t.Error("ready without the gateway")
			}
			ingress.Lift()
			w.send(taskData, 20)
			w.waitConfirmed()
			b.waitReady()
			if got := b.Snapshot(); len(got.Gateway.Intermediaries) != 0 || !got.Gateway.RefusedSince.IsZero() {
				t.Errorf("%+v", got.Gateway)
			}

			ingress = w.gate.Inject(gatewaytest.OpAny, fault)
			w.gate.CutStreams()
			// Of the stream only the status counts: 400 and 403 may be the gateway's own.
			testkit.Eventually(w, "it is logged", func() bool {
				state := b.Snapshot().Gateway
				if name == "400" || name == "403" {
					return state.EndsAt.Sub(state.RefusedSince) == 5*time.Minute
				}
				return state.RefusedSince.IsZero() && slices.ContainsFunc(state.Intermediaries, func(i gateway.IntermediaryAnswer) bool {
					return i.Operation == "receive events" && i.StatusCode == fault.Status
				})
			})
			w.send(taskData, 20)
			testkit.Eventually(w, "not ready", func() bool { return !b.isReady() }) // after its grace
			if name == "404" {
				b.waitSays("gateway answers", "something other than the gateway answers: ")
				b.waitSays("gateway answers", "receive events: status 404 (text/html)")
			}
			ingress.Lift()
			b.waitReady()
			b.finish()
		})
	}
}

// A 403 to the first call may come from anybody, and pass.
func TestForbiddenAtTheStartIsAnOutage(t *testing.T) {
	w := newWorld(t)
	refusal := w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 403})
	b := w.start(w.head() + w.natsSink() + allRoute)
	testkit.Eventually(w, "it is asked again", func() bool { return refusal.Hits() >= 3 })
	refusal.Lift()
	b.waitReady()
	b.mustStop()
}

// A service that sends the head of the event stream with the first event: the
// agrimill is ready when other calls show that the service is there.
func TestReadyWhileTheStreamAwaitsItsHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *gatewaytest.Config) { c.StreamHead = gatewaytest.HeadWithFirstEvent })
	down := w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503})
	b := w.start(w.head() + w.natsSink() + allRoute)
	state := func() admin.GatewayState { return b.Snapshot().Gateway.State }
	testkit.Eventually(w, "the stream awaits its head", func() bool { return state() == admin.GatewayAwaitingHead })
	if b.isReady() {
		t.Error("ready, although no call has succeeded")
	}
	down.Lift()
	b.waitReady()
	if got := state(); got != admin.GatewayAwaitingHead {
		t.Errorf("the gateway is shown as %q", got)
	}
	w.send(taskData, 1)
	w.waitConfirmed()
	if got := state(); got != admin.GatewayConnected || !b.isReady() {
		t.Errorf("the gateway is shown as %q after the first event", got)
	}
}

// A stream that is refused is not open, however long the refusal takes each time.
func TestNotReadyWhileTheStreamIsRefusedSlowly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refusal := w.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: 403, Delay: 300 * time.Millisecond})
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitDisconnected()
	testkit.Eventually(w, "it is not ready", func() bool { return !b.isReady() })
	before := refusal.Hits()
	testkit.Eventually(w, "the stream is refused three more times", func() bool {
		if b.isReady() {
			t.Error("ready while the stream is refused")
		}
		return refusal.Hits() >= before+3
	})
}

// Credentials that were accepted once and are refused later are an outage.
func TestRefusedLater(t *testing.T) {
	w, b := newRunning(t)
	fault := w.gate.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: 401})
	w.gate.ExpireTokens()
	w.gate.CutStreams()
	b.waitDisconnected()
	w.send(taskData, 5)
	fault.Lift()
	b.finish()
}

// So is a refusal once the stream was open, though nothing else has been accepted yet.
func TestRefusedOnceTheStreamWasOpen(t *testing.T) {
	w := newWorld(t)
	outage := w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503})
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	refusal := w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 401})
	outage.Lift()
	testkit.Eventually(w, "the list of tenants is refused", func() bool { return refusal.Hits() > 4 })
	w.send(taskData, 5)
	refusal.Lift()
	b.logs.contains("list of tenants available")
	b.finish()
}

func TestConfigurationErrors(t *testing.T) {
	w := newWorld(t)
	cfg := w.parse(w.head() + w.natsSink() + allRoute)
	cfg.Gateway.BaseURL = "nonsense"
	if _, err := pipeline.New(t.Context(), cfg, pipeline.Options{}); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("gateway: %v", err)
	}
	cfg = w.parse(w.head() + w.natsSink() + allRoute)
	if _, err := pipeline.New(t.Context(), cfg, pipeline.Options{CheckInterval: -1}); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("options: %v", err)
	}
	// One that is never run.
	p := testkit.Must(pipeline.New(t.Context(), cfg, pipeline.Options{}))(t)
	testkit.NoError(t, errors.Join(p.Close(), p.Close()))
	if _, err := p.Reload(t.Context(), cfg); !errors.Is(err, pipeline.ErrNotRunning) {
		t.Errorf("Reload after Close: %v", err)
	}
	testkit.ErrorIs(t, p.Run(t.Context()), pipeline.ErrStarted)
}

// Confirmations that cannot be sent are reported, and nothing is lost: a second
// pipeline recognises what the first one has stored.
func TestStopsWithoutConfirming(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := strings.Replace(w.head(), "shutdown:", "dedup: {bbolt: {path: "+t.TempDir()+"/dedup}}\nshutdown:", 1) + w.natsSink() + allRoute
	fault := w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: 503})
	b := w.start(strings.Replace(text, "timeout: 2m", "timeout: 3s", 1)) // all of the time is taken
	w.send(taskData, 10)
	testkit.Eventually(w, "all are stored", func() bool { return b.Snapshot().Routes[0].Delivered == 10 })
	if err := b.stop(); err == nil {
		t.Error("Run tells nothing of what it could not confirm")
	}
	if n := len(w.confirmed()); n != 0 {
		t.Errorf("%d messages are confirmed", n)
	}
	fault.Lift()
	again := w.start(text)
	again.finish()
	// A request of the first one that was under way may have been taken in the end.
	if h := again.Snapshot().Routes[0]; h.Duplicates == 0 || h.Delivered != 0 {
		t.Errorf("route: %s", w.asJSON(h))
	}
}

func TestEndsBeforeItBegins(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := testkit.Must(pipeline.New(t.Context(), w.parse(w.head()+w.natsSink()+allRoute), pipeline.Options{}))(t)
	if err := p.Run(ctx); err != nil {
		t.Errorf("Run with a context that has ended: %v", err)
	}
}

// A sink that does not even let itself be opened holds up no end.
func TestStopsWhileSinkOpens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.proxy.Hang()
	b := w.start(unhurried(w.head()) + fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, connect_timeout: 1s}}\npoison: {sink: farm}\n", w.proxy.URL()) +
		strings.Replace(allRoute, "routes:", "dedup: {nats_kv: {url: \""+w.proxy.URL()+"\", connect_timeout: 1s}}\nroutes:", 1))
	w.send(taskData, 5)
	b.waitOutage("")
	b.waitReceived(5)
	b.stopsUnfinished(pipeline.UnfinishedError{Open: 5})
	if n := len(w.confirmed()); n != 0 {
		t.Errorf("%d messages are confirmed", n)
	}
}

// What cannot be decoded goes to the poison queue.
func TestQuarantine(t *testing.T) {
	w, b := newRunning(t)
	w.gate.EmitRaw(w.gate.Application(), []byte("event: MESSAGE_RECEIVED\ndata: {\"id\": 17}\n\n"))
	testkit.Eventually(w, "it is in the poison queue", func() bool { return len(w.read("agrimill.poison")) == 1 })
	b.mustStop()
}

// A route continues as soon as its sink is back, however long its waits have become:
// one that connects at last, and one whose connection returns.
func TestRoutesGoOnWhenSinksAreBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cluster := kafkatest.Start(t)
	w.server.Stop()
	cluster.Stop()
	b := w.start(strings.Replace(w.head(), "retry: {initial_backoff: 20ms, max_backoff: 200ms}", "retry: {initial_backoff: 2m, max_backoff: 1h}", 1) + fmt.Sprintf(`
sinks:
  farm: {nats: {url: %q, publish_timeout: 2s, connect_timeout: 1s}}
  lake: {kafka: {brokers: %q, publish_timeout: 2s, connect_timeout: 1s}}
poison: {sink: farm}
routes:
  - {name: nats, from: {gateway: all}, to: {sink: farm}}
  - {name: kafka, from: {gateway: all}, to: {sink: lake}}
`, w.proxy.URL(), cluster.Addr()))
	inOutage := func(names ...string) {
		t.Helper()
		testkit.Eventually(w, fmt.Sprintf("%q are in outage", names), func() bool {
			n := 0
			for _, r := range b.Snapshot().Routes {
				if r.State == router.StateOutage && slices.Contains(names, r.Name) {
					n++
				}
			}
			return n == len(names)
		})
	}
	w.send(taskData, 5)
	inOutage("nats", "kafka")
	w.restart()
	cluster.Restart()
	w.waitConfirmed()

	w.server.Stop()
	cluster.Stop()
	w.send(taskData, 5)
	inOutage("nats", "kafka")
	b.logs.contains("msg=problem", "kind=sink", "name=lake")
	w.restart()
	cluster.Restart()
	w.waitConfirmed() // long before the next attempt, which is more than a minute away
	b.mustStop()
	w.checkStored()
}
