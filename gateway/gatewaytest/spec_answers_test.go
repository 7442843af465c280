package gatewaytest_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// shape is the fields of a resource: those that are always there, and those
// that may be left out. A trailing ? marks the latter.
type shape []string

// check reports fields that the specification does not have, and required ones
// that are missing.
func (s shape) check(t *testing.T, what string, o map[string]any) {
	t.Helper()
	known := map[string]bool{}
	for _, f := range s {
		name, optional := strings.CutSuffix(f, "?")
		known[name] = true
		if value, given := o[name]; !optional && (!given || value == nil) {
			t.Errorf("%s has no %s: %v", what, name, o)
		}
		if value, given := o[name]; given && value == nil {
			t.Errorf("%s has %s null: left out means left out", what, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !known[name] {
			t.Errorf("%s has %s, which the specification does not know", what, name)
		}
	}
}

var (
	specEndpoint = shape{
		"id", "external_id", "endpoint_type", "tenant_id", "application_id", "software_version_id", "capabilities",
		"allow_delete_by_user?", "connections_uri?",
	}
	specCapability = shape{"message_type", "direction"}
	specInfo       = shape{
		"id", "external_id?", "name", "endpoint_type", "application_id", "tenant_id", "owned_by_your_application", "capabilities", "routed_endpoints?",
	}
	specTypes  = shape{"can_send", "can_receive"}
	specRoutes = shape{"can_send_to?", "can_receive_from?"}
	specTenant = shape{"tenant_id", "endpoints"}
	specError  = shape{"message"}
	specEvents = map[gateway.EventType]shape{
		gateway.EventMessageReceived: {
			"event_type", "id", "app_message_id", "message_type", "sent_at", "received_at?", "payload?", "payload_uri?",
			"receiving_endpoint_id", "filename?", "tenant_id?", "teamset_context_id?",
		},
		gateway.EventFileReceived: {
			"event_type", "receiving_endpoint_id", "message_type", "size", "message_ids", "payload?", "payload_uri?",
			"filename?", "tenant_id?", "teamset_context_id?",
		},
		gateway.EventEndpointDeleted:      {"event_type", "id", "external_id"},
		gateway.EventEndpointsListChanged: {"event_type", "tenant_id", "endpoints"},
		gateway.EventAuthorizationAdded:   {"event_type", "tenant", "scope"},
		gateway.EventAuthorizationRevoked: {"event_type", "tenant_id", "scope"},
	}
)

func objects(t *testing.T, o map[string]any, key string) []map[string]any {
	t.Helper()
	list, ok := o[key].([]any)
	if !ok {
		t.Fatalf("%s is no array: %v", key, o)
	}
	var all []map[string]any
	for _, item := range list {
		all = append(all, item.(map[string]any))
	}
	return all
}

func checkInfos(t *testing.T, o map[string]any) {
	t.Helper()
	for _, info := range objects(t, o, "endpoints") {
		specInfo.check(t, "TenantEndpointInfo", info)
		specTypes.check(t, "TenantEndpointCapabilities", info["capabilities"].(map[string]any))
		if routes, given := info["routed_endpoints"].(map[string]any); given {
			specRoutes.check(t, "RoutedEndpoints", routes)
		}
		_, external := info["external_id"]
		_, routes := info["routed_endpoints"]
		if own := info["owned_by_your_application"].(bool); own != routes || own != external {
			t.Errorf("routes and external ID are for the own endpoints: %v", info)
		}
	}
}

// Answers and events have the fields that the specification gives them: all
// that are required, and no others.
func TestSpecAnswers(t *testing.T) {
	s, c := start(t, gatewaytest.Config{ChunkSize: 10})
	sender, _ := pairOf(s)
	other := s.AddApplication(gatewaytest.ApplicationConfig{})
	s.Authorize(other, s.Tenant())
	s.AddEndpoint(gatewaytest.EndpointConfig{App: other, Receive: []string{typeA}})
	object := func(t *testing.T, r reply, status int) map[string]any {
		t.Helper()
		var o map[string]any
		testkit.NoError(t, json.Unmarshal(want(t, r, status).body, &o))
		return o
	}
	t.Run("Endpoint", func(t *testing.T) {
		for _, r := range []map[string]any{
			object(t, c.put("farm:1", nil), http.StatusCreated),
			object(t, c.put("farm:1", map[string]any{"allow_delete_by_user": true, "connections_uri": "https://fmis.example/"}), http.StatusOK),
		} {
			specEndpoint.check(t, "Endpoint", r)
			for _, capability := range objects(t, r, "capabilities") {
				specCapability.check(t, "EndpointCapability", capability)
			}
		}
	})
	t.Run("EndpointsListResponse", func(t *testing.T) {
		o := object(t, c.do("GET", "/tenants/"+s.Tenant()+"/endpoints", nil, nil), http.StatusOK)
		shape{"endpoints"}.check(t, "EndpointsListResponse", o)
		checkInfos(t, o)
	})
	t.Run("TenantsListResponse", func(t *testing.T) {
		o := object(t, c.do("GET", "/tenants", nil, nil), http.StatusOK)
		shape{"tenants"}.check(t, "TenantsListResponse", o)
		for _, tenant := range objects(t, o, "tenants") {
			specTenant.check(t, "TenantInfo", tenant)
			checkInfos(t, tenant)
		}
	})
	t.Run("ErrorResponse", func(t *testing.T) {
		for _, r := range []struct {
			reply  reply
			status int
		}{
			{c.do("GET", "/tenants/nonsense/endpoints", nil, nil), http.StatusBadRequest},
			{c.do("GET", "/tenants", nil, map[string]string{"Authorization": "Bearer x"}), http.StatusUnauthorized},
			{c.do("GET", "/tenants/"+s.AddTenant()+"/endpoints", nil, nil), http.StatusForbidden},
			{c.delete("farm:none"), http.StatusNotFound},
			{c.put("farm:1", map[string]any{"padding": strings.Repeat("x", 1<<20)}), http.StatusRequestEntityTooLarge},
		} {
			specError.check(t, "ErrorResponse", object(t, r.reply, r.status))
		}
	})
	t.Run("empty bodies", func(t *testing.T) {
		for _, r := range []reply{
			want(t, c.post(sender.ID, []byte("x"), nil), http.StatusOK),
			want(t, c.confirm(gateway.MessageConfirmation{MessageID: sender.ID, EndpointID: sender.ID}), http.StatusAccepted),
			want(t, c.delete("farm:1"), http.StatusNoContent),
		} {
			if len(r.body) != 0 {
				t.Errorf("body %s", r.body)
			}
		}
	})
	t.Run("events", func(t *testing.T) {
		l := c.listen("")
		tenant := s.AddTenant()
		want(t, c.post(sender.ID, payloadOf(25), map[string]string{gateway.KeyFilename: "f", gateway.KeyTeamsetContextID: "t"}), http.StatusOK)
		s.Authorize(c.app, tenant)
		s.Revoke(c.app, tenant, gateway.ScopeEndpointsManage)
		s.DeleteEndpointByUser(sender.ID)
		seen := map[gateway.EventType]bool{}
		for len(seen) < len(specEvents) {
			e := testkit.Must(l.read())(t)
			name := gateway.EventType(e.name)
			seen[name] = true
			specEvents[name].check(t, e.name, e.data)
			switch name {
			case gateway.EventEndpointsListChanged:
				checkInfos(t, e.data)
			case gateway.EventAuthorizationAdded:
				specTenant.check(t, "TenantInfo", e.data["tenant"].(map[string]any))
			case gateway.EventMessageReceived, gateway.EventFileReceived:
				_, payload := e.data["payload"]
				_, uri := e.data["payload_uri"]
				if payload == uri {
					t.Errorf("one of payload and payload_uri is there: %s", e.raw)
				}
			}
		}
	})
}
