package config

import (
	"strings"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
)

// anyID stands for an ID that is not known.
const anyID = "00000000-0000-4000-8000-000000000000"

// IsUUID accepts only the usual form: urn:uuid:… is an external ID.
func IsUUID(text string) bool { return len(text) == len(anyID) && uuid.Validate(text) == nil }

// IsExternalID tells an external ID, which has a colon, from the ID of an endpoint.
func IsExternalID(id string) bool { return strings.Contains(id, ":") }

// ExternalID returns an external ID as it is in a tenant: {tenant} in it stands for the tenant's ID.
func ExternalID(template, tenant string) string {
	return strings.ReplaceAll(template, gateway.TenantPlaceholder, tenant)
}

// endpointID checks the ID or external ID of an endpoint.
func (k *checker) endpointID(path, value string) {
	if IsExternalID(value) {
		k.invalid(path, gateway.ValidateExternalID(ExternalID(value, anyID)))
	} else if !IsUUID(value) {
		k.fail(path, "must be the ID (UUID) or the external ID of an endpoint", "agrimill tenants lists both")
	}
}

// publisher checks a section of publisher.Config, with its external IDs.
func (k *checker) publisher(path string, section any, config publisher.Config) {
	recipients := config.DirectRecipients
	if config.EndpointID != "" {
		k.endpointID(join(path, "endpoint"), config.EndpointID)
	}
	for i, id := range recipients {
		k.endpointID(k.item(join(path, "recipients"), i, len(recipients)), id)
	}
	config.Client, config.EndpointID, config.DirectRecipients = k.rules, "", nil
	k.report(path, section, config.Validate())
}
