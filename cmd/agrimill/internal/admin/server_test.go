package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/subscriber"
)

const testToken = "a-token-of-enough-length"

// plainSource is a pipeline whose answers a test sets.
type plainSource struct {
	snapshot admin.Snapshot
	tenants  func(context.Context) ([]admin.Tenant, error)
	queue    router.PoisonStore
	journal  *journal.Journal
	history  *history.History
	open     []subscriber.Open
	settings []admin.Setting
	replay   func(context.Context, []string) (router.ReplayReport, error)
	stored   func(context.Context) iter.Seq2[admin.StoredCopy, error]
}

// judged is a snapshot with the verdict that it has when there was none before, unless it has one.
func judged(s admin.Snapshot) admin.Snapshot {
	if s.Time.IsZero() {
		s.Time = time.Now()
	}
	if s.Verdict.Sentence == "" {
		s.Verdict = new(admin.Steady).Judge(s)
	}
	return s
}

func (s *plainSource) Snapshot() admin.Snapshot        { return judged(s.snapshot) }
func (s *plainSource) Journal() *journal.Journal       { return s.journal }
func (s *plainSource) Settings() []admin.Setting       { return s.settings }
func (s *plainSource) History() *history.History       { return s.history }
func (s *plainSource) Open() []subscriber.Open         { return s.open }
func (s *plainSource) Why(q why.Question) why.Answer   { return why.Answer{Question: q} }
func (s *plainSource) Payloads() gateway.PayloadOpener { return nil }
func (s *plainSource) Devices() *farm.Devices          { return nil }
func (s *plainSource) PoisonStore() router.PoisonStore { return s.queue }
func (s *plainSource) CountPoisoned(context.Context)   {}
func (s *plainSource) Stored(ctx context.Context, _ *journal.Message) iter.Seq2[admin.StoredCopy, error] {
	return s.stored(ctx)
}

func (s *plainSource) Tenants(ctx context.Context) ([]admin.Tenant, error) {
	if s.tenants == nil {
		return nil, nil
	}
	return s.tenants(ctx)
}

func (s *plainSource) Replay(ctx context.Context, _ router.PoisonStore, ids []string) (router.ReplayReport, error) {
	return s.replay(ctx, ids)
}

// queueOf is a poison queue of messages that no router wrote.
type queueOf int

func (q queueOf) Messages(context.Context) iter.Seq2[router.Poisoned, error] {
	return func(yield func(router.Poisoned, error) bool) {
		for i := range int(q) {
			if !yield(router.Poisoned{ID: fmt.Sprint(i), Message: message.NewMessage("", []byte(secret))}, nil) {
				return
			}
		}
	}
}
func (q queueOf) Get(context.Context, string) (router.Poisoned, error) {
	return router.Poisoned{}, router.ErrNotInQueue
}
func (q queueOf) Delete(context.Context, string) error { return router.ErrNotInQueue }

// answer is the response to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

type change func(*http.Request)

func header(name, value string) change { return func(r *http.Request) { r.Header.Set(name, value) } }
func host(name string) change          { return func(r *http.Request) { r.Host = name } }
func bearer(token string) change       { return header("Authorization", "Bearer "+token) }
func asJSON() change                   { return header("Content-Type", "application/json") }

func request(t *testing.T, server *admin.Server, method, path, body string, changes ...change) answer {
	t.Helper()
	r := testkit.Must(http.NewRequestWithContext(t.Context(), method, "http://"+server.Addr()+path, strings.NewReader(body)))(t)
	for _, change := range changes {
		change(r)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response := testkit.Must(client.Do(r))(t)
	defer func() { _ = response.Body.Close() }()
	content := testkit.Must(io.ReadAll(response.Body))(t)
	if strings.Contains(string(content), secret) || strings.Contains(string(content), testToken) {
		t.Errorf("%s %s shows a secret: %s", method, path, content)
	}
	return answer{response.StatusCode, response.Header, string(content)}
}

func get(t *testing.T, server *admin.Server, path string, changes ...change) answer {
	t.Helper()
	return request(t, server, http.MethodGet, path, "", changes...)
}

func (a answer) want(t *testing.T, status int, parts ...string) answer {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, a.body)
	}
	for _, part := range parts {
		testkit.Contains(t, a.body, part)
	}
	return a
}

