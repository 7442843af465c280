package subscriber

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// Client is the part of [gateway.Client] that the subscriber uses.
type Client interface {
	ReceiveEvents(ctx context.Context, req gateway.ReceiveEventsRequest) (*gateway.EventStream, error)
	ConfirmMessages(ctx context.Context, tenantID string, confirmations []gateway.MessageConfirmation) error
	ListAuthorizedTenants(ctx context.Context) ([]gateway.TenantInfo, error)
	OpenPayload(ctx context.Context, uri string, size int64) (*gateway.PayloadReader, error)
}

// Order says which messages wait for which.
type Order int

const (
	// OrderByKey delivers the messages of one key (see [Config.OrderKey]) in
	// the order of the stream, the next when the one before was acked. Keys do
	// not wait for each other. It is the default.
	OrderByKey Order = iota
	// Unordered delivers every message as soon as there is room for it.
	Unordered
)

// NoFileHold as [Config.FileHold] delivers chunks at once.
const NoFileHold time.Duration = -1

// Config configures a [Subscriber]. Only Client is required.
type Config struct {
	// Client is the connection to the gateway. The subscriber does not close it.
	Client Client

	// EventTypes limits what the service streams. Empty means all.
	EventTypes []gateway.EventType

	// Files lists the message types that the application takes as files: a
	// MESSAGE_RECEIVED of such a type is held back until the FILE_RECEIVED that
	// lists it arrives, and then only the file is delivered. Types that are not
	// listed are delivered as they come: every chunk as a message of its own,
	// and the file as well.
	Files []string
	// FileHold is how long a message of a type in Files waits for its file
	// before it is delivered on its own. Default 1 minute; [NoFileHold] (or any
	// negative value) turns the hold off.
	FileHold time.Duration
	// WholeFileHold is the shorter wait of a message that is probably not a
	// chunk: its payload is embedded, smaller than ChunkSize, and no other held
	// message has its context ID. Default 2 seconds; it is never longer than FileHold.
	WholeFileHold time.Duration
	// ChunkSize is the size from which an embedded payload may be a chunk of a
	// larger one, in bytes. Default 1 MiB.
	ChunkSize int
	// MaxHeld bounds the messages that are held back for their files. Above it
	// the payloads of further ones are not kept; they come again from the
	// service when no file claims them. Default 10,000.
	MaxHeld int

	// MaxInFlight is the number of events that may be open (arrived, not yet
	// acked by everyone) before the stream is no longer read. Default 1,000.
	MaxInFlight int
	// MaxInFlightBytes bounds the payload bytes of open events. Default 64 MiB.
	// A payload larger than that is still delivered, when it is the oldest.
	MaxInFlightBytes int64

	// Order is [OrderByKey] by default.
	Order Order
	// OrderKey gives the key for [OrderByKey]. The default is the receiving
	// endpoint for data, and one common key for all other events. It must be
	// fast, must not block and must not keep the event.
	OrderKey func(gateway.Event) string

	// Nack bounds the backoff before a nacked message is delivered again.
	// Default 100 ms doubling up to 30 s.
	Nack Backoff
	// Reconnect bounds the backoff between attempts to open the stream.
	// Default 250 ms doubling up to 30 s.
	Reconnect Backoff

	// Confirm configures the confirmations.
	Confirm ConfirmConfig

	// RecentConfirmed is how many confirmed messages are remembered, so that one
	// that comes again is confirmed again and not delivered again. Default
	// 65,536, about 10 MB when full.
	RecentConfirmed int
	// RecentFor is how long a confirmed message is remembered. Default 10 minutes.
	RecentFor time.Duration

	// Payload configures how payloads that are not embedded are fetched.
	Payload PayloadConfig

	// Tenants answers which tenant an endpoint belongs to when an event does not
	// say. The default asks GET /tenants when that happens. A
	// [gateway.Directory] can be given; it is then also kept current: every
	// event is handed to it, and it is synchronised after each connect.
	Tenants TenantResolver

	// Unmarshaler turns a received message into the one that is delivered.
	// Default: delivered as it is.
	Unmarshaler Unmarshaler

	// Quarantine configures where events go that cannot be decoded. Without a
	// Publisher they are only reported.
	Quarantine QuarantineConfig

	// DrainTimeout bounds how long Close, and the end of a subscription, wait for
	// the messages that were taken to be acked. Default 20 s, but at
	// most two thirds of CloseTimeout.
	DrainTimeout time.Duration
	// CloseTimeout bounds Close as a whole: the drain, and the sending of the
	// confirmations that then wait. Default 30 s.
	CloseTimeout time.Duration

	// Hooks observe what happens. All are optional.
	Hooks Hooks
}

// Backoff bounds an exponential, jittered backoff.
type Backoff struct {
	// Min is the first wait. Zero means the documented default.
	Min time.Duration
	// Max caps the wait. Zero means the documented default.
	Max time.Duration
}

// ConfirmConfig configures how acks become POST /confirmations.
type ConfirmConfig struct {
	// MaxBatch is how many confirmations go into one request. Default 100.
	MaxBatch int
	// MaxAge is how long an ack waits for others to join its batch. Default
	// 100 ms.
	MaxAge time.Duration
	// MaxRequests is how many requests may be under way at a time. Default 4.
	MaxRequests int
	// MaxBacklog is how many confirmations may wait before the stream is no
	// longer read. Default 10,000.
	MaxBacklog int
	// Retry bounds the backoff of a confirmation that the service did not take
	// because it is down. Default 500 ms doubling up to 30 s.
	Retry Backoff
}

// TenantResolver answers which tenant owns an endpoint.
type TenantResolver interface {
	// TenantOf returns the tenant of the endpoint, if it is known. It must not block.
	TenantOf(endpointID string) (tenantID string, ok bool)
	// Sync refreshes what is known from the service.
	Sync(ctx context.Context) error
}

