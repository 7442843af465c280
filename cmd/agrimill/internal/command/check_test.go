package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router/boltstore"
)

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	return testkit.FreeAddress(t)
}

// check runs agrimill check and returns the results by part and name.
func (w *world) check(status int, file string, flags ...string) map[string]checkResult {
	w.Helper()
	report := decode[checkReport](w, w.want(status, append([]string{"check", "--json", file, "--timeout", testkit.Patience.String()}, flags...)...))
	if report.OK != (status == statusOK) || report.File != file {
		w.Errorf("report: %+v", report)
	}
	results := map[string]checkResult{}
	for _, r := range report.Checks {
		results[strings.TrimSpace(r.Part+" "+r.Name)] = r
	}
	return results
}

// checkFor is check with the status that a state of one of the checks leads to.
func (w *world) checkFor(state, file string, flags ...string) map[string]checkResult {
	w.Helper()
	status := statusOK
	if state == checkFailed {
		status = statusFailed
	}
	return w.check(status, file, flags...)
}

// expect compares one result: its state, and parts of its detail and its advice.
func expect(t *testing.T, results map[string]checkResult, check, state, detail, advice string) {
	t.Helper()
	r, ok := results[check]
	if !ok {
		t.Errorf("no check %q: %+v", check, results)
		return
	}
	if r.State != state || !strings.Contains(r.Detail, detail) || !strings.Contains(r.Advice, advice) {
		t.Errorf("%s: %+v, want %s, %q, %q", check, r, state, detail, advice)
	}
	if state == checkFailed && (r.Detail == "" || r.Advice == "") {
		t.Errorf("%s: a failure that does not say what to do: %+v", check, r)
	}
}

const oneSink = "sinks: {farm: {nats: {url: %q}}}\npoison: {sink: farm}\nadmin: {address: off}\n"

func TestCheck(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	server := natstest.Start(t)
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "positions"))
	dir := t.TempDir()
	collector := httptest.NewServer(http.NotFoundHandler())
	defer collector.Close()
	file := f.configure(fmt.Sprintf(`  - {name: back, from: {nats: {url: %[1]q, subject: "tasks.>"}}, to: {gateway: {tenant: %[2]q, endpoint: %[7]q, type: %[4]q, recipients: [%[5]q]}}}
  - {name: positions, from: {kafka: {brokers: [%[6]q], topics: [positions]}}, to: {gateway: {endpoint: %[3]q}}}
  - {name: lake, from: {gateway: all}, to: {sink: lake}}
  - {name: archive, from: {gateway: all}, to: {sink: archive}}
  - {name: look, from: {gateway: all}, filter: {endpoint: [%[3]q, "urn:example:new"]}, to: {sink: look}}
endpoints:
  - {external_id: %[7]q, capabilities: [{type: %[4]q}]}
  - {external_id: "urn:example:new", capabilities: [{type: %[4]q}]}
sinks:
  farm: {nats: {url: %[1]q}}
  lake: {kafka: {brokers: [%[6]q]}}
  archive: {blob: {url: "file://%[8]s/archive?create_dir=true"}}
  look: {log: {}}
poison: {sink: farm}
dedup: {bbolt: {path: "%[8]s/dedup.db"}}
claim_check: {url: "file://%[8]s"}
admin: {address: "127.0.0.1:0"}
tracing: {otlp_endpoint: %[9]q}
`, server.URL(), f.gate.Tenant(), f.terminal.ID, taskData, f.software.ID, cluster.Addr(), terminalID, filepath.ToSlash(dir), collector.URL))
	stream(t, server, "TASKS", "tasks.>")

	results := f.check(statusOK, file)
	expect(t, results, "gateway token", checkOK, "accepts the client", "")
	expect(t, results, "gateway tenants", checkOK, "1 tenant with 2 endpoints, 2 of this application", "")
	expect(t, results, "endpoints [0] "+terminalID, checkOK, "exists in 1 tenant", "")
	expect(t, results, "endpoints [1] urn:example:new", checkOK, "will be created in 1 tenant", "")
	expect(t, results, "sinks farm", checkOK, "stream AGRIMILL will be created", "")
	expect(t, results, "sinks lake", checkOK, "the cluster responds", "")
	expect(t, results, "sinks archive", checkOK, "the directory will be created", "")
	expect(t, results, "sinks look", checkOK, "standard output", "")
	expect(t, results, "routes back from", checkOK, "stream TASKS exists", "")
	expect(t, results, "routes back to", checkOK, "Terminal sends", "")
	expect(t, results, "routes look filter", checkOK, "selects 2 endpoints", "")
	expect(t, results, "routes positions from", checkOK, "1 topic found", "")
	expect(t, results, "dedup bbolt", checkOK, "the file will be created", "")
	expect(t, results, "claim_check", checkOK, "the bucket exists", "")
	expect(t, results, "admin 127.0.0.1:0", checkOK, "the address is free", "")
	expect(t, results, "tracing", checkOK, "something is listening", "")

	// Nothing was created.
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if names := streams(t, server); len(names) != 1 {
		t.Errorf("streams: %v", names)
	}

	text := f.want(statusOK, "check", file, "--timeout", testkit.Patience.String())
	if !strings.HasPrefix(text, "PART ") || !strings.Contains(text, "gateway ") || !strings.HasSuffix(text, "\nnothing failed\n") {
		t.Errorf("table:\n%s", text)
	}
}

