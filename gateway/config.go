package gateway

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/internal/validate"
)

// AuthStyle is how the client credentials are sent in the token request. The client never probes.
type AuthStyle int

const (
	// AuthStyleBasic sends the credentials as HTTP Basic authentication. It is the default.
	AuthStyleBasic AuthStyle = iota
	// AuthStyleParams sends client_id and client_secret as form parameters.
	AuthStyleParams
)

var authStyles = []string{"basic", "params"}

// String returns basic or params.
func (s AuthStyle) String() string { return enum.Text(s, authStyles) }

// UnmarshalText parses the output of String.
func (s *AuthStyle) UnmarshalText(text []byte) error { return enum.Parse(s, text, authStyles) }

// EventTypesEncoding is how the `types` array of GET /events is encoded, which the specification does not show.
type EventTypesEncoding int

const (
	// EventTypesRepeated writes types=A&types=B. It is the default.
	EventTypesRepeated EventTypesEncoding = iota
	// EventTypesComma writes types=A,B.
	EventTypesComma
)

var eventTypesEncodings = []string{"repeated", "comma"}

// String returns repeated or comma.
func (e EventTypesEncoding) String() string { return enum.Text(e, eventTypesEncodings) }

// UnmarshalText parses the output of String.
func (e *EventTypesEncoding) UnmarshalText(text []byte) error {
	return enum.Parse(e, text, eventTypesEncodings)
}

// Off turns off what a field sets whose comment says so. 0 means the default of the field.
const Off = -1

// Defaults of [Config].
const (
	DefaultServiceName          = "router"
	defaultStreamIdleTimeout    = 2 * time.Minute
	defaultMaxEventSize         = 16 << 20
	defaultMaxPayloadSize       = 256 << 20
	defaultMaxResponseSize      = 64 << 20
	defaultRequestTimeout       = 30 * time.Second
	defaultTokenTimeout         = 30 * time.Second
	defaultMinTransferRate      = 128 << 10
	defaultPayloadIdleTimeout   = 30 * time.Second
	defaultMaxIdleConnsPerHost  = 256
	defaultStreamConnectTimeout = 30 * time.Second
	defaultPingInterval         = 10 * time.Second
)

