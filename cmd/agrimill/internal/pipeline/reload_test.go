package pipeline_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// reload takes over a configuration.
func (b *agrimill) reload(text string) pipeline.ReloadReport {
	b.w.Helper()
	ctx, cancel := context.WithTimeout(b.w.Context(), testkit.Patience)
	defer cancel()
	report := testkit.Must(b.Reload(ctx, b.w.parse(text)))(b.w)
	return report
}

// route is a route from the gateway into the sink.
func route(name, from, filter, topic string) string {
	return fmt.Sprintf("  - {name: %s, from: {gateway: %q}, filter: {%s}, to: {sink: farm, topic: %q}}\n", name, from, filter, topic)
}

// Messages flow in both directions during several reloads, which change topics and
// filters and add and remove routes and sinks. What the gateway's ledger has is what
// a reader finds in JetStream, each once; nothing is lost, and nothing is
// confirmed that is not there.
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := w.head() + w.natsSink()
	out := w.outRoute()
	b := w.start(base + "routes:\n" + route("all", "all", "", "one.{type|none}") + out)
	b.waitReady()

	var ids []string
	stop := w.repeat(20*time.Millisecond, func() {
		if w.behind() {
			return
		}
		w.send([]string{taskData, shapes, pictures}[len(ids)%3], 3)
		ids = append(ids, w.put("out.data", taskData))
	})
	for i, routes := range []string{
		route("all", "all", "", "two.{type|none}") + out,
		route("all", "all", "", "two.{type|none}") + route("pictures", "all", `type: "img:*"`, "copies.{type|none}") + out,
		route("all", "all", "", "three.{type|none}") + route("pictures", "img:png", "", "copies.{type|none}"),
		route("all", "all", "", "three.{type|none}") + out,
		route("all", "all", "", "four") + out,
	} {
		n := len(w.gate.Ledger())
		testkit.Eventually(w, "messages have come", func() bool { return len(w.gate.Ledger()) > n+20 })
		report := b.reload(base + "routes:\n" + routes)
		if len(report.Changed) == 0 || report.Unfinished != "" {
			t.Errorf("reload %d: %+v", i, report)
		}
		w.checkHeld()
	}
	// A sink that is added, and one that goes away with its route.
	more := strings.Replace(base, "sinks:\n", fmt.Sprintf("sinks:\n  other: {nats: {url: %q, stream: OTHER, subject_prefix: other}}\n", w.proxy.URL()), 1)
	report := b.reload(more + "routes:\n" + route("all", "all", "", "five") +
		"  - {name: other, from: {gateway: all}, to: {sink: other}}\n" + out)
	if !slices.Contains(report.Changed, `sink "other" added`) || !slices.Contains(report.Changed, `route "other" added`) {
		t.Errorf("report %+v", report)
	}
	testkit.Eventually(w, "something is in the other stream", func() bool {
		s, err := w.js.Stream(t.Context(), "OTHER")
		return err == nil && s.CachedInfo().State.Msgs > 0
	})
	report = b.reload(base + "routes:\n" + route("all", "all", "", "six") + out)
	if !slices.Contains(report.Changed, `sink "other" removed`) {
		t.Errorf("report %+v", report)
	}
	stop()

	testkit.Eventually(w, "all have arrived", func() bool {
		arrived := w.arrived()
		return !slices.ContainsFunc(ids, func(id string) bool { return arrived[id] == 0 })
	})
	w.waitConfirmed()
	testkit.Eventually(w, "nothing waits in the source", func() bool {
		waiting := b.route("back").Backlog
		return waiting != nil && *waiting == 0
	})
	b.mustStop()

	// The route "pictures" made copies of some, which are not counted here.
	stored := map[key]int{}
	for _, raw := range w.read("agrimill.>") {
		if !strings.HasPrefix(raw.Subject, "agrimill.copies.") {
			stored[keyOf(raw)]++
		}
	}
	ledger := w.gate.Ledger()
	for _, e := range ledger {
		if n := stored[key{e.EndpointID, e.ContextID, e.SHA256}]; n != 1 {
			t.Errorf("message %s is in the stream %d times", e.MessageID, n)
		}
	}
	arrived := w.arrived()
	for _, id := range ids {
		if arrived[id] != 1 {
			t.Errorf("message %s arrived %d times", id, arrived[id])
		}
	}
	// The counts continue across reloads.
	if h := b.Snapshot().Routes[0]; h.Name != "all" || h.Delivered != uint64(len(ledger)) {
		t.Errorf("route: %s, want %d delivered", w.asJSON(h), len(ledger))
	}
	t.Logf("%d messages from the gateway, %d of them through it from JetStream", len(ledger), len(ids))
}