func decode[V any](t *testing.T, a answer) V {
	t.Helper()
	var value V
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return value
}

func TestConfigIsValidated(t *testing.T) {
	for name, config := range map[string]admin.Config{
		"no port":              {Address: "localhost"},
		"port is a name":       {Address: "localhost:http"},
		"port too large":       {Address: "localhost:65536"},
		"token too short":      {Token: gateway.Secret(secret[:admin.MinTokenLength-1])},
		"token with a space":   {Token: secret + " " + secret},
		"token with a newline": {Token: secret + "\n"},
		"token is not ASCII":   {Token: secret + "é"},
		"host with a path":     {Hosts: []string{"agrimill.example/"}},
		"read token too short": {ReadToken: gateway.Secret(secret[:admin.MinTokenLength-1])},
		"read token is token":  {Token: secret, ReadToken: secret},
		"pprof without token":  {PProf: true, ReadToken: secret},
		"header is no name":    {UserHeader: "X User"},
		"header has the token": {UserHeader: "authorization"},
		"proxies alone":        {Proxies: []string{"10.0.0.7"}},
		"proxy is a name":      {UserHeader: "X-User", Proxies: []string{"proxy.example"}},
		"certificate alone":    {TLS: admin.TLS{CertFile: "cert.pem"}},
		"key alone":            {TLS: admin.TLS{KeyFile: "key.pem"}},
		"no such certificate":  {TLS: admin.TLS{CertFile: "no-such-cert.pem", KeyFile: "no-such-key.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := config.Validate()
			if !errors.Is(err, admin.ErrConfig) || strings.Contains(err.Error(), secret[:admin.MinTokenLength-1]) {
				t.Errorf("Validate: %v", err)
			}
			if server, err := admin.New(config, &plainSource{}); !errors.Is(err, admin.ErrConfig) {
				t.Errorf("New: %v, %v", server, err)
			}
		})
	}
	if err := (admin.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if _, err := admin.New(admin.Config{}, nil); !errors.Is(err, admin.ErrConfig) {
		t.Errorf("without a source: %v", err)
	}
}

func TestAddressInUse(t *testing.T) {
	server := testkit.Must(admin.New(admin.Config{Address: "127.0.0.1:0"}, &plainSource{}))(t)
	defer func() { testkit.Must(struct{}{}, server.Close())(t) }()
	if _, err := admin.New(admin.Config{Address: server.Addr()}, &plainSource{}); err == nil {
		t.Error("two servers on one address")
	}
	if err := errors.Join(server.Close(), server.Close()); err != nil {
		t.Errorf("Close twice: %v", err)
	}
}

func TestEveryAnswerIsGuarded(t *testing.T) {
	server := serve(t, admin.Config{Token: testToken, PProf: true, Gatherer: prometheus.NewRegistry()}, &plainSource{})
	for _, path := range []string{
		"/", "/page/page.css", "/page/main.js", "/page/favicon.svg", "/healthz", "/readyz", "/metrics", "/debug/pprof/",
		"/api/status", "/api/tenants", "/api/poison", "/api/trace", "/api/why", "/api/history", "/api/config", "/no-such-page",
	} {
		a := get(t, server, path)
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'", "Cache-Control": "no-store",
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := a.header.Get(name); !strings.Contains(got, want) {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		for _, forbidden := range []string{"unsafe", "http:", "https:", "*", "data:"} {
			if policy := a.header.Get("Content-Security-Policy"); strings.Contains(policy, forbidden) {
				t.Errorf("%s: the policy has %s: %s", path, forbidden, policy)
			}
		}
		if !strings.Contains(a.header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s may be framed", path)
		}
		if a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s may be read by other sites", path)
		}
	}
}

func TestPageIsWholeAndAlone(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{})
	files := map[string]string{"/": "text/html; charset=utf-8"}
	for _, entry := range testkit.Must(os.ReadDir("page"))(t) {
		for end, contentType := range map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"} {
			if strings.HasSuffix(entry.Name(), end) {
				files["/page/"+entry.Name()] = contentType
			}
		}
	}
	for path, contentType := range files {
		a := get(t, server, path).want(t, http.StatusOK)
		if got := a.header.Get("Content-Type"); got != contentType {
			t.Errorf("%s: %s, want %s", path, got, contentType)
		}
		text := strings.ReplaceAll(a.body, `http://www.w3.org/2000/svg`, "") // a name, not an address
		for _, forbidden := range []string{"http://", "https://", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage", "sessionStorage", "document.cookie", "onclick=", "style="} {
			if strings.Contains(text, forbidden) {
				t.Errorf("%s has %s", path, forbidden)
			}
		}
	}
	for _, path := range []string{"/index.html", "/page/", "/page/index.html", "/../source.go", "/%2e%2e/source.go"} {
		if a := get(t, server, path); a.status != http.StatusNotFound && a.status != http.StatusMovedPermanently && a.status != http.StatusTemporaryRedirect {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}

// TestDocumentedRequests checks that docs/status-page.md lists what there is.
func TestDocumentedRequests(t *testing.T) {
	page := string(testkit.Must(os.ReadFile("../../../../docs/status-page.md"))(t))
	b := newInstance(t)
	server := serve(t, admin.Config{Token: testToken, PProf: true, Gatherer: b.registry}, b)
	listed := regexp.MustCompile("(?m)^\\| `(GET|POST) (/[^`]*)`").FindAllStringSubmatch(page, -1)
	if len(listed) != 18 {
		t.Errorf("%d requests are listed: %q", len(listed), listed)
	}
	for _, match := range listed {
		if a := request(t, server, match[1], match[2], ""); a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d", match[1], match[2], a.status)
		}
	}
	for _, want := range []string{"admin.token", "admin.hosts", "admin.pprof", "`" + string(admin.ReplayDelivered) + "`",
		"`" + string(admin.ReplayDuplicate) + "`", "`" + string(admin.ReplayPoisoned) + "`", "`" + string(admin.ReplayKept) + "`",
		"`" + string(admin.ReplayGone) + "`", fmt.Sprintf("at least %d characters", admin.MinTokenLength)} {
		testkit.Contains(t, page, want)
	}
}

