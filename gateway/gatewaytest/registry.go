package gatewaytest

// registry is who and what there is. The server's mu guards it.
type registry struct {
	applications     map[string]*Application // by ID
	applicationOrder []*Application
	clients          map[string]*Application // by client ID
	tenants          map[string]*tenant
	tenantOrder      []*tenant
	endpoints        map[string]*endpoint
	payloads         map[string]*payload // those with a payload_uri
}

func newRegistry() registry {
	return registry{
		applications: map[string]*Application{},
		clients:      map[string]*Application{},
		tenants:      map[string]*tenant{},
		endpoints:    map[string]*endpoint{},
		payloads:     map[string]*payload{},
	}
}

// putApplication returns false if there is one with its ID or its client ID.
func (r *registry) putApplication(app *Application) bool {
	if r.applications[app.ID] != nil || r.clients[app.ClientID] != nil {
		return false
	}
	r.applications[app.ID], r.clients[app.ClientID] = app, app
	r.applicationOrder = append(r.applicationOrder, app)
	return true
}

func (r *registry) putTenant(t *tenant) {
	r.tenants[t.id] = t
	r.tenantOrder = append(r.tenantOrder, t)
}

// injections are the faults that were injected, the oldest first.
type injections struct {
	list   []*Injection
	last   uint64 // ID
	stalls int    // active StallStreams calls
}

func (l *injections) add(i *Injection) {
	l.last++
	i.id = l.last
	l.list = append(l.list, i)
}
