package gatewaytest

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// The control API offers what the Go methods do, below Config.ControlPrefix, in JSON, only to callers on a loopback address,
// and not to web pages. Its errors have the same shape as those of the service. It requires no access token, and refuses
// fields that it does not know.
//
//	GET    /state                     applications, tenants, endpoints, open streams
//	POST   /applications              {"capabilities"?: [{"message_type","direction"}]} → 201 with credentials
//	POST   /tenants                   → 201 {"tenant_id"}
//	POST   /authorizations            {"application_id","tenant_id","scope"?}
//	DELETE /authorizations            ?application_id=&tenant_id=&scope=
//	DELETE /endpoints/{id}            the user deletes an endpoint (service ID)
//	PUT    /endpoints/{id}/name       {"name"}: the user names it; "" restores the original name
//	PUT    /routes                    {"from","to","open","message_types"?}
//	GET    /ledger                    {"entries": […]}
//	POST   /streams/cut               → {"streams": n}
//	POST   /streams/redeliver         → {"events": n}
//	POST   /tokens/expire
//	POST   /clock                     {"advance": "16m"} → {"now"}
//	GET    /faults                    {"faults": [{"id","operation","hits"}]}
//	POST   /faults                    {"operation", …} → 201 {"id"}; fields below
//	DELETE /faults/{id}, /faults      lifts one, lifts all

func (s *Server) controlAPI() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, status int, work func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := work(r)
			switch {
			case err != nil:
				s.writeError(w, r, err)
			case body == nil:
				w.WriteHeader(http.StatusNoContent)
			default:
				writeJSON(w, status, body)
			}
		})
	}
	handle("GET /state", http.StatusOK, s.controlState)
	handle("POST /applications", http.StatusCreated, func(r *http.Request) (any, error) {
		if r.ContentLength == 0 {
			return s.controlAddApplication(r, controlCapabilities{})
		}
		return controlled(s.controlAddApplication)(r)
	})
	handle("POST /tenants", http.StatusCreated, func(*http.Request) (any, error) {
		return map[string]string{"tenant_id": s.AddTenant()}, nil
	})
	handle("POST /authorizations", 0, controlled(s.controlAuthorize))
	handle("DELETE /authorizations", 0, s.controlRevoke)
	handle("DELETE /endpoints/{id}", 0, func(r *http.Request) (any, error) {
		return nil, s.deleteEndpointByUser(r.PathValue("id"))
	})
	handle("PUT /endpoints/{id}/name", 0, controlled(func(r *http.Request, body struct {
		Name string `json:"name"`
	}) (any, error) {
		return nil, s.setUserName(r.PathValue("id"), body.Name)
	}))
	handle("PUT /routes", 0, controlled(func(_ *http.Request, body struct {
		From         string   `json:"from"`
		To           string   `json:"to"`
		Open         bool     `json:"open"`
		MessageTypes []string `json:"message_types"`
	}) (any, error) {
		return nil, s.setRoute(body.From, body.To, body.Open, body.MessageTypes)
	}))
	handle("GET /ledger", http.StatusOK, s.controlLedger)
	handle("POST /streams/cut", http.StatusOK, func(*http.Request) (any, error) {
		return map[string]int{"streams": s.CutStreams()}, nil
	})
	handle("POST /streams/redeliver", http.StatusOK, func(*http.Request) (any, error) {
		return map[string]int{"events": s.RedeliverUnconfirmed()}, nil
	})
	handle("POST /tokens/expire", 0, func(*http.Request) (any, error) {
		s.ExpireTokens()
		return nil, nil
	})
	handle("POST /clock", http.StatusOK, controlled(s.controlClock))
	handle("GET /faults", http.StatusOK, s.controlFaults)
	handle("POST /faults", http.StatusCreated, controlled(s.controlInject))
	handle("DELETE /faults", 0, func(*http.Request) (any, error) {
		s.LiftAll()
		return nil, nil
	})
	handle("DELETE /faults/{id}", 0, s.controlLift)
	return http.StripPrefix(s.cfg.ControlPrefix, mux)
}

func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	if !isLoopback(r.RemoteAddr) || !isLoopback(r.Host) {
		s.writeError(w, r, forbidden("the control API answers on loopback only"))
		return
	}
	// Behind a proxy on this machine, every request comes from loopback.
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if len(r.Header[name]) > 0 {
			s.writeError(w, r, forbidden("the control API does not answer forwarded requests"))
			return
		}
	}
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		s.writeError(w, r, forbidden("the control API does not answer web pages"))
		return
	}
	s.control.ServeHTTP(w, r)
}

// isLoopback accepts host or host:port, also of the Host header: other names may resolve to loopback.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// controlled is for calls with a body, in which a field that it does not know is a mistake.
func controlled[T any](work func(*http.Request, T) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		var raw json.RawMessage
		if err := readJSON(r, 1<<20, http.StatusRequestEntityTooLarge, &raw); err != nil {
			return nil, err
		}
		var body T
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&body); err != nil {
			return nil, badRequest("body cannot be parsed: %v", err)
		}
		return work(r, body)
	}
}

type controlApplication struct {
	ApplicationID     string `json:"application_id"`
	SoftwareVersionID string `json:"software_version_id"`
	ClientID          string `json:"client_id"`
	ClientSecret      string `json:"client_secret,omitempty"`
}

type controlCapabilities struct {
	Capabilities []gateway.EndpointCapability `json:"capabilities"`
}

func (s *Server) controlAddApplication(_ *http.Request, body controlCapabilities) (any, error) {
	app, err := s.addApplication(ApplicationConfig{Capabilities: body.Capabilities})
	if err != nil {
		return nil, badRequest("%v", err)
	}
	return controlApplication{app.ID, app.SoftwareVersionID, app.ClientID, app.ClientSecret}, nil
}