// Config configures a [Client]. It is passed by value and never modified; the
// zero value of every optional field means its documented default.
type Config struct {
	// BaseURL is the base URL of the service, with its path prefix and without a query. Required.
	BaseURL string `yaml:"base_url" required:"true"`
	// TokenURL is the full URL of the token endpoint, e.g. {auth_url}/token. Required.
	TokenURL string `yaml:"token_url" required:"true"`
	// ClientID is the OAuth 2.0 client ID of the application. Required, like ClientSecret
	// and TokenURL, unless there is a TokenSource.
	ClientID string `yaml:"client_id" required:"true"`
	// ClientSecret is the OAuth 2.0 client secret.
	ClientSecret Secret `yaml:"client_secret"`
	// ClientSecretFunc returns the client secret instead of ClientSecret, for one that is rotated. It is called before
	// every token request, by one goroutine at a time, and must return quickly. An error fails the token request, which
	// is retried; it must not contain the secret.
	ClientSecretFunc func() (Secret, error) `yaml:"-"`
	// TokenSource provides the access tokens instead of client credentials; TokenURL, ClientID, ClientSecret,
	// ClientSecretFunc and Scopes must then be empty. It is called when there is no token, when the current one is about
	// to expire, and once after the service has refused one (401). Returning the refused token again counts as an outage
	// until another one is returned or the service accepts it. It is called from one goroutine at a time and waited for no
	// longer than TokenTimeout; a call that hangs keeps its goroutine, even after Close. An error counts as an outage unless
	// it matches [ErrUnauthorized] or is a refusal in an [oauth2.RetrieveError]; its text is shown, so it must not contain
	// secrets. The token is sent to the service only.
	TokenSource oauth2.TokenSource `yaml:"-"`
	// Scopes are requested in the token request. Default none: the
	// specification's scope list is empty.
	Scopes []string `yaml:"scopes"`
	// AuthStyle is how the client credentials are sent: by HTTP Basic authentication, or as form parameters. Default
	// [AuthStyleBasic].
	AuthStyle AuthStyle `yaml:"auth_style" enum:"basic,params"`

	// ServiceName is the service's name in header names (x-NAME-tenant-id). Default
	// [DefaultServiceName].
	ServiceName string `yaml:"service_name"`
	// AnyContextID allows context IDs of up to 50 characters of any form. Default false: they are
	// UUIDs, as specified.
	AnyContextID bool `yaml:"any_context_id"`
	// EventTypesEncoding is how GET /events names types: types=A&types=B, or types=A,B. Default
	// [EventTypesRepeated].
	EventTypesEncoding EventTypesEncoding `yaml:"event_types_encoding" enum:"repeated,comma"`

	// StreamIdleTimeout ends an event stream on which no byte has come for this long. Time spent by the reader
	// itself does not count. Default 2 minutes, off with [Off].
	StreamIdleTimeout time.Duration `yaml:"stream_idle_timeout" off:"true"`
	// StreamConnectTimeout bounds the time until the request for a stream has been written, or until its response head
	// with a RoundTripper that does not report to package net/http/httptrace: that may come as late as the first event.
	// Default 30 seconds, off with [Off].
	StreamConnectTimeout time.Duration `yaml:"-"`
	// MaxEventSize is the largest event, in bytes; larger ones are reported. Default 16 MiB.
	MaxEventSize int `yaml:"max_event_size" unit:"bytes"`

	// MaxPayloadSize is the largest payload in bytes, checked before sending
	// and while downloading. Default 256 MiB.
	MaxPayloadSize int64 `yaml:"max_payload_size" unit:"bytes"`
	// MaxResponseSize is the largest JSON response, in bytes. Default 64 MiB.
	MaxResponseSize int64 `yaml:"-"`

	// RequestTimeout bounds one attempt of a call, without the time for its body (see MinTransferRate); the context
	// bounds the call as a whole. Default 30 seconds, off with [Off].
	RequestTimeout time.Duration `yaml:"-"`
	// MinTransferRate is the slowest accepted upload, in bytes per second. It extends
	// RequestTimeout: an attempt with a body of n bytes may take n/MinTransferRate
	// longer. Default
	// 128 KiB.
	MinTransferRate int64 `yaml:"min_transfer_rate" unit:"bytes"`
	// TokenTimeout bounds one token request. Default 30 seconds.
	TokenTimeout time.Duration `yaml:"-"`

	// Retry is the retry policy of calls and of payload downloads.
	Retry RetryConfig `yaml:"retry"`
	// RateLimit tunes the limiter that reacts to status 429.
	RateLimit RateLimitConfig `yaml:"-"`

	// PayloadIdleTimeout interrupts and resumes a payload download when a read has waited this
	// long for a byte. Default 30 seconds, off with [Off].
	PayloadIdleTimeout time.Duration `yaml:"-"`
	// AllowPrivatePayloadRedirects lets a payload URI redirect to loopback, private and link-local addresses.
	// Default false. The payload URI itself comes from the service and is not restricted.
	AllowPrivatePayloadRedirects bool `yaml:"allow_private_payload_redirects"`

	// TLS is cloned and used for every connection. Nil means the system's
	// root certificates. InsecureSkipVerify is rejected.
	TLS *tls.Config `yaml:"-"`
	// Transport replaces the network for every request. Nil means separate, pooled transports for token, calls,
	// stream and payloads. With a Transport, TLS and PingInterval are ignored, and the address rule for payload
	// redirects only covers literal addresses, as the client does not dial. The response of a RoundTripper that
	// follows redirects is rejected ([ErrRedirect]).
	Transport http.RoundTripper `yaml:"-"`
	// Transports replaces Transport for one kind of traffic.
	Transports Transports `yaml:"-"`
	// PingInterval is how long an HTTP/2 connection may be silent before it is pinged. If no answer arrives for the
	// same time, the connection is closed, along with everything open on it, and replaced: calls to a host share one,
	// and every attempt would go to one that died silently. Default 10 seconds, or the shortest of the timeouts here
	// if that is shorter; off with [Off].
	PingInterval time.Duration `yaml:"-"`
	// MaxIdleConnsPerHost is the size of the connection pool for calls. Default 256.
	MaxIdleConnsPerHost int `yaml:"-"`
	// UserAgent is sent with every request. Default "agrimill".
	UserAgent string `yaml:"-"`
	// Logger receives warnings and retries; nil discards them. It never receives tokens,
	// secrets, payloads or queries of payload URIs.
	Logger *slog.Logger `yaml:"-"`
}