// stream makes a stream.
func stream(t *testing.T, server *natstest.Server, name, subject string) {
	t.Helper()
	js(t, server, func(js jetstream.JetStream) error {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Storage: jetstream.MemoryStorage})
		return err
	})
}

func streams(t *testing.T, server *natstest.Server) (names []string) {
	t.Helper()
	js(t, server, func(js jetstream.JetStream) error {
		list := js.StreamNames(t.Context())
		for name := range list.Name() {
			names = append(names, name)
		}
		return list.Err()
	})
	return names
}

func js(t *testing.T, server *natstest.Server, use func(js jetstream.JetStream) error) {
	t.Helper()
	conn := testkit.Must(natstest.Connect(server.URL()))(t)
	defer conn.Close()
	js, err := natstest.JetStream(conn)
	if err == nil {
		err = use(js)
	}
	must(t, err)
}

func TestCheckGatewayFailures(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	server := natstest.Start(t)
	sections := fmt.Sprintf(oneSink, server.URL())
	right := f.env["AGRIMILL_CLIENT_SECRET"]
	base, token := f.env["AGRIMILL_BASE_URL"], f.env["AGRIMILL_TOKEN_URL"]

	f.env["AGRIMILL_CLIENT_SECRET"] = "a-wrong-secret"
	file := f.configure(sections)
	results := f.check(statusFailed, file)
	expect(t, results, "gateway token", checkFailed, "", "client secret")
	expect(t, results, "gateway tenants", checkSkipped, "no token", "")
	expect(t, results, "sinks farm", checkOK, "", "")
	if text := f.want(statusFailed, "check", file, "--timeout", testkit.Patience.String()); !strings.Contains(text, "gateway token: check the client ID") || !strings.HasSuffix(text, "\n1 check failed\n") || strings.Contains(text, "a-wrong-secret") {
		t.Errorf("table:\n%s", text)
	}
	f.env["AGRIMILL_CLIENT_SECRET"] = right

	f.env["AGRIMILL_TOKEN_URL"] = "http://" + nobody(t) + "/token"
	results = f.check(statusFailed, f.configure(sections))
	expect(t, results, "gateway token", checkFailed, "", "the token endpoint is down or unreachable")
	expect(t, results, "gateway tenants", checkSkipped, "", "")
	expect(t, results, "gateway events", checkSkipped, "not tried: no list of tenants", "")

	f.env["AGRIMILL_TOKEN_URL"], f.env["AGRIMILL_BASE_URL"] = token, "http://"+nobody(t)
	results = f.check(statusFailed, f.configure(sections+"endpoints: [{external_id: \"urn:example:x\", capabilities: [{type: x}]}]\n"))
	expect(t, results, "gateway token", checkOK, "", "")
	expect(t, results, "gateway tenants", checkFailed, "", "the gateway is down or unreachable")
	expect(t, results, "endpoints [0] urn:example:x", checkSkipped, "", "")

	f.env["AGRIMILL_BASE_URL"] = base + "/elsewhere"
	results = f.check(statusFailed, f.configure(sections))
	expect(t, results, "gateway tenants", checkFailed, "", "check the addresses")

	// An ingress answers everything, or only the stream, or answers as the service.
	f.env["AGRIMILL_BASE_URL"] = base
	page := gatewaytest.Fault{Status: 404, Body: []byte("<html>default backend</html>"), ContentType: "text/html"}
	refusal := func(status int, code string) gatewaytest.Fault {
		return gatewaytest.Fault{Status: status, Body: fmt.Appendf(nil, `{"error":%q}`, code), ContentType: "application/json"}
	}
	for _, tt := range []struct {
		at                           gatewaytest.Operation
		fault                        gatewaytest.Fault
		check, state, detail, advice string
	}{
		{gatewaytest.OpListTenants, page, "gateway tenants", checkFailed, "status 404 Not Found (text/html)", "in between"},
		{gatewaytest.OpEvents, page, "gateway tenants", checkOK, "", ""},
		{gatewaytest.OpEvents, page, "gateway events", checkFailed, "text/html", "in between"},
		{gatewaytest.OpEvents, gatewaytest.Fault{Status: 403}, "gateway events", checkFailed, "403", "refuses"},
		{gatewaytest.OpToken, page, "gateway token", checkFailed, "text/html", "check that address"},
		{gatewaytest.OpToken, page, "gateway events", checkSkipped, "", ""},
		{gatewaytest.OpToken, refusal(429, "slow_down"), "gateway token", checkFailed, "limits the rate", "too many token requests"},
		{gatewaytest.OpToken, refusal(400, "invalid_scope"), "gateway token", checkFailed, "invalid_scope", "gateway.scopes"},
	} {
		injected := f.gate.Inject(tt.at, tt.fault)
		expect(t, f.check(statusFailed, f.configure(sections)), tt.check, tt.state, tt.detail, tt.advice)
		injected.Lift()
	}
	results = f.check(statusOK, f.configure(sections))
	expect(t, results, "gateway events", checkOK, "can be opened", "")

	// Something that takes the request and never answers is given up in time.
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before, the server does not see that the client is gone
		<-r.Context().Done()
	}))
	defer silent.Close()
	f.env["AGRIMILL_BASE_URL"], f.env["AGRIMILL_TOKEN_URL"] = base, silent.URL
	results = f.check(statusFailed, f.configure(sections), "--timeout", "200ms")
	expect(t, results, "gateway token", checkFailed, "", "")
}

