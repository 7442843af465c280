package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

// Client is a typed client of the service: its six operations and payload
// downloads. All methods are safe for concurrent use. One client holds one
// access token, one rate limiter and separate connection pools for token,
// calls, stream and payloads; an application needs one.
type Client struct {
	cfg    Config
	origin *url.URL // scheme and host that the access token may go to
	base   string   // base address without a slash at the end
	names  headerNames

	tokens  *tokenSource
	limiter *limiter

	tokenTransport  http.RoundTripper
	callTransport   http.RoundTripper
	streamTransport http.RoundTripper
	payload         payloadTransports

	warnDeprecated sync.Once
	closed         atomic.Bool
}

// headerNames are the names on the wire, in the form of http.Header.
type headerNames struct {
	isPublish, directRecipients, sentTimestamp, endpointID, teamsetContextID,
	messageType, tenantID, contextID, filename string
}

func newHeaderNames(service string) headerNames {
	wire := func(key string) string { return http.CanonicalHeaderKey(HeaderName(service, key)) }
	return headerNames{
		isPublish:        wire(KeyIsPublish),
		directRecipients: wire(KeyDirectRecipients),
		sentTimestamp:    wire(KeySentTimestamp),
		endpointID:       wire(KeyEndpointID),
		teamsetContextID: wire(KeyTeamsetContextID),
		messageType:      wire(KeyMessageType),
		tenantID:         wire(KeyTenantID),
		contextID:        wire(KeyContextID),
		filename:         wire(KeyFilename),
	}
}

// New makes a client. It connects to nothing; the first call does. The error
// lists everything that is wrong with the configuration and matches [ErrInvalid].
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Scopes = append([]string(nil), cfg.Scopes...)
	cfg.setDefaults()
	base := strings.TrimRight(cfg.BaseURL, "/")
	origin, err := url.Parse(base)
	if err != nil {
		return nil, invalid("BaseURL", "must be an absolute http or https address")
	}
	c := &Client{
		cfg:     cfg,
		origin:  origin,
		base:    base,
		names:   newHeaderNames(cfg.ServiceName),
		limiter: &limiter{cfg: cfg.RateLimit},
	}
	c.tokenTransport = newTransport(cfg, 2)
	c.callTransport = newTransport(cfg, cfg.MaxIdleConnsPerHost)
	c.streamTransport = newTransport(cfg, 1)
	c.payload = newPayloadTransports(cfg)
	c.tokens = newTokenSource(cfg, c.tokenTransport)
	for _, u := range []string{cfg.BaseURL, cfg.TokenURL} {
		if p, perr := url.Parse(u); perr == nil && p.Scheme == "http" && !isLoopbackHost(p.Hostname()) {
			cfg.Logger.Warn("gateway: credentials travel without TLS", "host", p.Host)
		}
	}
	return c, nil
}

// Config returns the effective configuration, defaults filled in, without the
// client secret.
func (c *Client) Config() Config {
	cfg := c.cfg
	cfg.ClientSecret = ""
	cfg.Scopes = append([]string(nil), cfg.Scopes...)
	return cfg
}

// RateLimit tells the state of the limiter that answers of status 429 steer.
// It never blocks for long.
func (c *Client) RateLimit() RateLimitState { return c.limiter.state() }

// Close ends a token request under way and closes idle connections. Calls made
// afterwards fail with [ErrClosed]; calls, streams and downloads under way are
// not interrupted, their contexts end them. Close is idempotent and always
// returns nil.
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

// tenantHeader is the header of the calls that name a tenant.
func (c *Client) tenantHeader(tenantID string) http.Header {
	return http.Header{c.names.tenantID: {tenantID}}
}

// invalidCall is the error of a call that is not made, or nil.
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
