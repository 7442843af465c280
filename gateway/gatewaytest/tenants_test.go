package gatewaytest_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
)

// Each application is told of a change as it sees it; the owner alone is told of a deletion, and nobody of what
// changes nothing. gateway/TestSpecTransitions has the rows of "States and transitions".
func TestEndpointLifecycle(t *testing.T) {
	s, c := start(t, gatewaytest.Config{})
	other := newCaller(t, s, s.AddApplication(gatewaytest.ApplicationConfig{}))
	s.Authorize(other.app, s.Tenant())
	l, o := c.listen(""), other.listen("")
	mine := c.endpoint(want(t, c.put("farm:1", nil), http.StatusCreated))
	if e := l.next(gateway.EventEndpointsListChanged); e.text("tenant_id") != s.Tenant() || len(endpointsOf(e)) != 1 {
		t.Errorf("event %s", e.raw)
	}
	theirs := other.endpoint(want(t, other.put("farm:1", nil), http.StatusCreated))
	if list := endpointsOf(o.next(gateway.EventEndpointsListChanged)); len(list) != 2 || list[mine.ID]["external_id"] != nil || list[theirs.ID]["external_id"] != "farm:1" {
		t.Errorf("list %v", list)
	}
	if list := endpointsOf(l.next(gateway.EventEndpointsListChanged)); len(list) != 2 || list[theirs.ID]["routed_endpoints"] != nil || list[mine.ID]["routed_endpoints"] == nil {
		t.Errorf("list %v", list)
	}
	want(t, other.put("farm:1", nil), http.StatusOK)
	want(t, other.put("farm:1", map[string]any{"name": "other"}), http.StatusOK)
	l.nothingBefore(s, c.app)
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
		"Inject":               func() { s.Inject("sendMessage", gatewaytest.Fault{Status: 503}) }, // it would never be hit
		"Inject status":        func() { s.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 42}) },
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
	last     string
}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.failures++
	f.last = fmt.Sprintf(format, args...)
}
