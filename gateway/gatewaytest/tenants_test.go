package gatewaytest_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

func (c *caller) tenants() []gateway.TenantInfo {
	c.t.Helper()
	var body gateway.TenantsListResponse
	if err := json.Unmarshal(want(c.t, c.do("GET", "/tenants", nil, nil), http.StatusOK).body, &body); err != nil {
		c.t.Fatal(err)
	}
	return body.Tenants
}

// Nothing of a tenant is visible before the first own endpoint, all of it after;
// external IDs and routes only of own endpoints.
func TestTenantListing(t *testing.T) {
	s, _ := start(t, gatewaytest.Config{})
	other := newCaller(t, s, s.AddApplication(gatewaytest.ApplicationConfig{}))
	s.Authorize(other.app, s.Tenant())
	sender, receiver := pairOf(s)
	legacy := s.AddEndpoint(gatewaytest.EndpointConfig{Type: gateway.EndpointTypeCommunicationUnit, Send: []string{typeB, typeA}})

	tenants := other.tenants()
	if len(tenants) != 1 || tenants[0].ID != s.Tenant() || len(tenants[0].Endpoints) != 0 || len(other.list()) != 0 {
		t.Fatalf("tenants %+v", tenants)
	}
	if body := string(other.do("GET", "/tenants", nil, nil).body); !strings.Contains(body, `"endpoints":[]`) {
		t.Errorf("body %s", body)
	}
	mine := s.AddEndpoint(gatewaytest.EndpointConfig{App: other.app, ExternalID: "o:1", Send: []string{typeA}, Receive: []string{typeA}})
	list := other.list()
	if len(list) != 4 || len(other.tenants()[0].Endpoints) != 4 {
		t.Fatalf("list %+v", list)
	}
	for _, info := range list {
		own := info.ID == mine.ID
		if info.OwnedByYourApplication != own || (info.ExternalID != "") != own || (info.RoutedEndpoints != nil) != own {
			t.Errorf("endpoint %+v", info)
		}
		if info.TenantID != s.Tenant() || info.Name == "" || info.Capabilities.CanSend == nil || info.Capabilities.CanReceive == nil {
			t.Errorf("endpoint %+v", info)
		}
		switch info.ID {
		case mine.ID:
			to, from := info.RoutedEndpoints.CanSendTo, info.RoutedEndpoints.CanReceiveFrom
			if len(to) != 1 || !slices.Equal(to[receiver.ID], []string{typeA}) {
				t.Errorf("can_send_to %v", to)
			}
			if len(from) != 2 || !slices.Equal(from[sender.ID], []string{typeA}) || !slices.Equal(from[legacy.ID], []string{typeA}) {
				t.Errorf("can_receive_from %v", from)
			}
		case legacy.ID:
			if info.EndpointType != gateway.EndpointTypeCommunicationUnit || !slices.Equal(info.Capabilities.CanSend, []string{typeB, typeA}) {
				t.Errorf("endpoint %+v", info)
			}
		}
	}
}

func TestTenantEndpointsRefused(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	wantMessage(t, c.do("GET", "/tenants/nonsense/endpoints", nil, nil), http.StatusBadRequest, "UUID")
	for _, id := range []string{uuid.NewString(), s.AddTenant()} {
		wantMessage(t, c.do("GET", "/tenants/"+id+"/endpoints", nil, nil), http.StatusForbidden, id)
	}
	want(t, c.do("GET", "/tenants/"+strings.ToUpper(s.Tenant())+"/endpoints", nil, nil), http.StatusOK)
}

