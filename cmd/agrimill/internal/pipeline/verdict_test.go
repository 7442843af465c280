package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/certificate"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// gauge returns the value of a gauge, with the value of its only label, if it has one.
func gauge(t testing.TB, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families := testkit.Must(registry.Gather())(t)
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
		exit := map[bool]int{false: 5, true: 4}[ready]
		return v.Ready == ready && len(v.Problems) > 0 && v.Problems[0].Kind == kind && v.ExitStatus() == exit
	})
	if kind == "" {
		b.logs.contains(`msg="all is right"`, parts[0])
	} else {
		b.logs.contains("msg=problem", fmt.Sprintf("ready=%t", ready), strings.ReplaceAll(parts[0], `"`, `\"`))
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

// forbid makes NATS refuse to let agrimill publish to these subjects.
func (w *world) forbid(subjects ...string) {
	w.Helper()
	user := &server.User{Username: "agrimill", Password: password}
	if len(subjects) > 0 {
		user.Permissions = &server.Permissions{Publish: &server.SubjectPermission{Deny: subjects}}
	}
	w.server.Restart(func(o *server.Options) { o.Users, o.NoAuthUser = []*server.User{user}, user.Username })
}

// edit changes the configuration of TestVerdictOfFaults.
func (w *world) edit(from, to string) { w.edits = append(w.edits, from, to) }

func (w *world) makeStream(name, subjects string) {
	w.Helper()
	testkit.Must(w.js.CreateStream(w.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}, AllowDirect: true}))(w)
}

// certify writes a certificate that ends after some days.
func (w *world) certify(days int) {
	w.Helper()
	made := testkit.Must(certificate.New("agrimill", time.Duration(days)*24*time.Hour, nil))(w)
	testkit.NoError(w, os.WriteFile(w.cert, made.Cert, 0o600))
}

var dedupBucket = jetstream.KeyValueConfig{Bucket: kvstore.DefaultBucket, LimitMarkerTTL: time.Minute}

// hanging is a standard output that takes nothing until it is closed.
type hanging chan struct{}