// The journal is searched within limits; without one, that is said.
func TestTraceRequests(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{})
	if a := get(t, server, "/api/trace?q=x"); a.status != http.StatusNotFound || !strings.Contains(a.body, "journal.max_age") {
		t.Errorf("without a journal: %d %s", a.status, a.body)
	}
	b := newInstance(t)
	server = serve(t, admin.Config{}, b)
	b.send(3, taskData, "Field 7.zip")
	b.waitConfirmed(3)
	for path, want := range map[string]int{
		"/api/trace?limit=0": http.StatusBadRequest, "/api/trace?limit=10001": http.StatusBadRequest, "/api/trace?limit=x": http.StatusBadRequest,
		"/api/trace?q=" + strings.Repeat("x", 513): http.StatusBadRequest, "/api/trace": http.StatusOK, "/api/trace?q=nobody": http.StatusOK,
	} {
		if a := get(t, server, path); a.status != want {
			t.Errorf("%.40s: %d, want %d", path, a.status, want)
		}
	}
	a := get(t, server, "/api/trace?q=field+7&limit=2")
	var trace journal.Trace
	if err := json.Unmarshal([]byte(a.body), &trace); err != nil || len(trace.Messages) != 2 || trace.More != 1 || strings.Contains(a.body, secret) {
		t.Errorf("%v: %s", err, a.body)
	}
}