func TestCheckSenders(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	server := natstest.Start(t)
	stream(t, server, "TASKS", "tasks.>")
	other := f.gate.AddTenant()
	for name, test := range map[string]struct{ to, state, detail, advice string }{
		"unknown":   {`endpoint: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02`, checkFailed, "no endpoint", "agrimill tenants"},
		"tenant":    {fmt.Sprintf(`endpoint: %s, tenant: %s`, f.terminal.ID, other), checkFailed, "belongs to another tenant", f.gate.Tenant()},
		"receiver":  {`endpoint: ` + f.software.ID, checkFailed, "cannot send anything", "SEND"},
		"type":      {fmt.Sprintf(`endpoint: %s, type: gps:info`, f.terminal.ID), checkFailed, "cannot send gps:info", "capabilities"},
		"recipient": {fmt.Sprintf(`endpoint: %s, recipients: 0d7f8f4e-2f5b-4a55-8f0a-3c9b7a6d1e02`, f.terminal.ID), checkWarning, "is unknown", "is unreachable"},
		"external":  {"endpoint: urn:nobody:here", checkFailed, "no endpoint urn:nobody:here", "wait until it exists"},
		"far away":  {`recipients: urn:nobody:here`, checkWarning, "each message names its sender; recipient urn:nobody:here is unknown", "wait"},
		"any":       {`type: "{type}"`, checkOK, "each message names its sender", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inner := &farm{world: &world{T: t, env: f.env}, gate: f.gate}
			results := inner.checkFor(test.state, inner.configure(fmt.Sprintf("  - {name: back, from: {nats: {url: %q, subject: \"tasks.>\"}}, to: {gateway: {%s}}}\n", server.URL(), test.to)+fmt.Sprintf(oneSink, server.URL())))
			expect(t, results, "routes back to", test.state, test.detail, test.advice)
		})
	}
	// Another application's endpoints with the external ID of the own one, listed before it and where there is none, and one that
	// agrimill will create, whose external ID is written otherwise.
	foreign := f.gate.AddApplication(gatewaytest.ApplicationConfig{})
	first := f.gate.AddTenant()
	for _, tenant := range []string{first, f.gate.Tenant()} {
		f.gate.Authorize(foreign, tenant)
		f.gate.AddEndpoint(gatewaytest.EndpointConfig{App: foreign, Tenant: tenant, ExternalID: terminalID, Send: []string{shapes}})
	}
	f.gate.Authorize(f.gate.Application(), first)
	f.gate.AddEndpoint(gatewaytest.EndpointConfig{Tenant: first, ExternalID: "urn:example:visits", Receive: []string{shapes}})
	results := f.check(statusOK, f.configure(fmt.Sprintf(`  - {name: own, from: {nats: {url: %[1]q, subject: "tasks.>"}}, to: {gateway: {endpoint: %[2]q, recipients: ["urn:example:new:%[3]s"]}}}
  - {name: new, from: {nats: {url: %[1]q, subject: "tasks.>"}}, to: {gateway: {tenant: %[3]q, endpoint: "urn:example:new:%[3]s"}}}
endpoints:
  - {external_id: "urn:example:new:{tenant}", capabilities: [{type: %[4]q}]}
  - {external_id: %[2]q, capabilities: [{type: %[4]q}]}
`, server.URL(), terminalID, f.gate.Tenant(), taskData)+fmt.Sprintf(oneSink, server.URL())))
	expect(t, results, "routes own to", checkOK, "Terminal sends", "")
	expect(t, results, "routes new to", checkOK, "will be created", "")
	expect(t, results, "endpoints [1] "+terminalID, checkOK, "will be created in 1 tenant", "")

	results = f.check(statusFailed, f.configure("  - {name: in, from: {gateway: all}, filter: {endpoint: urn:nobody:here}, to: {sink: farm}}\n"+fmt.Sprintf(oneSink, server.URL())))
	expect(t, results, "routes in filter", checkFailed, "no endpoint urn:nobody:here", "wait until it exists")
}

