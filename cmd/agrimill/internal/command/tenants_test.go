package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

func TestTenants(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{ServiceName: "mill"})
	text := f.want(statusOK, "tenants")
	for _, want := range []string{
		"Tenant " + f.gate.Tenant() + ": 2 endpoints\n", f.terminal.ID, f.software.ID, terminalID, "Farm software", "cloud_software", "yes", "…",
	} {
		testkit.Contains(t, text, want)
	}
	if n := strings.Count(text, "FROM"); n != 1 {
		t.Errorf("%d tables of routes:\n%s", n, text)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := strings.Fields(lines[len(lines)-1]); len(lines) != 7 || last[0] != f.terminal.ID || last[2] != f.software.ID {
		t.Errorf("the one route is not told once:\n%s", text)
	}
	if text := f.want(statusOK, "tenants", "--full"); !strings.Contains(text, taskData) || !strings.Contains(text, "doc:pdf") || strings.Contains(text, "…") {
		t.Errorf("shortened:\n%s", text)
	}

	all := decode[[]gateway.TenantInfo](f.world, f.want(statusOK, "tenants", "--json"))
	if len(all) != 1 || len(all[0].Endpoints) != 2 || all[0].ID != f.gate.Tenant() {
		t.Fatalf("JSON: %+v", all)
	}
	foreign := f.gate.AddApplication(gatewaytest.ApplicationConfig{})
	f.gate.Authorize(foreign, f.gate.Tenant())
	f.gate.AddEndpoint(gatewaytest.EndpointConfig{App: foreign, Name: "Foreign", Send: []string{"img:png"}})
	other := f.gate.AddTenant()
	f.gate.Authorize(f.gate.Application(), other)
	for _, test := range []struct {
		args               string
		tenants, endpoints int
	}{
		{"", 2, 3},
		{"--mine", 2, 2},
		{"--type img:*", 2, 1},
		{"--type iso:*:zip", 2, 2},
		{"--type iso", 2, 0},
		{"--mine --type img:png", 2, 0},
		{"--tenant " + strings.ToUpper(f.gate.Tenant()), 1, 3},
		{"--tenant " + other, 1, 0},
	} {
		args := append([]string{"tenants", "--json"}, strings.Fields(test.args)...)
		list, endpoints := decode[[]gateway.TenantInfo](f.world, f.want(statusOK, args...)), 0
		for _, tenant := range list {
			endpoints += len(tenant.Endpoints)
			for _, e := range tenant.Endpoints {
				if r := e.RoutedEndpoints; r != nil && test.args == "--type iso:*:zip" && (len(r.CanSendTo[f.software.ID]) > 1 || len(r.CanReceiveFrom[f.terminal.ID]) > 1) {
					t.Errorf("routes of other types: %+v", r)
				}
			}
		}
		if list == nil || len(list) != test.tenants || endpoints != test.endpoints {
			t.Errorf("%s: %d tenants, %d endpoints", test.args, len(list), endpoints)
		}
	}
	testkit.Contains(t, f.want(statusOK, "tenants"), "Tenant "+other+": 0 endpoints")
	for _, test := range []struct {
		args   string
		status int
		says   string
	}{
		{"--tenant nothing", statusUsage, "--tenant must be the ID"},
		{"--tenant " + f.gate.Application().ID, statusFailed, "tenant " + f.gate.Application().ID + " has not authorized the application"},
		{"--type nothing --json", statusOK, "no endpoint matches: there are 3"},
		{"--tenant " + other, statusOK, "no endpoint matches: there are 3"},
		{"--mine", statusOK, ""},
	} {
		if status, _, stderr := f.agrimill(append([]string{"tenants"}, strings.Fields(test.args)...)...); status != test.status || !strings.Contains(stderr, test.says) || test.says == "" && stderr != "" {
			t.Errorf("%s: status %d, %q", test.args, status, stderr)
		}
	}

	// Names are the service's to check, and the terminal's to be safe from.
	all[0].Endpoints[0].Name, all[0].Endpoints[0].ExternalID = "a\x1b[2Jb\tc", "urn:\u202e:x"
	body := testkit.Must(json.Marshal(gateway.TenantsListResponse{Tenants: all}))(t)
	f.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Body: body, ContentType: "application/json"})
	if text := f.want(statusOK, "tenants"); strings.ContainsAny(text, "\x1b\t\u202e") || !strings.Contains(text, "a\ufffd[2Jb\ufffdc") {
		t.Errorf("table: %q", text)
	}
}