// A query that is not understood is refused, with what would be: it would select everything.
func TestQueriesThatAreNotUnderstood(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{}, b)
	const readable, once = "the query cannot be read", "is there more than once; use it once"
	long := strings.Repeat("x", 513)
	for path, want := range map[string]struct {
		status int
		says   string
	}{
		"/api/poison?limit=5&offset=0":           {http.StatusOK, ""},
		"/api/poison?limit=&tenant=":             {http.StatusOK, ""},
		"/api/poison?limit=-9223372036854775809": {http.StatusBadRequest, "limit a number from 1 to"},
		"/api/poison?limit=5&limit=6":            {http.StatusBadRequest, "limit " + once},
		"/api/poison?Limit=5":                    {http.StatusBadRequest, `Limit\" is not a parameter; use offset, limit, group, q, tenant, endpoint`},
		"/api/poison?tenant=a;b":                 {http.StatusBadRequest, readable},
		"/api/poison?tenant=%zz":                 {http.StatusBadRequest, readable},
		"/api/poison/groups?q=a&group=b":         {http.StatusOK, `"groups":[]`},
		"/api/poison/groups?query=a":             {http.StatusBadRequest, `query\" is not a parameter; use group, q, tenant, endpoint`},
		"/api/poison/groups?groop=1":             {http.StatusBadRequest, `groop\" is not a parameter; use group, q, tenant, endpoint`},
		"/api/poison/groups?group=a&group=b":     {http.StatusBadRequest, "group " + once},
		"/api/poison/groups?tenant=" + long:      {http.StatusBadRequest, "tenant must have at most 512 bytes"},
		"/api/poison/contents?ID=1":              {http.StatusBadRequest, `ID\" is not a parameter; use id`},
		"/api/contents?id=1&message=2":           {http.StatusBadRequest, `message\" is not a parameter; use id, endpoint`},
		"/api/status?tennant=a":                  {http.StatusBadRequest, `tennant\" is not a parameter; use tenant, endpoint`},
		"/api/status?tenant=" + long:             {http.StatusBadRequest, "tenant must have at most 512 bytes"},
		"/api/status?tenant=nobody":              {http.StatusOK, `"tenant":"nobody"`},
		"/api/history?span=day":                  {http.StatusBadRequest, `span\" is not a parameter; use range, route, tenant, endpoint`},
		"/api/history?range=Day":                 {http.StatusBadRequest, "hour or day"},
		"/api/history?route=nobody":              {http.StatusOK, `"routes":[]`},
		"/api/history?route=" + long:             {http.StatusBadRequest, "route must have at most 512 bytes"},
		"/api/trace?query=a":                     {http.StatusBadRequest, `query\" is not a parameter; use q, limit, tenant, endpoint`},
		"/api/why?tenant=a&tenant=b":             {http.StatusBadRequest, "tenant " + once},
		"/api/tenants?tenant=a":                  {http.StatusBadRequest, "this takes no parameters"},
		"/api/config?key=a":                      {http.StatusBadRequest, "this takes no parameters"},
	} {
		get(t, server, path).want(t, want.status, want.says)
	}
}

// The history of real routes has their counts and, from the journal, their latencies.
func TestHistoryRequests(t *testing.T) {
	get(t, serve(t, admin.Config{}, &plainSource{}), "/api/history").want(t, http.StatusOK, `"routes":[]`)
	b := newInstance(t)
	server := serve(t, admin.Config{}, b)
	b.send(3, taskData, "Field 7.zip")
	b.waitConfirmed(3)
	get(t, server, "/api/history?range=week").want(t, http.StatusBadRequest, "hour or day")
	for _, query := range []string{"", "range=hour&route=task+data", "range=day&route=task+data"} {
		var record history.Record
		testkit.Eventually(t, "three messages in the history", func() bool {
			record = decode[history.Record](t, get(t, server, "/api/history?"+query).want(t, http.StatusOK))
			i := slices.IndexFunc(record.Routes, func(r history.RouteRecord) bool { return r.Name == "task data" })
			return i >= 0 && record.Routes[i].Total.Latency["confirm"].Count == 3 && record.Routes[i].Total.Latency["store"].Count == 3 && record.Routes[i].Total.Delivered == 3
		})
		if want := map[bool]int{true: 3, false: 1}[query == ""]; len(record.Routes) != want || !record.Timed {
			t.Errorf("%s: %+v", query, record)
		}
	}
}