func TestReloadRefused(t *testing.T) {
	w := newWorld(t)
	text := w.head() + w.natsSink() + "routes:\n" + route("all", "all", "", "one")
	b := w.start(text)
	b.waitReady()
	cfg := w.parse(text)
	cfg.Routes[0].Filter.Expr = "tenant" // is no condition
	if _, err := b.Reload(t.Context(), cfg); !errors.Is(err, pipeline.ErrConfig) {
		t.Errorf("Reload: %v", err)
	}
	if s := b.Snapshot(); s.Config.Error == "" {
		t.Error("the snapshot tells nothing of it")
	}
	w.send(taskData, 5)
	w.waitConfirmed()

	// The same once more does nothing, and all is well again.
	connects := b.Snapshot().Gateway.Reconnects
	if report := b.reload(text); len(report.Changed)+len(report.Restart) > 0 || report.Unfinished != "" {
		t.Errorf("report %+v", report)
	}
	if s := b.Snapshot(); s.Config.Error != "" || s.Gateway.Reconnects != connects {
		t.Errorf("snapshot: %s", w.asJSON(s))
	}

	// What cannot be changed is reported, the rest is done.
	text = strings.Replace(text, "max_attempts: 2", "max_attempts: 3", 1)
	text = strings.Replace(text, "max_downloads: 8", "max_downloads: 7", 1)
	report := b.reload(strings.Replace(text, `topic: "one"`, `topic: "two"`, 1))
	if !slices.Equal(report.Restart, []string{"gateway", "subscriber"}) || !slices.Equal(report.Changed, []string{`route "all" changed`}) {
		t.Errorf("report %+v", report)
	}
	if again := b.reload(strings.Replace(text, `topic: "one"`, `topic: "two"`, 1)); !slices.Equal(again.Restart, report.Restart) || len(again.Changed) > 0 {
		t.Errorf("the same again: %+v", again)
	}
	if r := b.Snapshot().Config.Reloads; len(r) != 4 || r[0].Error == "" || len(r[1].Changes)+len(r[3].Changes) > 0 || !slices.Equal(r[2].Changes, []string{"routes[0].to.topic: one → two"}) {
		t.Errorf("the reloads: %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Reload(ctx, w.parse(text)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	b.mustStop()
	if _, err := b.Reload(t.Context(), w.parse(text)); !errors.Is(err, pipeline.ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

// A reload that is asked for before Run, as by a signal at the start, is done once it runs.
func TestReloadBeforeRun(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	text := w.head() + w.natsSink() + allRoute
	p := testkit.Must(pipeline.New(t.Context(), w.parse(text), pipeline.Options{}))(t)
	if _, err := p.Reload(t.Context(), w.parse(text)); err != nil {
		t.Errorf("the same: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended, reloaded := make(chan error, 1), make(chan error, 1)
	go func() { // ends with Run
		report, err := p.Reload(t.Context(), w.parse(text+"  - {name: more, from: {gateway: all}, to: {sink: farm}}\n"))
		if err == nil && !slices.Equal(report.Changed, []string{`route "more" added`}) {
			err = fmt.Errorf("report %+v", report)
		}
		reloaded <- err
	}()
	go func() { ended <- p.Run(ctx) }() // ends with ctx
	testkit.NoError(t, <-reloaded)
	stop()
	testkit.NoError(t, <-ended)
}

// An endpoint that is added is made, in the tenant it is meant for.
func TestReloadEndpoints(t *testing.T) {
	w := newWorld(t)
	other := w.gate.AddTenant()
	w.gate.Authorize(w.gate.Application(), other)
	base := w.head() + w.natsSink() + allRoute
	endpoint := func(name, tenant string) string {
		return fmt.Sprintf("  - {%sexternal_id: \"urn:example:%s:{tenant}\", application_id: %s, software_version_id: %s, capabilities: [{type: %q, direction: RECEIVE}]}\n",
			tenant, name, w.gate.Application().ID, w.gate.Application().SoftwareVersionID, taskData)
	}
	// What fails for a reason that may pass is tried again.
	w.gate.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Status: 503, Times: 3})
	w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Times: 3})
	b := w.start(base + "endpoints:\n" + endpoint("everywhere", ""))
	has := func(tenant, name string) bool {
		list, err := w.gate.Client().ListTenantEndpoints(t.Context(), tenant)
		return err == nil && slices.ContainsFunc(list, func(e gateway.TenantEndpointInfo) bool {
			return e.ExternalID == "urn:example:"+name+":"+tenant
		})
	}
	testkit.Eventually(w, "both tenants have it", func() bool { return has(w.gate.Tenant(), "everywhere") && has(other, "everywhere") })
	b.reload(base + "endpoints:\n" + endpoint("everywhere", "") + endpoint("there", "tenant: "+other+", "))
	testkit.Eventually(w, "the tenant has the other one", func() bool { return has(other, "there") })
	if has(w.gate.Tenant(), "there") {
		t.Error("it is in a tenant that it is not meant for")
	}
	// A tenant that comes later.
	late := w.gate.AddTenant()
	b.reload(base + "endpoints:\n" + endpoint("everywhere", "") + endpoint("there", "tenant: "+other+", ") + endpoint("later", "tenant: "+late+", "))
	b.logs.contains("has not authorized", late)
	b.waitReady() // from now on an event reports the tenant
	w.gate.Authorize(w.gate.Application(), late)
	testkit.Eventually(w, "the late tenant has both", func() bool { return has(late, "everywhere") && has(late, "later") })
	if has(late, "there") {
		t.Error("it is in a tenant that it is not meant for")
	}
	w.gate.Revoke(w.gate.Application(), late, gateway.ScopeEndpointsManage)
	b.logs.contains("level=WARN", "has revoked the authorization", late)
	w.gate.Authorize(w.gate.Application(), late)
	testkit.Eventually(w, "the late tenant has both again", func() bool { return has(late, "everywhere") && has(late, "later") })
	b.mustStop()
}

// That a user deletes what he may delete is no problem.
func TestEndpointDeletedByItsUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mayDelete := strings.Replace(w.endpoint("barn"), "capabilities", "allow_delete_by_user: true, capabilities", 1)
	b := w.start(w.head() + w.natsSink() + allRoute + mayDelete)
	w.gate.DeleteEndpointByUser(w.endpointID("barn"))
	b.logs.contains("level=WARN", "somebody else deleted the endpoint", w.gate.Tenant())
	w.send(taskData, 1)
	w.waitConfirmed() // so the event before it was handled
	if u := b.Snapshot().Unprovided; u.Count != 0 {
		t.Errorf("got %s", w.asJSON(u))
	}
	b.mustStop()
}

// A reload and the end at the same time: both come to an end.
func TestReloadWhileStopping(t *testing.T) {
	w := newWorld(t)
	base := w.head() + w.natsSink()
	b := w.start(base + "routes:\n" + route("all", "all", "", "one"))
	b.waitReady()
	w.send(taskData, 50)
	var reloads sync.WaitGroup
	var done atomic.Int64
	for i := range 4 {
		reloads.Go(func() { // ends with the pipeline
			for n := 0; ; n++ {
				cfg := w.parse(base + "routes:\n" + route("all", "all", "", fmt.Sprintf("topic-%d-%d", i, n)))
				_, err := b.Reload(context.Background(), cfg)
				if errors.Is(err, pipeline.ErrNotRunning) {
					return
				}
				if err != nil {
					t.Errorf("Reload: %v", err)
					return
				}
				done.Add(1)
				<-time.After(10 * time.Millisecond) // in which messages move on
			}
		})
	}
	testkit.Eventually(w, "some are done", func() bool { return done.Load() > 10 })
	w.waitConfirmed()
	b.mustStop()
	reloads.Wait()
	w.checkStored()
}

// What is known of the payloads under a context ID outlives a reload: an equal chunk is kept before
// and after it, and a sender's repetition is recognized before and after it.
func TestReloadKeepsWhatDiffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base := strings.Replace(w.head()+w.natsSink(), "subscriber:\n", "subscriber:\n  file_hold: off\n", 1)
	b := w.start(base + "routes:\n" + route("all", "all", "", "one"))
	b.waitReady()
	contextIDs := []string{uuid.NewString(), uuid.NewString()}
	handled := uint64(0)
	send := func(contextID, text string) [sha256.Size]byte {
		payload := []byte(mark + text)
		testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, ContextID: contextID, Payload: payload}))(t)
		handled++
		// The confirmation waits for a file that may list it.
		testkit.Eventually(w, "it is handled", func() bool { return b.Snapshot().Routes[0].Delivered+b.Snapshot().Routes[0].Duplicates == handled })
		return sha256.Sum256(payload)
	}
	chunk := send(contextIDs[0], "chunk")
	send(contextIDs[0], "another chunk")
	repeated := send(contextIDs[1], "repeated")
	b.reload(base + "routes:\n" + route("all", "all", "", "one") + route("more", "all", "", "two"))
	send(contextIDs[0], "chunk")
	send(contextIDs[1], "repeated")
	if got := b.Snapshot().Routes[0].MaybeRepeated; got != 2 { // the second and the third payload of the first context ID
		t.Errorf("%d maybe repeated, want 2", got)
	}
	b.stopsUnfinished(pipeline.UnfinishedError{Unconfirmed: 3}) // those of the first context ID wait for their file
	stored := map[[sha256.Size]byte]int{}
	for _, msg := range w.read("agrimill.one") {
		stored[sha256.Sum256(msg.Data)]++
	}
	if stored[chunk] != 2 || stored[repeated] != 1 {
		t.Errorf("the chunks are stored %d times, want 2, and the repetition %d times, want 1", stored[chunk], stored[repeated])
	}
}