// Transports are the networks of a client by kind of traffic. A nil transport falls
// back to [Config.Transport], and if that is nil too, to the client's own.
type Transports struct {
	// Calls carries calls to the service, with the access token.
	Calls http.RoundTripper
	// Stream carries the event stream, with the access token. It must neither buffer the response nor limit its
	// duration.
	Stream http.RoundTripper
	// Payloads carries downloads of payload URIs, which never include the token.
	Payloads http.RoundTripper
	// Token carries token requests, with the client credentials. It is not used with a [Config.TokenSource].
	Token http.RoundTripper
}

// withoutCredentials returns c without anything that grants access.
func (c Config) withoutCredentials() Config {
	c.ClientSecret, c.ClientSecretFunc, c.TokenSource = "", nil, nil
	return c
}

// String formats the configuration without what is secret.
func (c Config) String() string { return redact.Struct(c) }

// Format writes String for every verb.
func (c Config) Format(state fmt.State, _ rune) { redact.Format(state, c) }

// MarshalText returns String: a configuration is never written with what is secret.
func (c Config) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// WithDefaults returns the configuration with the defaults filled in.
func (c Config) WithDefaults() Config {
	c.ServiceName = cmp.Or(c.ServiceName, DefaultServiceName)
	c.StreamIdleTimeout = cmp.Or(c.StreamIdleTimeout, defaultStreamIdleTimeout)
	c.StreamConnectTimeout = cmp.Or(c.StreamConnectTimeout, defaultStreamConnectTimeout)
	c.MaxEventSize = cmp.Or(c.MaxEventSize, defaultMaxEventSize)
	c.MaxPayloadSize = cmp.Or(c.MaxPayloadSize, defaultMaxPayloadSize)
	c.MaxResponseSize = cmp.Or(c.MaxResponseSize, defaultMaxResponseSize)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	c.MinTransferRate = cmp.Or(c.MinTransferRate, defaultMinTransferRate)
	c.TokenTimeout = cmp.Or(c.TokenTimeout, defaultTokenTimeout)
	c.PayloadIdleTimeout = cmp.Or(c.PayloadIdleTimeout, defaultPayloadIdleTimeout)
	c.PingInterval = cmp.Or(c.PingInterval, c.pingInterval())
	c.MaxIdleConnsPerHost = cmp.Or(c.MaxIdleConnsPerHost, defaultMaxIdleConnsPerHost)
	c.UserAgent = cmp.Or(c.UserAgent, "agrimill")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Retry = c.Retry.WithDefaults()
	c.RateLimit = c.RateLimit.WithDefaults()
	return c
}

// pingInterval is at most the shortest timeout: who gives up after a second should not hit a dead connection for twenty.
func (c *Config) pingInterval() time.Duration {
	interval := defaultPingInterval
	for _, limit := range []time.Duration{c.StreamIdleTimeout, c.StreamConnectTimeout, c.RequestTimeout, c.TokenTimeout, c.PayloadIdleTimeout} {
		if limit > 0 {
			interval = min(interval, limit)
		}
	}
	return interval
}