func (h hanging) Write(line []byte) (int, error) {
	<-h
	return len(line), nil
}

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
			}, admin.ProblemGateway, false, []string{"The gateway 127.0.0.1:", "has refused the event stream", "nothing is lost; agrimill tries again until ", ", then exits. Ask the operator", "403"},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the gateway fails": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpAny, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
				w.gate.CutStreams()
			}, admin.ProblemGateway, false, []string{"has been disconnected", "503", "New messages stay with the gateway; nothing is lost. The gateway is down or unreachable: check the way to it, or ask its operator; agrimill continues"},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the gateway cannot be reached": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpAny, gatewaytest.Fault{Refuse: true})
				w.gate.CutStreams()
			}, admin.ProblemGateway, false, []string{"has been disconnected", "New messages stay with the gateway; nothing is lost."},
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
			[]string{"onfirmations for ", "have failed for", "503", "3 messages are stored and stay with the gateway as well; nothing is lost."},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the source is gone": {
			func(w *world) string { return w.outRoute() },
			func(w *world, _ *agrimill) {
				testkit.EventuallyNil(w, func() error { return w.js.DeleteStream(w.Context(), "OUT") })
			}, admin.ProblemRoute, false, []string{`The route "back" has been waiting`, "stream not found"},
			func(w *world, _ *agrimill) { w.outRoute() },
		},
		"the source is gone, with a lease": {
			func(w *world) string { w.free(); return w.outRoute() + w.ha(w.server.URL(), "ttl: 5s") },
			func(w *world, b *agrimill) {
				testkit.Eventually(w, "the source is read", func() bool { return b.route("back").Backlog != nil })
				testkit.EventuallyNil(w, func() error { return w.js.DeleteStream(w.Context(), "OUT") })
			}, admin.ProblemRoute, false, []string{`The route "back" has been waiting`, "stream not found"},
			func(w *world, _ *agrimill) { w.outRoute() },
		},
		"the topic of the source is gone": {
			func(w *world) string {
				w.env["KAFKA"] = kafkatest.Start(w, kfake.SeedTopics(1, "reports")).Addr()
				return fmt.Sprintf("  - {name: back, from: {kafka: {brokers: %q, topics: [reports]}}, to: {gateway: {tenant: %s, type: %q, endpoint: %s}}}\n",
					w.env["KAFKA"], w.gate.Tenant(), taskData, w.sender.ID)
			},
			func(w *world, _ *agrimill) {
				conn := kafkatest.Client(w, w.env["KAFKA"])
				client := kadm.NewClient(conn)
				testkit.NoError(w, conn.ProduceSync(w.Context(), &kgo.Record{Topic: "reports", Value: []byte("report")}).FirstErr())
				testkit.Eventually(w, "the topic is read", func() (is bool) {
					for _, group := range client.FetchManyOffsets(w.Context(), testkit.Must(client.ListGroups(w.Context()))(w).Groups()...) {
						group.Fetched.Each(func(committed kadm.OffsetResponse) { is = is || committed.At > 0 })
					}
					return is
				})
				testkit.Must(client.DeleteTopics(w.Context(), "reports"))(w)
			}, admin.ProblemRoute, false, []string{`The route "back" has been waiting`, "does not exist"},
			func(w *world, _ *agrimill) {
				testkit.Must(kadm.NewClient(kafkatest.Client(w, w.env["KAFKA"])).CreateTopic(w.Context(), 1, 1, nil, "reports"))(w)
			},
		},
		"a message is poisoned": {
			func(*world) string {
				return "  - {name: names, from: {gateway: all}, to: {sink: farm, topic: \"{filename}\"}}\n"
			},
			func(w *world, _ *agrimill) { w.send(taskData, 1) }, admin.ProblemPoisoned, true,
			[]string{"1 message has been in the poison queue", "no route has delivered it. See why (agrimill poison list)"}, nil,
		},
		"the dedup store is gone": {
			func(w *world) string {
				testkit.Must(w.js.CreateKeyValue(w.Context(), dedupBucket))(w)
				return fmt.Sprintf("dedup: {nats_kv: {url: %q, provision: none}}\n", w.server.URL())
			},
			func(w *world, _ *agrimill) { testkit.NoError(w, w.js.DeleteKeyValue(w.Context(), dedupBucket.Bucket)) }, admin.ProblemDedup, false,
			[]string{"The dedup store nats_kv", "has been failing for", "nothing is lost. Repair the store; agrimill continues by itself"},
			func(w *world, _ *agrimill) {
				testkit.Must(w.js.CreateKeyValue(w.Context(), dedupBucket))(w)
			},
		},
		"the lease is out of reach": {
			func(w *world) string { w.free(); return w.ha(w.proxy.URL(), "ttl: 5s") },
			func(w *world, _ *agrimill) { w.server.Stop() }, admin.ProblemLease, false,
			[]string{"The lease in", "has not been readable or renewable", "new messages stay with the gateway; nothing is lost. Repair NATS"}, nil,
		},
		"the poison queue cannot be read": {
			func(w *world) string {
				w.makeStream("DEAD", "dead.>")
				w.edit("poison: {sink: farm}", fmt.Sprintf("  dead: {nats: {url: %q, stream: DEAD, subject_prefix: dead, provision: none}}\npoison: {sink: dead}", w.server.URL()))
				return ""
			},
			func(w *world, _ *agrimill) { testkit.NoError(w, w.js.DeleteStream(w.Context(), "DEAD")) }, admin.ProblemSink, false,
			[]string{`The sink "dead" (nats`, "stream not found", "Messages that would be poisoned wait; nothing is lost."},
			func(w *world, _ *agrimill) { w.makeStream("DEAD", "dead.>") },
		},
		"the stream of the sink is missing": {
			func(w *world) string {
				w.makeStream("AGRIMILL", "agrimill.>")
				w.edit("publish_timeout: 2s", "publish_timeout: 2s, provision: none")
				return ""
			},
			func(w *world, _ *agrimill) {
				testkit.NoError(w, w.js.DeleteStream(w.Context(), "AGRIMILL"))
				w.send(taskData, 2)
			}, admin.ProblemSink, false, []string{`The sink "farm" (nats`, "has been down for", "stream not found", `The route "farm-data" waits with 2 messages; nothing is lost.`},
			func(w *world, _ *agrimill) { w.makeStream("AGRIMILL", "agrimill.>") },
		},
		"the sink refuses every topic": {
			nil, func(w *world, _ *agrimill) { w.forbid("agrimill.>"); w.send(pictures, 1) }, admin.ProblemRoute, false,
			[]string{`The route "farm-data" has been waiting for`, "ermissions Violation", "1 message waits where it comes from; nothing is lost. Correct the credentials or the permissions"},
			func(w *world, _ *agrimill) { w.forbid() },
		},
		"the sink refuses a topic, and one endpoint stands still": {
			nil, func(w *world, _ *agrimill) {
				w.forbid("agrimill.*." + pictures)
				w.send(pictures, 1)
				barn := w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "barn", Receive: []string{taskData}})
				w.repeat(50*time.Millisecond, func() {
					if w.behind() {
						return
					}
					if _, err := w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, Recipients: []string{barn.ID}, MessageType: taskData, Payload: []byte(mark)}); err != nil {
						w.Error(err)
					}
				})
			}, admin.ProblemTopic, true,
			[]string{pictures + `" of the route "farm-data" has been refused by the sink for 1`, "Messages for it wait, others pass; nothing is lost.", "There is 1 more problem."},
			func(w *world, _ *agrimill) { w.forbid() },
		},
		"a route poisons everything": {
			func(*world) string {
				return "  - {name: names, from: {gateway: all}, to: {sink: farm, topic: \"{filename}\"}}\n"
			},
			func(w *world, _ *agrimill) { w.send(taskData, 10) }, admin.ProblemRoute, false,
			[]string{`The route "names" has moved every message to the poison queue`, "in the poison queue, confirmed, and nowhere else", "run agrimill poison replay"}, nil,
		},
		"confirmations of one tenant fail": {
			func(w *world) string {
				w.sick = w.gate.AddTenant()
				w.gate.Authorize(w.gate.Application(), w.sick)
				w.gate.AddEndpoint(gatewaytest.EndpointConfig{Tenant: w.sick, Name: "barn", Receive: []string{taskData}, Subscribe: []string{taskData}})
				return ""
			},
			func(w *world, _ *agrimill) {
				sender := w.gate.AddEndpoint(gatewaytest.EndpointConfig{Tenant: w.sick, Send: []string{taskData}})
				w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Match: func(r *http.Request) bool {
					return strings.EqualFold(r.Header.Get("X-Router-Tenant-Id"), w.sick)
				}})
				testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: taskData, Payload: []byte(mark)}))(w)
				w.keepBusy(1, taskData)
			}, admin.ProblemConfirmations, true,
			[]string{"Confirmations for the tenant of \"barn\"", "have failed for 1", "503", "1 message is stored and stays with the gateway as well; nothing is lost."},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"payloads cannot be downloaded": {
			nil, func(w *world, _ *agrimill) {
				w.gate.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
				payload := append([]byte(mark), make([]byte, 200<<10)...) // too large for its event
				testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: payload}))(w)
			}, admin.ProblemPayloads, true, []string{"Downloads of payloads from 127.0.0.1:", "have failed for 1", "nothing is lost. Repair the way to that host"},
			func(w *world, _ *agrimill) { w.gate.LiftAll() },
		},
		"the gateway limits the rate": {
			nil, func(w *world, b *agrimill) { // of a call that is no tenant's
				w.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: http.StatusTooManyRequests})
				testkit.Must(b.Tenants(w.Context()))(w) // has them listed
			}, admin.ProblemRateLimit, true, []string{"The gateway 127.0.0.1:", "has asked for fewer requests for", "Messages and confirmations are slower; nothing is lost."},
			func(w *world, _ *agrimill) { w.gate.LiftAll() }, // the limit lasts for minutes then, and nothing waits for it
		},
		"a route is slow": {
			func(w *world) string {
				released := make(chan struct{})
				w.stdout = hanging(released)
				w.release = func() { close(released) }
				w.edit("subscriber:\n", "subscriber:\n  order: none\n")
				w.edit("poison: {sink: farm}", "  slow: {log: {}}\npoison: {sink: farm}")
				return "  - {name: lines, from: {gateway: all}, to: {sink: slow}}\n"
			},
			func(w *world, _ *agrimill) { w.send(taskData, 3) }, admin.ProblemSlow, true,
			[]string{"The route ", `"lines" has been too slow for 1`, "It has 3 messages, and further ones stay with the gateway; nothing is lost. Find out why its sink is slow"},
			func(w *world, _ *agrimill) { w.release() },
		},
		"a message is set aside": {
			func(w *world) string {
				w.server.Restart(func(o *server.Options) { o.MaxPayload = 64 << 10 })
				return ""
			},
			func(w *world, _ *agrimill) {
				payload := append([]byte(mark), make([]byte, 100<<10)...)
				testkit.Must(w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: taskData, Payload: payload}))(w)
			}, admin.ProblemSetAside, true,
			[]string{"1 message has been set aside for", "message too large for the sink", "Nothing takes it as it is, and it stays with the gateway; nothing is lost.", "raise it: that of the sink, or gateway.max_payload_size."}, nil,
		},
		"the quarantine does not take an event": {
			func(w *world) string {
				w.makeStream("DEAD", "dead.>")
				w.edit("poison: {sink: farm}", fmt.Sprintf("  dead: {nats: {url: %q, stream: DEAD, subject_prefix: dead, provision: none}}\npoison: {sink: dead}", w.server.URL()))
				w.forbid("dead.>") // here, for all connections go with it
				return ""
			},
			func(w *world, _ *agrimill) {
				w.gate.EmitRaw(w.gate.Application(), []byte("event: MESSAGE_RECEIVED\ndata: {\"id\": 17}\n\n"))
			}, admin.ProblemQuarantine, true,
			[]string{"1 unreadable event has been waiting for the quarantine for", "It is not confirmed; nothing is lost. Repair the sink of the poison queue"}, nil,
		},
		"a certificate ends soon": {
			func(w *world) string {
				w.cert = filepath.Join(w.TempDir(), "admin.pem")
				w.certify(90)
				w.edit("admin: {address: off}", fmt.Sprintf("admin: {address: off, tls: {cert_file: %q, key_file: %[1]q}}", w.cert))
				return ""
			},
			func(w *world, _ *agrimill) { w.certify(13) }, admin.ProblemCertificate, true,
			[]string{"The certificate admin.tls.cert_file", "has needed a renewal", "Until then nothing changes", "Renew the file"},
			func(w *world, _ *agrimill) { w.certify(90) },
		},
		"a configured endpoint is refused": {
			func(w *world) string { return w.endpoint("barn") },
			func(w *world, b *agrimill) {
				before := b.Snapshot().Gateway.Since
				unavailable := w.gate.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Status: http.StatusServiceUnavailable})
				b.reload(w.head() + w.natsSink() + allRoute + w.endpoint("field"))
				testkit.Eventually(w, "the stream is open again", func() bool {
					s := b.Snapshot()
					return s.Gateway.State == admin.GatewayConnected && s.Gateway.Since.After(before) && s.CheckedAt.After(s.Gateway.Since) && s.Verdict.Ready
				})
				w.gate.Inject(gatewaytest.OpPutEndpoint, gatewaytest.Fault{Status: http.StatusBadRequest})
				unavailable.Lift()
			}, admin.ProblemUnprovided, true,
			[]string{`The endpoint "urn:example:field" for the tenant of `, "has not been made or changed", "400", "Correct endpoints in the configuration, and reload."},
			func(w *world, b *agrimill) {
				w.gate.LiftAll()
				b.reload(w.head() + w.natsSink() + allRoute + w.endpoint("barn"))
			},
		},
		"somebody else deletes a configured endpoint": {
			func(w *world) string { return w.endpoint("barn") },
			func(w *world, _ *agrimill) { w.gate.DeleteEndpointByUser(w.endpointID("barn")) },
			admin.ProblemUnprovided, true,
			[]string{`The endpoint "urn:example:barn" for the tenant of `, "has been missing", "somebody else deleted the endpoint", "Set recreate: true to make it again"},
			func(w *world, b *agrimill) {
				again := strings.Replace(w.endpoint("barn"), "capabilities", "recreate: true, capabilities", 1)
				b.reload(w.head() + w.natsSink() + allRoute + again)
			},
		},
		"a reload is refused": {
			nil, func(_ *world, b *agrimill) { b.ReloadFailed(errors.New("agrimill.yaml:7: unknown key")) }, admin.ProblemReload, true,
			[]string{"The configuration file has been refused", "agrimill.yaml:7: unknown key", "Correct it (agrimill validate) and reload."},
			func(w *world, b *agrimill) {
				testkit.Must(b.Reload(w.Context(), w.parse(w.head()+w.natsSink()+allRoute)))(w)
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
			b := w.start(strings.NewReplacer(w.edits...).Replace(text))
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

// What a stream had acknowledged, and has no longer, is told until a restart. The sink may be down for a moment as well.
func TestVerdictOfLostMessages(t *testing.T) {
	t.Parallel() // it waits
	w, b := newRunning(t)
	w.send(taskData, 3)
	w.waitConfirmed()
	testkit.NoError(t, w.js.DeleteStream(t.Context(), "AGRIMILL"))
	w.send(taskData, 1)
	testkit.Eventually(t, "the verdict tells the loss alone", func() bool {
		v := b.Snapshot().Verdict
		return v.Ready && v.ExitStatus() == 4 && len(v.Problems) == 1 && v.Problems[0].Kind == admin.ProblemLost
	})
	b.logs.contains("msg=problem", `3 messages that the sink \"farm\" had acknowledged have been missing`, "the rest is nowhere else", "agrimill trace lost")
	b.mustStop()
}

// What the gateway never confirms is no outage, and is not kept quiet either.
func TestVerdictOfRejectedConfirmations(t *testing.T) {
	t.Parallel() // it waits
	w, b := newRunning(t)
	w.gate.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusBadRequest})
	w.send(taskData, 1)
	b.says(true, "", "All is right", "but for 1 message since the start whose confirmation was rejected for good")
	b.mustStop()
	b.logs.contains(`msg="agrimill stopped"`, "rejected=1")
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
	w.free()
	text := w.head() + w.natsSink() + allRoute + w.ha(w.server.URL(), "ttl: 5m") // it does not end
	holder := w.start(text)
	holder.waitRole("holder")
	b := w.start(text)
	b.waitRole("standby")
	b.says(true, "", "All is right: ", " holds the lease and works; this instance stands by.")
	_ = b.stop()
	_ = holder.stop()
}