// The sink of one of two routes is down, and its messages are put off, or, above the window, left with
// the gateway. A reload gives the route another sink: all of it comes then, without a restart, and
// nothing was confirmed before it was stored.
func TestReloadBesideWhatWasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const each = 40
	base := strings.Replace(w.head(), "subscriber:\n", "subscriber:\n  max_in_flight: 10\n", 1) + fmt.Sprintf(`
sinks:
  farm: {nats: {url: %q, publish_timeout: 2s}}
  barn: {nats: {url: %q, publish_timeout: 1s, connect_timeout: 1s}}
poison: {sink: farm}
`, w.server.URL(), w.proxy.URL())
	well := route("well", shapes, "", "well")
	sick := route("sick", taskData, "", "sick")
	b := w.start(base + "routes:\n" + well + strings.Replace(sick, "sink: farm", "sink: barn", 1))
	b.waitReady()
	w.proxy.Hang()
	for range each {
		w.send(taskData, 1)
		w.send(shapes, 1)
	}
	testkit.Eventually(w, "the other route's are confirmed", func() bool { return len(w.confirmed()) >= each })
	if n := len(w.confirmed()); n != each {
		t.Errorf("%d are confirmed, want %d", n, each)
	}
	testkit.Eventually(w, "some are left with the gateway", func() bool { return b.Snapshot().Subscriber.Abandoned >= each/2 })
	w.checkHeld()
	b.reload(base + "routes:\n" + well + sick)
	w.send(taskData, 5)
	w.waitConfirmed()
	w.checkHeld()
	w.proxy.Resume()
	b.mustStop()
	stored := w.stored()
	for _, e := range w.gate.Ledger() {
		// What hung on its way into the old sink may be stored twice.
		if stored[key{e.EndpointID, e.ContextID, e.SHA256}] == 0 {
			t.Errorf("message %s is not stored", e.MessageID)
		}
	}
}

