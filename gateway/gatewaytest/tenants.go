package gatewaytest

import (
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/agrimill/agrimill/gateway"
)

// GET /tenants (listAuthorizedTenants) and GET /tenants/{tenantId}/endpoints
// (listTenantEndpoints).
//
// Implements: every tenant with an authorization of any scope, once; an empty
// `endpoints` array until the application owns an endpoint in the tenant, the
// full set after that; external_id and routed_endpoints only for the
// application's own endpoints; 400 for a tenant ID that is not a UUID, 403 for a
// tenant without authorization, known or not.

func (s *Server) handleListTenants(w http.ResponseWriter, r *request) error {
	s.mu.Lock()
	body := gateway.TenantsListResponse{Tenants: []gateway.TenantInfo{}}
	for _, t := range s.tenantOrder {
		if r.app.authorized(t, "") {
			body.Tenants = append(body.Tenants, tenantInfo(r.app, t))
		}
	}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, body)
	return nil
}

func (s *Server) handleListEndpoints(w http.ResponseWriter, r *request) error {
	segment, err := pathSegment(r.Request, "/tenants/", "/endpoints")
	if err != nil {
		return err
	}
	id, ok := canonicalUUID(segment)
	if !ok {
		return badRequest("the tenant ID in the path is not a UUID")
	}
	s.mu.Lock()
	t, err := s.tenantLocked(r.app, id, "")
	if err != nil {
		s.mu.Unlock()
		return err
	}
	body := gateway.EndpointsListResponse{Endpoints: visible(r.app, t)}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, body)
	return nil
}

func tenantInfo(app *Application, t *tenant) gateway.TenantInfo {
	return gateway.TenantInfo{ID: t.id, Endpoints: visible(app, t)}
}

// visible returns the endpoints of a tenant that the application can see.
func visible(app *Application, t *tenant) []gateway.TenantEndpointInfo {
	list := []gateway.TenantEndpointInfo{} // never null on the wire
	owns := false
	for _, e := range t.endpoints {
		owns = owns || e.app == app
	}
	if !owns || !app.authorized(t, "") {
		return list
	}
	for _, e := range t.endpoints {
		info := gateway.TenantEndpointInfo{
			ID: e.id, Name: e.displayName(), EndpointType: e.kind, ApplicationID: e.app.ID, TenantID: t.id,
			OwnedByYourApplication: e.app == app,
			Capabilities: gateway.TenantEndpointCapabilities{
				CanSend: e.types(func(d directions) bool { return d.send }), CanReceive: e.types(func(d directions) bool { return d.receive }),
			},
		}
		if e.app == app {
			info.ExternalID = e.externalID
			info.RoutedEndpoints = routesOf(e)
		}
		list = append(list, info)
	}
	return list
}

func routesOf(e *endpoint) *gateway.RoutedEndpoints {
	routes := &gateway.RoutedEndpoints{CanSendTo: gateway.EndpointRouteMap{}, CanReceiveFrom: gateway.EndpointRouteMap{}}
	for _, other := range e.tenant.endpoints {
		if types := routedTypes(e, other); len(types) > 0 {
			routes.CanSendTo[other.id] = types
		}
		if types := routedTypes(other, e); len(types) > 0 {
			routes.CanReceiveFrom[other.id] = types
		}
	}
	return routes
}

// changeLocked performs a change in a tenant and then sends ENDPOINTS_LIST_CHANGED, with the complete new list, to every
// application whose view of it changed. A new name alone does not change it.
func (s *Server) changeLocked(t *tenant, change func()) {
	before := map[*Application][]gateway.TenantEndpointInfo{}
	for _, app := range s.applicationOrder {
		if app.authorized(t, "") {
			before[app] = visible(app, t)
		}
	}
	change()
	for _, app := range s.applicationOrder {
		old, held := before[app]
		if !held || !app.authorized(t, "") {
			continue
		}
		if list := visible(app, t); !sameButNames(old, list) {
			s.emitLocked(app, gateway.EventEndpointsListChanged, map[string]any{"tenant_id": t.id, "endpoints": list})
		}
	}
}

func sameButNames(a, b []gateway.TenantEndpointInfo) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		x.Name, y.Name = "", ""
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

// emitLocked appends a lifecycle event to the feed of an application.
func (s *Server) emitLocked(app *Application, name gateway.EventType, body map[string]any) {
	body["event_type"] = name
	data, err := json.Marshal(body)
	if err != nil { // cannot happen with the types used
		s.log.Error("gatewaytest: encoding an event failed", "type", name, "error", err)
		return
	}
	s.appendLocked(&app.feed, &item{name: name, data: data})
	s.compactLocked(&app.feed)
}
