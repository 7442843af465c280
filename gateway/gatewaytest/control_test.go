package gatewaytest_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func TestControlAPI(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ControlPrefix: "/_control"})
	control := func(method, path, body string, status int) map[string]any {
		t.Helper()
		header := map[string]string{"Authorization": ""}
		var data []byte
		if body != "" {
			header["Content-Type"] = "application/json"
			data = []byte(body)
		}
		r := want(t, c.do(method, "/_control"+path, data, header), status)
		var answer map[string]any
		if len(r.body) > 0 {
			testkit.NoError(t, json.Unmarshal(r.body, &answer))
		}
		return answer
	}
	text := func(answer map[string]any, field string) string {
		t.Helper()
		value, _ := answer[field].(string)
		if value == "" {
			t.Fatalf("no %s in %v", field, answer)
		}
		return value
	}

	l := c.listen("")
	tenant := text(control("POST", "/tenants", "", 201), "tenant_id")
	application := control("POST", "/applications", "", 201)
	app := text(application, "application_id")
	text(application, "client_secret")
	control("POST", "/applications", `{"capabilities":[{"message_type":"a","direction":"SEND"}]}`, 201)
	control("POST", "/applications", `{"capabilities":[{"message_type":"a","direction":"?"}]}`, 400)

	control("POST", "/authorizations", `{"application_id":"`+c.app.ID+`","tenant_id":"`+tenant+`"}`, 204)
	l.next(gateway.EventAuthorizationAdded)
	control("DELETE", "/authorizations?application_id="+c.app.ID+"&tenant_id="+tenant, "", 204)
	l.next(gateway.EventAuthorizationRevoked)
	control("POST", "/authorizations", `{"application_id":"`+tenant+`","tenant_id":"`+tenant+`"}`, 400)
	control("DELETE", "/authorizations?application_id="+app+"&tenant_id="+tenant, "", 400)

	sender, receiver := pairOf(s)
	l.next(gateway.EventEndpointsListChanged)
	l.next(gateway.EventEndpointsListChanged)
	control("PUT", "/endpoints/"+sender.ID+"/name", `{"name":"by the user"}`, 204)
	control("PUT", "/routes", `{"from":"`+sender.ID+`","to":"`+receiver.ID+`","open":false}`, 204)
	l.next(gateway.EventEndpointsListChanged)
	control("PUT", "/routes", `{"from":"`+sender.ID+`","to":"`+receiver.ID+`","open":true}`, 204)
	l.next(gateway.EventEndpointsListChanged)
	control("PUT", "/routes", `{"from":"`+sender.ID+`","to":"`+sender.ID+`","open":true}`, 400)

	want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK)
	l.next(gateway.EventMessageReceived)
	entries, _ := control("GET", "/ledger", "", 200)["entries"].([]any)
	if len(entries) != 1 || entries[0].(map[string]any)["sha256"] != "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" {
		t.Errorf("ledger %v", entries)
	}
	if n := control("POST", "/streams/redeliver", "", 200)["events"]; n != 1.0 {
		t.Errorf("%v events", n)
	}
	l.next(gateway.EventMessageReceived)

	state := control("GET", "/state", "", 200)
	if endpoints, _ := state["endpoints"].([]any); len(endpoints) != 2 || state["streams"] != 1.0 {
		t.Errorf("state %v", state)
	}
	if data, _ := json.Marshal(state); strings.Contains(string(data), c.app.ClientSecret) {
		t.Error("the state holds a secret")
	}

	id := text(control("POST", "/faults", `{"operation":"listAuthorizedTenants","status":503,"times":2,"header":{"retry-after":"1"},"delay":"1ms"}`, 201), "id")
	if r := want(t, c.do("GET", "/tenants", nil, nil), 503); r.header.Get("Retry-After") != "1" {
		t.Errorf("header %v", r.header)
	}
	if faults, _ := control("GET", "/faults", "", 200)["faults"].([]any); len(faults) != 1 || faults[0].(map[string]any)["hits"] != 1.0 {
		t.Errorf("faults %v", faults)
	}
	control("DELETE", "/faults/"+id, "", 204)
	control("DELETE", "/faults/"+id, "", 404)
	want(t, c.do("GET", "/tenants", nil, nil), 200)
	control("POST", "/faults", `{"operation":"*","body":"garbage"}`, 201)
	if r := c.do("GET", "/tenants", nil, nil); string(r.body) != "garbage" {
		t.Errorf("body %s", r.body)
	}
	control("DELETE", "/faults", "", 204)
	for _, bad := range []string{`{"operation":"?"}`, `{"operation":"*","status":42}`, `{"operation":"*","delay":"soon"}`, `{`} {
		control("POST", "/faults", bad, 400)
	}

	if n := control("POST", "/streams/cut", "", 200)["streams"]; n != 1.0 {
		t.Errorf("%v streams", n)
	}
	text(control("POST", "/clock", `{"advance":"2h"}`, 200), "now")
	wantMessage(t, c.do("GET", "/tenants", nil, nil), http.StatusUnauthorized, "expired")
	control("POST", "/clock", `{"advance":"tomorrow"}`, 400)
	c.token = s.IssueToken(c.app)
	control("POST", "/tokens/expire", "", 204)
	wantMessage(t, c.do("GET", "/tenants", nil, nil), http.StatusUnauthorized, "invalid")

	control("DELETE", "/endpoints/"+sender.ID, "", 204)
	control("DELETE", "/endpoints/"+sender.ID, "", 404)
	control("PUT", "/endpoints/"+sender.ID+"/name", `{"name":"x"}`, 404)
}

