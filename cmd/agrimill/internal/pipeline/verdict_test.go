package pipeline_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// gauge returns the value of a gauge, with the value of its only label, if it has one.
func gauge(t testing.TB, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric %s{%s}", name, label)
	return 0
}

// says waits for a verdict with these problems and parts of the sentence.
func (b *agrimill) says(ready bool, kind admin.ProblemKind, parts ...string) {
	b.w.Helper()
	var v admin.Verdict
	defer func() {
		if b.w.Failed() {
			b.w.Logf("the verdict is %s", b.w.asJSON(v))
		}
	}()
	testkit.Eventually(b.w, "the verdict says "+string(kind), func() bool {
		v = b.Snapshot().Verdict
		for _, part := range parts {
			if !strings.Contains(v.Sentence, part) {
				return false
			}
		}
		if kind == "" {
			return v.Ready && len(v.Problems) == 0
		}
		return v.Ready == ready && len(v.Problems) > 0 && v.Problems[0].Kind == kind
	})
	b.logs.contains("msg=verdict", strings.ReplaceAll(parts[0], `"`, `\"`))
	if kind != "" {
		testkit.Eventually(b.w, "the metrics say it", func() bool {
			return gauge(b.w, b.registry, "agrimill_problems", string(kind)) == 1 && gauge(b.w, b.registry, "agrimill_ready", "") == map[bool]float64{true: 1}[ready]
		})
		testkit.Eventually(b.w, "/readyz says it", func() bool { return b.isReady() == ready })
	}
}

// noNATS makes NATS refuse connections, until natsAgain.
func (w *world) noNATS() {
	w.proxy.SetTarget("127.0.0.1:1")
	w.proxy.Cut()
}

func (w *world) natsAgain() { w.proxy.SetTarget(strings.TrimPrefix(w.server.URL(), "nats://")) }

// TestVerdictOfFaults breaks real parts, each in its way, and repairs them.
func TestVerdictOfFaults(t *testing.T) {
	t.Parallel()
	const rightAgain = "All is right: messages are received, stored and confirmed."
	for name, test := range map[string]struct {
		more   func(w *world) string // of the configuration
		fail   func(w *world, b *agrimill)
		kind   admin.ProblemKind
		ready  bool
		says   []string
		repair func(w *world, b *agrimill) // nil: it does not recover here
	}{
		"the sink is down": {
			nil, func(w *world, _ *agrimill) { w.noNATS(); w.send(taskData, 3) }, admin.ProblemSink, false,
			[]string{`The sink "farm" (nats `, "has been down for", `The route "farm-data" waits with 3 messages; nothing is lost.`, "continues by itself"},
			func(w *world, _ *agrimill) { w.natsAgain() },
		},
		"the sink hangs": {
			nil, func(w *world, _ *agrimill) { w.proxy.Hang(); w.send(taskData, 3) }, admin.ProblemSink, false,
			[]string{`The sink "farm" (nats `, "has been down for", `The route "farm-data" waits`},
			func(w *world, _ *agrimill) { w.proxy.Resume() },
		},
		"the sink refuses the credentials": {
			nil, func(w *world, _ *agrimill) { w.server.Restart(func(o *server.Options) { o.Authorization = "another" }) }, admin.ProblemSink, false,
			[]string{`The sink "farm" (nats `, "Authorization Violation", "Correct the credentials"}, nil,
		},
		"the gateway refuses the stream": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: http.StatusForbidden})
				w.gate.CutStreams()
			}, admin.ProblemGateway, false, []string{"The gateway 127.0.0.1:", "has refused the event stream", "nothing is lost; agrimill exits at", "403"},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the gateway fails": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpAny, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
				w.gate.CutStreams()
			}, admin.ProblemGateway, false, []string{"has not kept the event stream open", "503", "New messages stay with the gateway; nothing is lost. The gateway is down or unreachable"},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the gateway cannot be reached": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpAny, gatewaytest.Fault{Refuse: true})
				w.gate.CutStreams()
			}, admin.ProblemGateway, false, []string{"has not kept the event stream open", "New messages stay with the gateway; nothing is lost."},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the token endpoint refuses the client": {
			nil, func(w *world, _ *agrimill) {
				w.gate.RotateClientSecret(w.gate.Application())
				w.gate.Inject(gatewaytest.OpEvents, gatewaytest.Fault{Status: http.StatusUnauthorized})
				w.gate.CutStreams()
			}, admin.ProblemToken, false, []string{"The token endpoint of the gateway", "has given no token", "Nothing is received or confirmed", "heck the client ID, the client secret"}, nil,
		},
		"a proxy responds for the gateway": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusBadRequest, Body: []byte("<html>"), ContentType: "text/html"})
				w.send(taskData, 1)
			}, admin.ProblemIntermediary, false, []string{"Something between agrimill and the gateway", "400", "Repair the proxy"},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"confirmations fail": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
				w.send(taskData, 3)
			}, admin.ProblemConfirmations, false,
			[]string{"onfirmations for ", "have failed for", "3 messages are stored and stay with the gateway as well; nothing is lost."},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the source is gone": {
			func(w *world) string { return w.outRoute() },
			func(w *world, _ *agrimill) {
				testkit.EventuallyNil(w, func() error { return w.js.DeleteStream(w.Context(), "OUT") })
			}, admin.ProblemRoute, false, []string{`The route "back" has been waiting`, "stream not found"},
			func(w *world, _ *agrimill) { w.outRoute() },
		},
		"a message is poisoned": {
			func(*world) string {
				return "  - {name: names, from: {gateway: all}, to: {sink: farm, topic: \"{filename}\"}}\n"
			},
			func(w *world, _ *agrimill) { w.send(taskData, 1) }, admin.ProblemPoisoned, true,
			[]string{"1 message has been in the poison queue", "no route has delivered it. See why (agrimill poison list)"}, nil,
		},
		"a reload is refused": {
			nil, func(_ *world, b *agrimill) { b.ReloadFailed(errors.New("agrimill.yaml:7: unknown key")) }, admin.ProblemReload, true,
			[]string{"The configuration file has been refused", "agrimill.yaml:7: unknown key", "Correct it (agrimill validate) and reload."},
			func(w *world, b *agrimill) {
				_, err := b.Reload(w.Context(), w.parse(w.head()+w.natsSink()+allRoute))
				must(w, err)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			w := newWorld(t)
			text := w.head() + w.natsSink() + allRoute
			if test.more != nil {
				text += test.more(w)
			}
			b := w.start(text)
			b.says(true, "", rightAgain)
			test.fail(w, b)
			b.says(test.ready, test.kind, test.says...)
			if test.repair != nil {
				test.repair(w, b)
				b.says(true, "", rightAgain)
			}
			_ = b.stop()
		})
	}
}

