package gateway

import "time"

// Event is one decoded event of GET /events: one of [*MessageReceived],
// [*FileReceived], [*EndpointDeleted], [*EndpointsListChanged],
// [*AuthorizationAdded], [*AuthorizationRevoked] or [*UnknownEvent].
type Event interface {
	// Type is the event type. It is never empty.
	Type() EventType
}

// MessageReceived reports that a message was routed to one of the application's
// endpoints. Exactly one of Payload (embedded) and PayloadURI is set.
type MessageReceived struct {
	// ID is the service-generated message ID, which is used to confirm the message.
	ID string
	// AppMessageID is the sender's ID of the payload, which its chunks share. It may be no UUID.
	AppMessageID string
	MessageType  string
	SentAt       time.Time
	// ReceivedAt is zero if the service did not provide it.
	ReceivedAt time.Time
	// Payload is the embedded payload; nil if PayloadURI is set, otherwise non-nil.
	Payload []byte
	// PayloadURI grants access to the payload without authorization. Use it
	// unmodified and keep it out of logs.
	PayloadURI          string
	ReceivingEndpointID string
	Filename            string
	// TenantID is optional on the wire; empty if absent.
	TenantID         string
	TeamsetContextID string
	// Unreadable lists the optional fields that were skipped, and why.
	Unreadable []*EntryError
}

// FileReceived reports that a chunked payload has been received completely. It
// follows its chunks. Exactly one of Payload and PayloadURI is set.
type FileReceived struct {
	ReceivingEndpointID string
	MessageType         string
	// Size is the payload size in bytes, never negative.
	Size int64
	// MessageIDs are the messages that carried the chunks; all of them confirm the file.
	MessageIDs []string
	// Payload is nil if PayloadURI is set.
	Payload []byte
	// PayloadURI expires after at most 15 minutes.
	PayloadURI       string
	Filename         string
	TenantID         string
	TeamsetContextID string
	// Unreadable lists the optional fields that were skipped, and why.
	Unreadable []*EntryError
}

// EndpointDeleted reports that one of the application's endpoints was deleted.
type EndpointDeleted struct {
	ID         string
	ExternalID string
	// Data is a copy of the event's data as received.
	Data []byte `json:"-"`
}

// EndpointsListChanged carries the complete current list of the endpoints that the application sees in a tenant.
type EndpointsListChanged struct {
	TenantID string
	// Endpoints is nil if the event had null in its place: then the list has to be fetched ([Directory] does that).
	// An empty list is not nil.
	Endpoints []TenantEndpointInfo
	// Unreadable is as in [TenantInfo].
	Unreadable []*EntryError `json:"-"`
	// Data is a copy of the event's data as received.
	Data []byte `json:"-"`
}

// AuthorizationAdded reports that a user authorized the application.
type AuthorizationAdded struct {
	Tenant TenantInfo
	Scope  string
	// Data is a copy of the event's data as received.
	Data []byte `json:"-"`
}

// AuthorizationRevoked reports that a user revoked an authorization, which is already lost.
type AuthorizationRevoked struct {
	TenantID string
	Scope    string
	// Data is a copy of the event's data as received.
	Data []byte `json:"-"`
}

// UnknownEvent is an event of a type unknown to this version.
type UnknownEvent struct {
	EventType EventType
	// Data is a copy of the event's data as received.
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

// Type returns the event type that the service sent.
func (e *UnknownEvent) Type() EventType { return e.EventType }