func TestCheckSinkFailures(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	locked := natstest.Start(t, func(o *natsserver.Options) { o.Username, o.Password = user, password })
	plain := natstest.Start(t, func(o *natsserver.Options) { o.JetStream = false })
	server := natstest.Start(t)
	stream(t, server, "OTHER", "agrimill.>")
	stream(t, server, "MINE", "elsewhere.>")
	js(t, server, func(js jetstream.JetStream) error {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LAST", Subjects: []string{"last.>"}, MaxMsgsPerSubject: 1})
		return err
	})
	_, leaf := natstest.StartLeaf(t)
	joined := fmt.Sprintf(`nats: {url: %q, user: %s, password: %s`, leaf.URL(), natstest.LeafUser, natstest.LeafPassword)
	cluster := kafkatest.Start(t)
	closed := kafkatest.Start(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", user, password))
	dir := filepath.ToSlash(t.TempDir())
	for name, test := range map[string]struct{ sink, state, detail, advice string }{
		"down":           {fmt.Sprintf(`nats: {url: "nats://%s"}`, nobody(t)), checkFailed, "", "is the server running"},
		"refused":        {fmt.Sprintf(`nats: {url: %q}`, locked.URL()), checkFailed, "", "rejects the credentials"},
		"password":       {fmt.Sprintf(`nats: {url: %q, user: %s, password: "${WRONG}"}`, locked.URL(), user), checkFailed, "", "rejects the credentials"},
		"right password": {fmt.Sprintf(`nats: {url: %q, user: %s, password: "${RIGHT}"}`, locked.URL(), user), checkOK, "will be created", ""},
		"no JetStream":   {fmt.Sprintf(`nats: {url: %q}`, plain.URL()), checkFailed, "", "--jetstream"},
		"leaf node":      {joined + `, domain: hub, inbox_prefix: _INBOX_mill}`, checkOK, "will be created", ""},
		"no domain":      {joined + `, inbox_prefix: _INBOX_mill}`, checkFailed, "set domain", "set domain"},
		"other domain":   {joined + `, inbox_prefix: _INBOX_mill, domain: other}`, checkFailed, "of the domain", "check domain"},
		"no inbox":       {joined + `, domain: hub}`, checkFailed, "_INBOX.", "set inbox_prefix"},
		"missing stream": {fmt.Sprintf(`nats: {url: %q, stream: GONE, subject_prefix: gone, provision: none}`, server.URL()), checkFailed, "", "create stream GONE"},
		"other subjects": {fmt.Sprintf(`nats: {url: %q, stream: MINE}`, server.URL()), checkFailed, "", "stream or subject_prefix"},
		"overlap":        {fmt.Sprintf(`nats: {url: %q}`, server.URL()), checkFailed, "AGRIMILL does not have the subject agrimill.> and cannot get it: stream OTHER has it", "stream or subject_prefix"},
		"part overlaps":  {fmt.Sprintf(`nats: {url: %q, subject_prefix: elsewhere.deep}`, server.URL()), checkFailed, "stream MINE has it", ""},
		"to be changed":  {fmt.Sprintf(`nats: {url: %q, stream: LAST, subject_prefix: more, provision: update}`, server.URL()), checkWarning, "stream LAST exists", "last message"},
		"in memory":      {fmt.Sprintf(`nats: {url: %q, stream: OTHER}`, server.URL()), checkWarning, "stream OTHER exists", "the stream exists with other settings, which stay: discard DiscardOld (configured: DiscardNew), storage Memory (configured: File), dedup window 2m0s (configured: 10m0s)"},
		"last message": {
			fmt.Sprintf(`nats: {url: %q, stream: LAST, subject_prefix: last, synced: always}`, server.URL()),
			checkWarning, "durability: none", "the last message of each subject",
		},
		"kafka down":      {fmt.Sprintf(`kafka: {brokers: [%q], connect_timeout: 1s}`, nobody(t)), checkFailed, "", "are the brokers running"},
		"kafka password":  {fmt.Sprintf(`kafka: {brokers: [%q], sasl: {mechanism: SCRAM-SHA-512, user: %s, password: "${WRONG}"}}`, closed.Addr(), user), checkFailed, "", "credentials"},
		"kafka user":      {fmt.Sprintf(`kafka: {brokers: [%q], sasl: {mechanism: SCRAM-SHA-512, user: %s, password: "${RIGHT}"}}`, closed.Addr(), user), checkOK, "the cluster responds", ""},
		"kafka anonymous": {fmt.Sprintf(`kafka: {brokers: [%q]}`, closed.Addr()), checkFailed, "", "sasl"},
		"missing topic":   {fmt.Sprintf(`kafka: {brokers: [%q], provision: none}`, cluster.Addr()), checkFailed, "no topic agrimill.poison", "create it"},
		"no directory":    {fmt.Sprintf(`blob: {url: "file://%s/gone"}`, dir), checkFailed, "", "create the directory"},
		"not a directory": {fmt.Sprintf(`blob: {url: "file://%s/file"}`, dir), checkFailed, "", "read and write"},
	} {
		must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		t.Run(name, func(t *testing.T) {
			inner := &world{T: t, env: f.env}
			inner.env["WRONG"], inner.env["RIGHT"] = "wrong", password
			results := inner.checkFor(test.state, inner.configure(fmt.Sprintf("sinks: {farm: {%s}}\npoison: {sink: farm}\nadmin: {address: off}\n", test.sink)))
			expect(t, results, "sinks farm", test.state, test.detail, test.advice)
			expect(t, results, "gateway token", checkOK, "", "")
		})
	}
}

// The consumer of a source is looked at as run does, and not made.
func TestCheckNATSSources(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	server := natstest.Start(t)
	stream(t, server, "TASKS", "tasks.>")
	js(t, server, func(js jetstream.JetStream) error {
		for name, change := range map[string]func(*jetstream.ConsumerConfig){
			"good":    func(*jetstream.ConsumerConfig) {},
			"subject": func(c *jetstream.ConsumerConfig) { c.FilterSubject = "tasks.other" },
			"acks":    func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy },
			"slow":    func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 3 },
		} {
			config := jetstream.ConsumerConfig{Durable: name, FilterSubject: "tasks.>", AckPolicy: jetstream.AckExplicitPolicy}
			change(&config)
			if _, err := js.CreateConsumer(t.Context(), "TASKS", config); err != nil {
				return err
			}
		}
		_, err := js.CreatePushConsumer(t.Context(), "TASKS", jetstream.ConsumerConfig{
			Durable: "push", FilterSubject: "tasks.>", AckPolicy: jetstream.AckExplicitPolicy, DeliverSubject: "to.push", DeliverGroup: "push",
		})
		return err
	})
	for name, test := range map[string]struct{ source, state, detail, advice string }{
		"to come": {`durable: new`, checkOK, "stream TASKS exists; consumer new will be created", ""},
		"good":    {`durable: good`, checkOK, "consumer good exists, 0 messages not acknowledged", ""},
		"subject": {`durable: subject`, checkFailed, "reads tasks.other, not tasks.>", "correct durable, subject"},
		"acks":    {`durable: acks`, checkFailed, "has the ack policy", "correct durable"},
		"push":    {`durable: push`, checkFailed, "is a push consumer", "correct durable"},
		"slow":    {`durable: slow`, checkWarning, "consumer slow exists", "max ack pending 3, so no more are handled at a time (configured: 256)"},
		"stream":  {`durable: new, stream: GONE`, checkFailed, "stream not found", "create stream GONE"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{T: t, env: f.env}
			results := w.checkFor(test.state, w.configure(fmt.Sprintf("  - {name: back, from: {nats: {url: %q, subject: \"tasks.>\", %s}}, to: {gateway: {type: \"{type}\"}}}\n", server.URL(), test.source)+fmt.Sprintf(oneSink, server.URL())))
			expect(t, results, "routes back from", test.state, test.detail, test.advice)
		})
	}
	js(t, server, func(js jetstream.JetStream) error {
		if _, err := js.Consumer(t.Context(), "TASKS", "new"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Errorf("check made the consumer: %v", err)
		}
		return nil
	})
}

