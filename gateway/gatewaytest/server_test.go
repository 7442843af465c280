package gatewaytest_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestStopRestart(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	sender, _ := pairOf(s)
	base, payloads := s.BaseURL(), s.PayloadURL()
	l := c.listen("")
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	l.next(gateway.EventMessageReceived)
	s.Stop()
	s.Stop()
	if _, err := l.read(); err == nil {
		t.Error("the stream outlived the server")
	}
	if _, err := c.send(c.request("GET", "/tenants", nil, nil)); err == nil {
		t.Error("the stopped server answers")
	}
	for range 2 {
		testkit.NoError(t, s.Restart())
	}
	if s.BaseURL() != base || s.PayloadURL() != payloads {
		t.Errorf("addresses changed: %s %s", s.BaseURL(), s.PayloadURL())
	}
	c.listen("").next(gateway.EventMessageReceived)
	s.Close()
	if err := s.Restart(); err == nil {
		t.Error("a closed server restarted")
	}
}

func TestTLS(t *testing.T) {
	s, c := start(t, gatewaytest.Config{TLS: true, InlineLimit: gatewaytest.NoInline})
	if !strings.HasPrefix(s.BaseURL(), "https://") || !strings.HasPrefix(s.TokenURL(), "https://") {
		t.Fatalf("%s %s", s.BaseURL(), s.TokenURL())
	}
	sender, _ := pairOf(s)
	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	l := c.listen("")
	e := l.next(gateway.EventMessageReceived)
	if !strings.HasPrefix(e.text("payload_uri"), "https://") || string(c.content(e)) != "x" {
		t.Errorf("event %s", e.raw)
	}
	if s.CutStreams() != 1 {
		t.Error("nothing to cut")
	}
	if _, err := l.read(); err == nil {
		t.Error("the stream was not cut")
	}
	stranger := &http.Client{Transport: &http.Transport{}}
	defer stranger.CloseIdleConnections()
	if res, err := stranger.Do(c.request("GET", "/tenants", nil, nil)); err == nil {
		_ = res.Body.Close()
		t.Error("a client without the CA connected")
	}
	if !strings.Contains(string(s.CACertPEM()), "BEGIN CERTIFICATE") || s.ClientConfig().TLS == nil {
		t.Error("the CA is not offered")
	}
	plain := gatewaytest.New(t, gatewaytest.Config{})
	if plain.ClientTLS() != nil || plain.CACertPEM() != nil {
		t.Error("a CA without TLS")
	}
}

// HTTP/2 is offered on both listeners, and faults work there, too.
func TestHTTP2(t *testing.T) {
	s, c := start(t, gatewaytest.Config{TLS: true, HTTP2: true, InlineLimit: gatewaytest.NoInline})
	sender, _ := pairOf(s)
	want(t, c.post(sender.ID, []byte("payload"), nil), http.StatusOK)
	l := c.listen("")
	e := l.next(gateway.EventMessageReceived)
	for name, res := range map[string]func() (*http.Response, error){
		"service": func() (*http.Response, error) { return c.http.Do(c.request("GET", "/tenants", nil, nil)) },
		"payloads": func() (*http.Response, error) {
			return c.http.Do(c.request("GET", e.text("payload_uri"), nil, map[string]string{"Authorization": ""}))
		},
	} {
		res := testkit.Must(res())(t)
		_ = res.Body.Close()
		if res.Proto != "HTTP/2.0" || res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, status %d", name, res.Proto, res.StatusCode)
		}
	}
	if stats := s.Stats(gatewaytest.OpAny); stats.Requests == 0 || stats.HTTP2 != stats.Requests {
		t.Errorf("%d of %d requests came by HTTP/2", stats.HTTP2, stats.Requests)
	}
	if s.CutStreams() != 1 {
		t.Error("nothing to cut")
	}
	if _, err := l.read(); err == nil {
		t.Error("the stream was not cut")
	}
	c.http.CloseIdleConnections()
	for name, fault := range map[string]gatewaytest.Fault{
		"refused": {Refuse: true, Times: 1}, "answer dropped": {DropAnswer: true, Cut: gatewaytest.CutReset, Times: 1}, "cut": {CutAfter: 3, Times: 1},
	} {
		s.Inject(gatewaytest.OpListTenants, fault)
		if r, err := c.send(c.request("GET", "/tenants", nil, nil)); err == nil && r.err == nil {
			t.Errorf("%s: status %d, %d bytes", name, r.status, len(r.body))
		}
		c.http.CloseIdleConnections() // it may not have seen the cut yet
		want(t, c.do("GET", "/tenants", nil, nil), http.StatusOK)
	}
	testkit.NoError(t, s.Restart())
	c.http.CloseIdleConnections()
	want(t, c.do("GET", "/tenants", nil, nil), http.StatusOK)
}