func TestControlAPIRefuses(t *testing.T) {
	_, c := start(t, gatewaytest.Config{ControlPrefix: "/_control"})
	req := c.request("GET", "/_control/state", nil, nil)
	req.Host = "attacker.example:80"
	r := testkit.Must(c.send(req))(t)
	wantMessage(t, r, http.StatusForbidden, "loopback")
	wantMessage(t, c.do("POST", "/_control/tenants", nil, map[string]string{"Sec-Fetch-Site": "cross-site"}), http.StatusForbidden, "web pages")
}

// A misspelled field is refused: a fault without it is another one.
func TestControlAPIRefusesUnknownFields(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ControlPrefix: "/_control"})
	for _, tt := range []struct{ method, path, body, says string }{
		{"POST", "/faults", `{"operation":"*","stauts":503}`, `"stauts"`},
		{"POST", "/applications", `{"capability":[]}`, `"capability"`},
		{"POST", "/applications", `{"capabilities":[{"message_type":"a","direction":"SEND","to":"b"}]}`, `"to"`},
		{"POST", "/authorizations", `{"application_id":"` + c.app.ID + `","tenant":"` + s.Tenant() + `"}`, `"tenant"`},
		{"PUT", "/routes", `{"from":"a","to":"b","opened":true}`, `"opened"`},
		{"POST", "/clock", `{"advance":"1s","by":"2h"}`, `"by"`},
	} {
		r := c.do(tt.method, "/_control"+tt.path, []byte(tt.body), map[string]string{"Content-Type": "application/json"})
		wantMessage(t, r, http.StatusBadRequest, tt.says)
	}
	want(t, c.do("GET", "/tenants", nil, nil), http.StatusOK)
}

// The documentation lists every request of the control API and every field of a
// fault.
func TestControlAPIIsDocumented(t *testing.T) {
	source, document := read(t, "control.go"), read(t, "../../docs/emulator.md")
	part := func(text, from string) string {
		_, text, _ = strings.Cut(text, from)
		text, _, _ = strings.Cut(text, "\n}\n")
		return text
	}
	fields := part(read(t, "faults.go"), "type Fault struct") + part(source, "type controlFault struct")
	for _, tt := range []struct{ name, text, pattern string }{{"request", source, `handle\("([^"]+)"`}, {"field", fields, `\bjson:"([a-z_]+)"`}} {
		found := regexp.MustCompile(tt.pattern).FindAllStringSubmatch(tt.text, -1)
		if len(found) < 16 {
			t.Fatalf("only %d found", len(found))
		}
		for _, match := range found {
			if !strings.Contains(document, "`"+match[1]+"`") {
				t.Errorf("%s %s is not documented", tt.name, match[1])
			}
		}
	}
}
