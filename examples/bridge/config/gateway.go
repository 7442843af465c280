package config

import "time"

// Gateway is the service and how to talk to it.
type Gateway struct {
	// BaseURL is the address of the service, http or https. A path prefix is kept.
	BaseURL URL `yaml:"base_url" required:"true"`
	// TokenURL is the whole address of the token endpoint.
	TokenURL URL `yaml:"token_url" required:"true"`
	// ClientID is the name of the application at the token endpoint.
	ClientID string `yaml:"client_id" required:"true"`
	// ClientSecret is the password of the application.
	ClientSecret Secret `yaml:"client_secret"`
	// ClientSecretFile is a file with ClientSecret.
	ClientSecretFile string `yaml:"client_secret_file" file:"true"`
	// AuthStyle says how both travel: as HTTP Basic authentication, or as parameters of
	// the form.
	AuthStyle string `yaml:"auth_style" enum:"basic,params"`
	// Scopes are asked for with the token.
	Scopes List `yaml:"scopes"`

	// ApplicationID is the application's ID (UUID), for endpoints that do not say.
	ApplicationID string `yaml:"application_id"`
	// SoftwareVersionID is the ID (UUID) of its certified version, for endpoints that
	// do not say.
	SoftwareVersionID string `yaml:"software_version_id"`

	// ServiceName is the service's own name as it stands in header names
	// (x-NAME-tenant-id).
	ServiceName string `yaml:"service_name"`
	// EventTypesEncoding is how the types of GET /events are written: repeated
	// (types=A&types=B) or comma (types=A,B).
	EventTypesEncoding string `yaml:"event_types_encoding" enum:"repeated,comma"`
	// UserAgent is sent with every request.
	UserAgent string `yaml:"user_agent"`
	// TLS is about https addresses.
	TLS *TLS `yaml:"tls"`

	// StreamIdleTimeout ends an event stream on which nothing came for so long; it is
	// then opened anew. off for none.
	StreamIdleTimeout time.Duration `yaml:"stream_idle_timeout" off:"true"`
	// StreamConnectTimeout bounds the opening of the stream. off for none.
	StreamConnectTimeout time.Duration `yaml:"stream_connect_timeout" off:"true"`
	// RequestTimeout bounds one attempt of a call, its body aside. off for none.
	RequestTimeout time.Duration `yaml:"request_timeout" off:"true"`
	// MinTransferRate extends RequestTimeout: a body may take its size divided by this
	// many bytes per second longer.
	MinTransferRate Size `yaml:"min_transfer_rate"`
	// TokenTimeout bounds one token request.
	TokenTimeout time.Duration `yaml:"token_timeout"`
	// TokenExpiryMargin is how long before its expiry a token is replaced.
	TokenExpiryMargin time.Duration `yaml:"token_expiry_margin"`
	// PayloadIdleTimeout breaks a download on which nothing came for so long; it is then
	// resumed. off for none.
	PayloadIdleTimeout time.Duration `yaml:"payload_idle_timeout" off:"true"`
	// MaxPayloadRedirects bounds the redirects of a payload's address; -1 allows none.
	MaxPayloadRedirects int `yaml:"max_payload_redirects"`
	// AllowPrivatePayloadRedirects lets them lead to loopback, private and link-local
	// addresses.
	AllowPrivatePayloadRedirects bool `yaml:"allow_private_payload_redirects"`

	// MaxEventSize is the largest event; larger ones are skipped and reported.
	MaxEventSize Size `yaml:"max_event_size"`
	// MaxPayloadSize is the largest payload, both ways.
	MaxPayloadSize Size `yaml:"max_payload_size"`
	// MaxResponseSize is the largest answer that is read.
	MaxResponseSize Size `yaml:"max_response_size"`

	// Retry is the retry policy of calls and downloads.
	Retry GatewayRetry `yaml:"retry"`
}

// GatewayRetry is the retry policy of calls and downloads.
type GatewayRetry struct {
	// MaxAttempts is the number of requests of one call, the first included; -1 means
	// without limit.
	MaxAttempts int `yaml:"max_attempts"`
	// MinBackoff is the first wait; it doubles with every attempt.
	MinBackoff time.Duration `yaml:"min_backoff"`
	// MaxBackoff is the longest wait.
	MaxBackoff time.Duration `yaml:"max_backoff"`
	// MaxRetryAfter is the longest wait that the service may ask for. off ignores what
	// it asks for.
	MaxRetryAfter time.Duration `yaml:"max_retry_after" off:"true"`
}

// Endpoint is created, or brought up to date, when the bridge starts.
type Endpoint struct {
	// Tenant is the ID (UUID) of the tenant. Without it, every tenant that authorizes the
	// application gets the endpoint, also later ones.
	Tenant string `yaml:"tenant"`
	// ExternalID is the endpoint's external ID, e.g. urn:example:farm. {tenant} in it
	// stands for the tenant's ID.
	ExternalID string `yaml:"external_id" required:"true"`
	// Name is shown to users. Without it the service makes one.
	Name string `yaml:"name"`
	// Type is the kind of the endpoint. farming_software is the deprecated name of
	// cloud_software.
	Type string `yaml:"type" enum:"cloud_software,virtual_communication_unit,farming_software"`
	// ApplicationID is the application's ID (UUID). Default: that of the section gateway.
	ApplicationID string `yaml:"application_id"`
	// SoftwareVersionID is the ID (UUID) of its certified version. Default: that of the
	// section gateway.
	SoftwareVersionID string `yaml:"software_version_id"`
	// Capabilities are the message types that the endpoint sends and receives.
	Capabilities []Capability `yaml:"capabilities"`
	// Subscriptions are the message types that it receives from everyone who publishes
	// them.
	Subscriptions List `yaml:"subscriptions"`
	// AllowDeleteByUser says that the user may delete it.
	AllowDeleteByUser bool `yaml:"allow_delete_by_user"`
	// ConnectionsURI is the address of a page on which the user manages connections.
	ConnectionsURI string `yaml:"connections_uri"`
	// Recreate makes the endpoint anew when somebody else deleted it. Otherwise it stays
	// deleted until the bridge starts anew or the tenant authorizes the application again.
	Recreate bool `yaml:"recreate"`
}

