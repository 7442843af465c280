package gateway

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
)

// TenantLister lists the authorized tenants. [*Client] is one.
type TenantLister interface {
	ListAuthorizedTenants(ctx context.Context) ([]TenantInfo, error)
}

// Directory is a live view of the tenants that authorized the application, of
// their authorizations and of the endpoints in them. [Directory.Sync] fills it,
// [Directory.HandleEvent] keeps it current. It does no work of its own and needs
// no closing. All methods are safe for concurrent use; what they return is a
// copy that belongs to the caller. IDs are compared without regard to case.
//
// What it can know has limits that come from the specification: GET /tenants
// does not tell the scopes of an authorization. A tenant that it lists is taken
// to be authorized for [ScopeEndpointsManage], the only scope in use, besides
// the scopes that events have told.
type Directory struct {
	lister TenantLister

	syncing chan struct{} // full during a Sync, so that there is one at a time

	mu       sync.RWMutex
	tenants  map[string]*directoryTenant // by lower-case ID
	owner    map[string]*directoryTenant // by lower-case endpoint ID
	watchers map[chan struct{}]struct{}
	// missed are the events that came while a Sync was waiting for its answer.
	missed    []Event
	recording bool
}

type directoryTenant struct {
	id        string // as the service wrote it
	scopes    map[string]struct{}
	endpoints []TenantEndpointInfo
}

// NewDirectory makes an empty directory. It calls nothing before Sync.
func NewDirectory(lister TenantLister) *Directory {
	return &Directory{
		lister:   lister,
		syncing:  make(chan struct{}, 1),
		tenants:  map[string]*directoryTenant{},
		owner:    map[string]*directoryTenant{},
		watchers: map[chan struct{}]struct{}{},
	}
}

// Sync replaces everything by what GET /tenants says: at start and after every
// reconnect of the event stream, since events may have been missed. Open the
// stream first, then Sync. On error nothing has changed. It blocks for the call,
// and while another Sync is under way.
//
// Events that come while the call is under way are applied at once, and again
// on top of its answer, which may be older than they are. Should one of them be
// older than the answer, then the events that follow it put that right.
func (d *Directory) Sync(ctx context.Context) error {
	select {
	case d.syncing <- struct{}{}:
		defer func() { <-d.syncing }()
	case <-ctx.Done():
		return ctx.Err()
	}

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
	listed := make(map[string]struct{}, len(list))
	for _, info := range list {
		listed[fold(info.TenantID)] = struct{}{}
		t := d.tenant(info.TenantID)
		t.scopes[ScopeEndpointsManage] = struct{}{}
		d.setEndpoints(t, info.Endpoints)
	}
	for id, t := range d.tenants {
		if _, ok := listed[id]; !ok {
			d.drop(t)
		}
	}
	for _, event := range missed {
		d.apply(event)
	}
	d.notify()
	return nil
}

