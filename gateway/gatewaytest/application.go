package gatewaytest

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/agrimill/agrimill/gateway"
)

// Application is an application registered with the service. Its
// exported fields do not change; see [Server.RotateClientSecret].
type Application struct {
	// ID and SoftwareVersionID are used in PUT /endpoints.
	ID, SoftwareVersionID string
	// ClientID and ClientSecret are the credentials for token requests.
	ClientID, ClientSecret string

	server       *Server
	anything     bool
	capabilities map[string]directions

	// Guarded by Server.mu.
	secret         string // the current one
	authorizations []authorization
	feed           feed
	limiter        *rate.Limiter
}

// authorization is the triple (tenant, application, scope); the application is
// the one that owns it.
type authorization struct {
	tenant *tenant
	scope  string
}

type directions struct{ send, receive bool }

func (d *directions) add(direction gateway.Direction) {
	d.send = d.send || direction.CanSend()
	d.receive = d.receive || direction.CanReceive()
}

func newApplication(s *Server, cfg ApplicationConfig) *Application {
	cfg.ID = cmp.Or(cfg.ID, uuid.NewString())
	cfg.SoftwareVersionID = cmp.Or(cfg.SoftwareVersionID, uuid.NewString())
	cfg.ClientID = cmp.Or(cfg.ClientID, "client-"+randomHex(6))
	cfg.ClientSecret = cmp.Or(cfg.ClientSecret, SecretPrefix+randomHex(24))
	id, _ := canonicalUUID(cfg.ID)
	version, _ := canonicalUUID(cfg.SoftwareVersionID)
	app := &Application{
		ID: id, SoftwareVersionID: version, ClientID: cfg.ClientID, ClientSecret: cfg.ClientSecret,
		secret: cfg.ClientSecret, server: s, anything: cfg.Capabilities == nil, capabilities: map[string]directions{},
	}
	for _, c := range cfg.Capabilities {
		d := app.capabilities[c.MessageType]
		d.add(c.Direction)
		app.capabilities[c.MessageType] = d
	}
	if s.cfg.RateLimit > 0 {
		app.limiter = rate.NewLimiter(rate.Limit(s.cfg.RateLimit), s.cfg.RateBurst)
	}
	return app
}

// allows reports whether the software version has the capability.
func (a *Application) allows(c gateway.EndpointCapability) bool {
	if a.anything {
		return true
	}
	d := a.capabilities[c.MessageType]
	return (!c.Direction.CanSend() || d.send) && (!c.Direction.CanReceive() || d.receive)
}

// authorized reports whether the application holds an authorization of the
// tenant: with the given scope, or with any when scope is empty.
func (a *Application) authorized(t *tenant, scope string) bool {
	return slices.ContainsFunc(a.authorizations, func(auth authorization) bool {
		return auth.tenant == t && (scope == "" || auth.scope == scope)
	})
}

// AddApplication registers another application. It is not authorized for any
// tenant yet; see [Server.Authorize].
func (s *Server) AddApplication(cfg ApplicationConfig) *Application {
	s.helper()
	app, err := s.addApplication(cfg)
	s.must("AddApplication", err)
	return app
}

func (s *Server) addApplication(cfg ApplicationConfig) (*Application, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	app := newApplication(s, cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applications[app.ID] != nil || s.clients[app.ClientID] != nil {
		return nil, badRequest("application %s or its client ID already exists", app.ID)
	}
	s.applications[app.ID], s.clients[app.ClientID] = app, app
	s.applicationOrder = append(s.applicationOrder, app)
	return app, nil
}

// RotateClientSecret replaces the application's client secret and returns the new one. Application.ClientSecret is
// refused from then on; tokens stay valid, see [Server.ExpireTokens].
func (s *Server) RotateClientSecret(app *Application) string {
	secret := SecretPrefix + randomHex(24)
	s.mu.Lock()
	defer s.mu.Unlock()
	app.secret = secret
	return secret
}

// Application returns the default application. It exists from the start and is
// authorized for [Server.Tenant].
func (s *Server) Application() *Application { return s.defaultApp }

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}