// An instance that lost the lease in an outage is all right once the sink is back: its routes get no message that would tell.
func TestVerdictOfAStandbyAfterAnOutage(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	w.free()
	b := w.start(w.head() + w.natsSink() + allRoute + w.ha(w.server.URL(), "ttl: 3s"))
	b.waitRole("holder")
	b.says(true, "", "All is right")
	w.noNATS()
	w.send(taskData, 1)
	testkit.Eventually(t, "its route waits", func() bool { return b.route("farm-data").State == router.StateOutage })
	kv := testkit.Must(w.js.KeyValue(t.Context(), kvlease.DefaultBucket))(t)
	testkit.Must(kv.PutString(t.Context(), kvlease.DefaultName, `{"epoch":99,"holder":"another","instance":"mill b","writes":3,"ttl":600000000000}`))(t)
	b.waitRole("standby")
	w.natsAgain()
	b.says(true, "", "All is right: ", " holds the lease and works; this instance stands by.")
	_ = b.stop()
}

// An instance that gave up the lease, because it did not reach the gateway, is not all right before it does.
func TestVerdictOfAStandbyThatGaveUp(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	w.free()
	b := w.start(strings.Replace(w.head(), "subscriber:\n", "subscriber:\n  stream_down_for: 1s\n", 1) + w.natsSink() + allRoute + w.ha(w.server.URL(), "ttl: 5m"))
	b.waitRole("holder")
	b.says(true, "", "All is right: messages are received")
	w.gate.Inject(gatewaytest.OpAny, gatewaytest.Fault{Refuse: true})
	w.gate.CutStreams()
	b.waitRole("standby") // for a TTL at least
	b.says(false, admin.ProblemGateway, "The gateway 127.0.0.1:", "has not been reachable for", "This instance gave up the lease")
	w.gate.LiftAll()
	b.says(true, "", "All is right: this instance stands by, and takes over unless another one holds the lease.")
	_ = b.stop()
}

// The four figures agree with the ledger of the gateway, whatever the messages wait for, also of files and their chunks.
func TestFiguresAgreeWithTheGateway(t *testing.T) {
	t.Parallel() // it waits
	t.Run("chunks and file", func(t *testing.T) { figuresAgree(t, "") })
	t.Run("whole files", func(t *testing.T) { figuresAgree(t, "  files: \""+pictures+"\"\n") })
}

func figuresAgree(t *testing.T, files string) {
	t.Parallel()
	w := newWorld(t, func(c *gatewaytest.Config) { c.ChunkSize = 32 << 10 })
	b := w.start(strings.Replace(w.head(), "subscriber:\n", "subscriber:\n"+files, 1) + w.natsSink() + allRoute)
	b.waitReady()
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
	w.sendLarge(1)
	w.waitConfirmed()
	agree("a file of three chunks is confirmed") // while it is open, it may count as one
	b.mustStop()
}
