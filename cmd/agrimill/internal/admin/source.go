package admin

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/history"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/journal"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/why"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/subscriber"
)

// Source is the pipeline as the pages and probes see it. All methods are safe for
// concurrent use.
type Source interface {
	// Snapshot returns the state of everything. Each open page requests it once a second,
	// so it must not wait for the network.
	Snapshot() Snapshot
	// Tenants returns the tenants that the application is authorized for, as currently
	// known to the pipeline. An error is displayed, redacted.
	Tenants(ctx context.Context) ([]Tenant, error)
	// PoisonStore returns the poison queue, nil if there is none or if its messages cannot
	// be listed (Kafka).
	PoisonStore() router.PoisonStore
	// CountPoisoned counts the messages of the poison queue for the next Snapshot. It ends with ctx, or soon after.
	CountPoisoned(ctx context.Context)
	// Journal returns what is known of messages; nil if there is none.
	Journal() *journal.Journal
	// History returns what the routes did in the last day; nil if nothing is remembered.
	History() *history.History
	// Open returns what is open by tenant and endpoint. It does not wait for the network.
	Open() []subscriber.Open
	// Settings returns the configuration that is running, without anything secret.
	Settings() []Setting
	// Why walks the chain from a tenant to a route. It does not wait for the network.
	Why(q why.Question) why.Answer
	// Payloads opens payloads that are in a claim check, nil if there is none.
	Payloads() gateway.PayloadOpener
	// Devices knows the devices of time logs, nil if nothing does. It is only asked.
	Devices() *farm.Devices
	// Stored reads a message where it was stored, one place after the other, the best first. An error says why a
	// place does not have it, or that there is no such place; it is displayed, redacted. Payloads have at most MaxStored bytes. It ends with ctx, or soon after.
	Stored(ctx context.Context, m *journal.Message) iter.Seq2[StoredCopy, error]
	Replayer
}

// MaxStored is the largest payload of a [StoredCopy], in bytes.
const MaxStored = maxPreview

// StoredCopy is a message where it was stored.
type StoredCopy struct {
	// Place says where that is; empty with an error that is about no place.
	Place string
	// Absent says, with an error, that the place does not have it, and not that it could not be read.
	Absent bool
	// Metadata and Payload are those of the message; none with an error.
	Metadata map[string]string
	Payload  []byte
}

// Replayer handles poisoned messages again. It is safe for concurrent use.
type Replayer interface {
	// Replay handles messages of a poison queue again, see [router.Router.Replay]. It ends with ctx.
	Replay(ctx context.Context, queue router.PoisonStore, ids []string) (router.ReplayReport, error)
}

// State is what the pipeline as a whole is doing.
type State string

// The states of the pipeline.
const (
	// StateStarting: nothing was checked yet, or not everything has been well yet.
	StateStarting State = "starting"
	// StateRunning: everything runs.
	StateRunning State = "running"
	// StateDegraded: it runs, and there is a problem, see Verdict.
	StateDegraded State = "degraded"
	// StateStandby: another instance holds the lease. This one is ready to take over.
	StateStandby State = "standby"
	// StateDraining: it is stopping and finishes the messages in flight.
	StateDraining State = "draining"
	// StateStopped: it has ended, or could not continue.
	StateStopped State = "stopped"
)

