package gatewaytest_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

func (c *caller) endpoint(r reply) gateway.Endpoint {
	c.t.Helper()
	var e gateway.Endpoint
	testkit.NoError(c.t, json.Unmarshal(r.body, &e))
	return e
}

func (c *caller) list() []gateway.TenantEndpointInfo {
	c.t.Helper()
	var body gateway.EndpointsListResponse
	testkit.NoError(c.t, json.Unmarshal(want(c.t, c.do("GET", "/tenants/"+c.tenant+"/endpoints", nil, nil), http.StatusOK).body, &body))
	return body.Endpoints
}

// Fields omitted from a reconfiguration revert to their defaults, except the name.
func TestPutEndpoint(t *testing.T) {
	_, c := start(t, gatewaytest.Config{})
	want(t, c.put("urn:farm:1", map[string]any{
		"name": "Größe 2", "allow_delete_by_user": true, "connections_uri": "https://example.com/manage", "future": 1,
	}), http.StatusCreated)
	updated := c.endpoint(want(t, c.put("urn:farm:1", map[string]any{"capabilities": []any{}, "subscriptions": []any{}}), http.StatusOK))
	if len(updated.Capabilities) != 0 || updated.AllowDeleteByUser || updated.ConnectionsURI != "" {
		t.Errorf("updated %+v", updated)
	}
	if list := c.list(); len(list) != 1 || list[0].Name != "Größe 2" {
		t.Errorf("list %+v: the name stays when it is omitted", list)
	}
}

// A client in another language may write null for a list that holds nothing.
func TestPutEndpointWithNullLists(t *testing.T) {
	_, c := start(t, gatewaytest.Config{})
	r := want(t, c.put("farm:1", map[string]any{"capabilities": nil, "subscriptions": nil}), http.StatusCreated)
	if e := c.endpoint(r); e.Capabilities == nil || len(e.Capabilities) != 0 {
		t.Errorf("the answer is %s: an empty list is not null", r.body)
	}
}

// What gateway/TestSpecPutEndpointRequest does not send: elements of lists, and what the software version allows.
func TestPutEndpointInvalid(t *testing.T) {
	capability := func(messageType, direction any) []any {
		return []any{map[string]any{"message_type": messageType, "direction": direction}}
	}
	_, c := start(t, gatewaytest.Config{Application: gatewaytest.ApplicationConfig{Capabilities: []gateway.EndpointCapability{
		{MessageType: typeA, Direction: gateway.DirectionSendReceive}, {MessageType: typeB, Direction: gateway.DirectionReceive},
	}}})
	for _, test := range []struct {
		field   string
		value   any
		status  int
		message string
	}{
		{"capabilities", "x", 400, "parsed"},
		{"capabilities", capability("", "SEND"), 400, "message_type is missing"},
		{"capabilities", capability(typeA, "BOTH"), 400, "direction"},
		{"capabilities", capability(typeA, ""), 400, "direction"},
		{"capabilities", capability(typeB, "SEND_RECEIVE"), 400, "Capability for " + typeB + " not valid"},
		{"subscriptions", []any{map[string]any{}}, 400, "message_type is missing"},
		{"padding", strings.Repeat("x", 1<<20), 413, "larger"},
	} {
		wantMessage(t, c.put("farm:1", map[string]any{test.field: test.value}), test.status, test.message)
	}
	if len(c.list()) != 0 {
		t.Error("an endpoint was created")
	}
	want(t, c.put("farm:1", map[string]any{"capabilities": capability(typeB, "RECEIVE")}), http.StatusCreated)
}

// Slashes in the path may stand unescaped, and nothing is cleaned away.
func TestExternalIDUnescapedSlash(t *testing.T) {
	_, c := start(t, gatewaytest.Config{})
	header := map[string]string{"Content-Type": "application/json", gateway.KeyTenantID: c.tenant}
	e := c.endpoint(want(t, c.do("PUT", "/endpoints/urn:x:a//b/%2e%2e/c", c.endpointBody(nil), header), http.StatusCreated))
	if e.ExternalID != "urn:x:a//b/../c" {
		t.Errorf("external ID %q", e.ExternalID)
	}
	want(t, c.do("PUT", "/endpoints/"+url.PathEscape("urn:x:a//b/../c"), c.endpointBody(nil), header), http.StatusOK)
}

// An endpoint is one (tenant, application, external ID).
func TestSameExternalID(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	other := newCaller(t, s, s.AddApplication(gatewaytest.ApplicationConfig{}))
	s.Authorize(other.app, s.Tenant())
	first := c.endpoint(want(t, c.put("farm:1", nil), http.StatusCreated))
	second := other.endpoint(want(t, other.put("farm:1", nil), http.StatusCreated))
	c.tenant = s.AddTenant()
	s.Authorize(c.app, c.tenant)
	third := c.endpoint(want(t, c.put("farm:1", nil), http.StatusCreated))
	if first.ID == second.ID || first.ID == third.ID {
		t.Error("not three endpoints")
	}
}

// A deleted endpoint receives no more messages, not even those on their way.
func TestDeletedEndpointReceivesNothing(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ChunkSize: 10})
	sender, _ := pairOf(s)
	receiver := c.endpoint(want(t, c.put("farm:1", nil), http.StatusCreated))
	direct := map[string]string{gateway.KeyIsPublish: "false", gateway.KeyDirectRecipients: receiver.ID}
	want(t, c.post(sender.ID, payloadOf(25), direct), http.StatusOK)
	want(t, c.delete("farm:1"), http.StatusNoContent)
	wantMessage(t, c.post(sender.ID, []byte("x"), direct), http.StatusBadRequest, noRecipients)
	c.listen("").nothingBefore(s, c.app)
	for _, e := range s.Ledger() {
		if !e.Withdrawn {
			t.Errorf("entry %+v", e)
		}
	}
}
