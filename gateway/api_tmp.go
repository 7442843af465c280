package gateway

import (
	"context"
	"errors"
	"io"
	"time"
)

var errNotYet = errors.New("not built yet")

type RateLimitConfig struct{}

func (c *RateLimitConfig) setDefaults()   {}
func (c RateLimitConfig) validate() error { return nil }

func validateHeaderValue(field, v string) error { return nil }

type Client struct{ cfg Config }

func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	return &Client{cfg: cfg}, nil
}

func (c *Client) Config() Config { cfg := c.cfg; cfg.ClientSecret = ""; return cfg }
func (c *Client) Close() error   { return nil }

type SendMessageRequest struct {
	TenantID, EndpointID, MessageType string
	IsPublish                         bool
	DirectRecipients                  []string
	ContextID                         string
	SentAt                            time.Time
	TeamsetContextID, Filename        string
	Payload                           []byte
	Body                              func() (io.ReadCloser, error)
	Size                              int64
}

func (c *Client) SendMessage(ctx context.Context, req SendMessageRequest) error { return errNotYet }

type ReceiveEventsRequest struct{ Types []EventType }
type RawEvent struct {
	Type EventType
	Data []byte
}
type EventStream struct{}

func (c *Client) ReceiveEvents(ctx context.Context, req ReceiveEventsRequest) (*EventStream, error) {
	return nil, errNotYet
}
func (s *EventStream) Next() (RawEvent, error)             { return RawEvent{}, errNotYet }
func (s *EventStream) Retry() (time.Duration, bool)        { return 0, false }
func (s *EventStream) Close() error                        { return nil }
func (c *Client) ConfirmMessages(ctx context.Context, tenantID string, confirmations []MessageConfirmation) error {
	return errNotYet
}
func (c *Client) ListAuthorizedTenants(ctx context.Context) ([]TenantInfo, error) { return nil, errNotYet }
func (c *Client) ListTenantEndpoints(ctx context.Context, tenantID string) ([]TenantEndpointInfo, error) {
	return nil, errNotYet
}
func (c *Client) PutEndpoint(ctx context.Context, tenantID, externalID string, req PutEndpointRequest) (endpoint Endpoint, created bool, err error) {
	return Endpoint{}, false, errNotYet
}
func (c *Client) DeleteEndpoint(ctx context.Context, tenantID, externalID string) error { return errNotYet }

type PayloadReader struct{}

func (c *Client) OpenPayload(ctx context.Context, uri string, size int64) (*PayloadReader, error) {
	return nil, errNotYet
}
func (r *PayloadReader) Read(p []byte) (int, error) { return 0, errNotYet }
func (r *PayloadReader) Size() int64                { return -1 }
func (r *PayloadReader) Close() error               { return nil }
func ValidateExternalID(id string) error            { return nil }