// The gateway is named by flags, the environment and a file with the secret; what
// fails is reported with what can be done about it.
func TestService(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{TokenAuth: gatewaytest.TokenAuthParams})
	if _, _, stderr := f.agrimill("tenants"); !strings.Contains(stderr, "check the client ID") {
		t.Errorf("the wrong style: %s", stderr)
	}
	f.want(statusOK, "tenants", "--auth-style", "params")
	secretOfEnv := f.env["AGRIMILL_CLIENT_SECRET"]
	f.env["AGRIMILL_CLIENT_SECRET"] += "\n" // that of a file
	f.want(statusOK, "tenants", "--auth-style", "params")
	f.env["AGRIMILL_CLIENT_SECRET"] = secretOfEnv

	env := f.env
	f.env = map[string]string{}
	flags := []string{
		"tenants", "--auth-style", "params", "--base-url", env["AGRIMILL_BASE_URL"], "--token-url", env["AGRIMILL_TOKEN_URL"],
		"--client-id", env["AGRIMILL_CLIENT_ID"], "--service", "router",
	}
	if _, _, stderr := f.agrimill(flags...); !strings.Contains(stderr, "missing --client-secret-file (or AGRIMILL_CLIENT_SECRET)") {
		t.Errorf("no secret: %s", stderr)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(env["AGRIMILL_CLIENT_SECRET"]+"\n"), 0o600))
	f.want(statusOK, append(flags, "--client-secret-file", secret)...)
	f.want(statusUsage, append(flags, "--client-secret-file", secret+".none")...)
	for _, content := range []string{"", " \n", "one\ntwo\n", strings.Repeat("x", 64<<10+1)} {
		must(t, os.WriteFile(secret, []byte(content), 0o600))
		if _, _, stderr := f.agrimill(append(flags, "--client-secret-file", secret)...); !strings.Contains(stderr, "--client-secret-file: ") {
			t.Errorf("a secret of %d bytes: %s", len(content), stderr)
		}
	}

	f.env = env
	f.want(statusUsage, "tenants", "--base-url", "nonsense")
	f.want(statusUsage, "tenants", "--auth-style", "digest")
	injected := f.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 403, Message: "no\x1b[2J"})
	status, _, stderr := f.agrimill("tenants", "--auth-style", "params")
	if status != statusFailed || !strings.Contains(stderr, "has not authorized the application") || strings.Contains(stderr, "\x1b") {
		t.Errorf("forbidden: status %d, %q", status, stderr)
	}
	injected.Lift()
	f.gate.Inject(gatewaytest.OpListTenants, gatewaytest.Fault{Status: 503, Times: 1})
	if _, _, stderr := f.agrimill("tenants", "--auth-style", "params", "--verbose"); !strings.Contains(stderr, "503") {
		t.Errorf("not told: %s", stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if status := f.program(t.Output(), t.Output()).run(ctx, []string{"tenants", "--auth-style", "params"}); status != statusFailed {
		t.Errorf("cancelled: status %d", status)
	}
}

// What a person can do about it is reported for every failure of the gateway that has
// a name.
func TestAdvice(t *testing.T) {
	token := func(kind error) error { return fmt.Errorf("%w: %w", gateway.ErrToken, kind) }
	for _, tt := range []struct {
		cause error
		want  string
	}{
		{subscriber.ErrStreamRefused, "subscriber.stream_refused_for"},
		{gateway.ErrPartialDelivery, "do not send it to all of them again"},
		{gateway.ErrNoRecipients, "nobody received it"},
		{gateway.ErrUnauthorized, "a token that the token endpoint has just issued"},
		{gateway.ErrForbidden, "the tenant has not authorized the application"},
		{gateway.ErrCertificate, "the server's certificate"},
		{gateway.ErrIntermediary, "something in between"},
		{&claimcheck.Error{Op: "open bucket", Kind: gateway.ErrUnavailable}, "claim_check.url"},
		{&claimcheck.Error{Op: "open bucket", Kind: gateway.ErrUnavailable, Cause: &os.PathError{Op: "mkdir", Err: syscall.ENOSPC}}, "free space"},
		{gateway.ErrUnavailable, "the gateway is down or unreachable"},
		{gateway.ErrRateLimited, "too many requests"},
		{gateway.ErrBadResponse, "the answer is not from a gateway"},

		{token(gateway.ErrUnauthorized), "client secret"},
		{token(gateway.ErrTokenRequest), "gateway.scopes"},
		{token(gateway.ErrRateLimited), "too many token requests"},
		{token(gateway.ErrUnavailable), "the token endpoint is down or unreachable, not the gateway"},
		{token(gateway.ErrCertificate), "the certificate of the token endpoint"},
		{token(gateway.ErrBadResponse), "check that address"},
		{token(gateway.ErrIntermediary), "check that address"},
		{token(gateway.ErrRedirect), "check that address"},
	} {
		if text := admin.Advice(fmt.Errorf("sending: %w", tt.cause)); !strings.Contains(text, tt.want) {
			t.Errorf("%v: got %q, want %q", tt.cause, text, tt.want)
		}
	}
	if text := admin.Advice(os.ErrNotExist); text != "" {
		t.Errorf("%q for what has nothing to do with the gateway", text)
	}
}

// An address with the wrong scheme is no gateway that is down.
func TestAdviceWithoutTLS(t *testing.T) {
	f := newFarm(t, gatewaytest.Config{})
	secure := func(name string) string { return strings.Replace(f.env[name], "http://", "https://", 1) }
	for name, want := range map[string]string{"AGRIMILL_BASE_URL": "the gateway has no TLS", "AGRIMILL_TOKEN_URL": "the token endpoint has no TLS"} {
		before := f.env[name]
		f.env[name] = secure(name)
		status, _, stderr := f.agrimill("tenants")
		if status != statusFailed || !strings.Contains(stderr, want+" at an https address") {
			t.Errorf("%s: status %d, %s", name, status, stderr)
		}
		f.env[name] = before
	}
}
