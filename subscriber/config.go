package subscriber

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agrimill/agrimill/internal/enum"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/final"
	"github.com/agrimill/agrimill/internal/validate"
)

// Client is the part of [gateway.Client] that the subscriber uses.
type Client interface {
	ReceiveEvents(ctx context.Context, req gateway.ReceiveEventsRequest) (*gateway.EventStream, error)
	ConfirmMessages(ctx context.Context, tenantID string, confirmations []gateway.MessageConfirmation) error
	ListAuthorizedTenants(ctx context.Context) ([]gateway.TenantInfo, error)
	OpenPayload(ctx context.Context, uri string, size int64) (*gateway.PayloadReader, error)
}

// Order determines which messages wait for which.
type Order int

const (
	// OrderByKey delivers the messages of one key (see [Config.OrderKey]) in
	// stream order, each after the previous one was acked. Keys do not wait for
	// each other. It is the default.
	OrderByKey Order = iota
	// Unordered delivers every message as soon as there is room for it.
	Unordered
)

var orders = []string{"endpoint", "none"}

// String returns endpoint, for the default key of [OrderByKey], or none.
func (o Order) String() string { return enum.Text(o, orders) }

// UnmarshalText parses the output of String.
func (o *Order) UnmarshalText(text []byte) error { return enum.Parse(o, text, orders) }

// NeverRefused, as [Config.StreamRefusedFor], keeps requesting the stream forever.
const NeverRefused time.Duration = -1

// KeepLease, as [Config.StreamDownFor], keeps the lease however long the stream is down.
const KeepLease time.Duration = -1

// NoFileHold, as [Config.FileHold], delivers chunks immediately.
const NoFileHold time.Duration = -1