// A question has a tenant and a type.
func TestWhyRequests(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{})
	id := uuid.NewString()
	for query, want := range map[string]int{
		"": http.StatusBadRequest, "tenant=" + id: http.StatusBadRequest, "type=x": http.StatusBadRequest, "tenant=7&type=x": http.StatusBadRequest,
		"tenant={" + id + "}&type=x": http.StatusBadRequest, "tenant=" + id + "&type=" + strings.Repeat("x", 513): http.StatusBadRequest,
		"tenant=" + id + "&type=x&from=" + strings.Repeat("x", 513): http.StatusBadRequest, "tenant=" + id + "&type=x&from=Tractor+7": http.StatusOK,
	} {
		if a := get(t, server, "/api/why?"+query); a.status != want {
			t.Errorf("%.60s: %d, want %d: %s", query, a.status, want, a.body)
		}
	}
	var answer why.Answer
	a := get(t, server, "/api/why?tenant="+id+"&type=x&from=Tractor+7")
	if err := json.Unmarshal([]byte(a.body), &answer); err != nil || answer.Question != (why.Question{Tenant: id, Type: "x", From: "Tractor 7"}) {
		t.Errorf("%v: %s", err, a.body)
	}
}

func TestMethods(t *testing.T) {
	server := serve(t, admin.Config{Token: testToken}, &plainSource{})
	for _, path := range []string{"/", "/page/main.js", "/healthz", "/readyz", "/api/status", "/api/tenants", "/api/poison", "/api/poison/contents", "/api/contents"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, "TRACE"} {
			a := request(t, server, method, path, "")
			a.want(t, http.StatusMethodNotAllowed)
			if allow := a.header.Get("Allow"); allow != "GET, HEAD" {
				t.Errorf("%s %s: Allow is %q", method, path, allow)
			}
		}
	}
	get(t, server, "/api/poison/replay", bearer(testToken)).want(t, http.StatusMethodNotAllowed)
}

func TestHostsOnLoopback(t *testing.T) {
	server := serve(t, admin.Config{Hosts: []string{"Agrimill.example", "10.1.2.3"}}, &plainSource{})
	_, port, _ := net.SplitHostPort(server.Addr())
	for _, name := range []string{
		server.Addr(), "localhost", "LOCALHOST:" + port, "localhost.:1", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:9090",
		"[::ffff:127.0.0.1]:80", "agrimill.example", "AGRIMILL.EXAMPLE.:443", "10.1.2.3:80",
	} {
		get(t, server, "/api/status", host(name)).want(t, http.StatusOK)
	}
	for _, name := range []string{
		"attacker.example", "attacker.example:" + port, "localhost.attacker.example", "127.0.0.1.attacker.example", "0.0.0.0",
		"10.1.2.4", "[fe80::1]", "2130706433", "0x7f000001", "localhost:80:80",
	} {
		get(t, server, "/", host(name)).want(t, http.StatusMisdirectedRequest)
		get(t, server, "/api/status", host(name)).want(t, http.StatusMisdirectedRequest)
	}
}

func TestHostsElsewhere(t *testing.T) {
	var log strings.Builder
	open := serve(t, admin.Config{Address: "0.0.0.0:0", Logger: slog.New(slog.NewTextHandler(&log, nil))}, &plainSource{})
	_, port, _ := net.SplitHostPort(open.Addr())
	// The Server listens on all addresses; the test stays on this machine.
	local := func(name string) answer {
		return get(t, open, "/healthz", host(name), func(r *http.Request) { r.URL.Host = "127.0.0.1:" + port })
	}
	for _, name := range []string{"10.0.0.7:9090", "[fd00::7]:9090", "agrimill:9090", "localhost", "127.0.0.1"} {
		local(name).want(t, http.StatusOK)
	}
	for _, name := range []string{"agrimill.farm.svc:9090", "attacker.example", "10.0.0.7.attacker.example", "[attacker.example]"} {
		local(name).want(t, http.StatusMisdirectedRequest)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "not on loopback") {
		t.Errorf("not logged: %s", log.String())
	}

	named := serve(t, admin.Config{Address: "0.0.0.0:0", Hosts: []string{"agrimill.farm.svc"}}, &plainSource{})
	_, port, _ = net.SplitHostPort(named.Addr())
	at := func(r *http.Request) { r.URL.Host = "127.0.0.1:" + port }
	get(t, named, "/healthz", host("agrimill.farm.svc:9090"), at).want(t, http.StatusOK)
	get(t, named, "/healthz", host("10.0.0.7:9090"), at).want(t, http.StatusOK)
	get(t, named, "/healthz", host("attacker.example"), at).want(t, http.StatusMisdirectedRequest)
}

