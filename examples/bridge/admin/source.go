package admin

import (
	"context"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// Source is the pipeline, as the pages and probes see it. All methods are safe
// for concurrent use.
type Source interface {
	// Snapshot returns the state of everything. It is asked for once a second by
	// each open page and must not wait for the network.
	Snapshot() Snapshot
	// Live returns nil unless the pipeline has ended with an error, which is
	// returned then. It does not block. Its text is shown and must be redacted.
	Live() error
	// Ready tries what the pipeline needs (the stream, each sink) and returns one
	// Check for each, also for those that passed. It returns when ctx ends, with
	// what was not found out by then as failed. The server adds a check "pipeline"
	// of State and Live when there is none.
	Ready(ctx context.Context) []Check
	// Tenants returns the tenants that the application is authorized for, as far
	// as the pipeline knows them now. An error is shown, redacted.
	Tenants(ctx context.Context) ([]Tenant, error)
	// PoisonStore returns the poison queue, nil when there is none or when it
	// cannot be looked at message by message (Kafka).
	PoisonStore() router.PoisonStore
	// Replay handles poisoned messages again, see [router.Router.ReplaySelected].
	// The IDs are those of PoisonStore. It ends with ctx.
	Replay(ctx context.Context, ids []string) (router.ReplayReport, error)
}

// State is what the pipeline as a whole is doing.
type State string

// The states of the pipeline.
const (
	// StateStarting: not everything was set up yet.
	StateStarting State = "starting"
	// StateRunning: everything runs.
	StateRunning State = "running"
	// StateDegraded: it runs, but something is down. Messages wait.
	StateDegraded State = "degraded"
	// StateDraining: it stops, and finishes what it has taken.
	StateDraining State = "draining"
	// StateStopped: it has ended, or could not go on.
	StateStopped State = "stopped"
)

// Snapshot is the state of a pipeline at one moment. It can be marshalled to
// JSON and holds nothing secret: no credentials, no payloads, no query of an
// address.
type Snapshot struct {
	// Name is what the operator calls this bridge, e.g. its host name.
	Name string `json:"name"`
	// Version is the version of the program.
	Version string `json:"version"`
	// Started is when the pipeline was started.
	Started time.Time `json:"started"`
	// Time is when the snapshot was taken. The server fills it in when it is zero.
	Time time.Time `json:"time"`
	// State is that of the whole. Empty: the server derives it from the parts.
	State State `json:"state"`
	// Config says what became of the last reload; zero: there was none.
	Config ConfigState `json:"config,omitzero"`

	// Gateway, Subscriber, Routes, Sinks and Poison are the parts.
	Gateway    Gateway    `json:"gateway"`
	Subscriber Subscriber `json:"subscriber"`
	Routes     []Route    `json:"routes"`
	Sinks      []Sink     `json:"sinks"`
	Poison     Poison     `json:"poison"`
}

// ConfigState tells about the last reload of the configuration.
type ConfigState struct {
	// LoadedAt is when a configuration was last taken over.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Error is why the newest one was not; empty: it was.
	Error string `json:"error,omitempty"`
}

// GatewayState is the state of the event stream.
type GatewayState string

// The states of the event stream.
const (
	// GatewayConnecting: not connected yet, and nothing is known to be wrong.
	GatewayConnecting GatewayState = "connecting"
	// GatewayConnected: the stream is open.
	GatewayConnected GatewayState = "connected"
	// GatewayDisconnected: the stream is closed; LastError says why.
	GatewayDisconnected GatewayState = "disconnected"
	// GatewayUnused: no route receives from the gateway.
	GatewayUnused GatewayState = "unused"
)

// Gateway is the connection to the gateway.
type Gateway struct {
	// Host is host and port of the gateway.
	Host string `json:"host"`
	// State is that of the event stream, and Since is when it began.
	State GatewayState `json:"state"`
	Since time.Time    `json:"since,omitzero"`
	// Reconnects counts connects after the first one.
	Reconnects int64 `json:"reconnects"`
	// LastError is why the stream last ended or could not be opened, redacted.
	LastError string `json:"last_error,omitempty"`
	// RateLimited says that requests wait because the service asked for that;
	// RateLimitedUntil is how long, zero when that is not known.
	RateLimited      bool      `json:"rate_limited"`
	RateLimitedUntil time.Time `json:"rate_limited_until,omitzero"`
}

// GatewayFrom fills a Gateway, except for Host and the rate limit.
func GatewayFrom(stream subscriber.StreamState) Gateway {
	g := Gateway{
		State: GatewayConnecting, Since: stream.Since,
		Reconnects: max(stream.Connects-1, 0), LastError: router.RedactError(stream.LastError, nil),
	}
	switch {
	case stream.Connected:
		g.State = GatewayConnected
	case stream.LastError != nil:
		g.State = GatewayDisconnected
	}
	return g
}

// Subscriber is [subscriber.Stats] as JSON. Counters count from the start.
type Subscriber struct {
	Received  int64 `json:"received"`
	Delivered int64 `json:"delivered"`
	Confirmed int64 `json:"confirmed"`
	// Joined counts events that came again while they were open or confirmed.
	Joined    int64 `json:"joined"`
	Nacked    int64 `json:"nacked"`
	Untaken   int64 `json:"untaken"`
	Abandoned int64 `json:"abandoned"`
	SetAside  int64 `json:"set_aside"`
	Malformed int64 `json:"malformed"`
	TooLarge  int64 `json:"too_large"`
	// Quarantined counts events that the quarantine holds instead of a route, and
	// QuarantineWaiting is how many wait for it now.
	Quarantined       int64 `json:"quarantined"`
	QuarantineWaiting int   `json:"quarantine_waiting"`
	// Payload bytes, also of what came again.
	ReceivedBytes  int64 `json:"received_bytes"`
	DeliveredBytes int64 `json:"delivered_bytes"`
	// Rejected counts confirmations that the service will never take,
	// ConfirmFailures requests that are repeated.
	Rejected        int64 `json:"rejected"`
	ConfirmFailures int64 `json:"confirm_failures"`

	// What is open now: arrived and not yet acked, and acked but not yet taken
	// by the service. Max… are the bounds of it, 0: not known.
	InFlight             int   `json:"in_flight"`
	InFlightBytes        int64 `json:"in_flight_bytes"`
	Held                 int   `json:"held"`
	PendingConfirmations int   `json:"pending_confirmations"`
	MaxInFlight          int   `json:"max_in_flight,omitempty"`
	MaxInFlightBytes     int64 `json:"max_in_flight_bytes,omitempty"`
	// OldestUnconfirmed is since when the oldest message waits that is not
	// confirmed, zero when none does.
	OldestUnconfirmed time.Time `json:"oldest_unconfirmed,omitzero"`
}

// SubscriberFrom fills a Subscriber, except for the bounds.
func SubscriberFrom(stats subscriber.Stats) Subscriber {
	oldest := stats.OldestInFlight
	if !stats.OldestPending.IsZero() && (oldest.IsZero() || stats.OldestPending.Before(oldest)) {
		oldest = stats.OldestPending
	}
	return Subscriber{
		Received: stats.Received, Delivered: stats.Delivered, Confirmed: stats.Confirmed,
		Joined: stats.Joined, Nacked: stats.Nacked, Untaken: stats.Untaken, Abandoned: stats.Abandoned,
		SetAside: stats.SetAside, Malformed: stats.Malformed, TooLarge: stats.TooLarge,
		Quarantined: stats.Quarantined, QuarantineWaiting: stats.QuarantineWaiting,
		ReceivedBytes: stats.ReceivedBytes, DeliveredBytes: stats.DeliveredBytes,
		Rejected: stats.Rejected, ConfirmFailures: stats.ConfirmFailures,
		InFlight: stats.InFlight, InFlightBytes: stats.InFlightBytes, Held: stats.HeldNow,
		PendingConfirmations: stats.PendingConfirmations, OldestUnconfirmed: oldest,
	}
}

// Direction is which way a route carries messages.
type Direction string

// The directions of a route.
const (
	// FromGateway: the gateway's messages, by way of the subscriber, to a sink.
	FromGateway Direction = "from_gateway"
	// ToGateway: a broker's messages to the gateway.
	ToGateway Direction = "to_gateway"
)

// Route is one route. Its JSON has the fields of [router.RouteHealth] too.
type Route struct {
	router.RouteHealth
	Direction Direction `json:"direction"`
	From      Place     `json:"from"`
	To        Place     `json:"to"`
	// Backlog is how many messages wait before the route where they come from
	// (a consumer's lag); nil: not known.
	Backlog *int64 `json:"backlog,omitempty"`
}

// Place is one end of a route.
type Place struct {
	// Kind is gateway, nats, kafka, blob or log.
	Kind string `json:"kind"`
	// Sink is the name of the sink ([Sink].Name), empty when it is none.
	Sink string `json:"sink,omitempty"`
	// Detail says what of it, e.g. an event type, a topic or its template, a
	// subject, an endpoint.
	Detail string `json:"detail,omitempty"`
}

// Sink is one sink, as it was when it was last asked.
type Sink struct {
	// Name is the one in the configuration; Kind is nats, kafka, blob or log.
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Target says where it is, e.g. host and port or a bucket.
	Target string `json:"target,omitempty"`
	// Up says whether it answered when it was asked at CheckedAt. Before the
	// first time CheckedAt is zero.
	Up        bool      `json:"up"`
	CheckedAt time.Time `json:"checked_at,omitzero"`
	// Error is why it is not up, redacted.
	Error string `json:"error,omitempty"`
	// Durability is what a stored message survives ([sinks.Durability]).
	Durability     string `json:"durability,omitempty"`
	DurabilityNote string `json:"durability_note,omitempty"`
}

// Poison says where the poison queue is.
type Poison struct {
	// Sink is the name of the sink that has it, empty when there is no queue.
	Sink  string `json:"sink,omitempty"`
	Topic string `json:"topic,omitempty"`
}

// Check is one thing that the pipeline needs.
type Check struct {
	// Name is unique among the checks, e.g. "gateway" or "sink farm".
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Message says what is wrong, redacted, or what was found.
	Message string `json:"message,omitempty"`
}

// Tenant is a tenant with the endpoints that the application sees in it.
type Tenant struct {
	ID string `json:"id"`
	// Scopes of the authorizations, when they are known.
	Scopes    []string   `json:"scopes,omitempty"`
	Endpoints []Endpoint `json:"endpoints"`
}

// Endpoint is one endpoint of a tenant.
type Endpoint struct {
	ID         string `json:"id"`
	ExternalID string `json:"external_id,omitempty"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	// Mine says that it belongs to this application.
	Mine bool `json:"mine"`
	// Sends and Receives are message types of its capabilities.
	Sends    []string `json:"sends"`
	Receives []string `json:"receives"`
	// RoutedTo and RoutedFrom count the endpoints that it can send to and receive
	// from now; nil for endpoints of others, of which that is not known.
	RoutedTo   *int `json:"routed_to,omitempty"`
	RoutedFrom *int `json:"routed_from,omitempty"`
}

// TenantsFrom turns the gateway's list into rows. scopes may be nil; a
// [gateway.Directory] has it as method Scopes.
func TenantsFrom(list []gateway.TenantInfo, scopes func(tenantID string) []string) []Tenant {
	tenants := make([]Tenant, 0, len(list))
	for _, info := range list {
		tenant := Tenant{ID: info.TenantID, Endpoints: make([]Endpoint, 0, len(info.Endpoints))}
		if scopes != nil {
			tenant.Scopes = scopes(info.TenantID)
		}
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
		to, from := len(info.RoutedEndpoints.CanSendTo), len(info.RoutedEndpoints.CanReceiveFrom)
		endpoint.RoutedTo, endpoint.RoutedFrom = &to, &from
	}
	return endpoint
}