// Snapshot is the state of a pipeline at one moment. It can be marshaled to JSON and
// contains nothing secret: no credentials, no payloads, no query of an address.
type Snapshot struct {
	// Name is the operator's name for this agrimill, e.g. the host name.
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Time is when the snapshot was taken.
	Time time.Time `json:"time"`
	// State is the overall state. If empty, the server derives it from Verdict.
	State State `json:"state"`
	// Config is the result of the last reload; zero if there was none.
	Config ConfigState `json:"config,omitzero"`

	// Gateway, Subscriber, Routes, Sinks, Dedup, Poison and Lease (zero without one) are the parts.
	Gateway    Gateway    `json:"gateway"`
	Subscriber Subscriber `json:"subscriber"`
	Routes     []Route    `json:"routes"`
	Sinks      []Sink     `json:"sinks"`
	Dedup      Dedup      `json:"dedup,omitzero"`
	Poison     Poison     `json:"poison"`
	Lease      Lease      `json:"lease,omitzero"`
	// Certificates are those of files that the configuration names, as of the last look.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Unprovided is what the gateway does not have as configured; zero if there is nothing.
	Unprovided Unprovided `json:"unprovided,omitzero"`
	// Checks are what the pipeline needs (the stream, each route, each sink, the dedup store) as of the last look, at
	// CheckedAt: those that passed, and failed ones that do not count yet, included.
	Checks    []Check   `json:"checks,omitempty"`
	CheckedAt time.Time `json:"checked_at,omitzero"`
	// UnconfirmedCourse is that of Subscriber.Unconfirmed: [history.History.Unconfirmed].
	UnconfirmedCourse []int `json:"unconfirmed_course,omitempty"`
	// Error is why the pipeline ended, redacted; empty if it has not, or without an error.
	Error string `json:"error,omitempty"`
	// Verdict says whether all is right.
	Verdict Verdict `json:"verdict"`
}

// Unprovided tells of the configured endpoints that could not be made or changed: all that the gateway refused or somebody else
// deleted, or else those that are tried again.
type Unprovided struct {
	Count int `json:"count"`
	// ExternalID is that of the first one, in a tenant, Since when it failed first, and Error why it failed last.
	ExternalID string    `json:"external_id"`
	Tenant     string    `json:"tenant"`
	Since      time.Time `json:"since"`
	Error      string    `json:"error"`
	// Retried says that they are tried again, and Deleted that somebody else deleted the first one.
	Retried bool `json:"retried"`
	Deleted bool `json:"deleted"`
}

// Certificate is one in a file that the configuration names.
type Certificate struct {
	// Setting is the key in the configuration, e.g. admin.tls.cert_file, and File its value.
	Setting string `json:"setting"`
	File    string `json:"file"`
	// NotAfter is when the first certificate in the file ends. Error is why that is unknown.
	NotAfter time.Time `json:"not_after,omitzero"`
	Error    string    `json:"error,omitempty"`
}

// Lease tells which of several instances works: [subscriber.LeaseState] as JSON.
type Lease struct {
	// Role is holder, standby, or none while the lease is not wanted: at the start and the end.
	Role string `json:"role"`
	// Holder is the name of the instance that has the lease: the owner's of dedup, or its host's. Empty if nobody has it, or
	// if that is not known.
	Holder string `json:"holder,omitempty"`
	// Epoch is that of the present or latest time as the holder, 0 before the first.
	Epoch uint64 `json:"epoch"`
	// Since is when Role changed last, Until when the lease ends unless it is renewed; zero if
	// that is unknown.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Changes counts the changes of Role, Lost the times in which the lease was lost and not
	// released, GivenUp those in which the event stream could not be opened, or the gateway did not answer.
	Changes int64  `json:"changes"`
	Lost    int64  `json:"lost"`
	GivenUp int64  `json:"given_up"`
	Target  string `json:"target,omitempty"`
	Error   string `json:"error,omitempty"`
}