func TestHealth(t *testing.T) {
	get(t, serve(t, admin.Config{}, &plainSource{}), "/healthz").want(t, http.StatusOK, "ok")
	ended := &plainSource{snapshot: admin.Snapshot{State: admin.StateStopped, Error: "all routes ended"}}
	server := serve(t, admin.Config{}, ended)
	get(t, server, "/healthz").want(t, http.StatusServiceUnavailable, "all routes ended")
	if status := decode[admin.Status](t, get(t, server, "/api/status")); status.State != admin.StateStopped || status.Error == "" {
		t.Errorf("status: %+v", status)
	}
	if ready := decode[admin.Readiness](t, get(t, server, "/readyz").want(t, http.StatusServiceUnavailable)); ready.Ready ||
		ready.Checks[0].Name != "pipeline" || ready.Checks[0].OK || !strings.Contains(ready.Checks[0].Message, "all routes ended") {
		t.Errorf("readiness: %+v", ready)
	}
}

func TestReadiness(t *testing.T) {
	source := &plainSource{snapshot: admin.Snapshot{
		State: admin.StateRunning, CheckedAt: time.Now(), Checks: []admin.Check{{Name: "gateway", OK: true}, {Name: "sink farm", OK: true}},
	}}
	server := serve(t, admin.Config{}, source)
	if ready := decode[admin.Readiness](t, get(t, server, "/readyz").want(t, http.StatusOK)); !ready.Ready || len(ready.Checks) != 3 ||
		!ready.CheckedAt.Equal(source.snapshot.CheckedAt) {
		t.Errorf("readiness: %+v", ready)
	}
	source.snapshot.Checks[1] = admin.Check{Name: "sink farm", Message: "said"}
	ready := decode[admin.Readiness](t, get(t, server, "/readyz").want(t, http.StatusServiceUnavailable))
	if ready.Ready || ready.Checks[2] != source.snapshot.Checks[1] || !ready.Checks[1].OK || !strings.Contains(ready.Sentence, "said") {
		t.Errorf("readiness: %+v", ready)
	}
	for state, status := range map[admin.State]int{
		admin.StateStarting: http.StatusServiceUnavailable, admin.StateRunning: http.StatusOK, admin.StateDegraded: http.StatusOK, admin.StateStandby: http.StatusOK,
		admin.StateDraining: http.StatusServiceUnavailable, admin.StateStopped: http.StatusServiceUnavailable,
	} {
		server := serve(t, admin.Config{}, &plainSource{snapshot: admin.Snapshot{State: state, Checks: []admin.Check{{Name: "gateway", OK: true}}}})
		get(t, server, "/readyz").want(t, status, string(state))
	}
	get(t, serve(t, admin.Config{}, &plainSource{}), "/readyz").want(t, http.StatusServiceUnavailable, "starting") // nothing was checked yet
}

func TestMetricsAndProfiles(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "farm_fields"}, func() float64 { return 7 }))
	full := serve(t, admin.Config{Token: testToken, PProf: true, Gatherer: registry}, &plainSource{})
	get(t, full, "/metrics").want(t, http.StatusOK, "farm_fields 7")
	get(t, full, "/debug/pprof/", bearer(testToken)).want(t, http.StatusOK, "goroutine")
	get(t, full, "/debug/pprof/goroutine?debug=1", bearer(testToken)).want(t, http.StatusOK, "goroutine profile")
	for _, path := range []string{"", "goroutine", "cmdline", "profile", "symbol", "trace"} {
		get(t, full, "/debug/pprof/"+path).want(t, http.StatusUnauthorized)
	}
	if status := decode[admin.Status](t, get(t, full, "/api/status")); !status.Metrics {
		t.Error("the page does not know of the metrics")
	}

	plain := serve(t, admin.Config{}, &plainSource{})
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile", "/debug/vars"} {
		get(t, plain, path).want(t, http.StatusNotFound)
	}
}

