package gateway

import (
	"slices"
	"strings"
)

// EventType names one of the six events of GET /events.
type EventType string

// The six event types (specification, "Events").
const (
	EventMessageReceived      EventType = "MESSAGE_RECEIVED"
	EventFileReceived         EventType = "FILE_RECEIVED"
	EventEndpointDeleted      EventType = "ENDPOINT_DELETED"
	EventEndpointsListChanged EventType = "ENDPOINTS_LIST_CHANGED"
	EventAuthorizationAdded   EventType = "AUTHORIZATION_ADDED"
	EventAuthorizationRevoked EventType = "AUTHORIZATION_REVOKED"
)

// EventTypes returns the six event types in the order of the specification.
func EventTypes() []EventType {
	return []EventType{
		EventMessageReceived, EventFileReceived, EventEndpointDeleted,
		EventEndpointsListChanged, EventAuthorizationAdded, EventAuthorizationRevoked,
	}
}

// Known reports whether t is one of the six event types of the specification.
func (t EventType) Known() bool { return slices.Contains(EventTypes(), t) }

// EndpointType is the type of an endpoint (specification, "Enumerations").
type EndpointType string

// Endpoint types. Only [EndpointTypeCloudSoftware] and [EndpointTypeVirtualCommunicationUnit] should be created;
// [EndpointTypeFarmingSoftware] is a deprecated alias, and the two others are legacy types that can only be read.
const (
	EndpointTypeCloudSoftware            EndpointType = "cloud_software"
	EndpointTypeVirtualCommunicationUnit EndpointType = "virtual_communication_unit"
	EndpointTypeCommunicationUnit        EndpointType = "communication_unit"
	EndpointTypeTelemetryPlatform        EndpointType = "telemetry_platform"

	// Deprecated: use [EndpointTypeCloudSoftware]; the alias will be removed
	// from the service in a future revision.
	EndpointTypeFarmingSoftware EndpointType = "farming_software"
)

// Direction is what an endpoint can do with a message type.
type Direction string

// The three capability directions.
const (
	DirectionSend        Direction = "SEND"
	DirectionReceive     Direction = "RECEIVE"
	DirectionSendReceive Direction = "SEND_RECEIVE"
)

// CanSend reports whether the direction includes sending.
func (d Direction) CanSend() bool { return d == DirectionSend || d == DirectionSendReceive }

// CanReceive reports whether the direction includes receiving.
func (d Direction) CanReceive() bool { return d == DirectionReceive || d == DirectionSendReceive }

// ScopeEndpointsManage is the only authorization scope in use. Others are distinct.
const ScopeEndpointsManage = "endpoints:manage"

// EndpointCapability is one message type that an endpoint can send or receive.
type EndpointCapability struct {
	MessageType string    `json:"message_type"`
	Direction   Direction `json:"direction"`
}

// EndpointSubscription is one message type that an endpoint subscribes to.
type EndpointSubscription struct {
	MessageType string `json:"message_type"`
}

// Endpoint is what PUT /endpoints/{externalId} returns.
type Endpoint struct {
	ID                string               `json:"id"`
	ExternalID        string               `json:"external_id"`
	EndpointType      EndpointType         `json:"endpoint_type"`
	TenantID          string               `json:"tenant_id"`
	ApplicationID     string               `json:"application_id"`
	SoftwareVersionID string               `json:"software_version_id"`
	Capabilities      []EndpointCapability `json:"capabilities"`
	AllowDeleteByUser bool                 `json:"allow_delete_by_user,omitempty"`
	ConnectionsURI    string               `json:"connections_uri,omitempty"`
}

