package pipeline

import (
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
	endpointKey := gateway.KeyReceivingEndpointID
	if outward {
		endpointKey = gateway.KeyEndpointID
	}
	return func(msg *message.Message) bool {
		endpoint := msg.Metadata[endpointKey]
		if endpoint == "" {
			endpoint = sender
		}
		return matches(cfg.Type, msg.Metadata[gateway.KeyMessageType]) &&
			matchesFold(cfg.Tenant, msg.Metadata[gateway.KeyTenantID]) &&
			matchesFold(cfg.Endpoint, endpoint) &&
			matchesFold(cfg.Filename, msg.Metadata[gateway.KeyFilename])
	}
}

// matches reports whether value matches one of the patterns, or there are none.
func matches(patterns []string, value string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return glob(p, value) })
}

// matchesFold is matches without regard to upper and lower case.
func matchesFold(patterns []string, value string) bool {
	if len(patterns) == 0 {
		return true
	}
	value = strings.ToLower(value)
	return slices.ContainsFunc(patterns, func(p string) bool { return glob(strings.ToLower(p), value) })
}

// glob reports whether the whole of text matches pattern, in which * stands for any
// characters and ? for one. Unlike path.Match it knows no other special characters:
// brackets and slashes are legal in message types and names of files.
func glob(pattern, text string) bool {
	p, t := []rune(pattern), []rune(text)
	star, resume := -1, 0 // the last *, and where what follows it is tried next
	i, j := 0, 0
	for j < len(t) {
		switch {
		case i < len(p) && p[i] == '*':
			star, resume = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == t[j]):
			i, j = i+1, j+1
		case star >= 0: // the * takes one character more
			resume++
			i, j = star+1, resume
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
