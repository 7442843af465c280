package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

func testConfig() Config {
	return Config{BaseURL: "https://gateway.example/v1/", TokenURL: "https://auth.example/token", ClientID: "a", ClientSecret: testSecret}
}

func TestConfigDefaults(t *testing.T) {
	given := testConfig()
	c := newTestClient(t, given)
	got := c.Config()
	if got.ClientSecret != "" {
		t.Error("Config gives the secret away")
	}
	if given.Retry != (RetryConfig{}) || given.Logger != nil {
		t.Error("the caller's configuration was changed")
	}
	if got.ServiceName != "router" || got.StreamIdleTimeout != 2*time.Minute || got.MaxEventSize != 16<<20 || got.MaxPayloadSize != 256<<20 ||
		got.MaxResponseSize != 64<<20 || got.RequestTimeout != 30*time.Second || got.TokenTimeout != 30*time.Second ||
		got.StreamConnectTimeout != 30*time.Second || got.PayloadIdleTimeout != 30*time.Second ||
		got.AllowPrivatePayloadRedirects || got.MinTransferRate != 128<<10 || got.MaxIdleConnsPerHost != 256 ||
		got.PingInterval != 10*time.Second || got.AuthStyle != AuthStyleBasic || got.EventTypesEncoding != EventTypesRepeated || got.UserAgent != "agrimill" || got.Logger == nil {
		t.Errorf("defaults: %+v", got)
	}
	if got.Retry != (RetryConfig{MaxAttempts: 5, InitialBackoff: 500 * time.Millisecond, MaxBackoff: 30 * time.Second, MaxRetryAfter: 5 * time.Minute}) {
		t.Errorf("defaults: %+v", got.Retry)
	}
	if got.RateLimit != (RateLimitConfig{MinRate: 1, Growth: 0.05, Pause: time.Second}) {
		t.Errorf("defaults: %+v", got.RateLimit)
	}
	if c.base != "https://gateway.example/v1" {
		t.Errorf("base %q", c.base)
	}
}