// Config configures a [Subscriber]. Only Client is required.
type Config struct {
	// Client is the connection to the gateway. The subscriber does not close it.
	Client Client `yaml:"-"`

	// EventTypes limits what the service streams. Empty means all types.
	EventTypes []gateway.EventType `yaml:"event_types"`

	// Files lists the message types that arrive as whole files. Messages of such a type are
	// held back until the FILE_RECEIVED that lists them, and only the file is delivered. Other
	// types are delivered as they arrive: every chunk as a message of its own, and the file as
	// well.
	Files []string `yaml:"files"`
	// FileHold is how long a message waits for its file, before it is delivered on its own. Default 1 minute;
	// [NoFileHold] (or any negative value) disables the hold.
	FileHold time.Duration `yaml:"file_hold" off:"true"`
	// WholeFileHold is the shorter wait for a message that is probably no chunk: no other held
	// message has its context ID, and its payload is smaller than ChunkSize, or not embedded.
	// Default 2 seconds; it never exceeds FileHold.
	WholeFileHold time.Duration `yaml:"-"`
	// ChunkSize is the size from which a payload may be a chunk, in bytes. The confirmation of what may be a chunk,
	// because of its size or because other messages have its context ID, waits up to 10 seconds for the file, if any
	// subscription accepts that. Default 1 MiB.
	ChunkSize int `yaml:"chunk_size" unit:"bytes"`
	// MaxHeld bounds the messages that are held back for their files. Further ones are left with
	// the service, which redelivers them if no file claims them. It also bounds the confirmations
	// that are held back because a file may be on its way (see ChunkSize): beyond it, the oldest
	// are sent early. Default 10,000.
	MaxHeld int `yaml:"-"`

	// MaxInFlight is how many events may be in flight: not yet acked by every subscription. At the limit the stream
	// is not read. Events that wait do not count: those that were nacked, whose payload cannot be downloaded, or
	// that a handler has had for a second. Of them there may be twice as many, and as many again of stalled keys: then
	// nothing is taken, and only what is in flight may come to wait, too. In a full window, stalled keys and tenants keep
	// a quarter; their further messages are left with the service and redelivered later. With 1, there is never a second
	// message in a handler. Default 1,000.
	MaxInFlight int `yaml:"max_in_flight"`
	// MaxInFlightBytes bounds the bytes of events in flight. Up to twice as many may wait. A larger payload is delivered
	// once it is the oldest. Default 64 MiB.
	MaxInFlightBytes int64 `yaml:"max_in_flight_bytes" unit:"bytes"`

	// Order is whether messages of one receiving endpoint are delivered in order. An OrderKey makes another key.
	// Default [OrderByKey].
	Order Order `yaml:"order" enum:"endpoint,none"`
	// OrderKey returns the key for [OrderByKey]. The default is the receiving
	// endpoint for data, and one common key for all other events. It must be
	// fast, must not block and must not retain the event.
	OrderKey func(gateway.Event) string `yaml:"-"`

	// Ready opens the event stream when it is closed, and not before. An event is delivered only to
	// the subscriptions that exist when it arrives, so all of them have to be made first. Watermill's
	// Router.Running fits; Router of package router needs neither Ready nor StartAfter. Nil means
	// that StartAfter decides.
	Ready <-chan struct{} `yaml:"-"`
	// StartAfter is how long nothing must have subscribed before the event stream is opened, while
	// there is no Ready, and at most ten times as long. A subscription that is made later gets what is not acked yet, after a
	// reconnect, and what it has missed is logged. Default 1 second; negative opens the stream with
	// the first subscription.
	StartAfter time.Duration `yaml:"-"`

	// Nack is the backoff before a nacked message is redelivered.
	// Default 100 ms, doubling up to 30 s.
	Nack Backoff `yaml:"-"`
	// Reconnect is the backoff between attempts to open the stream.
	// Default 250 ms, doubling up to 5 s.
	Reconnect Backoff `yaml:"-"`
	// StreamRefusedFor is how long the stream must be refused with 400 or 403 before all subscriptions end; see
	// [Subscriber.Err]. Until then, and with any other answer, it is treated as an outage, because an intermediary
	// may have answered, such as an ingress during a deployment. Default 5 minutes; [NeverRefused] always treats it
	// as an outage.
	StreamRefusedFor time.Duration `yaml:"stream_refused_for" off:"true"`
	// StreamDownFor is how long the holder of the lease keeps it while it cannot open the stream for other reasons,
	// or the gateway does not answer. Then another process may try; this one wants the lease again after its TTL.
	// Each time in a row it waits twice as long, up to ten times. Any answer counts, whatever it says, and any byte on the stream; after half
	// of the time without one, the holder lists the tenants, to get one. If it gets no access token for that, the stream counts as long
	// as it is open. Default 30 s; [KeepLease] keeps it. Without a Lease it has no effect.
	StreamDownFor time.Duration `yaml:"stream_down_for" off:"true"`

	// Confirm configures how acked messages are confirmed.
	Confirm ConfirmConfig `yaml:"-"`

	// RecentConfirmed is how many confirmed messages are remembered. A redelivered one is only
	// confirmed again. Default 65,536, about 10 MB when full.
	RecentConfirmed int `yaml:"-"`
	// RecentFor is how long a confirmed message is remembered. Default 10 minutes.
	RecentFor time.Duration `yaml:"-"`

	// Payload configures how payloads that are not embedded are fetched.
	Payload PayloadConfig `yaml:",inline"`

	// Tenants resolves which tenant an endpoint belongs to when an event does not
	// name it. The default calls GET /tenants when needed. A [gateway.Directory]
	// works too, and is then kept current: it receives every event, is synchronized
	// after each connect, and fetches the lists that an event left out.
	Tenants TenantResolver `yaml:"-"`

	// Unmarshaler transforms a received message into the one that is delivered.
	// By default messages are delivered as received.
	Unmarshaler Unmarshaler `yaml:"-"`

	// Quarantine configures where undecodable events are stored. Without a
	// Publisher they are only reported.
	Quarantine QuarantineConfig `yaml:"-"`

	// Unmatched says what happens to messages that the filters of all routes refused: confirm drops them, quarantine
	// stores them first. It is decided once every route that gets the message has answered, for one that is part of
	// a file also about the file. Outside of package router, [Refuse] takes the place of a filter. What no
	// subscription takes stays unconfirmed in any case. Default [UnmatchedConfirm].
	Unmatched Unmatched `yaml:"unmatched" enum:"confirm,quarantine"`

	// DrainTimeout bounds how long Close, and the end of a subscription, wait for
	// messages already received from the channel to be acked. Default 20 s, but at
	// most two thirds of CloseTimeout.
	DrainTimeout time.Duration `yaml:"-"`
	// CloseTimeout bounds Close as a whole: draining and then sending the pending
	// confirmations. Default 30 s.
	CloseTimeout time.Duration `yaml:"-"`

	// Lease makes several processes work one at a time: the holder of the lease opens the event
	// stream, hands out messages and confirms them; the others stand by, with open
	// subscriptions, and open no stream. The lease is wanted from the first subscription until
	// Close, which drains, confirms and then releases it.
	//
	// When it is not renewed in time, by the monotonic or the wall clock, whichever says so first, nothing starts any
	// longer: nothing is handed out and nothing confirmed, not even what was acked. The contexts of open messages
	// end; their Err says so before Done is closed, and a route of package router publishes nothing after that. What
	// was unconfirmed stays with the service, for the next holder, also if that is this process; until then the
	// subscriptions wait. Nil means that there is none, and every process gets and confirms everything.
	Lease Lease `yaml:"-"`

	// Hooks observe the subscriber. All are optional.
	Hooks Hooks `yaml:"-"`
}

