package gatewaytest

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// Values of [Config] fields that switch something off.
const (
	// NoKeepAlive as [Config.KeepAlive] sends no comment lines.
	NoKeepAlive time.Duration = -1
	// NoInline as [Config.InlineLimit] embeds no payload: every event carries a
	// payload_uri.
	NoInline int64 = -1
	// TokenExpiryOmitted as [Config.TokenLifetime] leaves expires_in out of the
	// token response; such tokens stay valid until [Server.ExpireTokens].
	TokenExpiryOmitted time.Duration = -1
)

// TypesEncoding says which serialisations of the `types` parameter of
// GET /events are understood. The specification does not show one.
type TypesEncoding int

// The values of [Config.TypesEncoding]. Under one that is not accepted the
// request is answered 400.
const (
	// TypesBoth accepts types=A&types=B, types=A,B and mixtures.
	TypesBoth TypesEncoding = iota
	// TypesRepeated accepts types=A&types=B only.
	TypesRepeated
	// TypesComma accepts types=A,B only.
	TypesComma
)

// TokenAuth says how the client credentials may be presented to the token
// address. The specification does not show it.
type TokenAuth int

// The values of [Config.TokenAuth].
const (
	// TokenAuthBoth accepts HTTP Basic and form parameters.
	TokenAuthBoth TokenAuth = iota
	// TokenAuthBasic accepts HTTP Basic only.
	TokenAuthBasic
	// TokenAuthParams accepts client_id and client_secret in the form only.
	TokenAuthParams
)

// StreamPolicy says which of several open streams of one application get an
// event. The specification does not show it.
type StreamPolicy int

// The values of [Config.Streams].
const (
	// EveryStream gives every event to every open stream whose filter admits it.
	EveryStream StreamPolicy = iota
	// OneStream gives each message event to one open stream, in turn.
	// What a stream had been given and not confirmed is replayed to the next
	// stream that connects after it has ended. Lifecycle events go to all.
	OneStream
)

// FileOrder says where FILE_RECEIVED stands among the events of its chunks.
type FileOrder int

// The values of [Config.FileOrder]. The specification promises [FileLast]; the
// others are there to test that a receiver survives them.
const (
	// FileLast sends FILE_RECEIVED after all chunks.
	FileLast FileOrder = iota
	// FileFirst sends FILE_RECEIVED before all chunks.
	FileFirst
	// FileBetween sends FILE_RECEIVED after the first chunk.
	FileBetween
)

