package gateway_test

import (
	"testing"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The transitions that the specification describes for endpoints and authorizations, in
// its order: what triggers them, what the client returns, which events follow
// in which order, and what the directory makes of them.
func TestSpecTransitions(t *testing.T) {
	type world struct {
		*specWorld
		events    *gateway.EventStream
		directory *gateway.Directory
	}
	open := func(t *testing.T) *world {
		w := &world{specWorld: newSpecWorld(t, gatewaytest.Config{})}
		w.events = w.stream(t)
		w.directory = gateway.NewDirectory(w.client)
		testkit.NoError(t, w.directory.Sync(t.Context()))
		return w
	}
	// follow reads exactly these events and hands them to the directory.
	follow := func(t *testing.T, w *world, types ...gateway.EventType) (list []gateway.Event) {
		t.Helper()
		for _, name := range types {
			e := next(t, w.events)
			if e.Type() != name {
				t.Fatalf("got %+v, want %s", e, name)
			}
			w.directory.HandleEvent(e)
			list = append(list, e)
		}
		w.nothingElse(t, w.events, w.Application())
		return list
	}

	t.Run("endpoint created", func(t *testing.T) {
		w := open(t)
		e, created, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", w.putRequest())
		if err != nil || !created {
			t.Fatal(created, err)
		}
		follow(t, w, gateway.EventEndpointsListChanged)
		if _, known := w.directory.Endpoint(e.ID); !known {
			t.Error("not in the directory")
		}
	})
	t.Run("endpoint reconfigured", func(t *testing.T) {
		w := open(t)
		e, created, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:sender", w.putRequest())
		if err != nil || created || e.ID != w.sender.ID {
			t.Fatal(e, created, err)
		}
		follow(t, w, gateway.EventEndpointsListChanged)
		if info, _ := w.directory.Endpoint(e.ID); len(info.Capabilities.CanReceive) != 1 {
			t.Errorf("got %+v", info)
		}
	})
	t.Run("endpoint deleted", func(t *testing.T) {
		w := open(t)
		testkit.NoError(t, w.client.DeleteEndpoint(t.Context(), w.Tenant(), "urn:farm:receiver"))
		list := follow(t, w, gateway.EventEndpointDeleted, gateway.EventEndpointsListChanged)
		if list[0].(*gateway.EndpointDeleted).ID != w.receiver.ID {
			t.Errorf("got %+v", list[0])
		}
		if _, known := w.directory.Endpoint(w.receiver.ID); known {
			t.Error("still in the directory")
		}
		before := len(w.Ledger())
		w.send(t, w.message("x")) // to all that subscribe: nobody any more
		if len(w.Ledger()) != before {
			t.Error("the deleted endpoint received a message")
		}
	})
	t.Run("endpoint deleted by the user", func(t *testing.T) {
		w := open(t)
		w.DeleteEndpointByUser(w.receiver.ID)
		follow(t, w, gateway.EventEndpointDeleted, gateway.EventEndpointsListChanged)
		if _, known := w.directory.Endpoint(w.receiver.ID); known {
			t.Error("still in the directory")
		}
	})
	t.Run("authorization added", func(t *testing.T) {
		w := open(t)
		tenant := w.AddTenant()
		_, err := w.client.ListTenantEndpoints(t.Context(), tenant)
		wantError(t, err, gateway.ErrForbidden)
		w.Authorize(w.Application(), tenant)
		follow(t, w, gateway.EventAuthorizationAdded)
		if !w.directory.Authorized(tenant, gateway.ScopeEndpointsManage) {
			t.Error("not in the directory")
		}
		testkit.Must(w.client.ListTenantEndpoints(t.Context(), tenant))(t)
	})
	t.Run("authorization revoked", func(t *testing.T) {
		w := open(t)
		w.AuthorizeScope(w.Application(), w.Tenant(), "other:scope")
		follow(t, w, gateway.EventAuthorizationAdded)
		w.Revoke(w.Application(), w.Tenant(), gateway.ScopeEndpointsManage)
		// The revocation, one deletion for each endpoint, and, because another
		// scope stays in effect, the list that is empty now.
		list := follow(t, w, gateway.EventAuthorizationRevoked, gateway.EventEndpointDeleted, gateway.EventEndpointDeleted, gateway.EventEndpointsListChanged)
		if list[1].(*gateway.EndpointDeleted).ID == list[2].(*gateway.EndpointDeleted).ID {
			t.Error("one endpoint was deleted twice")
		}
		if w.directory.Authorized(w.Tenant(), gateway.ScopeEndpointsManage) || !w.directory.Authorized(w.Tenant(), "other:scope") || len(w.directory.Mine(w.Tenant())) != 0 {
			t.Errorf("directory %+v", w.directory.Tenants())
		}
		wantError(t, w.client.DeleteEndpoint(t.Context(), w.Tenant(), "urn:farm:sender"), gateway.ErrForbidden)
		w.Revoke(w.Application(), w.Tenant(), "other:scope")
		follow(t, w, gateway.EventAuthorizationRevoked)
		if len(w.directory.Tenants()) != 0 {
			t.Errorf("directory %+v", w.directory.Tenants())
		}
	})
}
