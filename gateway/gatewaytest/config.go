package gatewaytest

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

// Values of [Config] fields that disable something.
const (
	// NoKeepAlive, as [Config.KeepAlive], sends no comment lines.
	NoKeepAlive time.Duration = -1
	// NoInline, as [Config.InlineLimit], embeds no payload.
	NoInline int64 = -1
)

// TokenAuth is how client credentials may be presented, which the specification does not show.
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

// StreamPolicy is which open streams of one application receive an event, which the specification does not show.
type StreamPolicy int

// The values of [Config.Streams].
const (
	// EveryStream sends every event to every open stream whose filter admits it.
	EveryStream StreamPolicy = iota
	// OneStream sends each message event to one open stream, in turn, and replays what was not confirmed to the next one
	// that connects after it has ended. Lifecycle events go to all streams.
	OneStream
)

// StreamHead is when the head of GET /events is sent, which the specification does not show.
type StreamHead int

// The values of [Config.StreamHead].
const (
	// HeadAtOnce sends the head as soon as the stream is opened.
	HeadAtOnce StreamHead = iota
	// HeadWithFirstEvent sends nothing before the first event.
	HeadWithFirstEvent
)

// FileOrder is the position of FILE_RECEIVED among the events of its chunks, if those are sent.
type FileOrder int

// The values of [Config.FileOrder], of which the specification promises [FileLast].
const (
	// FileLast sends FILE_RECEIVED after all chunks.
	FileLast FileOrder = iota
	// FileFirst sends FILE_RECEIVED before all chunks.
	FileFirst
	// FileBetween sends FILE_RECEIVED after the first chunk.
	FileBetween
	// FileAlone sends FILE_RECEIVED without its chunks, as services do that hide them.
	FileAlone
)