// Backoff is an exponential backoff with jitter.
type Backoff struct {
	// Initial is the first wait, before jitter. Default: that of the field.
	Initial time.Duration
	// Max caps the wait. Default: that of the field.
	Max time.Duration
}

// ConfirmConfig configures how acks are turned into POST /confirmations requests.
type ConfirmConfig struct {
	// MaxBatch is how many confirmations go into one request. One tenant has one request at a
	// time, so it also bounds how many are confirmed in a round trip. Default 500.
	MaxBatch int
	// MaxAge is how long an ack waits for others to join its batch. Default
	// 100 ms.
	MaxAge time.Duration
	// MaxRequests is how many requests may be under way. Each tenant has one at a time. Tenants that
	// fail share half as many of their own, and requests that are late do not count. When twice as
	// many have failed in a row, one request at a time is sent until one succeeds. Default 64.
	MaxRequests int
	// MaxBacklog is how many confirmations may be pending before the stream is no longer read.
	// Above half of it, keys and tenants whose confirmations have been pending for a second are
	// stalled: their further messages are left with the service, as in a full window, and as many
	// confirmations again may be pending. Default 10,000.
	MaxBacklog int
	// MaxUnsynced is how many confirmations may wait until what was stored survives a power cut, of routes with
	// router.DurableSynced, before the stream is no longer read. Each takes some 150 bytes. Default 1,000,000.
	MaxUnsynced int
	// Retry bounds the backoff of failed confirmations, and of a tenant whose confirmations
	// fail. Default 500 ms doubling up to 3 s.
	Retry Backoff
	// RefusedFor is how long a confirmation has to be refused with 403 before it is
	// dropped; see [Hooks.ConfirmationRejected]. Default 5 minutes.
	RefusedFor time.Duration
}

// TenantResolver resolves which tenant owns an endpoint.
type TenantResolver interface {
	// TenantOf returns the tenant of the endpoint, if it is known. It must not block.
	TenantOf(endpointID string) (tenantID string, ok bool)
	// Sync refreshes the known tenants from the service.
	Sync(ctx context.Context) error
}

// directory is a TenantResolver that is kept current: it gets every event, and fetches what events left out until ctx ends.
// [gateway.Directory] is one.
type directory interface {
	TenantResolver
	HandleEvent(gateway.Event)
	KeepFresh(ctx context.Context, failed func(tenantID string, err error))
}

