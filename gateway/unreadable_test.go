package gateway

import (
	"bytes"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// One bad tenant or endpoint in an answer hides none of the others, and is reported.
func TestABadEntryHidesNoOther(t *testing.T) {
	s := newService(t)
	bad := without(endpointInfoAnswer(), "capabilities")
	bad["id"] = testRecipient
	s.mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]any{"tenants": []any{
			map[string]any{"tenant_id": testTenant, "endpoints": []any{bad, nil, endpointInfoAnswer()}},
			map[string]any{"tenant_id": "no UUID", "endpoints": []any{}},
			nil,
			map[string]any{"tenant_id": testContext, "endpoints": "x"},
			map[string]any{"tenant_id": testMessage, "endpoints": nil},
		}})
	})
	s.mux.HandleFunc("GET /tenants/{id}/endpoints", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]any{"endpoints": []any{bad, endpointInfoAnswer()}})
	})
	var log bytes.Buffer
	c := s.client(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	tenants := testkit.Must(c.ListAuthorizedTenants(t.Context()))(t)
	leftOut := &EntryError{Field: "tenants[0].endpoints[0].capabilities", Reason: reasonMissing, EndpointID: testRecipient}
	isNull := &EntryError{Field: "tenants[0].endpoints[1]", Reason: reasonNotObject}
	noList := &EntryError{Field: "tenants[3].endpoints", Reason: reasonNotArray}
	want := []TenantInfo{
		{ID: testTenant, Endpoints: []TenantEndpointInfo{wantEndpointInfo()}, Unreadable: []*EntryError{leftOut, isNull}},
		{ID: testContext, Unreadable: []*EntryError{noList}},
		{ID: testMessage, Endpoints: []TenantEndpointInfo{}},
	}
	testkit.Equal(t, tenants, want)
	if n := strings.Count(log.String(), "skipped"); strings.Count(log.String(), "\n") != 1 || n == 0 || !strings.Contains(log.String(), "count=5") {
		t.Errorf("log %s", log.String())
	}

	one, err := c.TenantEndpoints(t.Context(), testTenant)
	leftOut = &EntryError{Field: "endpoints[0].capabilities", Reason: reasonMissing, EndpointID: testRecipient}
	if err != nil || !reflect.DeepEqual(one, TenantInfo{ID: testTenant, Endpoints: []TenantEndpointInfo{wantEndpointInfo()}, Unreadable: []*EntryError{leftOut}}) {
		t.Errorf("got %+v, %v", one, err)
	}
	if list, err := c.ListTenantEndpoints(t.Context(), testTenant); err != nil || len(list) != 1 {
		t.Errorf("got %+v, %v", list, err)
	}
}
