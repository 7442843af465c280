package gatewaytest

import (
	"net/http"
	"slices"

	"github.com/agrimill/agrimill/gateway"
)

// Actions of the user (the farmer): authorizations, deletion, names; and new tenants.

const defaultScope = gateway.ScopeEndpointsManage

// AddTenant creates a tenant, for which no application is authorized, and returns its ID.
func (s *Server) AddTenant() string {
	t := &tenant{id: newID(), rules: map[routeKey]routeRule{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenants[t.id] = t
	s.tenantOrder = append(s.tenantOrder, t)
	return t.id
}

// Authorize acts as the user of the tenant who grants the application an authorization with scope endpoints:manage,
// unless it has that already. The application receives AUTHORIZATION_ADDED.
func (s *Server) Authorize(app *Application, tenant string) {
	s.helper()
	s.AuthorizeScope(app, tenant, defaultScope)
}

// AuthorizeScope is [Server.Authorize] with another scope.
func (s *Server) AuthorizeScope(app *Application, tenant, scope string) {
	s.helper()
	s.must("Authorize", s.authorize(app, tenant, scope))
}

func (s *Server) authorize(app *Application, tenant, scope string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		return badRequest("no such tenant: %s", tenant)
	}
	if app.authorized(t, scope) {
		return nil
	}
	app.authorizations = append(app.authorizations, authorization{t, scope})
	s.emitLocked(app, gateway.EventAuthorizationAdded, map[string]any{"tenant": tenantInfo(app, t), "scope": scope})
	return nil
}

// Revoke acts as the user who revokes the authorization with the scope. The application receives AUTHORIZATION_REVOKED and
// then, if the scope is endpoints:manage, one ENDPOINT_DELETED for each of its endpoints in the tenant.
func (s *Server) Revoke(app *Application, tenant, scope string) {
	s.helper()
	s.must("Revoke", s.revoke(app, tenant, scope))
}

func (s *Server) revoke(app *Application, tenant, scope string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil || !app.authorized(t, scope) {
		return badRequest("no authorization with scope %s of tenant %s", scope, tenant)
	}
	s.changeLocked(t, func() {
		app.authorizations = slices.DeleteFunc(app.authorizations, func(a authorization) bool { return a.tenant == t && a.scope == scope })
		s.emitLocked(app, gateway.EventAuthorizationRevoked, map[string]any{"tenant_id": t.id, "scope": scope})
		if scope != gateway.ScopeEndpointsManage {
			return
		}
		for _, e := range slices.Clone(t.endpoints) {
			if e.app == app {
				s.removeLocked(e)
			}
		}
	})
	s.changedLocked()
	return nil
}

// DeleteEndpointByUser acts as the user who deletes the endpoint with the (service) ID, by force if need be.
func (s *Server) DeleteEndpointByUser(id string) {
	s.helper()
	s.must("DeleteEndpointByUser", s.deleteEndpointByUser(id))
}

func (s *Server) deleteEndpointByUser(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[id]
	if e == nil {
		return statusError(http.StatusNotFound, "no such endpoint: %s", id)
	}
	s.changeLocked(e.tenant, func() { s.removeLocked(e) })
	s.changedLocked()
	return nil
}

// SetUserName acts as the user who names the endpoint in the web interface. The name
// takes precedence over the one set by the application, until it is set to "".
func (s *Server) SetUserName(id, name string) {
	s.helper()
	s.must("SetUserName", s.setUserName(id, name))
}

func (s *Server) setUserName(id, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[id]
	if e == nil {
		return statusError(http.StatusNotFound, "no such endpoint: %s", id)
	}
	e.userName = name
	return nil
}

// VisibleEndpoints returns what the application can see of the tenant, as GET /tenants/{tenantId}/endpoints lists it.
func (s *Server) VisibleEndpoints(app *Application, tenant string) []gateway.TenantEndpointInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		return nil
	}
	return visible(app, t)
}
