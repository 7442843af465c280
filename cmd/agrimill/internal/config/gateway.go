package config

import (
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/subscriber"
)

// Gateway is the service and how to connect to it.
type Gateway struct {
	gateway.Config `yaml:",inline"`
	// TLS applies to https addresses.
	TLS      *TLS `yaml:"tls"`
	Software `yaml:",inline"`
}

// Software is what endpoints belong to.
type Software struct {
	// ApplicationID is the ID (UUID) of the application; for an endpoint, that of the section gateway unless it is
	// set.
	ApplicationID string `yaml:"application_id"`
	// SoftwareVersionID is the ID (UUID) of its certified version; likewise.
	SoftwareVersionID string `yaml:"software_version_id"`
}

// Subscriber receives events and confirms them.
type Subscriber struct {
	subscriber.Config `yaml:",inline"`
	// Envelope unwraps what a publisher with to.gateway.envelope sent.
	Envelope bool `yaml:"envelope"`
}

// Endpoint is created or updated when agrimill starts.
type Endpoint struct {
	// Tenant is the ID (UUID) of the tenant. Without it, the endpoint is created in every
	// tenant that authorizes the application, now or later.
	Tenant string `yaml:"tenant"`
	// ExternalID is e.g. urn:example:farm. {tenant} in it stands for the tenant's ID.
	ExternalID string `yaml:"external_id" required:"true"`
	// Name is shown to users. Without it, the service chooses one.
	Name string `yaml:"name"`
	// Type is its kind. farming_software is the deprecated name of cloud_software.
	Type     string `yaml:"type" enum:"cloud_software,virtual_communication_unit,farming_software"`
	Software `yaml:",inline"`
	// Capabilities are the message types that the endpoint can send and receive.
	Capabilities []Capability `yaml:"capabilities"`
	// Subscriptions are the message types that it receives from anyone who publishes them.
	Subscriptions []string `yaml:"subscriptions"`
	// AllowDeleteByUser allows the user to delete it, which only the log tells.
	AllowDeleteByUser bool `yaml:"allow_delete_by_user"`
	// ConnectionsURI is the address of a page where the user manages connections.
	ConnectionsURI string `yaml:"connections_uri"`
	// Recreate creates the endpoint again after someone else deleted it. Otherwise it stays
	// deleted until agrimill restarts or the tenant authorizes the application again.
	Recreate bool `yaml:"recreate"`
}

// Capability is a message type that an endpoint sends or receives.
type Capability struct {
	// Type is the message type.
	Type string `yaml:"type" required:"true"`
	// Direction is whether it sends the type, receives it, or both.
	Direction string `yaml:"direction" enum:"SEND,RECEIVE,SEND_RECEIVE"`
}
