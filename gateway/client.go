package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

// Client is a typed client of the service: its six operations and payload downloads. All methods are safe for
// concurrent use. An application needs only one client, which has one access token and one rate limiter.
type Client struct {
	// cfg contains no credentials, so that printing a value that holds a Client,
	// even by reflection, cannot reveal them. Only the token source has them.
	cfg    Config
	origin *url.URL // scheme and host that the access token may go to
	base   string   // base URL without a trailing slash
	// messages is what all requests that send a message have in common.
	messages *http.Request
	names    map[string]string // header names on the wire, in canonical form, by key
	common   [2]string         // values of User-Agent and Accept-Encoding

	tokens  *tokenSource
	limiter *limiter
	answers *answers

	tokenTransport  http.RoundTripper
	callTransport   http.RoundTripper
	streamTransport http.RoundTripper
	payload         payloadTransports

	warnDeprecated sync.Once
	closed         atomic.Bool
}

// New creates a client. It does not connect; the first call does. The error
// lists every mistake in the configuration and matches [ErrInvalid].
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Scopes = append([]string(nil), cfg.Scopes...)
	cfg = cfg.WithDefaults()
	base := strings.TrimRight(cfg.BaseURL, "/")
	origin, err := url.Parse(base)
	if err != nil {
		return nil, invalid("BaseURL", "must be an absolute http or https address")
	}
	messages, err := http.NewRequestWithContext(context.Background(), http.MethodPost, base+"/messages", http.NoBody)
	if err != nil {
		return nil, invalid("BaseURL", "must be an absolute http or https address")
	}
	messages.Header, messages.Body = nil, nil
	c := &Client{
		cfg:      cfg.withoutCredentials(),
		origin:   origin,
		base:     base,
		messages: messages,
		names:    map[string]string{},
		common:   [2]string{cfg.UserAgent, acceptIdentity},
		limiter:  &limiter{cfg: cfg.RateLimit},
		answers:  &answers{},
	}
	for _, key := range []string{
		KeyIsPublish, KeyDirectRecipients, KeySentTimestamp, KeyEndpointID, KeyTeamsetContextID, KeyMessageType, KeyTenantID, KeyContextID, KeyFilename,
	} {
		c.names[key] = http.CanonicalHeaderKey(HeaderName(cfg.ServiceName, key))
	}
	var p pools
	c.tokenTransport = p.transport(cfg, cfg.Transports.Token, 2)
	c.callTransport = p.transport(cfg, cfg.Transports.Calls, cfg.MaxIdleConnsPerHost)
	c.streamTransport = p.transport(cfg, cfg.Transports.Stream, 1)
	c.payload = newPayloadTransports(cfg, &p)
	c.tokens = newTokenSource(cfg, c.tokenTransport, c.answers)
	for _, u := range []string{cfg.BaseURL, cfg.TokenURL} {
		if at, perr := url.Parse(u); perr == nil && at.Scheme == "http" && !isLoopbackHost(at.Hostname()) {
			cfg.Logger.Warn("gateway: credentials are sent without TLS", "host", at.Host)
		}
	}
	return c, nil
}

// Config returns the effective configuration, with defaults filled in, but without client secret and token source.
func (c *Client) Config() Config {
	cfg := c.cfg
	cfg.Scopes = append([]string(nil), cfg.Scopes...)
	return cfg
}

// String identifies the service. No verb prints credentials.
func (c *Client) String() string { return "gateway.Client(" + c.base + ")" }

// GoString is String: %#v prints no credentials either.
func (c *Client) GoString() string { return c.String() }

// RateLimit returns the state of the limiter that reacts to status 429. It never blocks for long.
func (c *Client) RateLimit() RateLimitState { return c.limiter.state() }

// Close cancels a token request in flight and closes idle connections. Later calls fail with [ErrClosed]; those in
// progress go on until their contexts end. Close is idempotent and always returns nil.
func (c *Client) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.tokens.close()
	for _, rt := range []http.RoundTripper{
		c.tokenTransport, c.callTransport, c.streamTransport, c.payload.first, c.payload.redirected,
	} {
		if t, ok := rt.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
	return nil
}

// tenantHeader returns the header for calls that name a tenant.
func (c *Client) tenantHeader(tenantID string) http.Header {
	return http.Header{c.names[KeyTenantID]: {tenantID}}
}

// tenantOf returns the tenant that a header names, in lower case; empty if it names none.
func (c *Client) tenantOf(header http.Header) string {
	if values := header[c.names[KeyTenantID]]; len(values) > 0 {
		return strings.ToLower(values[0])
	}
	return ""
}

// invalidCall returns why a call is not made, or nil.
func (c *Client) invalidCall(ctx context.Context, op string, err error) error {
	switch {
	case err != nil:
		return &Error{Op: op, Err: err}
	case c.closed.Load():
		return &Error{Op: op, Err: ErrClosed}
	case ctx.Err() != nil:
		return &Error{Op: op, Err: ctx.Err()}
	}
	return nil
}
