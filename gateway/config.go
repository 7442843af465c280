package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// AuthStyle says how the client credentials travel in the token request. It is
// explicit; the client never probes.
type AuthStyle int

const (
	// AuthStyleBasic sends the credentials as HTTP Basic authentication, the
	// form every OAuth 2.0 server must support. It is the default.
	AuthStyleBasic AuthStyle = iota
	// AuthStyleParams sends client_id and client_secret as form parameters.
	AuthStyleParams
)

// EventTypesEncoding says how the `types` array of GET /events is written in
// the query; the specification does not show it.
type EventTypesEncoding int

const (
	// EventTypesRepeated writes types=A&types=B. It is the default.
	EventTypesRepeated EventTypesEncoding = iota
	// EventTypesComma writes types=A,B.
	EventTypesComma
)

// NoIdleTimeout switches an idle watchdog off.
const NoIdleTimeout time.Duration = -1

// NoTimeout switches a timeout off.
const NoTimeout time.Duration = -1

// Defaults of [Config].
const (
	DefaultServiceName          = "router"
	DefaultStreamIdleTimeout    = 2 * time.Minute
	DefaultMaxEventSize         = 16 << 20
	DefaultMaxPayloadSize       = 256 << 20
	DefaultMaxResponseSize      = 64 << 20
	DefaultRequestTimeout       = 30 * time.Second
	DefaultTokenTimeout         = 30 * time.Second
	DefaultTokenExpiryMargin    = 30 * time.Second
	DefaultMinTransferRate      = 128 << 10
	DefaultPayloadIdleTimeout   = 30 * time.Second
	DefaultMaxPayloadRedirects  = 5
	DefaultMaxIdleConnsPerHost  = 64
	DefaultStreamConnectTimeout = 30 * time.Second
)

// Config configures a [Client]. It is passed by value and never changed; the
// zero value of every optional field means its documented default.
type Config struct {
	// BaseURL is the base address of the service, http or https, without
	// query. A path prefix is kept. Required.
	BaseURL string
	// TokenURL is the full token address, e.g. {auth_url}/token. Required.
	TokenURL string
	// ClientID and ClientSecret are the OAuth 2.0 client credentials. Required.
	ClientID     string
	ClientSecret string
	// Scopes are asked for in the token request, none by default: the
	// specification's scope list is empty.
	Scopes []string
	// AuthStyle is [AuthStyleBasic] by default.
	AuthStyle AuthStyle

	// ServiceName is the service's own name as it stands in header names
	// (x-NAME-tenant-id). Default [DefaultServiceName].
	ServiceName string
	// EventTypesEncoding is [EventTypesRepeated] by default.
	EventTypesEncoding EventTypesEncoding

	// StreamIdleTimeout ends an event stream on which a read has waited this
	// long for a byte; time that the reader itself takes does not count.
	// Default [DefaultStreamIdleTimeout], off with [NoIdleTimeout].
	StreamIdleTimeout time.Duration
	// StreamConnectTimeout bounds the time from the request for a stream to the
	// head of its answer. Default [DefaultStreamConnectTimeout], off with [NoTimeout].
	StreamConnectTimeout time.Duration
	// MaxEventSize is the largest event, in bytes, that a stream delivers;
	// larger ones are skipped and reported. Default [DefaultMaxEventSize].
	MaxEventSize int

	// MaxPayloadSize is the largest payload in bytes, checked before sending
	// and while downloading. Default [DefaultMaxPayloadSize] (256 MiB).
	MaxPayloadSize int64
	// MaxResponseSize is the largest JSON answer in bytes that is read.
	// Default [DefaultMaxResponseSize].
	MaxResponseSize int64

	// RequestTimeout bounds one attempt of a call, without the time that its
	// body may take (see MinTransferRate). The whole call is bounded by its
	// context. Default [DefaultRequestTimeout], off with [NoTimeout].
	RequestTimeout time.Duration
	// MinTransferRate, in bytes per second, extends RequestTimeout: an attempt
	// with a body of n bytes may take n/MinTransferRate longer. Default
	// [DefaultMinTransferRate].
	MinTransferRate int64
	// TokenTimeout bounds one token request. Default [DefaultTokenTimeout].
	TokenTimeout time.Duration
	// TokenExpiryMargin is how long before its expiry a token is replaced; at
	// most half of the token's lifetime is used. Default [DefaultTokenExpiryMargin].
	TokenExpiryMargin time.Duration

	// Retry is the retry policy of calls and of payload downloads.
	Retry RetryConfig
	// RateLimit tunes the limiter that answers of status 429 steer.
	RateLimit RateLimitConfig

	// PayloadIdleTimeout breaks a payload download whose read has waited this
	// long for a byte; it is then resumed. Default [DefaultPayloadIdleTimeout],
	// off with [NoIdleTimeout].
	PayloadIdleTimeout time.Duration
	// MaxPayloadRedirects bounds the redirects of a payload URI. Default
	// [DefaultMaxPayloadRedirects], none allowed with [NoPayloadRedirects].
	MaxPayloadRedirects int
	// AllowPrivatePayloadRedirects lets a payload URI redirect to loopback,
	// private and link-local addresses. Default false. The payload URI itself
	// comes from the service and is not restricted.
	AllowPrivatePayloadRedirects bool

	// TLS is cloned and used for every connection. Nil means the system's
	// roots. InsecureSkipVerify is refused.
	TLS *tls.Config
	// Transport replaces the network of every request, for tests and special
	// proxies. Nil means separate, pooled transports for token, calls, stream
	// and payloads. With a Transport, TLS is ignored, and the address rule for
	// payload redirects looks at literal addresses only, because the client
	// does not dial itself.
	Transport http.RoundTripper
	// MaxIdleConnsPerHost is the size of the connection pool of calls. Default
	// [DefaultMaxIdleConnsPerHost].
	MaxIdleConnsPerHost int
	// UserAgent is sent with every request. Default "agrimill".
	UserAgent string
	// Logger gets warnings and retries; nil is silent. It never gets tokens,
	// secrets, payloads or queries of payload URIs.
	Logger *slog.Logger
}