// Config contains every decision that the specification leaves open, and the
// limits. The zero value is a working gateway; each field documents its default.
type Config struct {
	// Listen is the address of the service. Default "127.0.0.1:0" (a free port).
	Listen string
	// PayloadListen is the address of the second listener, for payloads. Default: the host of Listen with a free port.
	PayloadListen string
	// InMemory serves on a network in memory, which only clients made from [Server.ClientConfig] reach, so that all of it can
	// run in a bubble of testing/synctest.
	InMemory bool
	// ServiceName is the name of the service in the request headers
	// (x-<name>-tenant-id). Default "router".
	ServiceName string
	// TLS serves both listeners over HTTPS; see [Server.ClientTLS] and [Server.CACertPEM].
	TLS bool
	// HTTP2 enables HTTP/2, where faults that cut a connection cut everything on it. Requires TLS. Default: HTTP/1.1.
	HTTP2 bool
	// Certificate modifies the server's certificate before the CA signs it. By default it is for loopback and the hosts of
	// the listeners, and valid for a year. Requires TLS.
	Certificate func(*x509.Certificate)

	// TokenAuth is how clients may authenticate for a token. Default: both ways.
	TokenAuth TokenAuth
	// TokenLifetime is the lifetime of an access token, in whole seconds. Default 1 h.
	TokenLifetime time.Duration

	// NoReplay disables the replay of all unconfirmed messages, in order of acceptance, at the start of a new stream.
	// Lifecycle events are never replayed: a client resynchronizes with GET /tenants.
	NoReplay bool
	// Streams is which open streams receive an event. Default: all of them.
	Streams StreamPolicy
	// StreamHead is when the head of an event stream is sent. Default: immediately.
	StreamHead StreamHead
	// KeepAlive is the interval of comment lines. Default 15 s; [NoKeepAlive] sends none.
	KeepAlive time.Duration
	// ConfirmationLag is the time, on the server's clock, between the 202 of a confirmation and its effect. Default 0.
	ConfirmationLag time.Duration
	// StrictConfirmations answers 400, without any effect, to a request with a (message_id, endpoint_id) pair that the
	// application never had in that tenant, or whose endpoint is deleted. By default such pairs are ignored.
	StrictConfirmations bool

	// ChunkSize is the size in bytes above which a payload is split. Default 1 MiB.
	ChunkSize int64
	// InlineLimit is the largest payload, in bytes, that is embedded in its event; a larger one gets a payload_uri. Default
	// 32 KiB, for clients with a line limit of 64 KiB. [NoInline] embeds none.
	InlineLimit int64
	// MaxPayloadSize is the size in bytes above which POST /messages answers 413. Default 256 MiB.
	MaxPayloadSize int64
	// FileTypes lists message types whose payloads, if small enough not to be split, are delivered as FILE_RECEIVED alone,
	// with one message ID. Default: none.
	FileTypes []string
	// FileOrder is the position of FILE_RECEIVED among its chunks. Default: last.
	FileOrder FileOrder
	// OmitOptionalFields omits the optional event fields received_at and tenant_id.
	OmitOptionalFields bool

	// AnyContextID accepts context IDs of up to 50 characters of any form. Default: UUIDs only.
	AnyContextID bool

	// RateLimit is the number of requests per second that one application may make across all its endpoints; beyond
	// it the answer is 429 without Retry-After. Default 0: no limit.
	RateLimit float64
	// RateBurst is the size of the token bucket. Default: RateLimit rounded up.
	RateBurst int

	// PayloadLifetime is the lifetime of a payload_uri, starting when its event is written to a stream. Default 15 min, the
	// maximum of the specification.
	PayloadLifetime time.Duration
	// ReleaseConfirmed frees a payload soon after all its messages are confirmed and every open stream has passed
	// them, for runs that send more than fits into memory. By default it is freed only when its last payload_uri has
	// expired too.
	ReleaseConfirmed bool

	// ControlPrefix is the path below which the control API is served, for example "/_control", to callers on a loopback
	// address only, and neither to forwarded requests nor to web pages. control.go lists what it can do. Default "":
	// there is none.
	ControlPrefix string

	// Replay is the file of a recording ([Recorder]), which is played in place of the service. Each operation, with its path,
	// gets the recorded answers in their order and with the same bytes. After the last one a stream stays open in silence,
	// confirmations are accepted, and everything else gets the last answer again; what was never asked for is 404. Tokens
	// and payload_uri are the server's own. A payload that was not recorded is played as other bytes of its size. Faults can
	// be injected; the ledger has the messages that were played. Default "": no replay.
	Replay string
	// ReplaySpeed is how many times as fast as it was recorded Replay is played. Default 0: without any pause.
	ReplaySpeed float64

	// Application describes the default application.
	Application ApplicationConfig

	// Logger receives one line per request, without secrets, payloads and queries. Nil discards them.
	Logger *slog.Logger
}

// maxPayloadLifetime is the limit of the specification.
const maxPayloadLifetime = 15 * time.Minute

