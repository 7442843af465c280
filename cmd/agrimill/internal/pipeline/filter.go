package pipeline

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/gateway"
)

// newFilter returns the filter of a route; nil if it accepts everything. sender is the
// endpoint of messages to the gateway that do not name theirs; for routes from the gateway
// it is empty, and the receiving endpoint is compared.
func newFilter(cfg config.Filter, sender string, outward bool) func(*message.Message) bool {
	if cfg.Empty() {
		return nil
	}
	names, refuses := patterns("i", cfg.Filename), newRefusal(cfg)
	endpointKey := gateway.KeyReceivingEndpointID
	if outward {
		endpointKey = gateway.KeyEndpointID
	}
	return func(msg *message.Message) bool {
		endpoint := msg.Metadata[endpointKey]
		if endpoint == "" {
			endpoint = sender
		}
		return matches(names, msg.Metadata[gateway.KeyFilename]) &&
			refuses(msg.Metadata[gateway.KeyTenantID], msg.Metadata[gateway.KeyMessageType], endpoint) == ""
	}
}

// newRefusal returns the part of a filter that needs no message: the key that refuses a type
// to an endpoint of a tenant, empty if none does.
func newRefusal(cfg config.Filter) func(tenant, messageType, endpoint string) string {
	types, tenants, endpoints := patterns("", cfg.Type), patterns("i", cfg.Tenant), patterns("i", cfg.Endpoint)
	return func(tenant, messageType, endpoint string) string {
		switch {
		case !matches(types, messageType):
			return "type"
		case !matches(tenants, tenant):
			return "tenant"
		case !matches(endpoints, endpoint):
			return "endpoint"
		}
		return ""
	}
}

// matches reports whether value matches one of the patterns, or there are none.
func matches(patterns []*regexp.Regexp, value string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(value) })
}

// patterns compiles texts in which * matches any characters, including none, and ? exactly
// one. The flag i ignores case.
func patterns(flags string, texts []string) []*regexp.Regexp {
	list := make([]*regexp.Regexp, len(texts))
	for i, text := range texts {
		pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(strings.ToValidUTF8(text, "\uFFFD")))
		list[i] = regexp.MustCompile("(?s" + flags + ")^(?:" + pattern + ")$") // quoted, so it is valid
	}
	return list
}
