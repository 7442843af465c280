package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/enum"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

// Client is the part of [gateway.Client] that the publisher uses.
type Client interface {
	SendMessage(ctx context.Context, req gateway.SendMessageRequest) error
	ValidateMessage(req gateway.SendMessageRequest) error
	ListAuthorizedTenants(ctx context.Context) ([]gateway.TenantInfo, error)
}

// PartialDelivery says how to treat a delivery to some of the direct recipients. Either way the message is not sent again.
type PartialDelivery int

const (
	// PartialDeliveryIsError makes it an error that matches gateway.ErrPartialDelivery. It is the default.
	PartialDeliveryIsError PartialDelivery = iota
	// PartialDeliveryIsSent makes it count as sent, which Config.OnPartialDelivery tells.
	PartialDeliveryIsSent
)

var partialDeliveries = []string{"error", "sent"}

// String returns error or sent.
func (p PartialDelivery) String() string { return enum.Text(p, partialDeliveries) }

// UnmarshalText parses what String returns.
func (p *PartialDelivery) UnmarshalText(text []byte) error {
	return enum.Parse(p, text, partialDeliveries)
}

// Config configures a [Publisher]. Only Client is required.
type Config struct {
	// Client is the connection to the gateway. The publisher does not close it.
	Client Client `yaml:"-"`

	// TenantID is the tenant of messages without x-router-tenant-id in their metadata. Optional.
	TenantID string `yaml:"tenant"`
	// EndpointID is the sender of messages without x-router-endpoint-id in their metadata. Optional.
	EndpointID string `yaml:"endpoint"`
	// DirectRecipients are the recipients of messages without x-router-direct-recipients in their metadata, by
	// endpoint IDs. Such messages are then not published unless their metadata says so. Optional.
	DirectRecipients []string `yaml:"recipients"`
	// TeamsetContextID is the teamset context of messages without x-router-teamset-context-id in their metadata. Optional.
	TeamsetContextID string `yaml:"teamset_context_id"`

	// Marshaler creates the payload that is sent. Default: the message's own payload.
	Marshaler Marshaler `yaml:"-"`

	// ClaimCheck opens payloads that the metadata refers to (gateway.KeyPayloadReference); such a payload is streamed and, if
	// present, checked against gateway.KeyPayloadSHA256. What a subscriber of this process delivered can be sent without it.
	ClaimCheck gateway.PayloadOpener `yaml:"-"`

	// MaxRequests is how many requests may be in progress at the same time. A message that failed and waits for its
	// next attempt has none. Default 16.
	MaxRequests int `yaml:"max_requests"`

	// PartialDelivery is whether a message that reached only some recipients has failed or was sent. Default
	// [PartialDeliveryIsError].
	PartialDelivery PartialDelivery `yaml:"partial_delivery" enum:"error,sent"`
	// OnPartialDelivery is called for each partial delivery, in either mode, from the goroutine of Publish before that
	// returns. It must not call Close. Optional.
	OnPartialDelivery func(msg *message.Message, err error) `yaml:"-"`

	// CloseTimeout bounds how long Close waits for messages in flight before it cancels
	// them. Default 30 s.
	CloseTimeout time.Duration `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.MaxRequests = cmp.Or(c.MaxRequests, 16)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 30*time.Second)
	c.DirectRecipients = slices.Clone(c.DirectRecipients)
	return c
}

// ErrConfig is matched by the errors of [Config.Validate] and [New].
var ErrConfig = errors.New("publisher: invalid configuration")

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	c = c.WithDefaults()
	var e validate.Errors
	e.Check(c.Client != nil, "Client", "is required")
	validate.NotNegative(&e, "MaxRequests", c.MaxRequests)
	validate.NotNegative(&e, "CloseTimeout", c.CloseTimeout)
	e.Check(c.PartialDelivery == PartialDeliveryIsError || c.PartialDelivery == PartialDeliveryIsSent,
		"PartialDelivery", "must be one of the named constants")
	c.validateDefaults(&e)
	return e.Err(ErrConfig)
}

// anyID stands for the ID of a tenant or endpoint in a message whose other values are checked.
const anyID = "00000000-0000-4000-8000-000000000000"

// validateDefaults checks the values that messages take from the configuration.
func (c Config) validateDefaults(e *validate.Errors) {
	if c.Client == nil {
		return
	}
	check := func(path string, set func(*gateway.SendMessageRequest)) {
		req := gateway.SendMessageRequest{TenantID: anyID, EndpointID: anyID, MessageType: "any"}
		set(&req)
		if rule, ok := errors.AsType[*gateway.ValidationError](c.Client.ValidateMessage(req)); ok {
			e.Add(path, "%s", rule.Rule)
		}
	}
	check("TenantID", func(r *gateway.SendMessageRequest) { r.TenantID = cmp.Or(c.TenantID, anyID) })
	check("EndpointID", func(r *gateway.SendMessageRequest) { r.EndpointID = cmp.Or(c.EndpointID, anyID) })
	for i := range c.DirectRecipients {
		check(fmt.Sprintf("DirectRecipients[%d]", i), func(r *gateway.SendMessageRequest) { r.DirectRecipients = c.DirectRecipients[i : i+1] })
	}
	check("TeamsetContextID", func(r *gateway.SendMessageRequest) { r.TeamsetContextID = c.TeamsetContextID })
}
