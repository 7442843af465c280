package config

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path"
	"strings"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/publisher"
)

const redacted = "[redacted]"

// Secret is a value that is never printed.
type Secret = gateway.Secret

// URL is an address, or several separated by commas. It may contain secrets, so it is
// printed without user, password, query and fragment. string(u) has everything.
type URL string

// String returns the address without anything that may be secret.
func (u URL) String() string {
	parts := strings.Split(string(u), ",")
	for i, part := range parts {
		part = strings.TrimSpace(part)
		bare := !strings.Contains(part, "://")
		if bare {
			part = "//" + part // otherwise the user name would be parsed as the scheme
		}
		parsed, err := url.Parse(part)
		if err != nil || strings.Contains(parsed.Path+parsed.RawQuery+parsed.Fragment, "@") {
			parts[i] = redacted // perhaps with a password that is not percent-encoded
			continue
		}
		if parsed.User != nil {
			parsed.User = url.User("redacted")
		}
		if parsed.RawQuery != "" {
			parsed.RawQuery = "redacted"
		}
		parsed.Fragment, parsed.RawFragment = "", ""
		parts[i] = parsed.String()
		if bare {
			parts[i] = strings.TrimPrefix(parts[i], "//")
		}
	}
	return strings.Join(parts, ",")
}

// Format writes String, whatever the verb.
func (u URL) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, u.String()) }

// MarshalText returns String.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue returns String.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// Hosts returns the hosts and ports of addresses, without credentials.
func Hosts(text string) string {
	var list []string
	for address := range strings.SplitSeq(text, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if err != nil || *u == (url.URL{}) {
			continue
		}
		host := u.Host
		if host == "" {
			host = path.Base(u.Path)
		}
		list = append(list, host)
	}
	return strings.Join(list, ",")
}

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

func (k *checker) endpointID(path, value string) {
	if IsExternalID(value) {
		k.invalid(path, gateway.ValidateExternalID(ExternalID(value, anyID)))
	} else if !IsUUID(value) {
		k.fail(path, "must be the ID (UUID) or the external ID of an endpoint", "agrimill tenants lists both")
	}
}

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