// The topics and the group of a source are looked at as run does.
func TestCheckKafkaSources(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	cluster := kafkatest.Start(t, kfake.SeedTopics(1, "positions"))
	client := testkit.Must(kgo.NewClient(kgo.SeedBrokers(cluster.Addr())))(t)
	defer client.Close()
	must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "positions", Value: []byte("a")}, &kgo.Record{Topic: "positions", Value: []byte("b")}).FirstErr())
	for group, at := range map[string]int64{"behind": 1, "beyond": 7} {
		offsets := kadm.Offsets{}
		offsets.AddOffset("positions", 0, at, -1)
		must(t, kadm.NewClient(client).CommitAllOffsets(t.Context(), group, offsets))
	}
	for name, test := range map[string]struct{ source, state, detail, advice string }{
		"new":     {`topics: positions`, checkOK, "1 topic found with 1 partition; group agrimill-positions is new and starts with the oldest records", ""},
		"newest":  {`topics: positions, start: newest`, checkOK, "starts with the newest records", ""},
		"behind":  {`topics: positions, group: behind`, checkOK, "group behind is 1 offset behind", ""},
		"beyond":  {`topics: positions, group: beyond`, checkWarning, "2 offsets behind", "Kafka offset is beyond the end of its partition; the partition is read from the beginning, committed 7"},
		"missing": {`topics: [positions, gone]`, checkFailed, "no such topic: gone", "create it"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{T: t, env: f.env}
			sections := fmt.Sprintf("  - {name: positions, from: {kafka: {brokers: [%q], %s}}, to: {gateway: {type: \"{type}\"}}}\nsinks: {farm: {log: {}}}\npoison: {sink: farm}\nadmin: {address: off}\n", cluster.Addr(), test.source)
			expect(t, w.checkFor(test.state, w.configure(sections)), "routes positions from", test.state, test.detail, test.advice)
		})
	}
}