// NoPayloadRedirects forbids redirects of payload URIs ([Config.MaxPayloadRedirects]).
const NoPayloadRedirects = -1

// redacted returns c without what must not be printed.
func (c Config) redacted() Config {
	if c.ClientSecret != "" {
		c.ClientSecret = "(redacted)"
	}
	return c
}

// plainConfig has the fields of Config and none of its methods.
type plainConfig Config

// String formats the configuration without the client secret.
func (c Config) String() string { return fmt.Sprintf("%+v", plainConfig(c.redacted())) }

// GoString formats the configuration without the client secret.
func (c Config) GoString() string { return "gateway.Config" + c.String() }

// LogValue keeps the client secret out of structured logs.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

func (c *Config) setDefaults() {
	def(&c.ServiceName, DefaultServiceName)
	def(&c.StreamIdleTimeout, DefaultStreamIdleTimeout)
	def(&c.StreamConnectTimeout, DefaultStreamConnectTimeout)
	def(&c.MaxEventSize, DefaultMaxEventSize)
	def(&c.MaxPayloadSize, DefaultMaxPayloadSize)
	def(&c.MaxResponseSize, DefaultMaxResponseSize)
	def(&c.RequestTimeout, DefaultRequestTimeout)
	def(&c.MinTransferRate, DefaultMinTransferRate)
	def(&c.TokenTimeout, DefaultTokenTimeout)
	def(&c.TokenExpiryMargin, DefaultTokenExpiryMargin)
	def(&c.PayloadIdleTimeout, DefaultPayloadIdleTimeout)
	def(&c.MaxPayloadRedirects, DefaultMaxPayloadRedirects)
	def(&c.MaxIdleConnsPerHost, DefaultMaxIdleConnsPerHost)
	def(&c.UserAgent, "agrimill")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Retry.setDefaults()
	c.RateLimit.setDefaults()
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every contradiction in the configuration, joined. Defaults
// need not be filled in before.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	bad := func(field, rule string) {
		errs = append(errs, fmt.Errorf("gateway: config: %w", &ValidationError{Field: field, Rule: rule}))
	}
	checkURL := func(field, value string) {
		u, err := url.Parse(value)
		switch {
		case value == "":
			bad(field, "is required")
		case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
			bad(field, "must be an absolute http or https address")
		case u.User != nil:
			bad(field, "must not carry credentials")
		case u.Fragment != "" || (field == "BaseURL" && (u.RawQuery != "" || u.ForceQuery)):
			bad(field, "must have no query and no fragment")
		}
	}
	checkURL("BaseURL", c.BaseURL)
	checkURL("TokenURL", c.TokenURL)
	if c.ClientID == "" {
		bad("ClientID", "is required")
	}
	if c.ClientSecret == "" {
		bad("ClientSecret", "is required")
	}
	if c.AuthStyle != AuthStyleBasic && c.AuthStyle != AuthStyleParams {
		bad("AuthStyle", "must be AuthStyleBasic or AuthStyleParams")
	}
	if c.EventTypesEncoding != EventTypesRepeated && c.EventTypesEncoding != EventTypesComma {
		bad("EventTypesEncoding", "must be EventTypesRepeated or EventTypesComma")
	}
	if strings.Trim(strings.ToLower(c.ServiceName), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		bad("ServiceName", "must consist of letters, digits and hyphens")
	}
	checkText := func(field, value string) {
		if err := validateHeaderValue(field, value); err != nil {
			errs = append(errs, fmt.Errorf("gateway: config: %w", err))
		}
	}
	checkText("UserAgent", c.UserAgent)
	orOff := func(field string, d time.Duration) {
		if d < 0 && d != NoTimeout {
			bad(field, "must not be negative; -1 is off")
		}
	}
	orOff("StreamIdleTimeout", c.StreamIdleTimeout)
	orOff("StreamConnectTimeout", c.StreamConnectTimeout)
	orOff("RequestTimeout", c.RequestTimeout)
	orOff("PayloadIdleTimeout", c.PayloadIdleTimeout)
	positive := func(field string, n int64) {
		if n < 0 {
			bad(field, "must not be negative")
		}
	}
	positive("TokenTimeout", int64(c.TokenTimeout))
	positive("TokenExpiryMargin", int64(c.TokenExpiryMargin))
	positive("MaxEventSize", int64(c.MaxEventSize))
	positive("MaxPayloadSize", c.MaxPayloadSize)
	positive("MaxResponseSize", c.MaxResponseSize)
	positive("MinTransferRate", c.MinTransferRate)
	positive("MaxIdleConnsPerHost", int64(c.MaxIdleConnsPerHost))
	if c.MaxPayloadRedirects < 0 && c.MaxPayloadRedirects != NoPayloadRedirects {
		bad("MaxPayloadRedirects", "must not be negative; -1 is none")
	}
	if c.TLS != nil && c.TLS.InsecureSkipVerify {
		bad("TLS", "must verify certificates: add the service's authority to RootCAs instead")
	}
	errs = append(errs, c.Retry.validate(), c.RateLimit.validate())
	return errors.Join(errs...)
}
