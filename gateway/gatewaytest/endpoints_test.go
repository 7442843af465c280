package gatewaytest_test

import (
	"encoding/json"
	"net/http"
	"net/url"
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
