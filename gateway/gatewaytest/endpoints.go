package gatewaytest

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"

	"github.com/agrimill/agrimill/gateway"
)

// PUT /endpoints/{externalId} (putEndpoint) and DELETE /endpoints/{externalId}
// (deleteEndpoint).
//
// Implements: the format of externalId, with its characters escaped or not;
// the tenant header; the scope endpoints:manage (403); every field of the body
// with its rule; 201 for a new endpoint, 200 for a reconfigured one; capabilities
// as a subset of the software version's (400); farming_software as an alias of
// cloud_software; rejection of the legacy types; a generated name if none is given;
// 413 for a body above 1 MiB; 204 and 404 for DELETE; the resulting events
// (ENDPOINT_DELETED to the owner, then ENDPOINTS_LIST_CHANGED to all that see it).
// An endpoint is one (tenant, application, external ID): other applications may
// use the same external ID. An application_id that is not the caller's is 403.

const (
	endpointsPath = "/endpoints/"
	maxPutBody    = 1 << 20
)

// putBody is the body of PUT, and which of its fields are there: null counts as none, except for a list, which
// clients in some languages serialize so when it is empty.
type putBody struct {
	gateway.PutEndpointRequest
	given map[string]json.RawMessage
}

// UnmarshalJSON reads the body twice.
func (b *putBody) UnmarshalJSON(data []byte) error {
	return cmp.Or(json.Unmarshal(data, &b.given), json.Unmarshal(data, &b.PutEndpointRequest))
}

func (b *putBody) has(field string) bool {
	raw, ok := b.given[field]
	return ok && (string(raw) != "null" || field == "capabilities" || field == "subscriptions")
}

func (s *Server) handlePutEndpoint(w http.ResponseWriter, r *request) error {
	id, tenantID, err := s.endpointAddress(r)
	if err != nil {
		return err
	}
	var body putBody
	if err := readJSON(r.Request, maxPutBody, http.StatusRequestEntityTooLarge, &body); err != nil {
		return err
	}
	if err := body.validate(r.app); err != nil {
		return err
	}
	switch body.EndpointType {
	case gateway.EndpointTypeCloudSoftware, gateway.EndpointTypeVirtualCommunicationUnit:
	case gateway.EndpointTypeFarmingSoftware: //nolint:staticcheck // the service still accepts the deprecated alias
		body.EndpointType = gateway.EndpointTypeCloudSoftware
	default:
		return badRequest("endpoint_type %s cannot be created", body.EndpointType)
	}
	s.mu.Lock()
	t, err := s.tenantLocked(r.app, tenantID, gateway.ScopeEndpointsManage)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	e, created := s.putLocked(r.app, t, id, body.PutEndpointRequest)
	answer := e.answer()
	s.changedLocked()
	s.mu.Unlock()
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	writeJSON(w, status, answer)
	return nil
}