// Rows of "States and transitions": endpoints by the API.
func TestEndpointLifecycle(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	other := newCaller(t, s, s.AddApplication(gatewaytest.ApplicationConfig{}))
	s.Authorize(other.app, s.Tenant())
	l, o := c.listen(""), other.listen("")

	// The other application owns nothing here yet, so it gets no event.
	mine := c.endpoint(want(t, c.put("farm:1", nil), http.StatusCreated))
	if e := l.next(gateway.EventEndpointsListChanged); e.text("tenant_id") != s.Tenant() || len(endpointsOf(e)) != 1 {
		t.Errorf("event %s", e.raw)
	}
	o.nothingBefore(s, other.app)

	// Its first endpoint: now both get an event, each with its own view.
	theirs := other.endpoint(want(t, other.put("farm:1", nil), http.StatusCreated))
	if list := endpointsOf(o.next(gateway.EventEndpointsListChanged)); len(list) != 2 || list[mine.ID]["external_id"] != nil || list[theirs.ID]["external_id"] != "farm:1" {
		t.Errorf("list %v", list)
	}
	if list := endpointsOf(l.next(gateway.EventEndpointsListChanged)); len(list) != 2 || list[theirs.ID]["routed_endpoints"] != nil || list[mine.ID]["routed_endpoints"] == nil {
		t.Errorf("list %v", list)
	}

	// Reconfigured: capabilities are a change, a name or nothing at all is none.
	want(t, other.put("farm:1", nil), http.StatusOK)
	want(t, other.put("farm:1", map[string]any{"name": "other"}), http.StatusOK)
	want(t, other.put("farm:1", map[string]any{"capabilities": []any{}}), http.StatusOK)
	l.next(gateway.EventEndpointsListChanged)
	o.next(gateway.EventEndpointsListChanged)
	l.nothingBefore(s, c.app)

	// Deleted: ENDPOINT_DELETED to the owner only, then the list to all.
	want(t, other.delete("farm:1"), http.StatusNoContent)
	if e := o.next(gateway.EventEndpointDeleted); e.text("id") != theirs.ID || e.text("external_id") != "farm:1" {
		t.Errorf("event %s", e.raw)
	}
	if list := endpointsOf(o.next(gateway.EventEndpointsListChanged)); len(list) != 0 {
		t.Errorf("list %v", list)
	}
	if list := endpointsOf(l.next(gateway.EventEndpointsListChanged)); len(list) != 1 {
		t.Errorf("list %v", list)
	}

	// By the user, although the endpoint does not allow it.
	s.DeleteEndpointByUser(mine.ID)
	if e := l.next(gateway.EventEndpointDeleted); e.text("id") != mine.ID {
		t.Errorf("event %s", e.raw)
	}
	l.next(gateway.EventEndpointsListChanged)
	l.nothingBefore(s, c.app)
	o.nothingBefore(s, other.app)
}

func endpointsOf(e event) map[string]map[string]any {
	list := map[string]map[string]any{}
	items, _ := e.data["endpoints"].([]any)
	for _, item := range items {
		info, _ := item.(map[string]any)
		id, _ := info["id"].(string)
		list[id] = info
	}
	return list
}