// Capability is a message type that an endpoint sends or receives.
type Capability struct {
	// Type is the message type.
	Type string `yaml:"type" required:"true"`
	// Direction says which of both.
	Direction string `yaml:"direction" enum:"SEND,RECEIVE,SEND_RECEIVE"`
}

// Values of [Subscriber.Payload].
const (
	PayloadInline     = "inline"
	PayloadClaimCheck = "claim_check"
	PayloadLazy       = "lazy"
)

// Values of [Subscriber.Order].
const (
	OrderByEndpoint = "endpoint"
	OrderNone       = "none"
)

// Subscriber says how events are received, held and confirmed.
type Subscriber struct {
	// EventTypes limits what the service streams, e.g. [MESSAGE_RECEIVED]. Empty means
	// all.
	EventTypes List `yaml:"event_types"`
	// Files are the message types that are taken as files: their chunks are held back
	// until the file arrives, and only the file is delivered.
	Files List `yaml:"files"`
	// FileHold is how long a chunk waits for its file. off for not at all.
	FileHold time.Duration `yaml:"file_hold" off:"true"`
	// WholeFileHold is the shorter wait of a message that is probably no chunk.
	WholeFileHold time.Duration `yaml:"whole_file_hold"`
	// ChunkSize is the size from which an embedded payload may be a chunk.
	ChunkSize Size `yaml:"chunk_size"`
	// MaxHeld bounds the messages that are held back.
	MaxHeld int `yaml:"max_held"`
	// MaxInFlight is how many events may be open before the stream is no longer read.
	MaxInFlight int `yaml:"max_in_flight"`
	// MaxInFlightBytes bounds the payload bytes of open events.
	MaxInFlightBytes Size `yaml:"max_in_flight_bytes"`
	// Order keeps the order of each receiving endpoint (endpoint), or delivers every
	// message as soon as there is room (none).
	Order string `yaml:"order" enum:"endpoint,none"`
	// Envelope takes messages out of the envelope that a publisher with to.gateway.envelope put
	// them in.
	Envelope bool `yaml:"envelope"`
	// Payload says what happens to payloads that are not embedded in their event: into
	// the message (inline), into the claim check when they are large (claim_check), or
	// left until the sink opens them (lazy). Default: claim_check when there is one,
	// else inline.
	Payload string `yaml:"payload" enum:"inline,claim_check,lazy"`
	// MaxInline is the largest payload that is downloaded into a message; a larger one is
	// reported and stays unconfirmed.
	MaxInline Size `yaml:"max_inline"`
	// MaxDownloads is how many payloads are downloaded at a time.
	MaxDownloads int `yaml:"max_downloads"`
	// DownloadRetry bounds the waits between attempts to download a payload.
	DownloadRetry Backoff `yaml:"download_retry"`
	// Nack bounds the waits before a message that was given back is delivered again.
	Nack Backoff `yaml:"nack"`
	// Reconnect bounds the waits between attempts to open the stream.
	Reconnect Backoff `yaml:"reconnect"`
	// Confirm says how messages are confirmed.
	Confirm Confirm `yaml:"confirm"`
	// RecentConfirmed is how many confirmed messages are remembered, so that one that
	// comes again is not delivered again.
	RecentConfirmed int `yaml:"recent_confirmed"`
	// RecentFor is how long a confirmed message is remembered.
	RecentFor time.Duration `yaml:"recent_for"`
}

// Confirm says how messages are confirmed.
type Confirm struct {
	// MaxBatch is how many confirmations go into one request.
	MaxBatch int `yaml:"max_batch"`
	// MaxAge is how long a confirmation waits for others to join its batch.
	MaxAge time.Duration `yaml:"max_age"`
	// MaxRequests is how many requests may be under way at a time.
	MaxRequests int `yaml:"max_requests"`
	// MaxBacklog is how many confirmations may wait before the stream is no longer read.
	MaxBacklog int `yaml:"max_backlog"`
	// Retry bounds the waits while the service takes no confirmations.
	Retry Backoff `yaml:"retry"`
}

// Values of [Publisher.PartialDelivery].
const (
	PartialDeliveryError = "error"
	PartialDeliverySent  = "sent"
)

// Publisher says how messages are sent to the gateway.
type Publisher struct {
	// MaxRequests is how many messages of a route may be under way at a time.
	MaxRequests int `yaml:"max_requests"`
	// PartialDelivery says what a message is that did not reach all of its recipients:
	// a failure, which goes to the poison queue (error), or sent.
	PartialDelivery string `yaml:"partial_delivery" enum:"error,sent"`
}
