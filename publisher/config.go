package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
)

// Client is the part of [gateway.Client] that the publisher uses.
type Client interface {
	SendMessage(ctx context.Context, req gateway.SendMessageRequest) error
	ValidateMessage(req gateway.SendMessageRequest) error
}

// ClaimCheck opens payloads that are stored outside the messages. The one that
// the subscriber stores them with fits; package sinks/claimcheck has one for
// blob storage. It must be safe for concurrent use.
type ClaimCheck interface {
	// Open returns the payload and its size in bytes, -1 when it is not known.
	// It is called again for each attempt to send. References come out of
	// message metadata: refuse those that Put cannot have made. Reading must end
	// when ctx does; the payload is closed, perhaps while it is being read. An error that matches gateway.ErrUnavailable, of Open or
	// while reading, is an outage: the client tries again.
	Open(ctx context.Context, reference string) (payload io.ReadCloser, size int64, err error)
}

// PartialDelivery says what a partial delivery is: the service delivered to
// the reachable direct recipients, but not to all. Either way the message is
// not sent again.
type PartialDelivery int

const (
	// PartialDeliveryIsError makes Publish return an error that matches
	// gateway.ErrPartialDelivery. It is the default.
	PartialDeliveryIsError PartialDelivery = iota
	// PartialDeliveryIsSent makes Publish treat the message as sent. Use
	// Config.OnPartialDelivery to see it.
	PartialDeliveryIsSent
)

// Config configures a [Publisher]. Only Client is required.
type Config struct {
	// Client is the connection to the gateway. The publisher does not close it.
	Client Client

	// TenantID is the tenant of messages whose metadata has no
	// gateway.KeyTenantID. Optional.
	TenantID string
	// EndpointID is the sender of messages whose metadata has no
	// gateway.KeyEndpointID. Optional.
	EndpointID string
	// DirectRecipients are the endpoint IDs that receive the messages whose
	// metadata has no gateway.KeyDirectRecipients. Such messages are then not
	// published, unless they say so themselves. Optional.
	DirectRecipients []string
	// TeamsetContextID is the teamset context of messages whose metadata has no
	// gateway.KeyTeamsetContextID. Optional.
	TeamsetContextID string

	// Marshaler makes the payload that is sent. Default: the message's own,
	// which is not copied.
	Marshaler Marshaler

	// ClaimCheck opens payloads that the metadata refers to
	// (gateway.KeyPayloadReference); such a payload is streamed, and held
	// against gateway.KeyPayloadSHA256 on the way when that is there. A message
	// that a subscriber of this process delivered can be sent without it.
	ClaimCheck ClaimCheck

	// MaxRequests is how many messages may be under way at a time, over all
	// calls of Publish. Default 16.
	MaxRequests int

	// PartialDelivery is [PartialDeliveryIsError] by default.
	PartialDelivery PartialDelivery
	// OnPartialDelivery is called for each partial delivery, before Publish
	// returns, in either mode, with the error that the service's answer makes.
	// It is called from the goroutine of Publish and must not call Close.
	// Optional.
	OnPartialDelivery func(msg *message.Message, err error)

	// CloseTimeout bounds how long Close waits for messages under way before it
	// cancels them. Default 30 s.
	CloseTimeout time.Duration
}

func (c *Config) setDefaults() {
	if c.MaxRequests == 0 {
		c.MaxRequests = 16
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 30 * time.Second
	}
	c.DirectRecipients = slices.Clone(c.DirectRecipients)
}

// Validate reports everything that is wrong with the configuration in one error.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("Client is required"))
	}
	if c.MaxRequests < 0 {
		errs = append(errs, errors.New("MaxRequests must not be negative"))
	}
	if c.CloseTimeout < 0 {
		errs = append(errs, errors.New("CloseTimeout must not be negative"))
	}
	if c.PartialDelivery != PartialDeliveryIsError && c.PartialDelivery != PartialDeliveryIsSent {
		errs = append(errs, fmt.Errorf("PartialDelivery: unknown value %d", c.PartialDelivery))
	}
	errs = append(errs, c.validateDefaults()...)
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("publisher: invalid configuration: %w", errors.Join(errs...))
}

// validateDefaults holds the values that messages take from the configuration
// against the rules for messages.
func (c Config) validateDefaults() []error {
	if c.Client == nil {
		return nil
	}
	const id = "00000000-0000-4000-8000-000000000000"
	var errs []error
	for _, set := range []func(*gateway.SendMessageRequest){
		func(r *gateway.SendMessageRequest) { r.TenantID = cmp.Or(c.TenantID, id) },
		func(r *gateway.SendMessageRequest) { r.EndpointID = cmp.Or(c.EndpointID, id) },
		func(r *gateway.SendMessageRequest) { r.DirectRecipients = c.DirectRecipients },
		func(r *gateway.SendMessageRequest) { r.TeamsetContextID = c.TeamsetContextID },
	} {
		req := gateway.SendMessageRequest{TenantID: id, EndpointID: id, MessageType: "any"}
		set(&req)
		var rule *gateway.ValidationError
		if errors.As(c.Client.ValidateMessage(req), &rule) {
			errs = append(errs, rule)
		}
	}
	return errs
}