func (s *Server) controlState(*http.Request) (any, error) {
	type controlTenant struct {
		TenantID     string   `json:"tenant_id"`
		Applications []string `json:"applications"`
	}
	type controlEndpoint struct {
		gateway.Endpoint
		Name          string   `json:"name"`
		Subscriptions []string `json:"subscriptions"`
	}
	var state struct {
		Applications []controlApplication `json:"applications"`
		Tenants      []controlTenant      `json:"tenants"`
		Endpoints    []controlEndpoint    `json:"endpoints"`
		Streams      int                  `json:"streams"`
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, app := range s.applicationOrder {
		state.Applications = append(state.Applications, controlApplication{app.ID, app.SoftwareVersionID, app.ClientID, ""})
	}
	state.Endpoints = []controlEndpoint{}
	for _, t := range s.tenantOrder {
		ct := controlTenant{TenantID: t.id, Applications: []string{}}
		for _, app := range s.applicationOrder {
			if app.authorized(t, "") {
				ct.Applications = append(ct.Applications, app.ID)
			}
		}
		state.Tenants = append(state.Tenants, ct)
		for _, e := range t.endpoints {
			ce := controlEndpoint{Endpoint: e.answer(), Name: e.displayName(), Subscriptions: []string{}}
			ce.Subscriptions = slices.AppendSeq(ce.Subscriptions, maps.Keys(e.subscriptions))
			state.Endpoints = append(state.Endpoints, ce)
		}
	}
	state.Streams = len(s.streamsLocked())
	return state, nil
}

func (s *Server) controlAuthorize(_ *http.Request, body struct {
	ApplicationID string `json:"application_id"`
	TenantID      string `json:"tenant_id"`
	Scope         string `json:"scope"`
},
) (any, error) {
	app, err := s.applicationByID(body.ApplicationID)
	if err != nil {
		return nil, err
	}
	return nil, s.authorize(app, body.TenantID, cmp.Or(body.Scope, defaultScope))
}

func (s *Server) controlRevoke(r *http.Request) (any, error) {
	query := r.URL.Query()
	app, err := s.applicationByID(query.Get("application_id"))
	if err != nil {
		return nil, err
	}
	return nil, s.revoke(app, query.Get("tenant_id"), cmp.Or(query.Get("scope"), defaultScope))
}

func (s *Server) applicationByID(id string) (*Application, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if app := s.applications[id]; app != nil {
		return app, nil
	}
	return nil, badRequest("no such application: %s", id)
}

func (s *Server) controlLedger(*http.Request) (any, error) {
	type controlEntry struct {
		LedgerEntry
		SHA256        string      `json:"sha256"`
		PayloadSHA256 string      `json:"payload_sha256"`
		Deliveries    []time.Time `json:"deliveries"`
		FileDelivered []time.Time `json:"file_deliveries"`
		Confirmations []time.Time `json:"confirmations"`
	}
	list, none := []controlEntry{}, []time.Time{} // JSON has an empty list then, not null
	for _, e := range s.Ledger() {
		list = append(list, controlEntry{
			e, hex.EncodeToString(e.SHA256[:]), hex.EncodeToString(e.PayloadSHA256[:]),
			append(none, e.Deliveries...), append(none, e.FileDeliveries...), append(none, e.Confirmations...),
		})
	}
	return map[string]any{"entries": list}, nil
}

func (s *Server) controlClock(_ *http.Request, body struct {
	Advance string `json:"advance"`
},
) (any, error) {
	d, err := time.ParseDuration(body.Advance)
	if err != nil {
		return nil, badRequest(`advance must be a duration such as "16m"`)
	}
	s.Advance(d)
	return map[string]time.Time{"now": s.Now()}, nil
}

// controlFault is a Fault as JSON can represent it. Durations are strings such as "2s".
type controlFault struct {
	Operation Operation `json:"operation"`
	Fault
	Delay  string            `json:"delay"`
	Body   *string           `json:"body"`
	Header map[string]string `json:"header"`
}

func (c controlFault) fault() (Fault, error) {
	f := c.Fault
	if err := checkFault(c.Operation, f); err != nil {
		return f, err
	}
	if c.Delay != "" {
		var err error
		if f.Delay, err = time.ParseDuration(c.Delay); err != nil {
			return f, badRequest(`delay must be a duration such as "2s"`)
		}
	}
	if c.Body != nil {
		f.Body = []byte(*c.Body)
	}
	if len(c.Header) > 0 {
		f.Header = http.Header{}
		for name, value := range c.Header {
			f.Header.Set(name, value)
		}
	}
	return f, nil
}

func (s *Server) controlInject(_ *http.Request, body controlFault) (any, error) {
	f, err := body.fault()
	if err != nil {
		return nil, err
	}
	return map[string]string{"id": s.Inject(body.Operation, f).id}, nil
}

func (s *Server) controlFaults(*http.Request) (any, error) {
	type controlInjection struct {
		ID        string    `json:"id"`
		Operation Operation `json:"operation"`
		Hits      int       `json:"hits"`
	}
	list := []controlInjection{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.faults.list {
		list = append(list, controlInjection{i.id, i.op, i.hits})
	}
	return map[string]any{"faults": list}, nil
}

func (s *Server) controlLift(r *http.Request) (any, error) {
	s.mu.Lock()
	faults := slices.Clone(s.faults.list)
	s.mu.Unlock()
	at := slices.IndexFunc(faults, func(i *Injection) bool { return i.id == r.PathValue("id") })
	if at < 0 {
		return nil, statusError(http.StatusNotFound, "no such fault")
	}
	faults[at].Lift()
	return nil, nil
}
