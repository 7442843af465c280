package gateway

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// TenantLister lists the authorized tenants. [*Client] is one.
type TenantLister interface {
	ListAuthorizedTenants(ctx context.Context) ([]TenantInfo, error)
}

// Directory is a live view of the tenants that authorized the application, of their authorizations and of their
// endpoints. [Directory.Sync] fills it, [Directory.HandleEvent] keeps it current, and [Directory.KeepFresh] fetches
// lists that an event left out. It starts no goroutines and needs no closing. All methods are safe for concurrent use;
// they return copies. IDs are compared case-insensitively.
//
// An endpoint that is listed but unreadable ([EntryError]) stays as it was known before. If it was not, only its tenant
// is known ([Directory.TenantOf]), provided that its ID could be read.
//
// GET /tenants does not include the scopes of an authorization: a listed tenant is assumed to be authorized for
// [ScopeEndpointsManage], the only scope in use, in addition to the scopes reported by events.
type Directory struct {
	lister TenantLister

	syncing chan struct{} // full during a Sync, so that only one runs at a time
	synced  time.Time     // when the latest that succeeded began; of who is in syncing

	mu      sync.RWMutex
	tenants map[string]*directoryTenant // by lower-case ID
	owner   map[string]*directoryTenant // by lower-case endpoint ID
	// missed are the events that arrived while a Sync was waiting for its response.
	missed    []Event
	recording bool
	// stale are the tenants whose list has to be fetched, by lower-case ID.
	stale map[string]*staleTenant
	// wake has a buffer of one: it signals that a list has become stale.
	wake chan struct{}
}

type directoryTenant struct {
	id        string // as spelled by the service
	scopes    map[string]struct{}
	endpoints []TenantEndpointInfo
	// unreadable are the IDs of endpoints about which nothing else is known.
	unreadable []string
}

// NewDirectory returns an empty directory. It makes no calls before Sync.
func NewDirectory(lister TenantLister) *Directory {
	return &Directory{
		lister:  lister,
		syncing: make(chan struct{}, 1),
		tenants: map[string]*directoryTenant{},
		owner:   map[string]*directoryTenant{},
		stale:   map[string]*staleTenant{},
		wake:    make(chan struct{}, 1),
	}
}