// PutEndpointRequest is the body of PUT /endpoints/{externalId}.
type PutEndpointRequest struct {
	// Name is optional: 1 to 200 letters of any script, digits, spaces and
	// - _ . , : and not only whitespace. If empty, the service generates one.
	Name              string `json:"name,omitempty"`
	ApplicationID     string `json:"application_id"`
	SoftwareVersionID string `json:"software_version_id"`
	// Capabilities must be a subset of those of the software version. Nil is an empty list.
	Capabilities []EndpointCapability `json:"capabilities"`
	// Subscriptions may be empty. Nil is sent as an empty list.
	Subscriptions []EndpointSubscription `json:"subscriptions"`
	EndpointType  EndpointType           `json:"endpoint_type"`
	// AllowDeleteByUser is only a hint: the user can force a deletion.
	AllowDeleteByUser bool `json:"allow_delete_by_user,omitempty"`
	// ConnectionsURI is an optional absolute URI of a management page.
	ConnectionsURI string `json:"connections_uri,omitempty"`
}

// TenantEndpointInfo is one endpoint in a tenant listing.
type TenantEndpointInfo struct {
	ID string `json:"id"`
	// ExternalID is empty if it is not available to the caller.
	ExternalID             string                     `json:"external_id,omitempty"`
	Name                   string                     `json:"name"`
	EndpointType           EndpointType               `json:"endpoint_type"`
	ApplicationID          string                     `json:"application_id"`
	TenantID               string                     `json:"tenant_id"`
	OwnedByYourApplication bool                       `json:"owned_by_your_application"`
	Capabilities           TenantEndpointCapabilities `json:"capabilities"`
	// RoutedEndpoints is nil for endpoints of other applications.
	RoutedEndpoints *RoutedEndpoints `json:"routed_endpoints,omitempty"`
}

// TenantEndpointCapabilities lists the message types of an endpoint.
type TenantEndpointCapabilities struct {
	CanSend    []string `json:"can_send"`
	CanReceive []string `json:"can_receive"`
}

// RoutedEndpoints lists to and from whom routing is currently possible.
type RoutedEndpoints struct {
	CanSendTo      EndpointRouteMap `json:"can_send_to,omitempty"`
	CanReceiveFrom EndpointRouteMap `json:"can_receive_from,omitempty"`
}

// EndpointRouteMap maps an endpoint ID to the message types that can be routed.
type EndpointRouteMap map[string][]string

// TenantInfo is one authorized tenant with its endpoints.
type TenantInfo struct {
	ID string `json:"tenant_id"`
	// Endpoints is empty without an endpoint of the application there, and nil if it could not be read.
	Endpoints []TenantEndpointInfo `json:"endpoints"`
	// Unreadable lists what was skipped, and why: endpoints that exist although nothing is known
	// about them except, possibly, their ID, and optional fields of those in Endpoints.
	Unreadable []*EntryError `json:"-"`
}

// listReadable reports whether Endpoints is the actual list.
func (t TenantInfo) listReadable() bool { return t.Endpoints != nil || len(t.Unreadable) == 0 }

// EndpointsListResponse is the body of GET /tenants/{tenantId}/endpoints.
type EndpointsListResponse struct {
	Endpoints []TenantEndpointInfo `json:"endpoints"`
}

// TenantsListResponse is the body of GET /tenants.
type TenantsListResponse struct {
	Tenants []TenantInfo `json:"tenants"`
}

// MessageConfirmation confirms one message for one receiving endpoint.
type MessageConfirmation struct {
	MessageID  string `json:"message_id"`
	EndpointID string `json:"endpoint_id"`
}

// ConfirmMessagesRequest is the body of POST /confirmations.
type ConfirmMessagesRequest struct {
	Confirmations []MessageConfirmation `json:"confirmations"`
}

// ErrorResponse is the body of an error response.
type ErrorResponse struct {
	Message string `json:"message"`
}

// HeaderName returns the wire name of a metadata key (always x-router-…)
// for a deployment whose service is called service.
func HeaderName(service, key string) string {
	if rest, ok := strings.CutPrefix(key, "x-router-"); ok {
		return "x-" + service + "-" + rest
	}
	return key
}