func (s *Server) handleDeleteEndpoint(w http.ResponseWriter, r *request) error {
	id, tenantID, err := s.endpointAddress(r)
	if err != nil {
		return err
	}
	if err := s.deleteEndpoint(r.app, tenantID, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) deleteEndpoint(app *Application, tenantID, externalID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tenantLocked(app, tenantID, gateway.ScopeEndpointsManage)
	if err != nil {
		return err
	}
	e := t.find(app, externalID)
	if e == nil {
		return statusError(http.StatusNotFound, "no endpoint has this external ID")
	}
	s.changeLocked(t, func() { s.removeLocked(e) })
	s.changedLocked()
	return nil
}

func (s *Server) endpointAddress(r *request) (externalID, tenantID string, err error) {
	if externalID, err = pathSegment(r.Request, endpointsPath, ""); err != nil {
		return "", "", err
	}
	if !isExternalID(externalID) {
		return "", "", badRequest("the external ID in the path is malformed")
	}
	tenantID, err = s.uuidHeader(r, gateway.KeyTenantID)
	return externalID, tenantID, err
}

func (b *putBody) validate(app *Application) error {
	missing := func(field string) error { return badRequest("%s is missing", field) }
	for _, field := range []string{"application_id", "software_version_id", "capabilities", "subscriptions", "endpoint_type"} {
		if !b.has(field) {
			return missing(field)
		}
	}
	if b.has("name") && !isEndpointName(b.Name) {
		return badRequest("name must be 1 to 200 letters, digits, spaces or - _ . , : and not only whitespace")
	}
	applicationID, ok := canonicalUUID(b.ApplicationID)
	if !ok {
		return badRequest("application_id is not a UUID")
	}
	version, ok := canonicalUUID(b.SoftwareVersionID)
	if !ok {
		return badRequest("software_version_id is not a UUID")
	}
	if applicationID != app.ID {
		return forbidden("application %s is not the application of the access token", applicationID)
	}
	if version != app.SoftwareVersionID {
		return badRequest("software version %s is not known for the application", version)
	}
	for n, c := range b.Capabilities {
		switch {
		case c.MessageType == "":
			return missing("capabilities[].message_type")
		case !c.Direction.CanSend() && !c.Direction.CanReceive():
			return badRequest("capabilities[%d].direction must be SEND, RECEIVE or SEND_RECEIVE", n)
		case !app.allows(c):
			return badRequest("Capability for %s not valid", c.MessageType)
		}
	}
	for _, sub := range b.Subscriptions {
		if sub.MessageType == "" {
			return missing("subscriptions[].message_type")
		}
	}
	if b.has("connections_uri") {
		if u, err := url.Parse(b.ConnectionsURI); err != nil || u.Scheme == "" {
			return badRequest("connections_uri is not a URI")
		}
	}
	return nil
}

// putLocked creates or reconfigures an endpoint. Fields omitted from a reconfiguration
// revert to their defaults, except the name, which stays.
func (s *Server) putLocked(app *Application, t *tenant, externalID string, b gateway.PutEndpointRequest) (e *endpoint, created bool) {
	e = t.find(app, externalID)
	s.changeLocked(t, func() {
		if e == nil {
			created = true
			e = &endpoint{id: newID(), externalID: externalID, tenant: t, app: app}
			e.name = "Endpoint " + e.id[:8]
			t.endpoints = append(t.endpoints, e)
			s.endpoints[e.id] = e
		}
		e.name = cmp.Or(b.Name, e.name)
		e.kind = b.EndpointType
		e.configure(b.Capabilities, b.Subscriptions)
		e.deletable, e.connectionsURI = b.AllowDeleteByUser, b.ConnectionsURI
	})
	return e, created
}

func (t *tenant) find(app *Application, externalID string) *endpoint {
	for _, e := range t.endpoints {
		if e.app == app && e.externalID == externalID {
			return e
		}
	}
	return nil
}

func (e *endpoint) answer() gateway.Endpoint {
	return gateway.Endpoint{
		ID: e.id, ExternalID: e.externalID, EndpointType: e.kind, TenantID: e.tenant.id,
		ApplicationID: e.app.ID, SoftwareVersionID: e.app.SoftwareVersionID,
		Capabilities: e.capabilities, AllowDeleteByUser: e.deletable, ConnectionsURI: e.connectionsURI,
	}
}

// removeLocked removes the endpoint, withdraws its messages and notifies its owner.
func (s *Server) removeLocked(e *endpoint) {
	e.deleted = true
	delete(s.endpoints, e.id)
	e.tenant.endpoints = slices.DeleteFunc(slices.Clone(e.tenant.endpoints), func(other *endpoint) bool { return other == e })
	for key := range e.tenant.rules {
		if key.from == e.id || key.to == e.id {
			delete(e.tenant.rules, key)
		}
	}
	for _, i := range e.app.feed.items {
		if i.receiver != e || i.name != gateway.EventMessageReceived && !i.payload.fileAlone {
			continue
		}
		for _, entry := range i.entries {
			if !entry.Confirmed() && !entry.Withdrawn {
				entry.Withdrawn = true
				e.app.feed.retire(entry.Size)
			}
		}
	}
	s.emitLocked(e.app, gateway.EventEndpointDeleted, map[string]any{"id": e.id, "external_id": e.externalID})
}

// EndpointConfig describes an endpoint for [Server.AddEndpoint].
type EndpointConfig struct {
	// App and Tenant default to the default ones. The application must be authorized for the tenant.
	App    *Application
	Tenant string
	// ExternalID defaults to a generated one. That of an existing endpoint reconfigures it.
	ExternalID string
	// Name is optional.
	Name string
	// Type defaults to cloud_software. Legacy types are allowed here.
	Type gateway.EndpointType
	// Send and Receive list the message types of the capabilities.
	Send, Receive []string
	// Subscribe lists the message types subscribed to. There is no wildcard.
	Subscribe []string
	// AllowDeleteByUser and ConnectionsURI are as in PUT.
	AllowDeleteByUser bool
	ConnectionsURI    string
}

// AddEndpoint does in one line what PUT /endpoints/{externalId} does.
func (s *Server) AddEndpoint(cfg EndpointConfig) gateway.Endpoint {
	s.helper()
	e, err := s.PutEndpoint(cfg)
	s.must("AddEndpoint", err)
	return e
}

// PutEndpoint is [Server.AddEndpoint] with an error result, a [*StatusError].
func (s *Server) PutEndpoint(cfg EndpointConfig) (gateway.Endpoint, error) {
	if cfg.App == nil {
		cfg.App = s.defaultApp
	}
	cfg.Tenant = cmp.Or(cfg.Tenant, s.defaultTenant)
	cfg.ExternalID = cmp.Or(cfg.ExternalID, "urn:gatewaytest:"+newID())
	cfg.Type = cmp.Or(cfg.Type, gateway.EndpointTypeCloudSoftware)
	if !isExternalID(cfg.ExternalID) {
		return gateway.Endpoint{}, badRequest("ExternalID is malformed")
	}
	req := gateway.PutEndpointRequest{
		Name: cfg.Name, ApplicationID: cfg.App.ID, SoftwareVersionID: cfg.App.SoftwareVersionID, EndpointType: cfg.Type,
		AllowDeleteByUser: cfg.AllowDeleteByUser, ConnectionsURI: cfg.ConnectionsURI,
	}
	for _, messageType := range cfg.Send {
		req.Capabilities = append(req.Capabilities, gateway.EndpointCapability{MessageType: messageType, Direction: gateway.DirectionSend})
	}
	for _, messageType := range cfg.Receive {
		if i := slices.Index(cfg.Send, messageType); i >= 0 {
			req.Capabilities[i].Direction = gateway.DirectionSendReceive
			continue
		}
		req.Capabilities = append(req.Capabilities, gateway.EndpointCapability{MessageType: messageType, Direction: gateway.DirectionReceive})
	}
	for _, messageType := range cfg.Subscribe {
		req.Subscriptions = append(req.Subscriptions, gateway.EndpointSubscription{MessageType: messageType})
	}
	var body putBody
	if data, err := json.Marshal(req); err != nil || json.Unmarshal(data, &body) != nil {
		return gateway.Endpoint{}, badRequest("body cannot be made")
	}
	if err := body.validate(cfg.App); err != nil {
		return gateway.Endpoint{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tenantLocked(cfg.App, cfg.Tenant, "")
	if err != nil {
		return gateway.Endpoint{}, err
	}
	e, _ := s.putLocked(cfg.App, t, cfg.ExternalID, req)
	return e.answer(), nil
}