func TestCheckStoreFailures(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	server := natstest.Start(t)
	dir := filepath.ToSlash(t.TempDir())
	store := testkit.Must(boltstore.New(boltstore.Config{Path: dir + "/used.db"}))(t)
	defer func() { _ = store.Close() }()
	must(t, os.WriteFile(dir+"/text.db", []byte(strings.Repeat("no database ", 1000)), 0o600))
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = listener.Close() }()
	cluster := kafkatest.Start(t)
	js(t, server, func(js jetstream.JetStream) error {
		for _, config := range []jetstream.KeyValueConfig{
			{Bucket: "weak", TTL: time.Minute, MaxBytes: 20_000, MaxValueSize: 900, Storage: jetstream.MemoryStorage, LimitMarkerTTL: time.Minute},
			{Bucket: "good", TTL: 48 * time.Hour, History: 5, LimitMarkerTTL: time.Minute},
			{Bucket: "plain"},
		} {
			if _, err := js.CreateKeyValue(t.Context(), config); err != nil {
				return err
			}
		}
		return nil
	})
	for name, test := range map[string]struct{ section, check, state, detail, advice string }{
		"no directory": {fmt.Sprintf(`dedup: {bbolt: {path: "%s/gone/x.db"}}`, dir), "dedup bbolt", checkFailed, "", "create the directory"},
		"locked":       {fmt.Sprintf(`dedup: {bbolt: {path: "%s/used.db"}}`, dir), "dedup bbolt", checkWarning, "in use", "this agrimill"},
		"no database":  {fmt.Sprintf(`dedup: {bbolt: {path: "%s/text.db"}}`, dir), "dedup bbolt", checkFailed, "", "move it away"},
		"weak bucket": {
			fmt.Sprintf(`dedup: {nats_kv: {url: %q, bucket: weak}}`, server.URL()), "dedup nats_kv", checkWarning, "bucket weak exists",
			"settings that keep less than those configured, and stay: ttl 1m0s (configured: 24h0m0s), max bytes 20000 (configured: no limit), max value size 900 (configured: no limit), storage Memory (configured: File); change stream KV_weak",
		},
		"bucket for leases":  {fmt.Sprintf(`dedup: {nats_kv: {url: %q, bucket: plain}}`, server.URL()), "dedup nats_kv", checkFailed, "has no TTL for single keys", "another bucket"},
		"good bucket":        {fmt.Sprintf(`dedup: {nats_kv: {url: %q, bucket: good}}`, server.URL()), "dedup nats_kv", checkOK, "bucket good exists", ""},
		"missing bucket":     {fmt.Sprintf(`dedup: {nats_kv: {url: %q, bucket: gone, provision: none}}`, server.URL()), "dedup nats_kv", checkFailed, "", "provision: create"},
		"weak lease":         {fmt.Sprintf(`ha: {nats_kv: {url: %q, bucket: weak}}`, server.URL()), "ha nats_kv", checkWarning, "exists", "ttl 1m0s (configured: no limit)"},
		"weak devices":       {fmt.Sprintf(`devices: {nats_kv: {url: %q, bucket: weak, max_bytes: 10000}}`, server.URL()), "devices nats_kv", checkWarning, "exists", "storage Memory"},
		"devices to come":    {fmt.Sprintf(`devices: {nats_kv: {url: %q}}`, server.URL()), "devices nats_kv", checkOK, "will be created", ""},
		"devices in Kafka":   {fmt.Sprintf(`devices: {kafka: {brokers: [%q]}}`, cluster.Addr()), "devices kafka", checkOK, "will be created", ""},
		"journal":            {fmt.Sprintf(`journal: {path: "%s/journal.db"}`, dir), "journal", checkOK, "will be created", ""},
		"journal, no place":  {fmt.Sprintf(`journal: {path: "%s/gone/journal.db"}`, dir), "journal", checkFailed, "", "create the directory"},
		"journal, damaged":   {fmt.Sprintf(`journal: {path: "%s/text.db"}`, dir), "journal", checkWarning, "damaged", "begins a new one"},
		"journal, in use":    {fmt.Sprintf(`journal: {path: "%s/used.db"}`, dir), "journal", checkWarning, "in use", "this agrimill"},
		"journal, directory": {fmt.Sprintf(`journal: {path: %q}`, dir), "journal", checkFailed, "directory", "read and write"},
		"bucket to come":     {fmt.Sprintf(`dedup: {nats_kv: {url: %q}}`, server.URL()), "dedup nats_kv", checkOK, "will be created", ""},
		"kv down":            {fmt.Sprintf(`dedup: {nats_kv: {url: "nats://%s"}}`, nobody(t)), "dedup nats_kv", checkFailed, "", "is the server running"},
		"off":                {`dedup: {store: off}`, "dedup off", checkWarning, "", "handled again"},
		"payloads":           {fmt.Sprintf(`claim_check: {url: "file://%s/gone"}`, dir), "claim_check", checkFailed, "", "create_dir"},
		"address in use":     {fmt.Sprintf(`admin: {address: %q}`, listener.Addr()), "admin " + listener.Addr().String(), checkWarning, "in use", "this agrimill"},
		"address":            {`admin: {address: "192.0.2.1:1"}`, "admin 192.0.2.1:1", checkFailed, "", "address of this machine"},
		"collector":          {fmt.Sprintf(`tracing: {otlp_endpoint: "http://%s"}`, nobody(t)), "tracing", checkFailed, "", "works without it"},
		"source stream":      {"", "routes back from", checkFailed, "", "no stream has the subject nowhere.>"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{T: t, env: f.env}
			route := ""
			if test.section == "" {
				route = fmt.Sprintf("  - {name: back, from: {nats: {url: %q, subject: \"nowhere.>\"}}, to: {gateway: {}}}\n", server.URL())
			}
			sections := route + fmt.Sprintf("sinks: {farm: {nats: {url: %q}}}\npoison: {sink: farm}\n%s\n", server.URL(), test.section)
			if !strings.Contains(test.section, "admin:") {
				sections += "admin: {address: off}\n"
			}
			expect(t, w.checkFor(test.state, w.configure(sections)), test.check, test.state, test.detail, test.advice)
		})
	}
}

