package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/wildcard"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/expr"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

func (k *checker) routes() {
	if k.has("routes") && len(k.c.Routes) == 0 {
		k.fail("routes", "is empty", "add a route: - {name: …, from: {gateway: all}, to: {sink: …}}")
	}
	seen := map[string]int{}
	for i, r := range k.c.Routes {
		path := fmt.Sprintf("routes[%d]", i)
		if first, twice := seen[r.Name]; twice && r.Name != "" {
			k.fail(path+".name", fmt.Sprintf("duplicates the name of routes[%d]", first), "give each route its own name")
		} else {
			seen[r.Name] = i
		}
		switch {
		case r.Name == "" && k.has(path+".name"):
			k.fail(path+".name", "must not be empty", "")
		case len(r.Name) > 64 || strings.Trim(r.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != "":
			k.fail(path+".name", "must be 1 to 64 letters, digits, -, _ or .", "")
		}
		if k.has(path + ".from") {
			k.from(path+".from", r)
		}
		k.filter(path+".filter", r)
		if k.has(path + ".to") {
			k.to(path+".to", r)
		}
		k.durable(path+".durable", r)
	}
	k.shared()
	k.collide()
	k.unmatched()
}

// durable checks that somebody has said when what a route with durable: synced stores survives a power cut.
func (k *checker) durable(path string, r Route) {
	if r.Durable != router.DurableSynced {
		return
	}
	if r.From.Kind() != "gateway" {
		k.fail(path, "applies to messages from the gateway only: a broker forgets a message with its ack", "remove it")
		return
	}
	for _, name := range []string{r.To.Sink, k.c.Poison.Sink} {
		if s, ok := k.c.Sinks[name]; r.To.Sink == "" || ok && !s.synced() {
			k.fail(path, fmt.Sprintf("is not known to come true: nobody has said when what %s acknowledges survives a power cut", cmp.Or(name, "the gateway")),
				"set synced of the sink to always, replicas, or the server's sync interval")
			return
		}
	}
}

func (k *checker) from(path string, r Route) {
	if !k.exactlyOne(path, "gateway", "nats", "kafka") {
		return
	}
	switch {
	case r.From.NATS != nil:
		s, at := r.From.NATS, join(path, "nats")
		config, err := s.SourceConfig()
		k.report(at, *s, err, config.Validate())
		if s.Subject != "" && !validSubject(s.Subject) {
			k.fail(at+".subject", "must be a NATS subject: tokens without white space, separated by dots; * as a token matches one, > at the end the rest", "")
		}
	case r.From.Kafka != nil:
		s, at := r.From.Kafka, join(path, "kafka")
		config, err := s.SourceConfig()
		k.report(at, *s, err, config.Validate())
		if len(s.Topics) == 0 && k.has(at+".topics") {
			k.fail(at+".topics", "must name a topic", "")
		}
		for i, topic := range s.Topics {
			if !kafka.ValidTopic(topic) {
				k.fail(fmt.Sprintf("%s.topics[%d]", at, i), fmt.Sprintf(kafka.TopicRule+", not %q", topic), "")
			}
		}
	default:
		k.fromGateway(join(path, "gateway"), r)
	}
}

func validSubject(subject string) bool {
	parts := strings.Split(subject, ".")
	for i, part := range parts {
		if part == "" || part == ">" && i < len(parts)-1 {
			return false
		}
	}
	return nats.Subject(nats.NoSubjectPrefix, subject) == subject // else another one would be read
}

// fromGateway checks that the route can receive anything at all.
func (k *checker) fromGateway(path string, r Route) {
	topic := r.From.Gateway
	if topic == "" {
		k.fail(path, "must not be empty", "use all, everything, an event type or a message type")
		return
	}
	data := []string{string(gateway.EventMessageReceived), string(gateway.EventFileReceived)}
	needs, isType := data, false
	switch {
	case topic == FromAll:
	case topic == FromEverything:
		return
	case topic == subscriber.AllData || topic == subscriber.Everything:
		k.fail(path, "must be "+map[string]string{subscriber.AllData: FromAll, subscriber.Everything: FromEverything}[topic], "")
		return
	case gateway.EventType(topic).Known():
		needs = []string{topic}
	default:
		isType = true
		if near := nearest(topic, append(EventTypes(), FromAll, FromEverything)); near != "" && !strings.Contains(topic, ":") {
			k.warn(path, fmt.Sprintf("is treated as a message type: %q", topic), "did you mean "+near+"?")
		}
		k.messageType(path, topic)
	}
	if types := k.c.Subscriber.EventTypes; len(types) > 0 && !slices.ContainsFunc(needs, func(t string) bool { return slices.Contains(types, gateway.EventType(t)) }) {
		k.fail(path, "receives nothing: subscriber.event_types does not include "+oneOf(needs), "add it there")
	}
	switch {
	case !isType, k.pattern(path, topic, "use all, with filter: {type: …}"):
	case !k.received(topic):
		k.warn(path, "may receive nothing: none of the endpoints receives message type "+topic, "add it to an endpoint's capabilities")
	case !k.subscribed(topic):
		k.warn(path, "receives only what is sent to an endpoint directly: none of the endpoints subscribes to message type "+topic,
			"add it to an endpoint's subscriptions")
	}
}

// unmatched warns about routes that, without anybody having said so, confirm and drop what their filter
// refuses: no other route takes it.
func (k *checker) unmatched() {
	const path = "subscriber.unmatched"
	if k.has(path) {
		return
	}
	for i, r := range k.c.Routes {
		at := fmt.Sprintf("routes[%d].filter", i)
		wrong := slices.ContainsFunc(k.problems, func(p Problem) bool { return p.Severity == SeverityError && strings.HasPrefix(p.Path, at) })
		if r.From.Gateway == "" || !r.Filter.selects() || wrong || k.restTaken(r) {
			continue
		}
		k.warn(at, "makes messages that it refuses be confirmed and dropped: no other route takes all of them",
			"add a route without a filter for the rest, or say with subscriber.unmatched what is to happen: confirm or quarantine")
	}
}

// restTaken reports whether somebody takes what the filter of r refuses, or nothing is lost with it.
func (k *checker) restTaken(r Route) bool {
	topic := r.From.GatewayTopic()
	if event := gateway.EventType(topic); event.Known() && event != gateway.EventMessageReceived && event != gateway.EventFileReceived {
		return true // such events are never confirmed
	}
	covers := func(other Route) bool {
		switch wide := other.From.GatewayTopic(); {
		case other.From.Gateway == "" || other.Filter.selects():
			return false
		case wide == subscriber.Everything, wide == topic:
			return true
		default:
			return wide == subscriber.AllData && topic != subscriber.Everything
		}
	}
	if slices.ContainsFunc(k.c.Routes, covers) {
		return true
	}
	if topic == subscriber.Everything && slices.ContainsFunc(k.c.Routes, func(other Route) bool {
		return other.From.Gateway == FromAll && !other.Filter.selects()
	}) {
		return true // the rest are events that are never confirmed
	}
	// Of all types that the endpoints receive, each may be taken by the filter of one route or another.
	types := k.types()
	return len(types) > 0 && !slices.ContainsFunc(types, func(messageType string) bool {
		return subscriber.Takes(topic, gateway.EventMessageReceived, messageType) &&
			!slices.ContainsFunc(k.c.Routes, func(other Route) bool { return other.takesType(messageType) })
	})
}

func (r Route) takesType(messageType string) bool {
	f := r.Filter
	byType := wildcard.New("", f.Type...).Match(messageType)
	f.Type = nil
	return r.From.Gateway != "" && byType && !f.selects() && subscriber.Takes(r.From.GatewayTopic(), gateway.EventMessageReceived, messageType)
}

func (k *checker) filter(path string, r Route) {
	f := r.Filter
	for i, value := range f.Tenant {
		k.uuid(k.item(join(path, "tenant"), i, len(f.Tenant)), value)
	}
	for i, value := range f.Endpoint {
		k.endpointID(k.item(join(path, "endpoint"), i, len(f.Endpoint)), value)
	}
	for key, values := range map[string][]string{"type": f.Type, "filename": f.Filename} {
		for i, value := range values {
			at := k.item(join(path, key), i, len(values))
			if value == "" {
				k.fail(at, "must not be empty", "")
			} else if plain := strings.ReplaceAll(value, "*", ""); key == "type" && plain != "" {
				k.messageType(at, plain)
				if r.From.Gateway == FromAll || r.From.Gateway == FromEverything {
					k.unknownType(at, value)
				}
			}
		}
	}
	if f.Expr != "" {
		_, err := expr.NewFilter(f.Expr, nil)
		k.expression(join(path, "expr"), err)
	}
	set := strings.TrimSuffix(path, "filter") + "set"
	for key, text := range r.Set {
		_, err := expr.NewSetter(map[string]string{key: text}, nil)
		k.expression(join(set, key), err)
	}
	if f.Farm != nil {
		k.report(join(path, "farm"), *f.Farm, f.Farm.Validate())
	}
	transform := strings.TrimSuffix(path, "filter") + "transform"
	k.report(transform, r.Transform, r.Transform.Validate())
	topic := r.From.Gateway
	if gateway.EventType(topic).Known() {
		for key, used := range map[string]bool{join(path, "farm"): f.Farm != nil, transform: r.Transform != farm.TransformConfig{}} {
			if used {
				k.fail(key, "never applies: an event "+topic+" has no farm data", "remove it, or use from: {gateway: all}")
			}
		}
	}
	isType := topic != "" && topic != FromAll && topic != FromEverything && !gateway.EventType(topic).Known()
	if isType && !wildcard.New("", f.Type...).Match(topic) {
		k.fail(join(path, "type"), "matches nothing: the route receives only "+topic, "remove the filter, or use from: {gateway: all}")
	}
}

func (k *checker) expression(path string, err error) {
	var mistake *expr.Error
	switch {
	case errors.As(err, &mistake):
		k.fail(path, fmt.Sprintf("is no valid expression: line %d, column %d: %s", mistake.Line, mistake.Column, mistake.Reason), "")
	case err != nil:
		k.fail(path, "is no valid expression: "+err.Error(), "")
	}
}

func (k *checker) to(path string, r Route) {
	if !k.exactlyOne(path, "sink", "gateway") {
		return
	}
	if g := r.To.Gateway; g != nil {
		at := join(path, "gateway")
		if k.has(path + ".topic") {
			k.fail(path+".topic", "applies only to sinks", "remove it, or set gateway.type for the message type")
		}
		k.publisher(at, *g, g.Config)
		effective := k.c.PublisherConfig(*g)
		effective.Client = k.rules
		if k.template(at+".type", g.Type, effective) {
			messageType, _ := sinks.ParseTopicTemplate(g.Type) // template has found no mistake
			k.lacking(at+".type", r, messageType.Required())
			k.oneType(at+".type", r, g.Type)
		}
		if r.From.Kind() == "gateway" && effective.EndpointID == "" {
			k.fail(at+".endpoint", "is required: messages from the gateway do not name a sending endpoint", "set it to the ID or external ID of your endpoint")
		}
		if r.From.Kind() != "gateway" && effective.EndpointID != "" && effective.TenantID == "" {
			k.warn(at, "names the sending endpoint but not its tenant: messages without the header "+gateway.KeyTenantID+" go to the poison queue",
				"set tenant to the ID of the endpoint's tenant")
		}
		return
	}
	k.reference(path+".sink", r.To.Sink)
	if !k.template(path+".topic", r.To.Topic, k.topics(r.To.Sink)) {
		return
	}
	topic, _ := sinks.ParseTopicTemplate(r.To.Topic) // template has found no mistake
	k.lacking(path+".topic", r, topic.Required())
	if s := k.c.Sinks[r.To.Sink].Blob; s != nil {
		k.lacking(join("sinks", r.To.Sink)+".blob.path", r, s.Required())
	}
	if r.To.Sink == k.c.Poison.Sink && r.To.Topic == k.c.Poison.Topic {
		k.fail(path+".topic", "is the topic of the poison queue", "choose a different one here or in poison.topic")
	}
	if s, ok := k.c.Sinks[r.To.Sink]; ok && s.Log != nil {
		k.warn(path+".sink", "stores nothing: messages sent there are confirmed and lost", "use a log sink only to inspect messages")
	}
	k.circle(path+".topic", r)
}

// oneType checks that nothing else in the route names the type of messages to the gateway.
func (k *checker) oneType(path string, r Route, template string) {
	if strings.Contains(template, "{type") {
		return
	}
	if _, set := r.Set[gateway.KeyMessageType]; set {
		k.fail(path, "replaces what set."+gateway.KeyMessageType+" says", "remove one of them, or write {type} here")
	}
	if r.Transform.EFDI != nil {
		k.fail(path, "is one type for the device descriptions and the time logs of transform.efdi", "write {type}")
	}
}