// Rows of "States and transitions": authorizations, by the user.
func TestAuthorizationLifecycle(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	l := c.listen("")
	tenant := s.AddTenant()
	want(t, c.do("GET", "/tenants/"+tenant+"/endpoints", nil, nil), http.StatusForbidden)

	s.Authorize(c.app, tenant)
	s.Authorize(c.app, tenant) // held already
	e := l.next(gateway.EventAuthorizationAdded)
	info, _ := e.data["tenant"].(map[string]any)
	if endpoints, _ := info["endpoints"].([]any); info["tenant_id"] != tenant || endpoints == nil || len(endpoints) != 0 || e.text("scope") != "endpoints:manage" {
		t.Errorf("event %s", e.raw)
	}
	s.AuthorizeScope(c.app, tenant, "other:scope")
	if e := l.next(gateway.EventAuthorizationAdded); e.text("scope") != "other:scope" {
		t.Errorf("event %s", e.raw)
	}
	if n := len(c.tenants()); n != 2 {
		t.Errorf("%d tenants: a tenant with two authorizations is listed once", n)
	}

	c.tenant = tenant
	first := c.endpoint(want(t, c.put("farm:1", nil), http.StatusCreated))
	second := c.endpoint(want(t, c.put("farm:2", nil), http.StatusCreated))
	l.next(gateway.EventEndpointsListChanged)
	l.next(gateway.EventEndpointsListChanged)
	want(t, c.post(first.ID, []byte("x"), nil), http.StatusOK)
	message := l.next(gateway.EventMessageReceived)

	// The revocation first, then one ENDPOINT_DELETED for each.
	s.Revoke(c.app, tenant, "endpoints:manage")
	if e := l.next(gateway.EventAuthorizationRevoked); e.text("tenant_id") != tenant || e.text("scope") != "endpoints:manage" {
		t.Errorf("event %s", e.raw)
	}
	for _, id := range []string{first.ID, second.ID} {
		if e := l.next(gateway.EventEndpointDeleted); e.text("id") != id {
			t.Errorf("event %s", e.raw)
		}
	}
	// The other scope stays in effect: the tenant is still seen, but not managed.
	l.next(gateway.EventEndpointsListChanged)
	if n := len(c.list()); n != 0 {
		t.Errorf("%d endpoints", n)
	}
	wantMessage(t, c.put("farm:1", nil), http.StatusForbidden, "endpoints:manage")
	wantMessage(t, c.delete("farm:1"), http.StatusForbidden, "endpoints:manage")
	want(t, c.confirm(message.pair()), http.StatusAccepted)

	s.Revoke(c.app, tenant, "other:scope")
	l.next(gateway.EventAuthorizationRevoked)
	l.nothingBefore(s, c.app)
	want(t, c.put("farm:1", nil), http.StatusForbidden)
	want(t, c.post(first.ID, []byte("x"), nil), http.StatusForbidden)
	want(t, c.confirm(message.pair()), http.StatusForbidden)
	want(t, c.do("GET", "/tenants/"+tenant+"/endpoints", nil, nil), http.StatusForbidden)
	if n := len(c.tenants()); n != 1 {
		t.Errorf("%d tenants", n)
	}
}

// Revoking a scope that endpoints do not depend on removes none.
func TestRevokeOtherScope(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	s.AuthorizeScope(c.app, s.Tenant(), "other:scope")
	want(t, c.put("farm:1", nil), http.StatusCreated)
	l := c.listen("")
	s.Revoke(c.app, s.Tenant(), "other:scope")
	l.next(gateway.EventAuthorizationRevoked)
	l.nothingBefore(s, c.app)
	want(t, c.put("farm:1", nil), http.StatusOK)
}

// Lifecycle events reach streams that are open; a later one is not told.
func TestLifecycleIsLive(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	pairOf(s)
	c.listen("").nothingBefore(s, c.app)
}

func TestMistakesFailTheTest(t *testing.T) {
	fake := &fakeTB{TB: t}
	s := gatewaytest.New(fake, gatewaytest.Config{})
	id := uuid.NewString()
	for name, mistake := range map[string]func(){
		"AddEndpoint":          func() { s.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "nonsense"}) },
		"AddEndpoint tenant":   func() { s.AddEndpoint(gatewaytest.EndpointConfig{Tenant: id}) },
		"AddApplication":       func() { s.AddApplication(gatewaytest.ApplicationConfig{ID: "nonsense"}) },
		"Authorize":            func() { s.Authorize(s.Application(), id) },
		"Revoke":               func() { s.Revoke(s.Application(), s.Tenant(), "nonsense") },
		"DeleteEndpointByUser": func() { s.DeleteEndpointByUser(id) },
		"SetUserName":          func() { s.SetUserName(id, "x") },
		"SetRoute":             func() { s.SetRoute(id, id, true) },
	} {
		fake.failures = 0
		mistake()
		if fake.failures != 1 {
			t.Errorf("%s: %d failures", name, fake.failures)
		}
	}
}

// fakeTB counts failures instead of ending the test.
type fakeTB struct {
	gatewaytest.TB
	failures int
}

func (f *fakeTB) Fatalf(string, ...any) { f.failures++ }
