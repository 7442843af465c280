package gatewaytest_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// tokenRequest asks for a token by Basic or by form parameters.
func (c *caller) tokenRequest(basic bool, secret, grant string) reply {
	c.t.Helper()
	form := url.Values{"grant_type": {grant}}
	if !basic {
		form.Set("client_id", c.app.ClientID)
		form.Set("client_secret", secret)
	}
	req := c.request("POST", c.s.TokenURL(), []byte(form.Encode()), map[string]string{
		"Content-Type": "application/x-www-form-urlencoded", "Authorization": "",
	})
	if basic {
		req.SetBasicAuth(url.QueryEscape(c.app.ClientID), url.QueryEscape(secret))
	}
	return testkit.Must(c.send(req))(c.t)
}

func TestTokenAuthentication(t *testing.T) {
	for name, test := range map[string]struct {
		auth          gatewaytest.TokenAuth
		basic, params int
	}{
		"both":   {gatewaytest.TokenAuthBoth, http.StatusOK, http.StatusOK},
		"basic":  {gatewaytest.TokenAuthBasic, http.StatusOK, http.StatusUnauthorized},
		"params": {gatewaytest.TokenAuthParams, http.StatusUnauthorized, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := start(t, gatewaytest.Config{TokenAuth: test.auth, Application: gatewaytest.ApplicationConfig{ClientID: "an id", ClientSecret: "s%c:r+t"}})
			want(t, c.tokenRequest(true, c.app.ClientSecret, "client_credentials"), test.basic)
			want(t, c.tokenRequest(false, c.app.ClientSecret, "client_credentials"), test.params)
		})
	}
}

func TestTokenErrors(t *testing.T) {
	_, c := start(t, gatewaytest.Config{})
	for _, test := range []struct {
		secret, grant string
		status        int
		code          string
	}{
		{"wrong", "client_credentials", http.StatusUnauthorized, "invalid_client"},
		{c.app.ClientSecret, "password", http.StatusBadRequest, "unsupported_grant_type"},
		{c.app.ClientSecret, "", http.StatusBadRequest, "invalid_request"},
	} {
		r := want(t, c.tokenRequest(true, test.secret, test.grant), test.status)
		var body struct {
			Error string `json:"error"`
		}
		if err := json.Unmarshal(r.body, &body); err != nil || body.Error != test.code {
			t.Errorf("error %q, want %q", body.Error, test.code)
		}
		if strings.Contains(string(r.body), c.app.ClientSecret) {
			t.Error("the secret is in the answer")
		}
	}
}

// Every operation of the service wants a token; the answer is the same 401.
func TestUnauthorized(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	for _, op := range []struct{ method, path string }{
		{"POST", "/messages"},
		{"GET", "/events"},
		{"POST", "/confirmations"},
		{"GET", "/tenants"},
		{"GET", "/tenants/" + s.Tenant() + "/endpoints"},
		{"PUT", "/endpoints/urn:a:b"},
		{"DELETE", "/endpoints/urn:a:b"},
	} {
		for name, authorization := range map[string]string{
			"missing": "", "invalid": "Bearer nonsense", "other scheme": "Basic " + c.token, "empty": "Bearer ",
		} {
			r := c.do(op.method, op.path, []byte("x"), map[string]string{"Authorization": authorization})
			wantMessage(t, r, http.StatusUnauthorized, "access token")
			if r.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s (%s): no WWW-Authenticate", op.method, op.path, name)
			}
		}
	}
}
