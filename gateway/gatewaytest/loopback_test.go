package gatewaytest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The control API answers to these callers and under these names only.
func TestIsLoopback(t *testing.T) {
	for address, loopback := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:80": true, "[::1]:80": true, "::1": true, "localhost": true, "localhost:8081": true,
		"10.0.0.1:80": false, "0.0.0.0:80": false, "example.com": false, "localhost.example.com:80": false, "[fe80::1]:80": false, "": false,
		"[::ffff:127.0.0.1]:80": true, "[::ffff:10.0.0.1]:80": false, "[::ffff:7f00:1]:80": true, "[::]:80": false, "[::127.0.0.1]:80": false,
		// Names and spellings that some resolver takes for loopback.
		"127.0.0.1.example.com": false, "127.1": false, "2130706433": false, "0x7f000001": false, "0177.0.0.1": false, "localhost.": false,
		"[::1%25lo]:80": false, "[fe80::1%lo]:80": false, "user@127.0.0.1": false, "127.0.0.1 example.com": false, "127.0.0.1:80:80": false,
	} {
		if got := isLoopback(address); got != loopback {
			t.Errorf("isLoopback(%q) = %v", address, got)
		}
	}
}

// Nobody from outside gets in, whatever the request says about its origin.
func TestControlAPIRefusesOutsiders(t *testing.T) {
	s := New(t, Config{ControlPrefix: "/_control"})
	for name, c := range map[string]struct {
		remote, host string
		header       http.Header
		want         int
	}{
		"loopback":                     {"127.0.0.1:9", "127.0.0.1:80", nil, http.StatusOK},
		"loopback, IPv6":               {"[::1]:9", "localhost:80", nil, http.StatusOK},
		"loopback, mapped":             {"[::ffff:127.0.0.1]:9", "127.0.0.1", nil, http.StatusOK},
		"outside":                      {"203.0.113.5:9", "127.0.0.1", nil, http.StatusForbidden},
		"outside, mapped":              {"[::ffff:203.0.113.5]:9", "127.0.0.1", nil, http.StatusForbidden},
		"outside, pretends":            {"203.0.113.5:9", "127.0.0.1", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, http.StatusForbidden},
		"outside, pretends otherwise":  {"203.0.113.5:9", "localhost", http.Header{"Forwarded": {"for=127.0.0.1"}, "X-Real-Ip": {"::1"}}, http.StatusForbidden},
		"behind a proxy":               {"127.0.0.1:9", "127.0.0.1", http.Header{"X-Forwarded-For": {"203.0.113.5"}}, http.StatusForbidden},
		"behind a proxy, pretends":     {"127.0.0.1:9", "127.0.0.1", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, http.StatusForbidden},
		"behind another proxy":         {"[::1]:9", "127.0.0.1", http.Header{"Forwarded": {"for=203.0.113.5"}}, http.StatusForbidden},
		"rebound name":                 {"127.0.0.1:9", "attacker.example", nil, http.StatusForbidden},
		"rebound name, looks like one": {"127.0.0.1:9", "127.0.0.1.attacker.example:80", nil, http.StatusForbidden},
		"no name":                      {"127.0.0.1:9", "", nil, http.StatusForbidden},
		"web page":                     {"127.0.0.1:9", "127.0.0.1", http.Header{"Origin": {"http://attacker.example"}}, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/_control/tokens/expire", strings.NewReader(""))
			r.RemoteAddr, r.Host = c.remote, c.host
			for key, values := range c.header {
				r.Header[key] = values
			}
			w := httptest.NewRecorder()
			s.serveControl(w, r)
			if c.want == http.StatusOK && w.Code >= 300 || c.want != http.StatusOK && w.Code != c.want {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
		})
	}
}