// ConfigState describes the last reload of the configuration.
type ConfigState struct {
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Error is why the latest one was not applied, FailedAt when that was; empty if it was applied.
	Error    string    `json:"error,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
	// Reloads are the latest ones, the oldest first, for GET /api/config alone.
	Reloads []Reload `json:"-"`
}

// GatewayState is the state of the event stream.
type GatewayState string

// The states of the event stream.
const (
	// GatewayConnecting: not connected yet, without a known error.
	GatewayConnecting GatewayState = "connecting"
	// GatewayConnected: the stream is open.
	GatewayConnected GatewayState = "connected"
	// GatewayAwaitingHead: the stream is open, but the service has not sent anything yet,
	// not even the response header.
	GatewayAwaitingHead GatewayState = "awaiting head"
	// GatewayDisconnected: the stream is closed; LastError says why.
	GatewayDisconnected GatewayState = "disconnected"
	// GatewayUnused: no route receives from the gateway.
	GatewayUnused GatewayState = "unused"
	// GatewayStandby: another instance holds the lease and has the stream.
	GatewayStandby GatewayState = "standby"
)

// Gateway is the connection to the gateway.
type Gateway struct {
	Host  string       `json:"host"`
	State GatewayState `json:"state"`
	Since time.Time    `json:"since,omitzero"`
	// Reconnects counts connections after the first one.
	Reconnects int64 `json:"reconnects"`
	// LastError is why the stream last ended or could not be opened, redacted.
	LastError string `json:"last_error,omitempty"`
	// Advice is what to do about LastError; empty if there is nothing to add to it. TokenFails says that it is one of the
	// token endpoint.
	Advice     string `json:"advice,omitempty"`
	TokenFails bool   `json:"token_fails,omitempty"`
	// RefusedSince is when the gateway started to refuse the stream with 400 or 403, and
	// EndsAt is when the pipeline will end if that continues; zero if it does not refuse.
	RefusedSince time.Time `json:"refused_since,omitzero"`
	EndsAt       time.Time `json:"ends_at,omitzero"`
	// Intermediaries are the operations that something in between, such as an ingress,
	// answers instead of the gateway.
	Intermediaries []gateway.IntermediaryAnswer `json:"intermediaries,omitempty"`
	// RateLimited says that requests wait because the service asked for it;
	// RateLimitedUntil is until when, zero if unknown.
	RateLimited      bool      `json:"rate_limited"`
	RateLimitedUntil time.Time `json:"rate_limited_until,omitzero"`
}

// GatewayFrom fills a Gateway, except for Host, Intermediaries and the rate limit.
func GatewayFrom(stream subscriber.StreamState) Gateway {
	g := Gateway{
		State: GatewayConnecting, Since: stream.Since,
		Reconnects: max(stream.Connects-1, 0), LastError: router.RedactError(stream.LastError, nil),
		Advice: Advice(stream.LastError), TokenFails: errors.Is(stream.LastError, gateway.ErrToken),
		RefusedSince: stream.RefusedSince, EndsAt: stream.EndsAt,
	}
	switch {
	case stream.AwaitingHead:
		g.State = GatewayAwaitingHead
	case stream.Connected:
		g.State = GatewayConnected
	case stream.LastError != nil:
		g.State = GatewayDisconnected
	}
	return g
}

// Direction is the direction of a route.
type Direction string

// The directions of a route.
const (
	// FromGateway: from the gateway, through the subscriber, to a sink.
	FromGateway Direction = "from_gateway"
	// ToGateway: from a broker to the gateway.
	ToGateway Direction = "to_gateway"
	// BrokerToSink: from a broker to a sink. The gateway has no part in it.
	BrokerToSink Direction = "broker_to_sink"
)

// Route is one route. Its JSON also has the fields of [router.RouteHealth].
type Route struct {
	router.RouteHealth
	Direction Direction `json:"direction"`
	From      Place     `json:"from"`
	To        Place     `json:"to"`
	// Backlog is how many messages are waiting in the source of the route (a consumer's
	// lag); nil if unknown.
	Backlog *int64 `json:"backlog,omitempty"`
	// Open counts the events from the gateway that the route is not done with, those included that wait for it in the
	// subscriber; Oldest is when the oldest of them arrived. Zero without any, and for a route from a broker.
	Open   int       `json:"open"`
	Oldest time.Time `json:"oldest,omitzero"`
}

// Place is one end of a route.
type Place struct {
	Kind string `json:"kind"`
	// Sink is the name of the sink ([Sink].Name), empty if it is not a sink.
	Sink string `json:"sink,omitempty"`
	// Detail is the part of it, e.g. an event type, a topic or its template, a subject, an
	// endpoint.
	Detail string `json:"detail,omitempty"`
}

// Sink is one sink, as of its last check.
type Sink struct {
	// Name is the name in the configuration; Kind is nats, kafka, blob or log.
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Target string `json:"target,omitempty"`
	// Up says whether it passed the check at CheckedAt. Before the first check CheckedAt is
	// zero.
	Up        bool      `json:"up"`
	CheckedAt time.Time `json:"checked_at,omitzero"`
	Error     string    `json:"error,omitempty"`
	// Durability is what a stored message survives ([sinks.Durability]).
	Durability     string `json:"durability,omitempty"`
	DurabilityNote string `json:"durability_note,omitempty"`
	// Lost counts messages that the broker had acknowledged and was found not to have any longer; nil for a sink that
	// does not notice.
	Lost *uint64 `json:"lost,omitempty"`
}

// Dedup is the dedup store, as of its last check; zero if there is none, or it was not
// checked yet.
type Dedup struct {
	// Store is memory, bbolt or nats_kv, and Target is where it is, empty for memory.
	Store  string `json:"store"`
	Target string `json:"target,omitempty"`
	// Up says whether it works. If it cannot be read, the routes wait for it; if it cannot
	// be written, redelivered messages may be stored again.
	Up bool `json:"up"`
	// Since is when it went down, and Error is why, redacted.
	Since time.Time `json:"since,omitzero"`
	Error string    `json:"error,omitempty"`
}

// Poison describes the poison queue.
type Poison struct {
	// Sink is the name of its sink, empty if there is no queue.
	Sink  string `json:"sink,omitempty"`
	Kind  string `json:"kind,omitempty"` // of the sink
	Topic string `json:"topic,omitempty"`
	// Depth is how many messages are in the queue, as reported by the broker; nil if unknown. DepthNote explains its meaning,
	// or why it is unknown, where that is not obvious.
	Depth     *int64 `json:"depth,omitempty"`
	DepthNote string `json:"depth_note,omitempty"`
	// Unreadable says that Depth is unknown although the broker could tell it.
	Unreadable bool `json:"unreadable,omitempty"`
	// Oldest is when the message that has been in the queue for longest was put there, by the clock that the broker
	// keeps it with; zero if the queue is empty or if that is unknown.
	Oldest time.Time `json:"oldest,omitzero"`
}

// Check is one thing that the pipeline needs.
type Check struct {
	// Name is unique among the checks, e.g. "gateway", "sink farm" or "route orders".
	Name string `json:"name"`
	// OK is also true for a failure that is too recent to count, and for one that Message says and that keeps no message waiting.
	OK      bool   `json:"ok"`
	Message string `json:"message,omitempty"`
	// Since is when it started to fail; zero if it does not fail.
	Since time.Time `json:"since,omitzero"`
	// Final says that the failure does not recover by itself.
	Final bool `json:"final,omitempty"`
}

// Tenant is a tenant with the endpoints that the application can see in it.
type Tenant struct {
	ID string `json:"id"`
	// Scopes of the authorizations, if known.
	Scopes    []string   `json:"scopes,omitempty"`
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is one endpoint of a tenant.
type Endpoint struct {
	ID         string   `json:"id"`
	ExternalID string   `json:"external_id,omitempty"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	Mine       bool     `json:"mine"`
	Sends      []string `json:"sends"`
	Receives   []string `json:"receives"`
	// RoutedTo and RoutedFrom count the endpoints that it can currently send to and receive
	// from; nil for endpoints of other applications, for which that is unknown.
	RoutedTo   *int `json:"routed_to,omitempty"`
	RoutedFrom *int `json:"routed_from,omitempty"`
}