// Sync replaces the contents with the result of GET /tenants. Call it at start and after every reconnect of the event
// stream, which may have missed events, once it is open. On error nothing changes. It blocks for the call, and while
// another Sync is in progress. If one that began later has succeeded meanwhile, it makes no call.
//
// Events that arrive during the call are applied immediately, and again on top of its result, which may be older. If one
// of them is older than the result, those that follow it correct that.
func (d *Directory) Sync(ctx context.Context) error {
	called := time.Now()
	select {
	case d.syncing <- struct{}{}:
		defer func() { <-d.syncing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if d.synced.After(called) {
		return nil
	}
	began := time.Now()
	d.mu.Lock()
	d.recording = true
	d.mu.Unlock()

	list, err := d.lister.ListAuthorizedTenants(ctx)

	d.mu.Lock()
	defer d.mu.Unlock()
	missed := d.missed
	d.missed, d.recording = nil, false
	if err != nil {
		return err
	}
	d.synced = began
	clear(d.stale)
	listed := make(map[string]struct{}, len(list))
	for _, info := range list {
		listed[fold(info.ID)] = struct{}{}
		t := d.tenant(info.ID)
		t.scopes[ScopeEndpointsManage] = struct{}{}
		if info.listReadable() {
			d.setEndpoints(t, info.Endpoints, info.Unreadable)
		}
	}
	for id, t := range d.tenants {
		if _, ok := listed[id]; !ok {
			d.drop(t)
		}
	}
	for _, event := range missed {
		d.apply(event)
	}
	return nil
}

// HandleEvent applies an event. It never blocks for long and accepts every event of a stream, in stream order.
//
//   - ENDPOINTS_LIST_CHANGED replaces the list of the tenant. A non-empty list also makes the tenant known, as it takes
//     an authorization to see one. If Endpoints is nil, the list is stale and will be fetched.
//   - AUTHORIZATION_ADDED adds the scope and replaces the list.
//   - AUTHORIZATION_REVOKED removes the scope. Removing the last scope also removes the tenant and everything in it;
//     otherwise the ENDPOINT_DELETED events that follow say which endpoints are gone.
//   - ENDPOINT_DELETED removes the endpoint, and the routes to and from it.
func (d *Directory) HandleEvent(event Event) {
	// The event belongs to the caller, so keep copies.
	switch e := event.(type) {
	case *EndpointsListChanged:
		c := *e
		if c.Endpoints != nil {
			c.Endpoints = cloneEndpoints(c.Endpoints)
		}
		event = &c
	case *AuthorizationAdded:
		c := *e
		c.Tenant.Endpoints = cloneEndpoints(c.Tenant.Endpoints)
		event = &c
	case *AuthorizationRevoked:
		c := *e
		event = &c
	case *EndpointDeleted:
		c := *e
		event = &c
	default:
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.recording {
		d.missed = append(d.missed, event)
	}
	d.apply(event)
}

// apply applies an event.
func (d *Directory) apply(event Event) {
	switch e := event.(type) {
	case *EndpointsListChanged:
		if e.Endpoints == nil {
			d.markStale(e.TenantID)
			return
		}
		delete(d.stale, fold(e.TenantID))
		d.replaceList(e.TenantID, e.Endpoints, e.Unreadable)
	case *AuthorizationAdded:
		delete(d.stale, fold(e.Tenant.ID))
		t := d.tenant(e.Tenant.ID)
		t.scopes[e.Scope] = struct{}{}
		d.setEndpoints(t, e.Tenant.Endpoints, e.Tenant.Unreadable)
	case *AuthorizationRevoked:
		t := d.tenants[fold(e.TenantID)]
		if t == nil {
			delete(d.stale, fold(e.TenantID))
			return
		}
		delete(t.scopes, e.Scope)
		if len(t.scopes) == 0 {
			delete(d.stale, fold(e.TenantID))
			d.drop(t)
		}
	case *EndpointDeleted:
		t := d.owner[fold(e.ID)]
		if t == nil {
			return
		}
		d.removeEndpoint(t, e.ID)
		if d.stale[fold(t.id)] != nil {
			d.markStale(t.id) // a list in flight may still contain the endpoint
		}
	}
}

// replaceList applies the complete list of a tenant.
func (d *Directory) replaceList(tenantID string, list []TenantEndpointInfo, unreadable []*EntryError) {
	if d.tenants[fold(tenantID)] == nil {
		if len(list) == 0 && len(unreadable) == 0 {
			return
		}
		d.tenant(tenantID).scopes[ScopeEndpointsManage] = struct{}{}
	}
	d.setEndpoints(d.tenant(tenantID), list, unreadable)
}

// tenant returns the tenant, creating it if necessary.
func (d *Directory) tenant(id string) *directoryTenant {
	t := d.tenants[fold(id)]
	if t == nil {
		t = &directoryTenant{id: id, scopes: map[string]struct{}{}}
		d.tenants[fold(id)] = t
	}
	return t
}

func (d *Directory) drop(t *directoryTenant) {
	d.setEndpoints(t, nil, nil)
	delete(d.tenants, fold(t.id))
}

// setEndpoints replaces the list. Listed endpoints that could not be read stay.
func (d *Directory) setEndpoints(t *directoryTenant, list []TenantEndpointInfo, unreadable []*EntryError) {
	known := t.endpoints
	disown := func(id string) {
		// In the meantime an endpoint may have been listed in another tenant.
		if d.owner[fold(id)] == t {
			delete(d.owner, fold(id))
		}
	}
	for _, e := range known {
		disown(e.ID)
	}
	for _, id := range t.unreadable {
		disown(id)
	}
	t.endpoints, t.unreadable = cloneEndpoints(list), nil
	for _, e := range t.endpoints {
		d.owner[fold(e.ID)] = t
	}
	for _, bad := range unreadable {
		if bad.EndpointID == "" || d.owner[fold(bad.EndpointID)] == t {
			continue
		}
		d.owner[fold(bad.EndpointID)] = t
		if i := slices.IndexFunc(known, func(e TenantEndpointInfo) bool { return sameID(e.ID, bad.EndpointID) }); i >= 0 {
			t.endpoints = append(t.endpoints, known[i])
		} else {
			t.unreadable = append(t.unreadable, bad.EndpointID)
		}
	}
}

func (d *Directory) removeEndpoint(t *directoryTenant, id string) {
	delete(d.owner, fold(id))
	t.endpoints = slices.DeleteFunc(t.endpoints, func(e TenantEndpointInfo) bool { return sameID(e.ID, id) })
	for _, e := range t.endpoints {
		if r := e.RoutedEndpoints; r != nil {
			gone := func(other string, _ []string) bool { return sameID(other, id) }
			maps.DeleteFunc(r.CanSendTo, gone)
			maps.DeleteFunc(r.CanReceiveFrom, gone)
		}
	}
}

// Tenants returns all tenants with their endpoints, ordered by ID.
func (d *Directory) Tenants() []TenantInfo {
	d.mu.RLock()
	defer d.mu.RUnlock()
	list := make([]TenantInfo, 0, len(d.tenants))
	for _, key := range slices.Sorted(maps.Keys(d.tenants)) {
		t := d.tenants[key]
		list = append(list, TenantInfo{ID: t.id, Endpoints: cloneEndpoints(t.endpoints)})
	}
	return list
}

// Authorized reports whether the tenant authorized the application for the scope (see [Directory]).
func (d *Directory) Authorized(tenantID, scope string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.tenants[fold(tenantID)]
	if t == nil {
		return false
	}
	_, ok := t.scopes[scope]
	return ok
}

// Scopes returns the sorted scopes of the tenant's authorizations; nil if there are none.
func (d *Directory) Scopes(tenantID string) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.tenants[fold(tenantID)]
	if t == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.scopes))
}

