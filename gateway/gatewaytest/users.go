package gatewaytest

import (
	"net/http"
	"slices"

	"github.com/agrimill/agrimill/gateway"
)

// What the user (the farmer) does: authorizations, deletion, names, routes
// (SetRoute, in routing.go). And what the administration does: new tenants.

const defaultScope = gateway.ScopeEndpointsManage

// AddTenant makes a new tenant and returns its ID. No application is authorized
// for it yet.
func (s *Server) AddTenant() string {
	t := &tenant{id: newID(), rules: map[routeKey]routeRule{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenants[t.id] = t
	s.tenantOrder = append(s.tenantOrder, t)
	return t.id
}

// Authorize is the user of the tenant granting the application an authorization
// with scope endpoints:manage. The application gets AUTHORIZATION_ADDED, unless
// it held the authorization already.
func (s *Server) Authorize(app *Application, tenant string) {
	s.helper()
	s.AuthorizeScope(app, tenant, defaultScope)
}

// AuthorizeScope is [Server.Authorize] with another scope. Authorizations with
// different scopes are distinct.
func (s *Server) AuthorizeScope(app *Application, tenant, scope string) {
	s.helper()
	if err := s.authorize(app, tenant, scope); err != nil {
		s.fail("Authorize: %v", err)
	}
}

func (s *Server) authorize(app *Application, tenant, scope string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		return badRequest("there is no tenant %s", tenant)
	}
	if app.authorized(t, scope) {
		return nil
	}
	app.authorizations = append(app.authorizations, authorization{t, scope})
	s.emitLocked(app, gateway.EventAuthorizationAdded, struct {
		EventType gateway.EventType  `json:"event_type"`
		Tenant    gateway.TenantInfo `json:"tenant"`
		Scope     string             `json:"scope"`
	}{gateway.EventAuthorizationAdded, tenantInfo(app, t), scope})
	return nil
}

// Revoke is the user revoking the authorization with the scope. The application
// gets AUTHORIZATION_REVOKED and then one ENDPOINT_DELETED for each of its
// endpoints in the tenant that the authorization gave it. Endpoints come with
// scope endpoints:manage: revoking another scope removes none, and other scopes
// stay in effect.
func (s *Server) Revoke(app *Application, tenant, scope string) {
	s.helper()
	if err := s.revoke(app, tenant, scope); err != nil {
		s.fail("Revoke: %v", err)
	}
}

func (s *Server) revoke(app *Application, tenant, scope string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil || !app.authorized(t, scope) {
		return badRequest("there is no authorization with scope %s of tenant %s", scope, tenant)
	}
	s.changeLocked(t, func() {
		app.authorizations = slices.DeleteFunc(app.authorizations, func(a authorization) bool { return a.tenant == t && a.scope == scope })
		s.emitLocked(app, gateway.EventAuthorizationRevoked, struct {
			EventType gateway.EventType `json:"event_type"`
			TenantID  string            `json:"tenant_id"`
			Scope     string            `json:"scope"`
		}{gateway.EventAuthorizationRevoked, t.id, scope})
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

// DeleteEndpointByUser is the user deleting the endpoint with the (service) ID.
// The deletion is forced when the endpoint does not allow it.
func (s *Server) DeleteEndpointByUser(id string) {
	s.helper()
	if err := s.deleteEndpointByUser(id); err != nil {
		s.fail("DeleteEndpointByUser: %v", err)
	}
}

func (s *Server) deleteEndpointByUser(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[id]
	if e == nil {
		return statusError(http.StatusNotFound, "there is no endpoint %s", id)
	}
	s.changeLocked(e.tenant, func() { s.removeLocked(e) })
	s.changedLocked()
	return nil
}

// SetUserName is the user naming the endpoint in the web interface. The name
// wins over the one that the application sets, until it is set to "".
func (s *Server) SetUserName(id, name string) {
	s.helper()
	if err := s.setUserName(id, name); err != nil {
		s.fail("SetUserName: %v", err)
	}
}

func (s *Server) setUserName(id, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoints[id]
	if e == nil {
		return statusError(http.StatusNotFound, "there is no endpoint %s", id)
	}
	e.userName = name
	return nil
}

// VisibleEndpoints is what the application sees of the tenant now, as GET
// /tenants/{tenantId}/endpoints would list it.
func (s *Server) VisibleEndpoints(app *Application, tenant string) []gateway.TenantEndpointInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[tenant]
	if t == nil {
		return nil
	}
	return visible(app, t)
}
