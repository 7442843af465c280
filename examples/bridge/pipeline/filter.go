package pipeline

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/examples/bridge/config"
	"github.com/agrimill/agrimill/gateway"
)

// newFilter makes the filter of a route; nil when it carries everything. sender is
// the endpoint of messages to the gateway that do not name theirs; from the gateway
// it is empty, and the receiving endpoint counts.
func newFilter(cfg config.Filter, sender string, outward bool) func(*message.Message) bool {
	if cfg.Empty() {
		return nil
	}
	types, names := patterns("", cfg.Type), patterns("i", cfg.Filename)
	tenants, endpoints := patterns("i", cfg.Tenant), patterns("i", cfg.Endpoint)
	endpointKey := gateway.KeyReceivingEndpointID
	if outward {
		endpointKey = gateway.KeyEndpointID
	}
	return func(msg *message.Message) bool {
		endpoint := msg.Metadata[endpointKey]
		if endpoint == "" {
			endpoint = sender
		}
		return matches(types, msg.Metadata[gateway.KeyMessageType]) && matches(names, msg.Metadata[gateway.KeyFilename]) &&
			matches(tenants, msg.Metadata[gateway.KeyTenantID]) && matches(endpoints, endpoint)
	}
}

// matches reports whether value matches one of the patterns, or there are none.
func matches(patterns []*regexp.Regexp, value string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(value) })
}

// patterns reads texts in which * stands for any characters, also none, and ? for one.
// The flag i takes upper and lower case for the same.
func patterns(flags string, texts []string) []*regexp.Regexp {
	list := make([]*regexp.Regexp, len(texts))
	for i, text := range texts {
		pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(strings.ToValidUTF8(text, "\uFFFD")))
		list[i] = regexp.MustCompile("(?s" + flags + ")^(?:" + pattern + ")$") // quoted, so it is one
	}
	return list
}