// Hooks observe the subscriber. They are called without a lock held, from
// several goroutines, and delay the stream while they run. A hook that blocks does
// not keep [Subscriber.Close] from returning in time. Nil hooks are skipped.
type Hooks struct {
	// Connected is called each time the event stream has been opened, before its
	// first event. Events that occurred while it was closed were not seen; only
	// messages and files are redelivered.
	Connected func()
	// Event is called for every decoded event before it is delivered, in stream
	// order, including redelivered events. It must not modify the event.
	// [gateway.Provisioner.HandleEvent] fits.
	Event func(gateway.Event)
	// Undeliverable is called for a message that cannot be delivered, such as
	// one whose payload exceeds PayloadConfig.MaxInline. It stays unconfirmed.
	Undeliverable func(event gateway.Event, err error)
	// Progress is called for what happens to a message before a subscription gets it. The same may happen again
	// after a reconnect.
	Progress func(Progress)
	// Confirmed is called with the confirmations of one request after the service
	// accepted them. They are valid only during the call.
	Confirmed func(tenantID string, confirmations []gateway.MessageConfirmation)
	// Holding is called, in a goroutine of its own, each time the subscriber has acquired
	// Config.Lease, for work that only the holder may do. ctx ends with the term, or when Close
	// begins; its Err looks at the clock, like that of messages. The lease is released after
	// Holding has returned, or Config.CloseTimeout has passed.
	Holding func(ctx context.Context, epoch uint64)
	// ConfirmationRejected is called for a confirmation that the service does not
	// accept: it answers 400 to it alone, or has answered 403 for
	// ConfirmConfig.RefusedFor. It is dropped.
	ConfirmationRejected func(tenantID string, confirmation gateway.MessageConfirmation, err error)
}

// Progress is something that happened to a message or file inside of the subscriber.
type Progress struct {
	Kind ProgressKind
	// Event is that of the message or file. It must not be modified.
	Event gateway.Event
	// Bytes is the size of the payload that was fetched; 0 for the other kinds.
	Bytes int64
}

// ProgressKind says what happened.
type ProgressKind int

const (
	// ProgressHeld: the message is held back, because it may be a part of a file.
	ProgressHeld ProgressKind = iota + 1
	// ProgressJoined: the file has come, and takes the place of the messages that it was made of.
	ProgressJoined
	// ProgressFetched: its payload was downloaded.
	ProgressFetched
	// ProgressUntaken: no subscription takes it. It stays unconfirmed.
	ProgressUntaken
	// ProgressUnclaimed: no file has come for a message that was held. It is delivered on its own.
	ProgressUnclaimed
)

// String returns the kind in lower case, e.g. "held".
func (k ProgressKind) String() string { return enum.Text(k, progressKinds) }

var progressKinds = []string{"unknown", "held", "joined", "fetched", "untaken", "unclaimed"}