func (c *Config) setDefaults() {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	if c.PayloadListen == "" {
		if host, _, err := net.SplitHostPort(c.Listen); err == nil {
			c.PayloadListen = net.JoinHostPort(host, "0")
		}
	}
	c.ServiceName = cmp.Or(c.ServiceName, "router")
	c.TokenLifetime = cmp.Or(c.TokenLifetime, time.Hour)
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	c.ChunkSize = cmp.Or(c.ChunkSize, 1<<20)
	c.InlineLimit = cmp.Or(c.InlineLimit, 32<<10)
	c.MaxPayloadSize = cmp.Or(c.MaxPayloadSize, 256<<20)
	c.PayloadLifetime = cmp.Or(c.PayloadLifetime, maxPayloadLifetime)
	if c.RateBurst == 0 {
		c.RateBurst = int(c.RateLimit)
		if float64(c.RateBurst) < c.RateLimit {
			c.RateBurst++
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// ErrConfig is matched by the errors of [Config.Validate] and [Start].
var ErrConfig = errors.New("gatewaytest: invalid configuration")

// Validate reports every field with an invalid value; the error matches [ErrConfig]. Zero values stand for the defaults.
func (c Config) Validate() error {
	c.setDefaults()
	var e validate.Errors
	for _, a := range []struct{ field, address string }{{"Listen", c.Listen}, {"PayloadListen", c.PayloadListen}} {
		_, _, err := net.SplitHostPort(a.address)
		e.Check(err == nil, a.field, "must be host:port")
	}
	e.Check(httpguts.ValidHeaderFieldName(c.ServiceName), "ServiceName", "must be usable in a header name")
	e.Check(c.TokenAuth >= TokenAuthBoth && c.TokenAuth <= TokenAuthParams, "TokenAuth", "must be one of the named constants")
	e.Check(c.Streams >= EveryStream && c.Streams <= OneStream, "Streams", "must be one of the named constants")
	e.Check(!c.HTTP2 || c.TLS, "HTTP2", "requires TLS")
	e.Check(c.StreamHead >= HeadAtOnce && c.StreamHead <= HeadWithFirstEvent, "StreamHead", "must be one of the named constants")
	e.Check(c.FileOrder >= FileLast && c.FileOrder <= FileAlone, "FileOrder", "must be one of the named constants")
	validate.NotNegative(&e, "TokenLifetime", c.TokenLifetime)
	e.Check(c.KeepAlive >= 0 || c.KeepAlive == NoKeepAlive, "KeepAlive", "must not be negative")
	validate.NotNegative(&e, "ConfirmationLag", c.ConfirmationLag)
	validate.NotNegative(&e, "ChunkSize", c.ChunkSize)
	e.Check(c.InlineLimit >= 0 || c.InlineLimit == NoInline, "InlineLimit", "must not be negative")
	validate.NotNegative(&e, "MaxPayloadSize", c.MaxPayloadSize)
	validate.NotNegative(&e, "RateLimit", c.RateLimit)
	e.Check(c.ReplaySpeed >= 0 && c.ReplaySpeed <= math.MaxFloat64, "ReplaySpeed", "must be a number, and not negative")
	validate.NotNegative(&e, "RateBurst", c.RateBurst)
	validate.NotNegative(&e, "PayloadLifetime", c.PayloadLifetime)
	e.Check(c.PayloadLifetime <= maxPayloadLifetime, "PayloadLifetime", "must not be longer than 15 minutes")
	e.Check(c.ControlPrefix == "" || strings.HasPrefix(c.ControlPrefix, "/") && len(c.ControlPrefix) >= 2 && !strings.HasSuffix(c.ControlPrefix, "/"),
		"ControlPrefix", `must look like "/_control"`)
	e.Join("Application", c.Application.validate())
	return e.Err(ErrConfig)
}

// ApplicationConfig describes an application as registered with the service.
type ApplicationConfig struct {
	// ID is the application ID, a UUID. Default: generated.
	ID string
	// SoftwareVersionID is a UUID. Default: generated.
	SoftwareVersionID string
	// ClientID is the OAuth client ID. Default: generated.
	ClientID string
	// ClientSecret is the OAuth client secret. Default: generated.
	ClientSecret string
	// Capabilities are those of the software version: an endpoint may only have
	// a subset. Nil (the default) allows every message type in both
	// directions; an empty, non-nil list allows none.
	Capabilities []gateway.EndpointCapability
}

func (c ApplicationConfig) validate() error {
	var e validate.Errors
	e.Check(c.ID == "" || isUUID(c.ID), "ID", "must be a UUID")
	e.Check(c.SoftwareVersionID == "" || isUUID(c.SoftwareVersionID), "SoftwareVersionID", "must be a UUID")
	for i, capability := range c.Capabilities {
		e.Check(capability.MessageType != "" && (capability.Direction.CanSend() || capability.Direction.CanReceive()),
			fmt.Sprintf("Capabilities[%d]", i), "must name a message type and a direction")
	}
	return e.Err(ErrConfig)
}