// Config holds every decision that the specification leaves open, and the
// limits. The zero value is a working gateway; each field documents its default.
type Config struct {
	// Listen is the address of the service. Default "127.0.0.1:0" (a free port).
	Listen string
	// PayloadListen is the address of the second listener, which serves
	// payload_uri without any authorization. Default: the host of Listen, a free
	// port.
	PayloadListen string
	// ServiceName is the service's own name in the request headers
	// (x-<name>-tenant-id). Default "router".
	ServiceName string
	// TLS serves both listeners over HTTPS with a certificate of the server's own
	// CA. See [Server.ClientTLS], [Server.CertPool] and [Server.CACertPEM].
	TLS bool
	// Certificate changes the server's certificate before the CA signs it: an
	// expired one, or one for another host. It is for loopback and the hosts of
	// the listeners, and valid for a year, by default. Only with TLS.
	Certificate func(*x509.Certificate)

	// TypesEncoding is what `types` may look like. Default: both encodings.
	TypesEncoding TypesEncoding
	// TokenAuth is how clients authenticate for a token. Default: both ways.
	TokenAuth TokenAuth
	// TokenLifetime is the validity of an access token, told in expires_in as
	// whole seconds. Default 1 h. [TokenExpiryOmitted] tells none.
	TokenLifetime time.Duration

	// NoReplay leaves out what a new stream otherwise begins with: all
	// unconfirmed messages in the order of their acceptance (but for those that
	// are confirmed before the stream comes to them). Lifecycle events are never
	// replayed: a client resynchronises with GET /tenants.
	NoReplay bool
	// Streams says which open streams get an event. Default: every one.
	Streams StreamPolicy
	// KeepAlive is the interval of comment lines on an open stream.
	// Default 15 s; [NoKeepAlive] sends none.
	KeepAlive time.Duration
	// ConfirmationLag is the time on the server's clock between the 202 of a
	// confirmation and its effect: until then the message is still replayed.
	// Default 0: at once.
	ConfirmationLag time.Duration
	// StrictConfirmations answers 400 to a request that holds a
	// (message_id, endpoint_id) pair the application never had in that tenant, or
	// whose endpoint is deleted; then none of the request is carried out. Default: such pairs are ignored
	// and the answer is 202.
	StrictConfirmations bool

	// ChunkSize is the largest payload, in bytes, that is delivered as one
	// message; a larger one is split. Default 1 MiB.
	ChunkSize int64
	// InlineLimit is the largest payload, in bytes, that is embedded in its
	// event; a larger one gets a payload_uri. Default 64 KiB. [NoInline] embeds none.
	InlineLimit int64
	// MaxPayloadSize is the largest payload, in bytes, that POST /messages takes;
	// a larger one is answered 413. Default 256 MiB.
	MaxPayloadSize int64
	// FileTypes lists message types whose payloads are delivered as
	// FILE_RECEIVED alone, with one message ID, when they are small enough not to
	// be split. Default: none; small payloads come as MESSAGE_RECEIVED.
	FileTypes []string
	// FileOrder is the place of FILE_RECEIVED among its chunks. Default: last.
	FileOrder FileOrder
	// OmitOptionalFields leaves out the fields of events that the specification
	// does not require and that carry nothing of the sender: received_at and
	// tenant_id.
	OmitOptionalFields bool

	// RateLimit is the number of requests per second that one application may
	// make over all its endpoints; above it the answer is 429 with the message
	// `rate limit exceeded` and no Retry-After. Default 0: no limit.
	RateLimit float64
	// RateBurst is the size of the token bucket. Default: RateLimit rounded up.
	RateBurst int

	// PayloadLifetime is the validity of a payload_uri from the moment its event
	// is written to a stream. Default 15 min, which is also the most: the
	// specification allows no more.
	PayloadLifetime time.Duration
	// PayloadExpiredStatus is the answer to an expired payload_uri. Default 403,
	// as object stores answer to an expired signed address.
	PayloadExpiredStatus int
	// PayloadNoRange makes the payload host ignore Range and answer the whole
	// payload with 200. Default: ranges are served.
	PayloadNoRange bool
	// ReleaseConfirmed frees a payload soon after all its messages are confirmed
	// and every open stream has passed them. Default: when its last payload_uri
	// has expired too. For runs that send more than fits into memory.
	ReleaseConfirmed bool

	// ControlPrefix is the path below which the control API answers, for example
	// "/_control". It refuses callers that are not on a loopback address, requests
	// that a proxy has forwarded, and web pages. What it can do is listed in control.go.
	// Default "": there is no control API.
	ControlPrefix string

	// Application describes the default application.
	Application ApplicationConfig

	// Now is the clock. Default [time.Now]. [Server.Advance] adds to it.
	Now func() time.Time
	// Logger gets one line a request, without secrets, payloads or queries.
	// Nil is silent.
	Logger *slog.Logger
}

// maxPayloadLifetime is the limit of the specification.
const maxPayloadLifetime = 15 * time.Minute

