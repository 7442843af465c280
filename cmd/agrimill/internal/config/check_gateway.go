package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/internal/wildcard"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

func (k *checker) gateway() {
	const section = "gateway"
	g := k.c.Gateway
	if !k.has(section) {
		return
	}
	switch {
	case k.has("gateway.client_secret_file"):
		k.excused["gateway.client_secret"] = true // what is wrong was reported for the file
	case g.ClientSecret == "" && !k.has("gateway.client_secret"):
		k.fail("gateway.client_secret", "is required", "set client_secret: ${NAME} or client_secret_file")
	}
	config, err := g.ClientConfig()
	k.report(section, g, err, config.Validate())
	for key, value := range map[string]string{"application_id": g.ApplicationID, "software_version_id": g.SoftwareVersionID} {
		if value != "" {
			k.uuid(join(section, key), value)
		}
	}
	for key, value := range map[string]string{"base_url": g.BaseURL, "token_url": g.TokenURL} {
		if u, err := url.Parse(value); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
			k.warn(join(section, key), "is not encrypted: the client secret, tokens and data can be read in transit", "use https")
		}
	}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (k *checker) endpoints() {
	seen := map[[2]string]string{}
	for i, e := range k.c.Endpoints {
		path := fmt.Sprintf("endpoints[%d]", i)
		if e.Tenant != "" {
			k.uuid(path+".tenant", e.Tenant)
		}
		if e.ExternalID != "" {
			k.invalid(path+".external_id", gateway.ValidateExternalID(ExternalID(e.ExternalID, anyID)))
		}
		for key, value := range map[string]string{"application_id": e.ApplicationID, "software_version_id": e.SoftwareVersionID} {
			if value == "" && e.ExternalID != "" && !k.excused["gateway."+key] {
				k.fail(path+"."+key, "is required", "set it here, or once as gateway."+key)
			}
		}
		for _, mistake := range validate.Fields(e.Request().Validate()) {
			field := strings.NewReplacer("endpoint_type", "type", ".message_type", ".type").Replace(mistake.Path)
			if strings.HasPrefix(field, "subscriptions") {
				field = strings.TrimSuffix(field, ".type")
			}
			if (field != "application_id" && field != "software_version_id") || k.has(path+"."+field) {
				k.fail(path+"."+field, mistake.Rule(func(field string) string { return field }), "")
			}
		}
		if e.Type == deprecatedType {
			k.warn(path+".type", "is deprecated; the service will reject it in the future", "write "+string(gateway.EndpointTypeCloudSoftware))
		}
		key := [2]string{e.Tenant, e.ExternalID}
		if before, twice := seen[key]; twice && e.ExternalID != "" {
			k.fail(path+".external_id", "duplicates that of "+before, "give each endpoint of a tenant its own external ID")
		}
		seen[key] = path
		for j, messageType := range e.Subscriptions {
			received := func(c Capability) bool { return c.Type == messageType && gateway.Direction(c.Direction).CanReceive() }
			if messageType != "" && !slices.ContainsFunc(e.Capabilities, received) {
				k.fail(fmt.Sprintf("%s.subscriptions[%d]", path, j), "has no effect: the endpoint has no capability to receive "+messageType,
					"add {type: \""+messageType+"\", direction: RECEIVE} to its capabilities")
			}
		}
		for j, c := range e.Capabilities {
			k.pattern(fmt.Sprintf("%s.capabilities[%d].type", path, j), c.Type, "list each type")
		}
		if len(e.Capabilities) == 0 && e.ExternalID != "" {
			k.warn(path, "has no capabilities: it can neither send nor receive", "add capabilities: [{type: …, direction: SEND_RECEIVE}]")
		}
	}
}

// pattern warns about a message type that looks like several: the gateway takes every character as it is, and no message
// has such a type.
func (k *checker) pattern(path, messageType, suggestion string) bool {
	several := strings.ContainsAny(messageType, "*?,")
	if several {
		k.warn(path, fmt.Sprintf("is one message type, without wildcards: %q", messageType), suggestion)
	}
	return several
}

// deprecatedType is the old name of cloud_software, which the service still accepts.
const deprecatedType = "farming_software"

func (d *decoder) invalid(path string, err error) {
	var invalid *gateway.ValidationError
	if errors.As(err, &invalid) {
		d.fail(path, invalid.Rule, "")
	}
}

func (k *checker) subscriber() {
	config := k.c.SubscriberConfig()
	config.Client = k.rules
	if config.Payload.Mode == subscriber.PayloadClaimCheck {
		if k.c.ClaimCheck == nil {
			k.fail("subscriber.payload", "is claim_check, but there is no section claim_check", "add claim_check: {url: …}")
		}
		config.Payload.ClaimCheck = new(claimcheck.Store) // only its presence is checked
	}
	for i, t := range config.EventTypes {
		if !t.Known() {
			k.fail(k.item("subscriber.event_types", i, len(config.EventTypes)), fmt.Sprintf("must be an event type, not %q", string(t)), didYouMean(string(t), EventTypes()))
		}
	}
	config.EventTypes = nil
	config.Quarantine.Publisher = discard{} // the poison queue
	k.report("subscriber", k.c.Subscriber, config.Validate())

	k.publisher("publisher", k.c.Publisher, k.c.Publisher)
	k.files()
}

// files checks the types of subscriber.files: a misspelled one would hold nothing back, and every chunk would be delivered
// by itself.
func (k *checker) files() {
	receiver, known, all := "the endpoints receive", k.types(), false
	if len(k.c.Endpoints) == 0 {
		receiver = "a route receives"
		known, all = k.routedTypes()
	}
	for i, t := range k.c.Subscriber.Files {
		path := k.item("subscriber.files", i, len(k.c.Subscriber.Files))
		k.messageType(path, t)
		if !all && !slices.Contains(known, t) {
			k.fail(path, fmt.Sprintf("is not a message type that %s: %q", receiver, t), didYouMean(t, known))
		}
	}
}

func (k *checker) routedTypes() (types []string, all bool) {
	for _, r := range k.c.Routes {
		switch topic := r.From.Gateway; {
		case topic == FromAll, topic == FromEverything, topic == string(gateway.EventMessageReceived), topic == string(gateway.EventFileReceived):
			return nil, true
		case topic != "" && !gateway.EventType(topic).Known():
			types = append(types, topic)
		}
	}
	return types, false
}

// unknownType warns about a pattern of message types that matches none that the endpoints receive. Without endpoints in the
// file, they are managed elsewhere.
func (k *checker) unknownType(path, pattern string) {
	known := k.types()
	if len(k.c.Endpoints) > 0 && !slices.ContainsFunc(known, wildcard.New("", pattern).Match) {
		k.warn(path, fmt.Sprintf("is not a message type that the endpoints receive: %q", pattern), didYouMean(pattern, known))
	}
}

func (k *checker) types() (types []string) {
	for _, e := range k.c.Endpoints {
		for _, c := range e.Capabilities {
			if gateway.Direction(c.Direction).CanReceive() && !slices.Contains(types, c.Type) {
				types = append(types, c.Type)
			}
		}
	}
	return types
}

func (k *checker) subscribed(messageType string) bool {
	subscribes := func(e Endpoint) bool { return slices.Contains(e.Subscriptions, messageType) }
	return len(k.c.Endpoints) == 0 || slices.ContainsFunc(k.c.Endpoints, subscribes)
}

// received reports whether a configured endpoint receives the type. Without any, endpoints
// are managed elsewhere, and one may.
func (k *checker) received(messageType string) bool {
	return len(k.c.Endpoints) == 0 || slices.Contains(k.types(), messageType)
}
