package gateway

import "time"

// Event is one decoded event of GET /events: one of [*MessageReceived],
// [*FileReceived], [*EndpointDeleted], [*EndpointsListChanged],
// [*AuthorizationAdded], [*AuthorizationRevoked] or [*UnknownEvent].
type Event interface {
	// Type is the event type. It is never empty.
	Type() EventType
}

// MessageReceived says that a message was routed to one of the application's
// endpoints. Exactly one of Payload (embedded) and PayloadURI is set.
type MessageReceived struct {
	// ID is the service-generated message ID; it is what is confirmed.
	ID string
	// AppMessageID is the sender's ID of the payload. Chunks of one payload
	// share it. It is a UUID only when the sender used this service.
	AppMessageID string
	MessageType  string
	SentAt       time.Time
	// ReceivedAt is zero when the service did not say.
	ReceivedAt time.Time
	// Payload is the embedded payload, decoded; nil when PayloadURI is set and
	// non-nil (perhaps empty) when the payload is embedded.
	Payload []byte
	// PayloadURI grants access to the payload without authorization. It is to
	// be used unmodified and kept out of logs.
	PayloadURI          string
	ReceivingEndpointID string
	Filename            string
	// TenantID is optional on the wire, and then empty.
	TenantID         string
	TeamsetContextID string
}

// FileReceived says that a chunked payload has been completely received. It
// comes after its chunks. Exactly one of Payload and PayloadURI is set.
type FileReceived struct {
	ReceivingEndpointID string
	MessageType         string
	// Size is the payload size in bytes, never negative.
	Size int64
	// MessageIDs are the messages that carried the chunks. All of them must be
	// confirmed to confirm the file.
	MessageIDs []string
	// Payload is nil when PayloadURI is set.
	Payload []byte
	// PayloadURI expires after at most 15 minutes.
	PayloadURI       string
	Filename         string
	TenantID         string
	TeamsetContextID string
}

// EndpointDeleted says that one of the application's endpoints is gone.
type EndpointDeleted struct {
	ID         string
	ExternalID string
}

// EndpointsListChanged carries the complete current list of the endpoints that
// the application sees in a tenant. It replaces any cached list.
type EndpointsListChanged struct {
	TenantID  string
	Endpoints []TenantEndpointInfo
}

// AuthorizationAdded says that a user authorized the application.
type AuthorizationAdded struct {
	Tenant TenantInfo
	Scope  string
}

// AuthorizationRevoked says that a user revoked an authorization. Access for
// that scope is already lost when it arrives.
type AuthorizationRevoked struct {
	TenantID string
	Scope    string
}

// UnknownEvent is an event of a type that this version does not know.
type UnknownEvent struct {
	EventType EventType
	// Data is the data of the event as it came, copied.
	Data []byte
}

// Type returns [EventMessageReceived].
func (*MessageReceived) Type() EventType { return EventMessageReceived }

// Type returns [EventFileReceived].
func (*FileReceived) Type() EventType { return EventFileReceived }

// Type returns [EventEndpointDeleted].
func (*EndpointDeleted) Type() EventType { return EventEndpointDeleted }

// Type returns [EventEndpointsListChanged].
func (*EndpointsListChanged) Type() EventType { return EventEndpointsListChanged }

// Type returns [EventAuthorizationAdded].
func (*AuthorizationAdded) Type() EventType { return EventAuthorizationAdded }

// Type returns [EventAuthorizationRevoked].
func (*AuthorizationRevoked) Type() EventType { return EventAuthorizationRevoked }

// Type returns the type the service gave the event.
func (e *UnknownEvent) Type() EventType { return e.EventType }