// checkOf are the keys that name what run opens, with the check that opens it. A key that names nothing to open has none.
var checkOf = map[string]string{
	"gateway.base_url": "gateway events", "gateway.token_url": "gateway token",
	"sinks.nats.url": "sinks farm", "sinks.kafka.brokers": "sinks lake", "sinks.blob.url": "sinks archive", "sinks.blob.path": "",
	"routes.from.nats.url": "routes back from", "routes.from.kafka.brokers": "routes positions from",
	"dedup.bbolt.path": "dedup bbolt", "dedup.nats_kv.url": "dedup nats_kv", "ha.nats_kv.url": "ha nats_kv",
	"devices.nats_kv.url": "devices nats_kv", "devices.kafka.brokers": "devices kafka",
	"claim_check.url": "claim_check", "journal.path": "journal", "admin.address": "admin 127.0.0.1:0", "tracing.otlp_endpoint": "tracing",
}

// openedKeys collects the keys of a section, and of those in it, that name something outside.
func openedKeys(section reflect.Type, path string, found map[string]bool) {
	switch section.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		openedKeys(section.Elem(), path, found)
	case reflect.Struct:
		for i := range section.NumField() {
			f := section.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			at := strings.TrimPrefix(path+"."+name, ".")
			switch {
			case options == "inline":
				openedKeys(f.Type, path, found)
			case name == "" || name == "-":
			case slices.Contains([]string{"url", "base_url", "token_url", "brokers", "path", "address", "otlp_endpoint"}, name):
				found[at] = true
			default:
				openedKeys(f.Type, at, found)
			}
		}
	}
}