// HandleEvent takes in an event. It never blocks for long and may be given every
// event of a stream, in the order of the stream; those that say nothing about
// tenants and endpoints are ignored.
//
//   - ENDPOINTS_LIST_CHANGED replaces the list of the tenant. A list that is not
//     empty also makes a tenant known, for nobody sees the endpoints of a tenant
//     without an authorization.
//   - AUTHORIZATION_ADDED adds the scope and replaces the list.
//   - AUTHORIZATION_REVOKED takes the scope away. With the last scope goes the
//     tenant and all in it; otherwise the ENDPOINT_DELETED events that follow
//     tell which endpoints are gone.
//   - ENDPOINT_DELETED removes the endpoint, and the routes to and from it.
func (d *Directory) HandleEvent(event Event) {
	// The event belongs to the caller: copies are kept.
	switch e := event.(type) {
	case *EndpointsListChanged:
		event = &EndpointsListChanged{TenantID: e.TenantID, Endpoints: cloneEndpoints(e.Endpoints)}
	case *AuthorizationAdded:
		event = &AuthorizationAdded{
			Tenant: TenantInfo{TenantID: e.Tenant.TenantID, Endpoints: cloneEndpoints(e.Tenant.Endpoints)},
			Scope:  e.Scope,
		}
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
	if d.apply(event) {
		d.notify()
	}
}

// apply reports whether the event may have changed something.
func (d *Directory) apply(event Event) bool {
	switch e := event.(type) {
	case *EndpointsListChanged:
		if d.tenants[fold(e.TenantID)] == nil {
			if len(e.Endpoints) == 0 {
				return false
			}
			d.tenant(e.TenantID).scopes[ScopeEndpointsManage] = struct{}{}
		}
		d.setEndpoints(d.tenant(e.TenantID), e.Endpoints)
	case *AuthorizationAdded:
		t := d.tenant(e.Tenant.TenantID)
		t.scopes[e.Scope] = struct{}{}
		d.setEndpoints(t, e.Tenant.Endpoints)
	case *AuthorizationRevoked:
		t := d.tenants[fold(e.TenantID)]
		if t == nil {
			return false
		}
		delete(t.scopes, e.Scope)
		if len(t.scopes) == 0 {
			d.drop(t)
		}
	case *EndpointDeleted:
		t := d.owner[fold(e.ID)]
		if t == nil {
			return false
		}
		d.removeEndpoint(t, e.ID)
	}
	return true
}

// tenant returns the tenant, which is made when it is not there.
func (d *Directory) tenant(id string) *directoryTenant {
	t := d.tenants[fold(id)]
	if t == nil {
		t = &directoryTenant{id: id, scopes: map[string]struct{}{}}
		d.tenants[fold(id)] = t
	}
	return t
}

func (d *Directory) drop(t *directoryTenant) {
	d.setEndpoints(t, nil)
	delete(d.tenants, fold(t.id))
}

func (d *Directory) setEndpoints(t *directoryTenant, list []TenantEndpointInfo) {
	for _, e := range t.endpoints {
		// An endpoint may meanwhile have been listed in another tenant.
		if d.owner[fold(e.ID)] == t {
			delete(d.owner, fold(e.ID))
		}
	}
	t.endpoints = cloneEndpoints(list)
	for _, e := range t.endpoints {
		d.owner[fold(e.ID)] = t
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

// Changes returns a channel that receives after every change, and a function
// that ends that. Changes that come faster than they are received count as one:
// a receipt means "look again", now and then without anything having changed.
// The channel is never closed. Stop may be called more than once.
func (d *Directory) Changes() (changes <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	d.mu.Lock()
	d.watchers[c] = struct{}{}
	d.mu.Unlock()
	return c, func() {
		d.mu.Lock()
		delete(d.watchers, c)
		d.mu.Unlock()
	}
}

// notify never blocks: a watcher that has not yet seen the last change has this
// one still before it.
func (d *Directory) notify() {
	for c := range d.watchers {
		select {
		case c <- struct{}{}:
		default:
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
		list = append(list, TenantInfo{TenantID: t.id, Endpoints: cloneEndpoints(t.endpoints)})
	}
	return list
}

// Authorized reports whether the tenant authorized the application for the
// scope, as far as the directory can know (see [Directory]).
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

// Scopes returns the scopes of the tenant's authorizations in order, nil when
// there is none.
func (d *Directory) Scopes(tenantID string) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.tenants[fold(tenantID)]
	if t == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.scopes))
}

// Mine returns the application's own endpoints in a tenant, or in all tenants
// when tenantID is empty, ordered by tenant and then as the service lists them.
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

// Endpoint returns one endpoint, of the application or of another.
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

// TenantOf returns the tenant that an endpoint is in.
func (d *Directory) TenantOf(endpointID string) (tenantID string, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.owner[fold(endpointID)]
	if t == nil {
		return "", false
	}
	return t.id, true
}

// Receivers returns the IDs of the endpoints that can now be sent messages of a
// type by an endpoint, in order. The service tells the routes of the
// application's own endpoints only: of a foreign endpoint the answer holds those
// receivers that are the application's own.
func (d *Directory) Receivers(messageType, fromEndpointID string) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	t := d.owner[fold(fromEndpointID)]
	if t == nil {
		return nil
	}
	found := map[string]string{}
	for _, e := range t.endpoints {
		r := e.RoutedEndpoints
		if r == nil {
			continue
		}
		if sameID(e.ID, fromEndpointID) {
			for id, types := range r.CanSendTo {
				if slices.Contains(types, messageType) {
					found[fold(id)] = id
				}
			}
		}
		for id, types := range r.CanReceiveFrom {
			if sameID(id, fromEndpointID) && slices.Contains(types, messageType) {
				found[fold(e.ID)] = e.ID
			}
		}
	}
	receivers := make([]string, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(found)) {
		receivers = append(receivers, found[key])
	}
	return receivers
}

// fold makes UUIDs that differ in case alike. The usual ones cost nothing.
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