// What is wrong all the time is never called over, however many look at once.
func TestVerdictsOfManyWhoLook(t *testing.T) {
	t.Parallel() // it waits
	w, b := newRunning(t)
	for range 3 {
		b.says(true, "", "All is right")
		ctx, cancel := context.WithCancel(t.Context())
		var looking sync.WaitGroup
		for range 8 {
			looking.Go(func() {
				for ctx.Err() == nil {
					if v := b.Snapshot().Verdict; strings.Contains(v.Sentence, "recovered") {
						t.Errorf("the verdict is %s", w.asJSON(v))
						return
					}
				}
			})
		}
		w.noNATS()
		testkit.Eventually(t, "the sink is down", func() bool { return !b.Snapshot().Verdict.Ready })
		for range 100 {
			_ = b.Snapshot()
		}
		cancel()
		looking.Wait()
		w.natsAgain()
	}
	b.mustStop()
}

// An instance that stands by is all right, and says who works.
func TestVerdictOfAStandby(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	text := w.head() + w.natsSink() + allRoute + w.ha(w.server.URL(), "ttl: 5s")
	holder := w.start(text)
	holder.waitRole("holder")
	b := w.start(text)
	b.waitRole("standby")
	b.says(true, "", "All is right: ", " holds the lease and works; this instance stands by.")
	_ = b.stop()
	_ = holder.stop()
}

// The four figures agree with the ledger of the gateway, whatever the messages wait for.
func TestFiguresAgreeWithTheGateway(t *testing.T) {
	t.Parallel() // it waits
	w, b := newRunning(t)
	agree := func(what string) {
		t.Helper()
		testkit.Eventually(t, what, func() bool {
			f, confirmed, all := admin.FiguresFrom(b.Snapshot().Subscriber), len(w.confirmed()), len(w.gate.Ledger())
			return f.Received == int64(all) && f.Confirmed == int64(confirmed) && f.Unconfirmed == all-confirmed && f.Stored >= f.Confirmed && f.Stored <= f.Received &&
				f.Oldest.IsZero() == (f.Unconfirmed == 0)
		})
	}
	w.send(taskData, 5)
	w.waitConfirmed()
	agree("all are confirmed")
	w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
	w.send(taskData, 5)
	testkit.Eventually(t, "ten are stored", func() bool { return admin.FiguresFrom(b.Snapshot().Subscriber).Stored == 10 })
	agree("confirmations are pending")
	w.noNATS()
	w.send(taskData, 7)
	agree("the sink is down, too")
	w.gate.LiftAll()
	w.natsAgain()
	w.waitConfirmed()
	agree("all are confirmed again")
	b.mustStop()
}