// What run opens, check opens.
func TestCheckOpensWhatRunOpens(t *testing.T) {
	found := map[string]bool{}
	openedKeys(reflect.TypeFor[config.Config](), "", found)
	names := map[string]bool{}
	for _, stores := range []string{
		"dedup: {bbolt: {path: /d.db}}\ndevices: {nats_kv: {url: \"nats://h\"}}\n",
		"dedup: {nats_kv: {url: \"nats://h\"}}\ndevices: {kafka: {brokers: \"h:1\"}}\n",
	} {
		cfg := testkit.Must(config.Parse("agrimill.yaml", []byte(`gateway: {base_url: "https://h", token_url: "https://h", client_id: a, client_secret: "${SECRET}"}
sinks:
  farm: {nats: {url: "nats://h"}}
  lake: {kafka: {brokers: "h:1"}}
  archive: {blob: {url: "file:///a"}}
routes:
  - {name: back, from: {nats: {url: "nats://h", subject: "t.>"}}, to: {gateway: {}}}
  - {name: positions, from: {kafka: {brokers: "h:1", topics: p}}, to: {gateway: {}}}
  - {name: all, from: {gateway: all}, to: {sink: farm}}
poison: {sink: farm}
ha: {nats_kv: {url: "nats://h"}}
claim_check: {url: "file:///c"}
journal: {path: /j.db}
admin: {address: "127.0.0.1:0"}
tracing: {otlp_endpoint: "http://h"}
`+stores), config.Options{Env: func(string) string { return "secret-of-the-client" }}))(t)
		for _, probe := range (&checker{cfg: cfg, timeout: time.Second}).probes() {
			names[strings.TrimSpace(probe.part+" "+probe.name)] = true
		}
	}
	for key := range found {
		if check, known := checkOf[key]; !known {
			t.Errorf("key %s names something that run may open: name the check that opens it in this test", key)
		} else if check != "" && !names[check] {
			t.Errorf("key %s: no check %q in %v", key, check, slices.Sorted(maps.Keys(names)))
		}
	}
	for key := range checkOf {
		if !found[key] {
			t.Errorf("no key %s", key)
		}
	}
}

func TestCheckUsage(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	mistaken := f.configure("poison: {sink: farn}\nsinks: {farm: {log: {}}}\n")
	if status, _, stderr := f.agrimill("check", mistaken); status != statusUsage || !strings.Contains(stderr, "did you mean farm?") {
		t.Errorf("status %d, %s", status, stderr)
	}
	f.want(statusUsage, "check")
	f.want(statusUsage, "check", "a", "b")
	f.want(statusUsage, "check", mistaken, "--timeout", "0s")

	// A check that is interrupted ends.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	file := f.configure("poison: {sink: farm}\nsinks: {farm: {log: {}}}\nadmin: {address: off}\n")
	var out, errs strings.Builder
	if status := f.program(&out, &errs).run(ctx, []string{"check", file}); status != statusFailed {
		t.Errorf("interrupted: %d, %s%s", status, out.String(), errs.String())
	}
}

func TestValidate(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	valid := f.configure("poison: {sink: farm}\nsinks: {farm: {nats: {}}, more: {log: {}}}\n")
	if got, want := f.want(statusOK, "validate", valid), valid+": valid: 3 routes, 2 sinks, 0 endpoints; 1 warning\n"; !strings.HasSuffix(got, want) || !strings.Contains(got, "sinks.more: is not used by any route") {
		t.Errorf("%s, want %s", got, want)
	}
	result := decode[validation](f.world, f.want(statusOK, "validate", "--json", valid))
	if !result.Valid || len(result.Problems) != 1 || result.Problems[0].Severity != config.SeverityWarning {
		t.Errorf("%+v", result)
	}

	mistaken := f.configure("poison: {sink: farn}\nsinks: {farm: {nats: {}}}\nlogs: {}\n")
	text := f.want(statusUsage, "validate", mistaken)
	for _, want := range []string{mistaken + ":", ": poison.sink: names an unknown sink: \"farn\"; did you mean farm?\n", "logs: is not a known key; did you mean log?\n", ": 2 mistakes\n"} {
		testkit.Contains(t, text, want)
	}
	result = decode[validation](f.world, f.want(statusUsage, "validate", mistaken, "--json"))
	if result.Valid || len(result.Problems) != 2 || result.Problems[0].Line == 0 || result.Problems[0].File != mistaken {
		t.Errorf("%+v", result)
	}
	testkit.Contains(t, f.want(statusUsage, "validate", mistaken+".none"), "cannot be read")
	delete(f.env, "AGRIMILL_CLIENT_SECRET")
	f.want(statusUsage, "validate", valid)
	testkit.Contains(t, f.want(statusOK, "validate", valid, "--allow-missing"), "warning: gateway.client_secret: needs the environment variable AGRIMILL_CLIENT_SECRET")
	f.want(statusUsage, "validate")
	f.want(statusUsage, "validate", "--nope", valid)
}

func TestSchema(t *testing.T) {
	w := &world{T: t}
	var schema struct {
		Properties map[string]any `json:"properties"`
	}
	if err := json.Unmarshal([]byte(w.want(statusOK, "schema")), &schema); err != nil || schema.Properties["gateway"] == nil {
		t.Errorf("%+v, %v", schema, err)
	}
	w.want(statusUsage, "schema", "more")
}