func TestStatusHasNoNulls(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{})
	for _, path := range []string{"/api/status", "/api/tenants", "/readyz"} {
		if a := get(t, server, path); strings.Contains(a.body, "null") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	status := decode[admin.Status](t, get(t, server, "/api/status"))
	if status.Time.IsZero() || status.Browsable || status.Replay {
		t.Errorf("status: %+v", status)
	}
}

// The state is the verdict in a word.
func TestDerivedStates(t *testing.T) {
	checks := []admin.Check{{Name: "gateway", OK: true}}
	problems := func(stages ...admin.Stage) admin.Verdict {
		v := admin.Verdict{Sentence: "said"}
		for _, stage := range stages {
			v.Problems = append(v.Problems, admin.Problem{Stage: stage})
		}
		return v
	}
	for name, test := range map[string]struct {
		snapshot admin.Snapshot
		want     admin.State
	}{
		"nothing was checked": {admin.Snapshot{}, admin.StateStarting},
		"all well":            {admin.Snapshot{Checks: checks}, admin.StateRunning},
		"standby":             {admin.Snapshot{Checks: checks, Gateway: admin.Gateway{State: admin.GatewayStandby}}, admin.StateStandby},
		"not reloaded":        {admin.Snapshot{Checks: checks, Config: admin.ConfigState{Error: "bad"}}, admin.StateDegraded},
		"starting":            {admin.Snapshot{Checks: checks, Verdict: problems(admin.StageStarting)}, admin.StateStarting},
		"starting and broken": {admin.Snapshot{Checks: checks, Verdict: problems(admin.StageLasting, admin.StageStarting)}, admin.StateDegraded},
		"standby, broken": {
			admin.Snapshot{Checks: checks, Verdict: problems(admin.StageRecent), Gateway: admin.Gateway{State: admin.GatewayStandby}}, admin.StateDegraded,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, admin.Config{}, &plainSource{snapshot: test.snapshot})
			if status := decode[admin.Status](t, get(t, server, "/api/status")); status.State != test.want {
				t.Errorf("%s, want %s", status.State, test.want)
			}
		})
	}
}

// What waits is told with its reason and without secrets, and what is pending together.
func TestSubscriberFrom(t *testing.T) {
	stats := subscriber.Stats{PendingConfirmations: 2, HeldConfirmations: 5, OldestUnconfirmed: noon, Waits: []subscriber.Waits{{
		Kind: subscriber.WaitTenant, Count: 1, Total: 7, Longest: []subscriber.Wait{{What: "a", Count: 7, Err: errors.New("no response from https://gateway.example/confirm?key=" + secret)}},
	}}}
	got := admin.SubscriberFrom(stats)
	if got.PendingConfirmations != 7 || !got.OldestUnconfirmed.Equal(noon) {
		t.Errorf("got %d pending since %v, want 7 since %v", got.PendingConfirmations, got.OldestUnconfirmed, noon)
	}
	if reason := got.Waits[0].Longest[0].Reason; !strings.Contains(reason, "no response") || strings.Contains(reason, secret) {
		t.Errorf("got reason %q", reason)
	}
}

func TestTenantsFail(t *testing.T) {
	server := serve(t, admin.Config{}, &plainSource{tenants: func(context.Context) ([]admin.Tenant, error) {
		return nil, errors.New("no response from https://gateway.example/tenants?key=" + secret)
	}})
	get(t, server, "/api/tenants").want(t, http.StatusBadGateway, "no response")
}

// TestServeEnds checks that requests under way are answered, and that one whose
// client does not read does not hold up the end.
func TestServeEnds(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	source := &plainSource{tenants: func(context.Context) ([]admin.Tenant, error) {
		close(entered)
		<-release
		return nil, nil
	}}
	server := testkit.Must(admin.New(admin.Config{Address: "127.0.0.1:0"}, source))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	answered := make(chan answer, 1)
	go func() { answered <- get(t, server, "/api/tenants") }()
	<-entered
	cancel()
	close(release)
	(<-answered).want(t, http.StatusOK)
	testkit.NoError(t, <-served)
	if _, err := net.Dial("tcp", server.Addr()); err == nil {
		t.Error("the address still answers")
	}
}