// WithDefaults returns the configuration with the defaults filled in.
func (c Config) WithDefaults() Config {
	setDefault(&c.FileHold, time.Minute)
	setDefault(&c.WholeFileHold, 2*time.Second)
	setDefault(&c.ChunkSize, 1<<20)
	setDefault(&c.MaxHeld, 10_000)
	setDefault(&c.MaxInFlight, 1000)
	setDefault(&c.MaxInFlightBytes, 64<<20)
	setDefault(&c.StartAfter, time.Second)
	setDefault(&c.Nack.Initial, 100*time.Millisecond)
	setDefault(&c.Nack.Max, 30*time.Second)
	setDefault(&c.Reconnect.Initial, 250*time.Millisecond)
	setDefault(&c.Reconnect.Max, max(5*time.Second, c.Reconnect.Initial))
	setDefault(&c.StreamRefusedFor, 5*time.Minute)
	setDefault(&c.StreamDownFor, 30*time.Second)
	setDefault(&c.Confirm.MaxBatch, 500)
	setDefault(&c.Confirm.MaxAge, 100*time.Millisecond)
	setDefault(&c.Confirm.MaxRequests, 64)
	setDefault(&c.Confirm.MaxBacklog, 10_000)
	setDefault(&c.Confirm.MaxUnsynced, 1_000_000)
	setDefault(&c.Confirm.Retry.Initial, 500*time.Millisecond)
	setDefault(&c.Confirm.Retry.Max, max(3*time.Second, c.Confirm.Retry.Initial))
	setDefault(&c.Confirm.RefusedFor, 5*time.Minute)
	setDefault(&c.RecentConfirmed, 1<<16)
	setDefault(&c.RecentFor, 10*time.Minute)
	setDefault(&c.CloseTimeout, 30*time.Second)
	setDefault(&c.DrainTimeout, min(20*time.Second, c.CloseTimeout*2/3))
	c.Payload.setDefaults()
	c.Quarantine.setDefaults()
	if c.OrderKey == nil {
		c.OrderKey = receivingEndpoint
	}
	if c.Tenants == nil && c.Client != nil {
		// Of the directory it has the look-up alone: no event has it ask the service.
		c.Tenants = struct{ TenantResolver }{gateway.NewDirectory(c.Client)}
	}
	c.Files = slices.Clone(c.Files)
	c.EventTypes = slices.Clone(c.EventTypes)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ErrConfig is matched by the errors of [Config.Validate] and [New].
var ErrConfig = final.New("subscriber: invalid configuration")

// Validate reports every field with an invalid value; the error matches
// [ErrConfig]. Zero values stand for the defaults; only Client is required.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Check(c.Client != nil, "Client", "is required")
	for i, t := range c.EventTypes {
		e.Check(t.Known(), fmt.Sprintf("EventTypes[%d]", i), "must be an event type, not %q", string(t))
	}
	e.Check(c.Order == OrderByKey || c.Order == Unordered, "Order", "must be one of the named constants")
	validate.NotNegative(&e, "WholeFileHold", c.WholeFileHold)
	validate.NotNegative(&e, "ChunkSize", c.ChunkSize)
	validate.NotNegative(&e, "MaxHeld", c.MaxHeld)
	validate.NotNegative(&e, "MaxInFlight", c.MaxInFlight)
	validate.NotNegative(&e, "MaxInFlightBytes", c.MaxInFlightBytes)
	e.Join("Nack", c.Nack.validate())
	e.Join("Reconnect", c.Reconnect.validate())
	e.Check(c.StreamRefusedFor >= 0 || c.StreamRefusedFor == NeverRefused, "StreamRefusedFor", "must not be negative, except -1 to disable it")
	e.Check(c.StreamDownFor >= 0 || c.StreamDownFor == KeepLease, "StreamDownFor", "must not be negative, except -1 to disable it")
	validate.NotNegative(&e, "Confirm.MaxBatch", c.Confirm.MaxBatch)
	validate.NotNegative(&e, "Confirm.MaxAge", c.Confirm.MaxAge)
	validate.NotNegative(&e, "Confirm.MaxRequests", c.Confirm.MaxRequests)
	validate.NotNegative(&e, "Confirm.MaxBacklog", c.Confirm.MaxBacklog)
	validate.NotNegative(&e, "Confirm.MaxUnsynced", c.Confirm.MaxUnsynced)
	e.Join("Confirm.Retry", c.Confirm.Retry.validate())
	validate.NotNegative(&e, "Confirm.RefusedFor", c.Confirm.RefusedFor)
	validate.NotNegative(&e, "RecentConfirmed", c.RecentConfirmed)
	validate.NotNegative(&e, "RecentFor", c.RecentFor)
	e.Join("Payload", c.Payload.validate())
	validate.NotNegative(&e, "Quarantine.Timeout", c.Quarantine.Timeout)
	validate.NotNegative(&e, "Quarantine.Remember", c.Quarantine.Remember)
	e.Join("Quarantine.Retry", c.Quarantine.Retry.validate())
	e.Check(c.Lease == nil || c.Lease.TTL() > 0, "Lease", "must have a TTL")
	e.Check(c.Unmatched >= UnmatchedConfirm && c.Unmatched <= UnmatchedQuarantine, "Unmatched", "must be one of the named constants")
	if topics, ok := c.Quarantine.Publisher.(interface{ CheckTopic(topic string) error }); ok {
		if err := topics.CheckTopic(c.Quarantine.Topic); err != nil {
			e.AddCause(err, "Quarantine.Topic", "%s", err)
		}
	}
	e.Check(c.Unmatched != UnmatchedQuarantine || c.Quarantine.Publisher != nil, "Unmatched", "needs %s to quarantine", validate.Field("Quarantine.Publisher"))
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	validate.NotNegative(&e, "DrainTimeout", c.DrainTimeout)
	return e.Err(ErrConfig)
}

func (b Backoff) validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "Initial", b.Initial)
	e.Check(b.Max >= b.Initial, "Max", "must not be less than %s", validate.Field("Initial"))
	return e.Err(ErrConfig)
}

// receivingEndpoint is the default OrderKey. It treats UUIDs that differ only in
// case as equal.
func receivingEndpoint(event gateway.Event) string {
	switch e := event.(type) {
	case *gateway.MessageReceived:
		return strings.ToLower(e.ReceivingEndpointID)
	case *gateway.FileReceived:
		return strings.ToLower(e.ReceivingEndpointID)
	}
	return ""
}