// Who has short timeouts does not meet a dead connection for long either.
func TestPingIntervalFollowsTheTimeouts(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   time.Duration
	}{
		"short request":  {func(c *Config) { c.RequestTimeout = 3 * time.Second }, 3 * time.Second},
		"short silence":  {func(c *Config) { c.StreamIdleTimeout, c.RequestTimeout = 6*time.Second, time.Hour }, 6 * time.Second},
		"long timeouts":  {func(c *Config) { c.RequestTimeout, c.TokenTimeout = time.Hour, time.Hour }, defaultPingInterval},
		"no timeout":     {func(c *Config) { c.RequestTimeout = Off }, defaultPingInterval},
		"one of its own": {func(c *Config) { c.RequestTimeout, c.PingInterval = time.Second, time.Minute }, time.Minute},
		"off":            {func(c *Config) { c.PingInterval = Off }, Off},
	} {
		cfg := testConfig()
		tt.change(&cfg)
		if got := newTestClient(t, cfg).Config().PingInterval; got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestConfigRules(t *testing.T) {
	tests := []struct {
		field  string // empty: valid
		change func(*Config)
	}{
		{"", func(*Config) {}},
		{"", func(c *Config) { c.TokenURL += "?audience=x" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "gateway.example" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "ftp://gateway.example" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "https://u:p@gateway.example" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "https://gateway.example/?a=b" }},
		{"BaseURL", func(c *Config) { c.BaseURL = "https://gateway.example/#a" }},
		{"TokenURL", func(c *Config) { c.TokenURL = "" }},
		{"TokenURL", func(c *Config) { c.TokenURL = "https://[" }},
		{"ClientID", func(c *Config) { c.ClientID = "" }},
		{"ClientSecret", func(c *Config) { c.ClientSecret = "" }},
		{"ClientSecretFunc", func(c *Config) { c.ClientSecretFunc = func() (Secret, error) { return "", nil } }},
		{"", func(c *Config) { c.ClientSecret, c.ClientSecretFunc = "", func() (Secret, error) { return "", nil } }},
		{"AuthStyle", func(c *Config) { c.AuthStyle = 7 }},
		{"EventTypesEncoding", func(c *Config) { c.EventTypesEncoding = -1 }},
		{"ServiceName", func(c *Config) { c.ServiceName = "a b" }},
		{"ServiceName", func(c *Config) { c.ServiceName = "a:\r\n" }},
		{"UserAgent", func(c *Config) { c.UserAgent = "a\r\nb" }},
		{"", func(c *Config) {
			c.StreamIdleTimeout, c.PayloadIdleTimeout, c.RequestTimeout, c.StreamConnectTimeout = Off, Off, Off, Off
		}},
		{"StreamIdleTimeout", func(c *Config) { c.StreamIdleTimeout = -2 }},
		{"StreamConnectTimeout", func(c *Config) { c.StreamConnectTimeout = -2 }},
		{"RequestTimeout", func(c *Config) { c.RequestTimeout = -2 }},
		{"PayloadIdleTimeout", func(c *Config) { c.PayloadIdleTimeout = -2 }},
		{"PingInterval", func(c *Config) { c.PingInterval = -2 }},
		{"", func(c *Config) { c.PingInterval = Off }},
		{"TokenTimeout", func(c *Config) { c.TokenTimeout = -1 }},
		{"MaxEventSize", func(c *Config) { c.MaxEventSize = -1 }},
		{"MaxPayloadSize", func(c *Config) { c.MaxPayloadSize = -1 }},
		{"MaxResponseSize", func(c *Config) { c.MaxResponseSize = -1 }},
		{"", func(c *Config) { c.MaxResponseSize = math.MaxInt64 }},
		{"MinTransferRate", func(c *Config) { c.MinTransferRate = -1 }},
		{"MaxIdleConnsPerHost", func(c *Config) { c.MaxIdleConnsPerHost = -1 }},
		{"TLS", func(c *Config) { c.TLS = &tls.Config{InsecureSkipVerify: true} }},
		{"Retry.MaxAttempts", func(c *Config) { c.Retry.MaxAttempts = -2 }},
		{"", func(c *Config) { c.Retry.MaxAttempts = UnlimitedAttempts }},
		{"Retry.MaxBackoff", func(c *Config) { c.Retry.InitialBackoff = time.Minute }},
		{"Retry.InitialBackoff", func(c *Config) { c.Retry.InitialBackoff = -1 }},
		{"Retry.MaxRetryAfter", func(c *Config) { c.Retry.MaxRetryAfter = -2 }},
		{"RateLimit.MinRate", func(c *Config) { c.RateLimit.MinRate = -1 }},
		{"RateLimit.MinRate", func(c *Config) { c.RateLimit.MinRate = math.NaN() }},
		{"RateLimit.Growth", func(c *Config) { c.RateLimit.Growth = -1 }},
		{"RateLimit.Pause", func(c *Config) { c.RateLimit.Pause = -1 }},
	}
	for _, tt := range tests {
		cfg := testConfig()
		tt.change(&cfg)
		checkValidation(t, cfg.Validate(), tt.field)
		_, err := New(cfg)
		if (err != nil) != (tt.field != "") {
			t.Errorf("New: %v, want an error of %q", err, tt.field)
		}
	}
	_, err := New(Config{})
	for _, field := range []string{"BaseURL", "TokenURL", "ClientID", "ClientSecret"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

func TestConfigKeepsTheSecretOutOfPrint(t *testing.T) {
	c := testConfig()
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "config", c)
	for _, s := range []string{fmt.Sprint(c), fmt.Sprintf("%v %+v %#v", c, c, c), log.String()} {
		if strings.Contains(s, "s3cret") || !strings.Contains(s, "gateway.example") {
			t.Errorf("printed as %s", s)
		}
	}
}

func TestClientKeepsTheSecretOutOfPrint(t *testing.T) {
	// Without a network, whose goroutines would write while package fmt reads without locks.
	mux, _ := offlineMux()
	c := offline(t, mux)
	mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, map[string]any{"tenants": []any{}}) })
	if _, err := c.ListAuthorizedTenants(t.Context()); err != nil { // so that there is a token, too
		t.Fatal(err)
	}
	if err := c.Close(); err != nil { // the same holds for the token request
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("start", "client", c, "holder", struct{ C *Client }{c})
	type holder struct {
		c    *Client
		Open *Client
	}
	for _, v := range []any{c, holder{c, c}, &holder{c, c}, []*Client{c}, map[string]any{"client": c}, reflect.ValueOf(c).Elem()} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			printed := fmt.Sprintf(verb, v) + log.String()
			for _, secret := range []string{testSecret, "s3cret", fmt.Sprintf("%x", testSecret), "token-1"} {
				if strings.Contains(printed, secret) {
					t.Errorf("%T is printed with %s as %s", v, verb, printed)
				}
			}
		}
	}
	if got, want := fmt.Sprintf("%v", c), "gateway.Client(https://gateway.example)"; got != want {
		t.Errorf("printed as %s, want %s", got, want)
	}
}

func TestWarnings(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("PUT /endpoints/{id}", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, testEndpointAnswer()) })
	s.mux.HandleFunc("POST /messages", fail(503, "down"))
	var log bytes.Buffer
	cfg := s.config()
	cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := newTestClient(t, cfg)
	req := testPutRequest()
	req.EndpointType = "farming_software"
	for range 3 {
		if _, _, err := c.PutEndpoint(t.Context(), testTenant, "farm:1", req); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "deprecated"); n != 1 {
		t.Errorf("warned %d times about the deprecated type: %s", n, &log)
	}
	testkit.ErrorIs(t, c.SendMessage(t.Context(), testMessageRequest()), ErrUnavailable)
	if n := strings.Count(log.String(), "request failed"); n != 3 {
		t.Errorf("%d attempts in the log: %s", n, &log)
	}
	for _, secret := range []string{"s3cret", "token-1", "payload"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds %q: %s", secret, &log)
		}
	}
	if strings.Contains(log.String(), "without TLS") {
		t.Error("warned about a loopback address")
	}
	cfg.BaseURL = "http://gateway.example"
	newTestClient(t, cfg)
	testkit.Contains(t, log.String(), "without TLS")
}