func (c *Config) setDefaults() {
	def(&c.Listen, "127.0.0.1:0")
	if c.PayloadListen == "" {
		if host, _, err := net.SplitHostPort(c.Listen); err == nil {
			c.PayloadListen = net.JoinHostPort(host, "0")
		}
	}
	def(&c.ServiceName, "router")
	def(&c.TokenLifetime, time.Hour)
	def(&c.KeepAlive, 15*time.Second)
	def(&c.ChunkSize, 1<<20)
	def(&c.InlineLimit, 64<<10)
	def(&c.MaxPayloadSize, 256<<20)
	def(&c.PayloadLifetime, maxPayloadLifetime)
	def(&c.PayloadExpiredStatus, http.StatusForbidden)
	if c.RateBurst == 0 {
		c.RateBurst = int(c.RateLimit)
		if float64(c.RateBurst) < c.RateLimit {
			c.RateBurst++
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports the first field with a value that makes no sense. It
// expects a Config as the caller wrote it: zero means default and is valid.
func (c Config) Validate() error {
	c.setDefaults()
	bad := func(field, rule string) error { return fmt.Errorf("gatewaytest: Config.%s %s", field, rule) }
	for field, addr := range map[string]string{"Listen": c.Listen, "PayloadListen": c.PayloadListen} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return bad(field, "must be host:port")
		}
	}
	switch {
	case !isHeaderToken(c.ServiceName):
		return bad("ServiceName", "must be usable in a header name")
	case c.TypesEncoding < TypesBoth || c.TypesEncoding > TypesComma:
		return bad("TypesEncoding", "is unknown")
	case c.TokenAuth < TokenAuthBoth || c.TokenAuth > TokenAuthParams:
		return bad("TokenAuth", "is unknown")
	case c.Streams < EveryStream || c.Streams > OneStream:
		return bad("Streams", "is unknown")
	case c.FileOrder < FileLast || c.FileOrder > FileBetween:
		return bad("FileOrder", "is unknown")
	case c.TokenLifetime < 0 && c.TokenLifetime != TokenExpiryOmitted:
		return bad("TokenLifetime", "must not be negative")
	case c.KeepAlive < 0 && c.KeepAlive != NoKeepAlive:
		return bad("KeepAlive", "must not be negative")
	case c.ConfirmationLag < 0:
		return bad("ConfirmationLag", "must not be negative")
	case c.ChunkSize < 0:
		return bad("ChunkSize", "must not be negative")
	case c.InlineLimit < 0 && c.InlineLimit != NoInline:
		return bad("InlineLimit", "must not be negative")
	case c.MaxPayloadSize < 0:
		return bad("MaxPayloadSize", "must not be negative")
	case c.RateLimit < 0:
		return bad("RateLimit", "must not be negative")
	case c.RateBurst < 0:
		return bad("RateBurst", "must not be negative")
	case c.PayloadLifetime < 0:
		return bad("PayloadLifetime", "must not be negative")
	case c.PayloadLifetime > maxPayloadLifetime:
		return bad("PayloadLifetime", "must not be longer than 15 minutes")
	case c.PayloadExpiredStatus < 400 || c.PayloadExpiredStatus > 499:
		return bad("PayloadExpiredStatus", "must be a 4xx status")
	case c.ControlPrefix != "" && (!strings.HasPrefix(c.ControlPrefix, "/") || len(c.ControlPrefix) < 2 || strings.HasSuffix(c.ControlPrefix, "/")):
		return bad("ControlPrefix", `must look like "/_control"`)
	}
	if err := c.Application.validate(); err != nil {
		return fmt.Errorf("gatewaytest: Config.Application: %w", err)
	}
	return nil
}

// ApplicationConfig describes an application as the service's administration
// knows it. The zero value is an application whose software version allows
// every message type in both directions.
type ApplicationConfig struct {
	// ID is the application ID, a UUID. Default: generated.
	ID string
	// SoftwareVersionID is a UUID. Default: generated.
	SoftwareVersionID string
	// ClientID is the OAuth client ID. Default: generated.
	ClientID string
	// ClientSecret is the OAuth client secret. Default: generated.
	ClientSecret string
	// Capabilities are those of the software version: an endpoint may only be
	// given a subset. Nil (the default) allows every message type in both
	// directions; an empty, non-nil list allows none.
	Capabilities []gateway.EndpointCapability
}

func (c ApplicationConfig) validate() error {
	if c.ID != "" && !isUUID(c.ID) {
		return errors.New("ID must be a UUID")
	}
	if c.SoftwareVersionID != "" && !isUUID(c.SoftwareVersionID) {
		return errors.New("SoftwareVersionID must be a UUID")
	}
	for _, capability := range c.Capabilities {
		if capability.MessageType == "" || !capability.Direction.CanSend() && !capability.Direction.CanReceive() {
			return errors.New("Capabilities must name a message type and a direction")
		}
	}
	return nil
}
