package gatewaytest

import (
	"net/http"

	"github.com/agrimill/agrimill/gateway"
)

// ClientConfig returns a client configuration for the default application. Set more fields before passing it to gateway.New.
func (s *Server) ClientConfig() gateway.Config { return s.defaultApp.ClientConfig() }

// ClientConfig returns a client configuration for this application.
func (a *Application) ClientConfig() gateway.Config {
	cfg := gateway.Config{
		BaseURL: a.server.BaseURL(), TokenURL: a.server.TokenURL(),
		ClientID: a.ClientID, ClientSecret: gateway.Secret(a.ClientSecret),
		ServiceName:  a.server.cfg.ServiceName,
		TLS:          a.server.ClientTLS(),
		AnyContextID: a.server.cfg.AnyContextID,
	}
	if a.server.memory != nil {
		cfg.Transport = a.server.transport()
	}
	if a.server.cfg.TokenAuth == TokenAuthParams {
		cfg.AuthStyle = gateway.AuthStyleParams
	}
	return cfg
}

// Client returns a new client for the default application, closed together with the server.
func (s *Server) Client() *gateway.Client {
	s.helper()
	return s.defaultApp.Client()
}

// Client returns a new client for this application, closed together with the server.
func (a *Application) Client() *gateway.Client {
	a.server.helper()
	client, err := gateway.New(a.ClientConfig())
	if a.server.must("Client", err); err != nil {
		return nil
	}
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	a.server.madeClients = append(a.server.madeClients, client)
	return client
}

// HTTPClient returns a plain HTTP client that trusts the server's certificate. The caller must close its idle connections.
func (s *Server) HTTPClient() *http.Client { return &http.Client{Transport: s.transport()} }

// transport reaches the server, wherever it listens, and trusts it.
func (s *Server) transport() *http.Transport {
	transport := &http.Transport{TLSClientConfig: s.ClientTLS(), ForceAttemptHTTP2: s.cfg.HTTP2}
	if s.memory != nil {
		transport.DialContext = s.memory.Dial
	}
	return transport
}