// TenantsFrom converts the gateway's list, with the scopes of each tenant ([gateway.Directory.Scopes]).
func TenantsFrom(list []gateway.TenantInfo, scopes func(tenantID string) []string) []Tenant {
	tenants := make([]Tenant, 0, len(list))
	for _, info := range list {
		tenant := Tenant{ID: info.ID, Scopes: scopes(info.ID), Endpoints: make([]Endpoint, 0, len(info.Endpoints))}
		for _, endpoint := range info.Endpoints {
			tenant.Endpoints = append(tenant.Endpoints, endpointFrom(endpoint))
		}
		tenants = append(tenants, tenant)
	}
	return tenants
}

func endpointFrom(info gateway.TenantEndpointInfo) Endpoint {
	endpoint := Endpoint{
		ID: info.ID, ExternalID: info.ExternalID, Name: info.Name, Type: string(info.EndpointType),
		Mine:  info.OwnedByYourApplication,
		Sends: info.Capabilities.CanSend, Receives: info.Capabilities.CanReceive,
	}
	if info.RoutedEndpoints != nil {
		endpoint.RoutedTo, endpoint.RoutedFrom = new(len(info.RoutedEndpoints.CanSendTo)), new(len(info.RoutedEndpoints.CanReceiveFrom))
	}
	return endpoint
}