// eventObserver is what a TenantResolver implements when it wants every event.
// A gateway.Directory does.
type eventObserver interface {
	HandleEvent(gateway.Event)
}

// Hooks observe the subscriber. They are called without a lock held, from
// several goroutines, and delay the stream while they run. Nil hooks are skipped.
type Hooks struct {
	// Connected is called after the event stream was opened, the first time and
	// again after each reconnect, before its first event. What happened while it
	// was closed was not seen; events other than messages do not come again.
	Connected func()
	// Event is called for every decoded event, before it is delivered, in the
	// order of the stream, also for one that comes again. It must not change the
	// event. A gateway.Provisioner's HandleEvent fits.
	Event func(gateway.Event)
	// Malformed is called with the raw data of an event that could not be
	// decoded, each time it comes. The data is only valid during the call. The
	// stream goes on. The event is confirmed only when Config.Quarantine holds it.
	Malformed func(eventType gateway.EventType, data []byte, err error)
	// TooLarge is called for an event that was skipped because it is larger
	// than gateway.Config.MaxEventSize, each time it comes.
	TooLarge func(err error)
	// Undeliverable is called for a message that cannot be delivered, such as
	// one whose payload exceeds PayloadConfig.MaxInline. It stays unconfirmed.
	Undeliverable func(event gateway.Event, err error)
	// Confirmed is called for confirmations that the service took, with those of
	// one request. They are valid only during the call.
	Confirmed func(tenantID string, confirmations []gateway.MessageConfirmation)
	// ConfirmationRejected is called for a confirmation that the service will
	// never accept (400 for it alone, or 403 for its tenant). It is dropped.
	ConfirmationRejected func(tenantID string, confirmation gateway.MessageConfirmation, err error)
}

func (c *Config) setDefaults() {
	setDefault(&c.FileHold, time.Minute)
	setDefault(&c.WholeFileHold, 2*time.Second)
	setDefault(&c.ChunkSize, 1<<20)
	setDefault(&c.MaxHeld, 10_000)
	setDefault(&c.MaxInFlight, 1000)
	setDefault(&c.MaxInFlightBytes, 64<<20)
	setDefault(&c.Nack.Min, 100*time.Millisecond)
	setDefault(&c.Nack.Max, 30*time.Second)
	setDefault(&c.Reconnect.Min, 250*time.Millisecond)
	setDefault(&c.Reconnect.Max, 30*time.Second)
	setDefault(&c.Confirm.MaxBatch, 100)
	setDefault(&c.Confirm.MaxAge, 100*time.Millisecond)
	setDefault(&c.Confirm.MaxRequests, 4)
	setDefault(&c.Confirm.MaxBacklog, 10_000)
	setDefault(&c.Confirm.Retry.Min, 500*time.Millisecond)
	setDefault(&c.Confirm.Retry.Max, 30*time.Second)
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
		c.Tenants = newTenantLookup(c.Client)
	}
	c.Files = slices.Clone(c.Files)
	c.EventTypes = slices.Clone(c.EventTypes)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports everything that is wrong with the configuration, after
// defaults have been set, in one error.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("Client is required"))
	}
	for _, t := range c.EventTypes {
		if !t.Known() {
			errs = append(errs, fmt.Errorf("EventTypes: %q is not an event type", t))
		}
	}
	for name, v := range map[string]int64{
		"ChunkSize": int64(c.ChunkSize), "MaxHeld": int64(c.MaxHeld),
		"MaxInFlight": int64(c.MaxInFlight), "MaxInFlightBytes": c.MaxInFlightBytes,
		"WholeFileHold":    int64(c.WholeFileHold),
		"Confirm.MaxBatch": int64(c.Confirm.MaxBatch), "Confirm.MaxAge": int64(c.Confirm.MaxAge),
		"Confirm.MaxRequests": int64(c.Confirm.MaxRequests), "Confirm.MaxBacklog": int64(c.Confirm.MaxBacklog),
		"RecentConfirmed": int64(c.RecentConfirmed), "RecentFor": int64(c.RecentFor),
		"CloseTimeout": int64(c.CloseTimeout), "DrainTimeout": int64(c.DrainTimeout),
		"Quarantine.Timeout": int64(c.Quarantine.Timeout), "Quarantine.MaxWaiting": int64(c.Quarantine.MaxWaiting),
		"Quarantine.MaxWaitingBytes": c.Quarantine.MaxWaitingBytes, "Quarantine.Remember": int64(c.Quarantine.Remember),
	} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative", name))
		}
	}
	for name, b := range map[string]Backoff{"Nack": c.Nack, "Reconnect": c.Reconnect, "Confirm.Retry": c.Confirm.Retry, "Quarantine.Retry": c.Quarantine.Retry} {
		if b.Min < 0 || b.Max < b.Min {
			errs = append(errs, fmt.Errorf("%s: Min must be positive and not above Max", name))
		}
	}
	if c.Order != OrderByKey && c.Order != Unordered {
		errs = append(errs, fmt.Errorf("Order: unknown value %d", c.Order))
	}
	errs = append(errs, c.Payload.validate()...)
	if len(errs) == 0 {
		return nil
	}
	slices.SortFunc(errs, func(a, b error) int {
		if a.Error() < b.Error() {
			return -1
		}
		return 1
	})
	return fmt.Errorf("subscriber: invalid configuration: %w", errors.Join(errs...))
}

// receivingEndpoint is the default OrderKey.
func receivingEndpoint(event gateway.Event) string {
	switch e := event.(type) {
	case *gateway.MessageReceived:
		return e.ReceivingEndpointID
	case *gateway.FileReceived:
		return e.ReceivingEndpointID
	}
	return ""
}
