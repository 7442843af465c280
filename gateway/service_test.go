package gateway_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A client secret that was rotated counts with the next token request.
func TestClientSecretIsRotated(t *testing.T) {
	var secret atomic.Pointer[gateway.Secret]
	broken := errors.New("no such file")
	w := newSpecWorld(t, gatewaytest.Config{}, func(c *gateway.Config) {
		first := c.ClientSecret
		secret.Store(&first)
		c.ClientSecret = ""
		c.ClientSecretFunc = func() (gateway.Secret, error) {
			if s := secret.Load(); s != nil {
				return *s, nil
			}
			return "", broken
		}
	})
	w.send(t, w.message("with the first secret"))
	rotated := gateway.Secret(w.RotateClientSecret(w.Application()))
	w.send(t, w.message("with the token that is there"))
	w.ExpireTokens()
	if err := w.client.SendMessage(t.Context(), w.message("x")); !errors.Is(err, gateway.ErrUnauthorized) {
		t.Fatalf("with the old secret: %v", err)
	}
	send := func() error { return w.client.SendMessage(t.Context(), w.message("x")) }
	secret.Store(nil) // the failure before is remembered for some milliseconds
	testkit.Eventually(t, "a secret that cannot be read", func() bool {
		err := send()
		return errors.Is(err, gateway.ErrToken) && errors.Is(err, gateway.ErrUnavailable) && errors.Is(err, broken)
	})
	secret.Store(&rotated)
	testkit.EventuallyNil(t, send)
	if cfg := w.client.Config(); cfg.ClientSecretFunc != nil {
		t.Error("Client.Config gives the secret away")
	}
}

func TestDeploymentSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		server gatewaytest.Config
		client func(*gateway.Config)
	}{
		"service name":        {gatewaytest.Config{ServiceName: "agrirouter"}, func(*gateway.Config) {}},
		"TLS":                 {gatewaytest.Config{TLS: true}, func(*gateway.Config) {}},
		"types in one":        {gatewaytest.Config{}, func(c *gateway.Config) { c.EventTypesEncoding = gateway.EventTypesComma }},
		"credentials in form": {gatewaytest.Config{}, func(c *gateway.Config) { c.AuthStyle = gateway.AuthStyleParams }},
		"credentials, Basic":  {gatewaytest.Config{TokenAuth: gatewaytest.TokenAuthBasic}, func(c *gateway.Config) { c.AuthStyle = gateway.AuthStyleBasic }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpecWorld(t, tt.server, tt.client)
			req := w.message("x")
			req.Filename, req.TeamsetContextID = "Äcker 東.pdf", "Gespann Süd"
			testkit.NoError(t, w.client.SendMessage(t.Context(), req))
			m := nextMessage(t, w.stream(t))
			if m.Filename != req.Filename || m.TeamsetContextID != req.TeamsetContextID || string(m.Payload) != "x" {
				t.Errorf("got %+v", m)
			}
			testkit.NoError(t, w.client.ConfirmMessages(t.Context(), m.TenantID, []gateway.MessageConfirmation{{MessageID: m.ID, EndpointID: m.ReceivingEndpointID}}))
		})
	}
}