// Mine returns the application's own endpoints in a tenant as listed by the service, or in all, by tenant,
// if tenantID is empty.
func (d *Directory) Mine(tenantID string) []TenantEndpointInfo {
	d.mu.RLock()
	defer d.mu.RUnlock()
	keys := []string{fold(tenantID)}
	if tenantID == "" {
		keys = slices.Sorted(maps.Keys(d.tenants))
	}
	var mine []TenantEndpointInfo
	for _, key := range keys {
		t := d.tenants[key]
		if t == nil {
			continue
		}
		for _, e := range t.endpoints {
			if e.OwnedByYourApplication {
				mine = append(mine, cloneEndpoint(e))
			}
		}
	}
	return mine
}

// Endpoint returns an endpoint, whether it belongs to the application or not.
func (d *Directory) Endpoint(id string) (TenantEndpointInfo, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	e, ok := d.find(id)
	if !ok {
		return TenantEndpointInfo{}, false
	}
	return cloneEndpoint(e), true
}

func (d *Directory) find(id string) (TenantEndpointInfo, bool) {
	t := d.owner[fold(id)]
	if t == nil {
		return TenantEndpointInfo{}, false
	}
	for _, e := range t.endpoints {
		if sameID(e.ID, id) {
			return e, true
		}
	}
	return TenantEndpointInfo{}, false
}

// TenantOf returns the tenant of an endpoint.
func (d *Directory) TenantOf(endpointID string) (tenantID string, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.owner[fold(endpointID)]
	if t == nil {
		return "", false
	}
	return t.id, true
}

// EndpointNamed returns the ID of the endpoint of a tenant that has the external ID, in which [TenantPlaceholder] stands for the
// ID of the tenant; false if none is known. The application's own comes before those of others, of which several may have
// the same external ID: then it is not known which is meant.
func (d *Directory) EndpointNamed(tenantID, externalID string) (id string, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.tenants[fold(tenantID)]
	if t == nil || externalID == "" {
		return "", false
	}
	externalID = expandExternalID(externalID, t.id)
	several := false
	for _, e := range t.endpoints {
		switch {
		case e.ExternalID != externalID:
		case e.OwnedByYourApplication:
			return e.ID, true
		default:
			id, several = e.ID, id != ""
		}
	}
	if several {
		id = ""
	}
	return id, id != ""
}

// fold makes UUIDs that differ only in case equal.
func fold(id string) string { return strings.ToLower(id) }

func sameID(a, b string) bool { return strings.EqualFold(a, b) }

func cloneEndpoints(list []TenantEndpointInfo) []TenantEndpointInfo {
	out := make([]TenantEndpointInfo, len(list))
	for i, e := range list {
		out[i] = cloneEndpoint(e)
	}
	return out
}

func cloneEndpoint(e TenantEndpointInfo) TenantEndpointInfo {
	e.Capabilities.CanSend = slices.Clone(e.Capabilities.CanSend)
	e.Capabilities.CanReceive = slices.Clone(e.Capabilities.CanReceive)
	if r := e.RoutedEndpoints; r != nil {
		e.RoutedEndpoints = &RoutedEndpoints{CanSendTo: cloneRoutes(r.CanSendTo), CanReceiveFrom: cloneRoutes(r.CanReceiveFrom)}
	}
	return e
}

func cloneRoutes(m EndpointRouteMap) EndpointRouteMap {
	out := maps.Clone(m)
	for id, types := range out {
		out[id] = slices.Clone(types)
	}
	return out
}