// With quarantine it is in the poison queue before it is confirmed.
func TestUnmatchedQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const each = 10
	base := strings.Replace(w.head(), "subscriber:\n", "subscriber:\n  unmatched: quarantine\n", 1) + w.natsSink()
	b := w.start(base + "routes:\n" + route("shapes", "all", "expr: 'msgtype == "+fmt.Sprintf("%q", shapes)+"'", "well"))
	b.waitReady()
	w.send(taskData, each)
	w.send(shapes, each)
	w.waitConfirmed()
	b.mustStop()
	classes := map[string]int{}
	for _, raw := range w.read("agrimill.poison") {
		classes[raw.Header.Get("x-router-poison-class")+" "+raw.Header.Get("x-router-message-type")]++
	}
	if len(classes) != 1 || classes["unmatched "+taskData] != each {
		t.Errorf("the poison queue has %v, want %d unmatched", classes, each)
	}
}

// A reload waits for what is in flight. However long that takes, it is no reason to send nobody here, or to call someone.
func TestReadyDuringAReload(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	released := make(chan struct{})
	w.stdout = hanging(released)
	text := w.head() + strings.Replace(w.natsSink(), "poison: {sink: farm}", "  slow: {log: {}}\npoison: {sink: farm}", 1) + allRoute
	lines := "  - {name: lines, from: {gateway: all}, to: {sink: slow}}\n"
	b := w.start(text + lines)
	b.waitReady()
	w.send(taskData, 1)
	testkit.Eventually(t, "a message is in flight in one route alone", func() bool {
		return b.route("lines").InFlight == 1 && b.route("farm-data").Delivered == 1
	})
	cfg, done := w.parse(text), make(chan error, 1)
	go func() { // ends once released
		_, err := b.Reload(w.Context(), cfg)
		done <- err
	}()
	testkit.Eventually(t, "the route takes no more", func() bool { return b.route("lines").State == router.StateStopped })
	for range 2 { // the first look may have begun before
		at := b.Snapshot().CheckedAt
		testkit.Eventually(t, "another look", func() bool { return b.Snapshot().CheckedAt.After(at) })
	}
	if v := b.Snapshot().Verdict; v.Counting()[admin.ProblemRoute] > 0 {
		t.Errorf("ready is %t: %s", v.Ready, v.Sentence)
	}
	close(released)
	testkit.NoError(t, <-done)
	b.mustStop()
}