// A certificate that is expired, or for another host, is refused by a client
// that trusts the CA.
func TestBadCertificate(t *testing.T) {
	for name, change := range map[string]func(*x509.Certificate){
		"expired":    func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) },
		"wrong host": func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"gateway.example"} },
	} {
		_, c := start(t, gatewaytest.Config{TLS: true, Certificate: change})
		_, err := c.send(c.request("GET", "/tenants", nil, nil))
		var refused *tls.CertificateVerificationError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClientConfig(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{ServiceName: "mill", TokenAuth: gatewaytest.TokenAuthParams})
	other := s.AddApplication(gatewaytest.ApplicationConfig{})
	for _, app := range []*gatewaytest.Application{s.Application(), other} {
		cfg := app.ClientConfig()
		if cfg.BaseURL != s.BaseURL() || cfg.TokenURL != s.TokenURL() || cfg.ClientID != app.ClientID || string(cfg.ClientSecret) != app.ClientSecret ||
			cfg.ServiceName != "mill" || cfg.AuthStyle != gateway.AuthStyleParams {
			t.Errorf("config of %s: %+v", app.ID, cfg)
		}
		testkit.NoError(t, cfg.Validate())
	}
}

func TestConfigValidate(t *testing.T) {
	testkit.NoError(t, (gatewaytest.Config{}).Validate())
	for field, cfg := range map[string]gatewaytest.Config{
		"Listen":          {Listen: "nonsense"},
		"PayloadListen":   {PayloadListen: "nonsense"},
		"ServiceName":     {ServiceName: "a b"},
		"TokenAuth":       {TokenAuth: -1},
		"Streams":         {Streams: 7},
		"FileOrder":       {FileOrder: 7},
		"StreamHead":      {StreamHead: 2},
		"HTTP2":           {HTTP2: true},
		"TokenLifetime":   {TokenLifetime: -time.Second},
		"KeepAlive":       {KeepAlive: -time.Second},
		"ConfirmationLag": {ConfirmationLag: -1},
		"ChunkSize":       {ChunkSize: -1},
		"InlineLimit":     {InlineLimit: -2},
		"MaxPayloadSize":  {MaxPayloadSize: -1},
		"RateLimit":       {RateLimit: -1},
		"RateBurst":       {RateBurst: -1},
		"PayloadLifetime": {PayloadLifetime: -1},
		"ControlPrefix":   {ControlPrefix: "control/"},
		"Application":     {Application: gatewaytest.ApplicationConfig{ID: "nonsense"}},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := gatewaytest.Start(cfg); err == nil {
			t.Errorf("%s: started", field)
		}
	}
}

// The address is taken: Start says so and leaves nothing behind.
func TestStartFails(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	address := strings.TrimPrefix(s.BaseURL(), "http://")
	if _, err := gatewaytest.Start(gatewaytest.Config{Listen: address}); err == nil {
		t.Error("started on a taken address")
	}
	if _, err := gatewaytest.Start(gatewaytest.Config{PayloadListen: address}); err == nil {
		t.Error("started on a taken payload address")
	}
}