func TestServeAfterClose(t *testing.T) {
	server := testkit.Must(admin.New(admin.Config{Address: "127.0.0.1:0"}, &plainSource{}))(t)
	testkit.NoError(t, server.Close())
	if err := server.Serve(t.Context()); err == nil {
		t.Error("a closed server serves")
	}
}

// TestOverRealParts reads everything of a pipeline that has handled messages.
func TestOverRealParts(t *testing.T) {
	b := newInstance(t)
	server := serve(t, admin.Config{Gatherer: b.registry}, b)
	b.send(5, taskData, "")
	b.send(1, shapes, hostileFilename)
	b.waitConfirmed(6)

	status := decode[admin.Status](t, get(t, server, "/api/status").want(t, http.StatusOK))
	if status.Subscriber.Received != 6 || status.Gateway.State != admin.GatewayConnected || len(status.Routes) != 3 ||
		status.Routes[0].Delivered != 5 || status.Routes[1].Poisoned != 1 || status.Routes[1].Name != hostileRoute {
		t.Errorf("status: %+v", status)
	}
	get(t, server, "/metrics").want(t, http.StatusOK, "agrimill_route_messages_total")
	tenants := decode[admin.TenantList](t, get(t, server, "/api/tenants").want(t, http.StatusOK)).Tenants
	if len(tenants) != 1 || len(tenants[0].Endpoints) != 2 || !tenants[0].Endpoints[0].Mine || *tenants[0].Endpoints[0].RoutedTo != 1 {
		t.Errorf("tenants: %+v", tenants)
	}
	get(t, server, "/healthz").want(t, http.StatusOK)

	b.nats.Stop()
	b.gate.Stop()
	testkit.Eventually(t, "/readyz says so", func() bool {
		ready := get(t, server, "/readyz")
		return ready.status == http.StatusServiceUnavailable && strings.Contains(ready.body, `"name":"sink farm","ok":false`)
	})
	get(t, server, "/healthz").want(t, http.StatusOK)
}

// Those that have waited longest come first, of what is selected, and twelve are named. A list is sent again once it has changed.
func TestWaiting(t *testing.T) {
	now := time.Now()
	source := &plainSource{open: []subscriber.Open{{TenantID: "other"}}}
	for i := range 15 {
		source.open = append(source.open, subscriber.Open{TenantID: fmt.Sprint("tenant-", i%2), EndpointID: fmt.Sprint("endpoint-", i), Held: 1, Oldest: now.Add(-time.Duration(i) * time.Minute)})
	}
	server := serve(t, admin.Config{}, source)
	ask := func(query string) (list admin.WaitingList) {
		t.Helper()
		testkit.NoError(t, json.Unmarshal([]byte(get(t, server, "/api/waiting"+query).want(t, http.StatusOK).body), &list))
		return list
	}
	if all := ask(""); len(all.Waiting) != 12 || all.More != 3 || all.Waiting[0].EndpointID != "endpoint-14" || all.Waiting[0].Held != 1 {
		t.Errorf("all: %+v", all)
	}
	if some := ask("?tenant=TENANT-1"); len(some.Waiting) != 7 || some.More != 0 || some.Waiting[6].EndpointID != "endpoint-1" {
		t.Errorf("of a tenant: %+v", some)
	}
	if none := get(t, server, "/api/waiting?endpoint=x").want(t, http.StatusOK); !strings.Contains(none.body, `"waiting":[]`) {
		t.Errorf("of nobody: %s", none.body)
	}

	tag := get(t, server, "/api/waiting").header.Get("ETag")
	if a := get(t, server, "/api/waiting", header("If-None-Match", tag)).want(t, http.StatusNotModified); a.body != "" || tag == "" || a.header.Get("ETag") != tag {
		t.Errorf("unchanged, with the tag %q: %q", tag, a.body)
	}
	get(t, server, "/api/waiting?tenant=tenant-1", header("If-None-Match", tag)).want(t, http.StatusOK)
	if a := get(t, server, "/api/trace").want(t, http.StatusNotFound); a.header.Get("ETag") != "" {
		t.Error("an error has a tag")
	}
}