// ErrConfig is matched by the errors of [Config.Validate], [ProvisionerConfig.Validate]
// and the constructors. It matches [ErrInvalid].
var ErrConfig error = &subSentinel{"gateway: invalid configuration", ErrInvalid}

// Validate reports every field with an invalid value; the error matches [ErrConfig]. Zero values stand for the defaults.
func (c Config) Validate() error {
	c = c.WithDefaults()
	e := validate.Errors{Cause: validationCause}
	checkURL := func(field, value string) {
		u, err := url.Parse(value)
		switch {
		case value == "":
			e.Add(field, "is required")
		case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
			e.Add(field, "must be an absolute http or https address")
		case u.User != nil:
			e.Add(field, "must not carry credentials")
		case u.Fragment != "" || (field == "BaseURL" && (u.RawQuery != "" || u.ForceQuery)):
			e.Add(field, "must have no query and no fragment")
		}
	}
	checkURL("BaseURL", c.BaseURL)
	if c.TokenSource == nil {
		checkURL("TokenURL", c.TokenURL)
		e.Check(c.ClientID != "", "ClientID", "is required")
		e.Check(c.ClientSecret != "" || c.ClientSecretFunc != nil, "ClientSecret", "is required")
		e.Check(c.ClientSecret == "" || c.ClientSecretFunc == nil, "ClientSecretFunc", "must not be combined with %s", validate.Field("ClientSecret"))
	} else {
		e.Check(c.TokenURL == "" && c.ClientID == "" && c.ClientSecret == "" && c.ClientSecretFunc == nil && len(c.Scopes) == 0,
			"TokenSource", "must not be combined with the address, credentials and scopes of a token endpoint")
	}
	e.Check(c.AuthStyle == AuthStyleBasic || c.AuthStyle == AuthStyleParams, "AuthStyle", "must be one of the named constants")
	e.Check(c.EventTypesEncoding == EventTypesRepeated || c.EventTypesEncoding == EventTypesComma,
		"EventTypesEncoding", "must be one of the named constants")
	e.Check(strings.Trim(strings.ToLower(c.ServiceName), "abcdefghijklmnopqrstuvwxyz0123456789-") == "",
		"ServiceName", "must consist of letters, digits and hyphens")
	addInvalid(&e, validateHeaderValue("UserAgent", c.UserAgent))
	orOff := func(field string, d time.Duration) {
		e.Check(d >= 0 || d == Off, field, "must not be negative, except -1 to disable it")
	}
	orOff("StreamIdleTimeout", c.StreamIdleTimeout)
	orOff("StreamConnectTimeout", c.StreamConnectTimeout)
	orOff("RequestTimeout", c.RequestTimeout)
	orOff("PayloadIdleTimeout", c.PayloadIdleTimeout)
	orOff("PingInterval", c.PingInterval)
	validate.NotNegative(&e, "TokenTimeout", c.TokenTimeout)
	validate.NotNegative(&e, "MaxEventSize", c.MaxEventSize)
	validate.NotNegative(&e, "MaxPayloadSize", c.MaxPayloadSize)
	validate.NotNegative(&e, "MaxResponseSize", c.MaxResponseSize)
	validate.NotNegative(&e, "MinTransferRate", c.MinTransferRate)
	validate.NotNegative(&e, "MaxIdleConnsPerHost", c.MaxIdleConnsPerHost)
	e.Check(c.TLS == nil || !c.TLS.InsecureSkipVerify, "TLS", "must verify certificates: add the service's CA to the trusted ones instead")
	e.Join("Retry", c.Retry.validate())
	e.Join("RateLimit", c.RateLimit.validate())
	return e.Err(ErrConfig)
}

// validationCause makes every mistake in this package a [*ValidationError].
func validationCause(path, rule string) error { return &ValidationError{Field: path, Rule: rule} }

// addInvalid adds a [*ValidationError] under the field that it names.
func addInvalid(e *validate.Errors, err error) {
	if rule, ok := errors.AsType[*ValidationError](err); ok {
		e.AddCause(rule, rule.Field, "%s", rule.Rule)
	}
}
