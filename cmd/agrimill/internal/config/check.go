package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	cloudblob "gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // the driver of file:// buckets
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/expr"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/stores/nats/kvlease"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// This file checks how values fit together. What a single value may be is decided by the
// package that it configures: check calls its Validate and translates field names into
// keys.

type checker struct {
	*decoder
	c *Config
	// rules is a client that only validates messages; it never makes a request.
	rules *gateway.Client
}

// Rules returns a client that only validates messages: it must not make a request.
func Rules() (*gateway.Client, error) {
	return gateway.New(gateway.Config{BaseURL: "http://localhost", TokenURL: "http://localhost", ClientID: "rules", ClientSecret: "rules"})
}

func (d *decoder) check(c *Config) {
	rules, err := Rules()
	if err != nil {
		d.add(SeverityError, place{}, "", err.Error(), "")
		return
	}
	defer func() { _ = rules.Close() }() // nothing is open
	k := &checker{decoder: d, c: c, rules: rules}
	k.gateway()
	k.endpoints()
	k.subscriber()
	k.sinks()
	k.routes()
	k.poison()
	k.dedup()
	k.ha()
	k.devices()
	k.rest()
}

// at returns the position of a path, or else of the nearest parent.
func (d *decoder) at(path string) place {
	for path != "" {
		if at, ok := d.values[path]; ok {
			return at
		}
		if at, ok := d.places[path]; ok {
			return at
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return d.values[""]
}

func (d *decoder) has(path string) bool {
	_, ok := d.places[path]
	return ok
}

func (d *decoder) fail(path, message, suggestion string) {
	// A value that is wrong by itself was reported when it was decoded.
	reported := func(p Problem) bool { return p.Severity == SeverityError && p.Path == path }
	if !d.excused[path] && !slices.ContainsFunc(d.problems, reported) {
		d.add(SeverityError, d.at(path), path, message, suggestion)
	}
}

func (d *decoder) warn(path, message, suggestion string) {
	d.add(SeverityWarning, d.at(path), path, message, suggestion)
}

// report adds the mistakes that a package found in its configuration, which is the section
// at path.
func (d *decoder) report(path string, section any, err error) {
	t := reflect.TypeOf(section)
	key := func(field string) string {
		if key, ok := keyOf(t, field); ok {
			return key
		}
		return field // one that agrimill sets itself
	}
	for _, one := range validate.Fields(err) {
		at := strings.TrimSuffix(path+"."+key(one.Path), ".")
		section := at[:strings.LastIndexByte(at, '.')+1]
		d.fail(at, one.Rule(func(field string) string { return strings.TrimPrefix(path+"."+key(field), section) }), "")
	}
}

// keyOf returns the key of a field of a section, such as retry.max_attempts for
// Retry.MaxAttempts, including the indexes of items; false if there is none.
func keyOf(t reflect.Type, name string) (string, bool) {
	var keys []string
	for part := range strings.SplitSeq(name, ".") {
		part, index, found := strings.Cut(part, "[")
		if found {
			index = "[" + index
		}
		if t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return "", false
		}
		f, ok := t.FieldByName(part)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case ok && options == "inline":
		case !ok || key == "" || key == "-":
			return "", false
		default:
			keys = append(keys, key+index)
		}
		t = f.Type
	}
	return strings.Join(keys, "."), true
}

// rule reports what the gateway's client says about a value that messages carry.
func (k *checker) rule(path string, set func(*gateway.SendMessageRequest)) {
	const id = "00000000-0000-4000-8000-000000000000"
	request := gateway.SendMessageRequest{TenantID: id, EndpointID: id, MessageType: "any"}
	set(&request)
	var invalid *gateway.ValidationError
	if errors.As(k.rules.ValidateMessage(request), &invalid) {
		k.fail(path, invalid.Rule, "")
	}
}

func (k *checker) uuid(path, value string) {
	k.rule(path, func(r *gateway.SendMessageRequest) { r.TenantID = value })
}

func (k *checker) messageType(path, value string) {
	k.rule(path, func(r *gateway.SendMessageRequest) { r.MessageType = value })
}

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
	k.report(section, g, err)
	k.report(section, g, config.Validate())
	for _, key := range []string{"application_id", "software_version_id"} {
		value := g.ApplicationID
		if key == "software_version_id" {
			value = g.SoftwareVersionID
		}
		if value != "" {
			k.uuid(join(section, key), value)
		}
	}
	for _, key := range []string{"base_url", "token_url"} {
		value := g.BaseURL
		if key == "token_url" {
			value = g.TokenURL
		}
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
			id := strings.ReplaceAll(e.ExternalID, gateway.TenantPlaceholder, "00000000-0000-4000-8000-000000000000")
			k.invalid(path+".external_id", gateway.ValidateExternalID(id))
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
		if len(e.Capabilities) == 0 && e.ExternalID != "" {
			k.warn(path, "has no capabilities: it can neither send nor receive", "add capabilities: [{type: …, direction: SEND_RECEIVE}]")
		}
	}
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
			var known []string
			for _, t := range gateway.EventTypes() {
				known = append(known, string(t))
			}
			k.fail(k.item("subscriber.event_types", i, len(config.EventTypes)), fmt.Sprintf("must be an event type, not %q", string(t)), didYouMean(string(t), known))
		}
	}
	config.EventTypes = nil
	config.Quarantine.Publisher = discard{} // the poison queue
	k.report("subscriber", k.c.Subscriber, config.Validate())

	publisher := k.c.Publisher
	publisher.Client = k.rules
	k.report("publisher", k.c.Publisher, publisher.Validate())
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

// routedTypes returns the message types that routes receive, and whether one of them receives all.
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
	if len(k.c.Endpoints) > 0 && !slices.ContainsFunc(known, func(t string) bool { return match(pattern, t) }) {
		k.warn(path, fmt.Sprintf("is not a message type that the endpoints receive: %q", pattern), didYouMean(pattern, known))
	}
}

// item returns the path of an item of a list, which is the path of the list if it was
// written as a single value.
func (d *decoder) item(path string, i, n int) string {
	at := fmt.Sprintf("%s[%d]", path, i)
	if _, ok := d.values[at]; !ok && n == 1 {
		return path
	}
	return at
}

// exactlyOne checks that exactly one of several sections is present.
func (d *decoder) exactlyOne(path string, keys ...string) bool {
	var there []string
	for _, key := range keys {
		if d.has(join(path, key)) {
			there = append(there, key)
		}
	}
	switch {
	case len(there) == 0:
		d.fail(path, "requires one of "+oneOf(keys), "")
	case len(there) > 1:
		d.fail(join(path, there[1]), "cannot be combined with "+there[0], "remove one")
	}
	return len(there) == 1
}

func (k *checker) sinks() {
	used := map[string]bool{k.c.Poison.Sink: true}
	for _, r := range k.c.Routes {
		used[r.To.Sink] = true
	}
	for _, name := range slices.Sorted(maps.Keys(k.c.Sinks)) {
		s, path := k.c.Sinks[name], join("sinks", name)
		if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			k.fail(path, "must have a name of 1 to 64 letters, digits, - or _", "")
		}
		if !used[name] {
			k.warn(path, "is not used by any route", "remove it, or name it in a route's to.sink")
		}
		if !k.exactlyOne(path, "nats", "kafka", "blob", "log") {
			continue
		}
		switch path = join(path, s.Kind()); {
		case s.NATS != nil:
			config, err := s.NATS.SinkConfig(name)
			k.report(path, *s.NATS, err)
			k.report(path, *s.NATS, config.Validate())
			k.contentTypes(path, name, s.NATS.CloudEvents)
		case s.Kafka != nil:
			config, err := s.Kafka.SinkConfig(name)
			k.report(path, *s.Kafka, err)
			k.report(path, *s.Kafka, config.Validate())
			k.contentTypes(path, name, s.Kafka.CloudEvents)
		case s.Blob != nil:
			k.bucket(path, s.Blob.URL)
			config := s.Blob.Config
			config.Bucket = new(cloudblob.Bucket) // only its presence is checked
			k.report(path, *s.Blob, config.Validate())
		}
	}
}

// contentTypes checks the message types of cloud_events.content_types of a sink, unless a route brings other types there than
// those that the endpoints receive.
func (k *checker) contentTypes(path, sink string, c *cloudevents.Config) {
	others := func(r Route) bool {
		return r.To.Sink == sink && (r.From.Gateway == "" || len(r.Set) > 0 || r.Transform != farm.TransformConfig{})
	}
	if c == nil || slices.ContainsFunc(k.c.Routes, others) {
		return
	}
	for _, t := range slices.Sorted(maps.Keys(c.ContentTypes)) {
		k.unknownType(join(path, "cloud_events")+".content_types."+t, t)
	}
}

// bucket checks the URL of a bucket.
func (k *checker) bucket(path string, address URL) {
	at, mux := join(path, "url"), cloudblob.DefaultURLMux()
	if address == "" {
		if !k.has(at) && !k.has(at+"_file") {
			k.fail(at, "is required", "e.g. file:///var/lib/agrimill/payloads?create_dir=true")
		}
		return
	}
	u, err := url.Parse(string(address))
	switch {
	case err != nil || u.Scheme == "":
		k.fail(at, "must be an absolute URL", "e.g. file:///var/lib/agrimill/payloads?create_dir=true")
	case !mux.ValidBucketScheme(u.Scheme):
		k.fail(at, "has a scheme that this build does not support: "+u.Scheme, "use "+oneOf(mux.BucketSchemes()))
	case filesync.CheckURL(string(address)) != nil:
		k.fail(at, filesync.CheckURL(string(address)).Error(), "")
	case u.Scheme == memblob.Scheme:
		k.warn(at, "is in memory: its contents are lost when agrimill exits", "use file:///… or another persistent bucket")
	}
}

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

// collide finds topics that differ only in . and _: a Kafka cluster makes only one of them. Those that depend on a message are
// not known.
func (k *checker) collide() {
	names := map[[2]string]string{} // by brokers and the topic with _ for each dot
	add := func(path string, brokers []string, topic string) {
		if topic == "" || strings.ContainsAny(topic, "{}") {
			return
		}
		key := [2]string{strings.Join(brokers, ","), strings.ReplaceAll(topic, ".", "_")}
		if first, there := names[key]; !there {
			names[key] = topic
		} else if first != topic {
			k.fail(path, fmt.Sprintf("means the topic %s beside %s: of names that differ only in . and _, Kafka takes one", topic, first), "use another name for one of them")
		}
	}
	to := func(path string, sink, topic string) {
		s := k.c.Sinks[sink].Kafka
		if s == nil || topic == "" {
			return
		}
		if s.TopicPrefix != kafka.NoTopicPrefix {
			topic = s.TopicPrefix + "." + topic
		}
		add(path, s.Brokers, topic)
	}
	for i, r := range k.c.Routes {
		to(fmt.Sprintf("routes[%d].to.topic", i), r.To.Sink, r.To.Topic)
		if s := r.From.Kafka; s != nil {
			for _, topic := range s.Topics {
				add(fmt.Sprintf("routes[%d].from.kafka.topics", i), s.Brokers, topic)
			}
		}
	}
	to("poison.topic", k.c.Poison.Sink, k.c.Poison.Topic)
	if d := k.c.Devices; d != nil && d.Kafka != nil {
		add("devices.kafka.topic", d.Kafka.Brokers, d.Kafka.WithDefaults().Topic)
	}
}

// shared finds routes that would take each other's messages, and sinks with conflicting
// settings for one stream.
func (k *checker) shared() {
	takers := map[string]int{}
	takes := func(path string, i int, what ...string) {
		key := strings.Join(what, "\x00")
		if first, twice := takers[key]; twice {
			k.fail(path, fmt.Sprintf("is shared with routes[%d]: each would get only some of the messages", first), "use a different one for each route")
			return
		}
		takers[key] = i
	}
	for i, r := range k.c.Routes {
		path := fmt.Sprintf("routes[%d].from.", i)
		if s := r.From.NATS; s != nil && k.has(path+"nats.durable") {
			takes(path+"nats.durable", i, "nats", s.URL, s.Domain, s.Stream, s.Durable)
		}
		if s := r.From.Kafka; s != nil && k.has(path+"kafka.group") {
			for _, topic := range s.Topics {
				takes(path+"kafka.group", i, "kafka", strings.Join(s.Brokers, ","), topic, s.Group)
			}
		}
	}
	streams := map[[3]string]string{}
	for _, name := range slices.Sorted(maps.Keys(k.c.Sinks)) {
		s := k.c.Sinks[name].NATS
		if s == nil {
			continue
		}
		key := [3]string{s.URL, s.Domain, s.Stream}
		if first, twice := streams[key]; !twice {
			streams[key] = name
		} else if s.SubjectPrefix != k.c.Sinks[first].NATS.SubjectPrefix {
			k.fail(join("sinks", name)+".nats.stream", fmt.Sprintf("is also used by %s, which has a different subject_prefix", join("sinks", first)), "use different streams, or the same subject_prefix for both")
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
		k.report(at, *s, err)
		k.report(at, *s, config.Validate())
		if s.Subject != "" && !validSubject(s.Subject) {
			k.fail(at+".subject", "must be a NATS subject: tokens without white space, separated by dots; * matches one token, > at the end the rest", "")
		}
	case r.From.Kafka != nil:
		s, at := r.From.Kafka, join(path, "kafka")
		config, err := s.SourceConfig()
		k.report(at, *s, err)
		k.report(at, *s, config.Validate())
		if len(s.Topics) == 0 && k.has(at+".topics") {
			k.fail(at+".topics", "must name a topic", "")
		}
	default:
		k.fromGateway(join(path, "gateway"), r)
	}
}

func validSubject(subject string) bool {
	parts := strings.Split(subject, ".")
	for i, part := range parts {
		if part == "" || strings.ContainsAny(part, " \t\r\n\x00") || part == ">" && i < len(parts)-1 {
			return false
		}
	}
	return true
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
		var known []string
		for _, t := range gateway.EventTypes() {
			known = append(known, string(t))
		}
		if near := nearest(topic, append(known, FromAll, FromEverything)); near != "" && !strings.Contains(topic, ":") {
			k.warn(path, fmt.Sprintf("is treated as a message type: %q", topic), "did you mean "+near+"?")
		}
		k.messageType(path, topic)
	}
	if types := k.c.Subscriber.EventTypes; len(types) > 0 && !slices.ContainsFunc(needs, func(t string) bool { return slices.Contains(types, gateway.EventType(t)) }) {
		k.fail(path, "receives nothing: subscriber.event_types does not include "+oneOf(needs), "add it there")
	}
	switch {
	case !isType:
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

// types returns the message types that the configured endpoints receive.
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

// takesType reports whether the route takes all messages of the type.
func (r Route) takesType(messageType string) bool {
	f := r.Filter
	byType := len(f.Type) == 0 || slices.ContainsFunc(f.Type, func(pattern string) bool { return match(pattern, messageType) })
	f.Type = nil
	return r.From.Gateway != "" && byType && !f.selects() && subscriber.Takes(r.From.GatewayTopic(), gateway.EventMessageReceived, messageType)
}

// subscribed reports whether a configured endpoint subscribes to the type, as received does.
func (k *checker) subscribed(messageType string) bool {
	subscribes := func(e Endpoint) bool { return slices.Contains(e.Subscriptions, messageType) }
	return len(k.c.Endpoints) == 0 || slices.ContainsFunc(k.c.Endpoints, subscribes)
}

// received reports whether a configured endpoint receives the type. Without any, endpoints
// are managed elsewhere, and one may.
func (k *checker) received(messageType string) bool {
	for _, e := range k.c.Endpoints {
		for _, c := range e.Capabilities {
			if c.Type == messageType && gateway.Direction(c.Direction).CanReceive() {
				return true
			}
		}
	}
	return len(k.c.Endpoints) == 0
}

func (k *checker) filter(path string, r Route) {
	f := r.Filter
	for key, values := range map[string][]string{"tenant": f.Tenant, "endpoint": f.Endpoint} {
		for i, value := range values {
			k.uuid(k.item(join(path, key), i, len(values)), value)
		}
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
	if isType && len(f.Type) > 0 && !slices.ContainsFunc(f.Type, func(pattern string) bool { return match(pattern, topic) }) {
		k.fail(join(path, "type"), "matches nothing: the route receives only "+topic, "remove the filter, or use from: {gateway: all}")
	}
}

// expression reports a mistake in an expression with its place in it.
func (k *checker) expression(path string, err error) {
	var mistake *expr.Error
	switch {
	case errors.As(err, &mistake):
		k.fail(path, fmt.Sprintf("is no valid expression: line %d, column %d: %s", mistake.Line, mistake.Column, mistake.Reason), "")
	case err != nil:
		k.fail(path, "is no valid expression: "+err.Error(), "")
	}
}

// match reports whether all of text matches a filter pattern, in which * matches any
// characters, including none, and ? exactly one. Unlike path.Match it has no other special
// characters: brackets and slashes are legal in message types and file names.
func match(pattern, text string) bool {
	p, t := []rune(pattern), []rune(text)
	star, resume := -1, 0 // the last *, and where to try next what follows it
	i, j := 0, 0
	for j < len(t) {
		switch {
		case i < len(p) && p[i] == '*':
			star, resume = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == t[j]):
			i, j = i+1, j+1
		case star >= 0: // let the * match one more character
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

func (k *checker) to(path string, r Route) {
	if !k.exactlyOne(path, "sink", "gateway") {
		return
	}
	if g := r.To.Gateway; g != nil {
		at := join(path, "gateway")
		if k.has(path + ".topic") {
			k.fail(path+".topic", "applies only to sinks", "remove it, or set gateway.type for the message type")
		}
		config := g.Config
		config.Client = k.rules
		k.report(at, *g, config.Validate())
		effective := k.c.PublisherConfig(*g)
		effective.Client = k.rules
		if k.template(at+".type", g.Type, effective) {
			messageType, _ := sinks.ParseTopicTemplate(g.Type) // template has found no mistake
			k.lacking(at+".type", r, messageType.Required())
			k.oneType(at+".type", r, g.Type)
		}
		if r.From.Kind() == "gateway" && effective.EndpointID == "" {
			k.fail(at+".endpoint", "is required: messages from the gateway do not name a sending endpoint", "set it to the ID of your endpoint")
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

// reference checks the name of a sink.
func (k *checker) reference(path, name string) bool {
	if _, ok := k.c.Sinks[name]; ok || !k.has(path) {
		return ok
	}
	names := slices.Sorted(maps.Keys(k.c.Sinks))
	suggestion := didYouMean(name, names)
	if len(names) == 0 {
		suggestion = "add it to the section sinks"
	}
	k.fail(path, fmt.Sprintf("names an unknown sink: %q", name), suggestion)
	return false
}

// template checks a template of topics or message types.
func (k *checker) template(path, text string, topics sinks.Topics) bool {
	template, err := sinks.ParseTopicTemplate(text)
	var bad *sinks.TemplateError
	if !errors.As(err, &bad) {
		return k.taken(path, template.Check(topics)) // parsing returns no other error
	}
	suggestion := ""
	if bad.Variable != "" {
		if near := nearest(bad.Variable, slices.Sorted(maps.Keys(sinks.TopicVariables()))); near != "" {
			suggestion = "did you mean {" + near + "}?"
		}
	}
	k.fail(path, bad.Reason, suggestion)
	return false
}

// lacking warns about a template with values that messages from the gateway may lack. Those from
// a broker have whatever was put there.
func (k *checker) lacking(path string, r Route, required map[string]string) {
	if r.From.Kind() != "gateway" {
		return
	}
	event := gateway.EventType(r.From.Gateway)
	// What every message from there has.
	always := []string{gateway.KeyEventType}
	if r.From.Gateway != FromEverything && (!event.Known() || event == gateway.EventMessageReceived || event == gateway.EventFileReceived) {
		always = append(always, gateway.KeyMessageType, gateway.KeyReceivingEndpointID, gateway.KeyTenantID)
	}
	if event == gateway.EventMessageReceived {
		always = append(always, gateway.KeyContextID)
	}
	for _, name := range slices.Sorted(maps.Keys(required)) {
		if _, set := r.Set[required[name]]; !set && !slices.Contains(always, required[name]) {
			k.warn(path, "needs {"+name+"}: messages without it go to the poison queue", "write {"+name+"|none}, or another text for them")
		}
	}
}

// withoutVariables replaces each variable of a template with a letter.
func withoutVariables(template string) string {
	return regexp.MustCompile(`\{[^{}]*\}`).ReplaceAllString(template, "x")
}

// topics returns which topics a sink takes: all, if its own settings are wrong.
func (k *checker) topics(sink string) sinks.Topics {
	section := join("sinks", sink) + "."
	if slices.ContainsFunc(k.problems, func(p Problem) bool { return p.Severity == SeverityError && strings.HasPrefix(p.Path, section) }) {
		return sinks.AnyTopics{}
	}
	return k.c.Sinks[sink].Topics()
}

// taken reports what a sink says about a topic.
func (k *checker) taken(path string, err error) bool {
	var invalid *gateway.ValidationError
	var refused *sinks.Error
	switch {
	case errors.As(err, &invalid):
		k.fail(path, invalid.Rule, "")
	case errors.As(err, &refused):
		k.fail(path, fmt.Sprintf("cannot be a topic of the %s sink: %v", refused.Sink, refused.Cause), "")
	}
	return err == nil
}

// circle warns about a route that feeds a route back to the gateway.
func (k *checker) circle(path string, r Route) {
	s := k.c.Sinks[r.To.Sink].NATS
	if s == nil || r.From.Kind() != "gateway" {
		return
	}
	for _, back := range k.c.Routes {
		source := back.From.NATS
		if source == nil || back.To.Gateway == nil || source.URL != s.URL {
			continue
		}
		if subject := s.SubjectPrefix + "." + withoutVariables(r.To.Topic); natsCovers(source.Subject, subject) {
			k.warn(path, "publishes to subjects that route "+back.Name+" sends back to the gateway", "use a separate subject for the way back")
		}
	}
}

// natsCovers reports whether a subject, of which x may be anything, matches a pattern.
func natsCovers(pattern, subject string) bool {
	want := strings.Split(subject, ".")
	for i, part := range strings.Split(pattern, ".") {
		switch {
		case part == ">":
			return i < len(want)
		case i >= len(want) || part != "*" && part != want[i] && want[i] != "x":
			return false
		case i == len(want)-1:
			return strings.Count(pattern, ".") == i
		}
	}
	return false
}

func (k *checker) poison() {
	p := k.c.Poison
	if !k.has("poison") {
		return
	}
	known := k.reference("poison.sink", p.Sink)
	if known && k.c.Sinks[p.Sink].Log != nil {
		k.warn("poison.sink", "stores nothing: messages that cannot be handled are confirmed and lost", "use a nats, kafka or blob sink")
	}
	if strings.ContainsAny(p.Topic, "{}") {
		k.fail("poison.topic", "must not be a template", "use a plain topic such as poison")
	} else {
		k.taken("poison.topic", k.topics(p.Sink).CheckTopic(p.Topic))
	}
	k.report("retry", k.c.Retry, k.c.Retry.Validate())
	poison := p.PoisonConfig
	poison.Publisher = discard{}
	k.report("poison", p, poison.Validate())
}

func (k *checker) dedup() {
	d := k.c.Dedup
	k.report("dedup", d, d.DedupSettings.Validate())
	switch {
	case d.MaxEntries < 0:
		k.fail("dedup.max_entries", "must not be negative", "")
	case k.has("dedup.max_entries") && d.Store == DedupNATSKV:
		k.fail("dedup.max_entries", "does not apply: dedup.store is "+d.Store, "use nats_kv.max_bytes")
	}
	for _, section := range []string{DedupBBolt, DedupNATSKV} {
		at := join("dedup", section)
		switch {
		case k.has(at) && d.Store != section:
			k.fail(at, "does not apply: dedup.store is "+d.Store, "remove one")
		case !k.has(at) && d.Store == section && section == DedupBBolt:
			k.fail(at, "is required by dedup.store", "add bbolt: {path: /var/lib/agrimill/dedup.db}")
		case !k.has(at) && d.Store == section && section == DedupNATSKV:
			k.fail(at, "is required by dedup.store", "add nats_kv: {url: …}")
		}
	}
	switch {
	case d.Store == DedupBBolt && d.BBolt != nil && d.BBolt.Path != "":
		k.report("dedup.bbolt", *d.BBolt, d.BBolt.Validate())
	case d.Store == DedupNATSKV && d.NATSKV != nil:
		config := d.NATSKV.StoreConfig(d)
		config.Conn = new(natsgo.Conn) // only its presence is checked
		k.report("dedup.nats_kv", *d.NATSKV, config.Validate())
		_, err := d.NATSKV.TLS.Config()
		k.report("dedup.nats_kv", *d.NATSKV, err)
		k.report("dedup.nats_kv", *d.NATSKV, d.NATSKV.Connection.Validate())
	}
}

// leaseWindow is how many times the TTL of the lease a stream should know what it has stored: one until
// the next holder begins, and the rest for what it finds then, and for what was on its way.
const leaseWindow = 3

func (k *checker) ha() {
	h := k.c.HA
	if h == nil || h.NATSKV == nil {
		return
	}
	lease := h.LeaseConfig()
	lease.Conn = new(natsgo.Conn) // only its presence is checked
	lease.TTL = 0
	k.report("ha.nats_kv", *h.NATSKV, lease.Validate())
	_, err := h.NATSKV.TLS.Config()
	k.report("ha.nats_kv", *h.NATSKV, err)
	k.report("ha.nats_kv", *h.NATSKV, h.NATSKV.Connection.Validate())
	sessions := k.c.Dedup.Store == DedupNATSKV && k.c.Dedup.NATSKV != nil
	switch {
	case h.TTL < kvlease.MinTTL:
		k.fail("ha.ttl", fmt.Sprintf("must be at least %v", kvlease.MinTTL), "")
	case sessions && h.TTL < kvstore.MinSessionTTL:
		k.fail("ha.ttl", fmt.Sprintf("must be at least %v beside dedup.nats_kv, whose sessions live that long", kvstore.MinSessionTTL), "")
	}
	received, inNATS, elsewhere := false, false, false
	windows := map[string]bool{} // sinks whose window was looked at
	for _, r := range k.c.Routes {
		if r.From.Gateway == "" {
			continue
		}
		received = true
		to := k.c.Sinks[r.To.Sink].NATS
		inNATS, elsewhere = inNATS || to != nil, elsewhere || k.c.Sinks[r.To.Sink].Kafka != nil
		// What the former holder had begun may land when the next one has stored it, and after its time.
		if least := leaseWindow * h.TTL; to != nil && !windows[r.To.Sink] && to.MaxAge >= 0 && to.WithDefaults().DedupWindow < least {
			windows[r.To.Sink] = true
			k.warn("sinks."+r.To.Sink+".nats.dedup_window", fmt.Sprintf("is shorter than %d times ha.ttl: what a former holder had begun to store may be stored once more", leaseWindow),
				fmt.Sprintf("set at least %v", least))
		}
	}
	switch {
	case !received && k.has("routes"):
		k.fail("ha", "needs a route from the gateway: only such a route wants the lease", "remove it; instances share what they consume from NATS and Kafka")
	case received && !inNATS && !h.StopWithoutNATS:
		k.fail("ha", "makes everything stop while NATS cannot be reached, although no route from the gateway has a sink there",
			"set ha.stop_without_nats: true to accept that")
	}
	if elsewhere && k.c.Dedup.Store != DedupNATSKV {
		k.warn("dedup", "is known to one instance only: what the former holder stored and did not confirm is stored again by the next one", "use dedup.nats_kv")
	}
	if d := k.c.Devices; d != nil && d.NATSKV == nil && d.Kafka == nil {
		k.warn("devices", "are known to one instance only: the next holder decodes time logs without them until they come again", "use devices.nats_kv or devices.kafka")
	}
	if k.has("dedup.instance") && k.c.Dedup.Owner.Instance != NoInstance {
		k.warn("dedup.instance", "must not be the same for two instances that run at the same time", "leave it out, or take it from the environment")
	}
}

// Message types of EFDI that belong together.
const (
	descriptionType = "iso:11783:-10:device_description:protobuf"
	timeLogType     = "iso:11783:-10:time_log:protobuf"
)

func (k *checker) devices() {
	d := k.c.Devices
	if d == nil {
		return
	}
	if c := d.Kafka; c != nil {
		if d.NATSKV != nil {
			k.fail("devices.kafka", "does not apply: devices.nats_kv is used", "remove one")
		}
		config, err := c.StoreConfig()
		k.report("devices.kafka", *c, err)
		k.report("devices.kafka", *c, config.Validate())
	}
	if n := d.NATSKV; n != nil {
		config := n.StoreConfig()
		config.Conn = new(natsgo.Conn) // only its presence is checked
		k.report("devices.nats_kv", *n, config.Validate())
		_, err := n.TLS.Config()
		k.report("devices.nats_kv", *n, err)
		k.report("devices.nats_kv", *n, n.Connection.Validate())
	}
	reads := func(r Route, messageType string) bool {
		return (r.Filter.Farm != nil || r.Transform != farm.TransformConfig{}) && r.From.Gateway != "" &&
			subscriber.Takes(r.From.GatewayTopic(), gateway.EventMessageReceived, messageType) &&
			(len(r.Filter.Type) == 0 || slices.ContainsFunc(r.Filter.Type, func(pattern string) bool { return match(pattern, messageType) }))
	}
	logs := slices.ContainsFunc(k.c.Routes, func(r Route) bool { return reads(r, timeLogType) })
	if logs && !slices.ContainsFunc(k.c.Routes, func(r Route) bool { return reads(r, descriptionType) }) {
		k.warn("devices", "knows nothing: no route with transform or filter.farm receives "+descriptionType, "let the route that decodes time logs receive it, too")
	}
}

// discard is a placeholder for a publisher: only its presence is checked.
type discard struct{}

// Publish does nothing.
func (discard) Publish(string, ...*message.Message) error { return nil }

// Close does nothing.
func (discard) Close() error { return nil }

// tracingFromEnvironment applies OpenTelemetry's own variables. They may be set for every
// program on a machine, so a mistake in them is only a warning.
func (d *decoder) tracingFromEnvironment(c *Config) {
	const path = "tracing.otlp_endpoint"
	env, t := d.options.Env, &c.Tracing
	if name := env("OTEL_SERVICE_NAME"); name != "" && !d.has("tracing.service_name") {
		t.ServiceName = name
	}
	first := func(names ...string) (name, value string) {
		for _, name = range names {
			if value = strings.TrimSpace(env(name)); value != "" {
				break
			}
		}
		return name, value
	}
	name, address := first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	exporters := strings.Split(env("OTEL_TRACES_EXPORTER"), ",")
	wanted := exporters[0] == "" || slices.ContainsFunc(exporters, func(e string) bool { return strings.TrimSpace(e) == "otlp" })
	if address == "" || !wanted || d.has(path) || strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return
	}
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		d.warn(path, "tracing is off: "+name+" must be an absolute http or https address", "e.g. http://127.0.0.1:4318")
		return
	}
	if name, protocol := first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol != "" && !strings.HasPrefix(protocol, "http/") {
		d.warn(path, "uses http/protobuf: "+name+" is "+protocol+", which agrimill does not support", "set the collector's address for OTLP over HTTP")
	}
	t.Environment = URL(address)
}

func (k *checker) rest() {
	c := k.c
	if c.ClaimCheck != nil {
		k.bucket("claim_check", URL(c.ClaimCheck.URL))
		if c.ClaimCheck.URL != "" {
			k.report("claim_check", *c.ClaimCheck, c.ClaimCheck.Validate())
		}
	}
	a := c.Admin
	if a.Address != AdminOff {
		k.report("admin", a, a.Config.Validate())
	}
	k.report("journal", c.Journal, c.Journal.Config.Validate())
	t := c.Tracing
	if t.OTLPEndpoint != "" {
		u, err := url.Parse(string(t.OTLPEndpoint))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			k.fail("tracing.otlp_endpoint", "must be an absolute http or https address", "e.g. http://127.0.0.1:4318")
		}
		_, err = t.TLS.Config()
		k.report("tracing", t, err)
	}
	if t.SampleRatio < 0 || t.SampleRatio > 1 {
		k.fail("tracing.sample_ratio", "must be 0 to 1", "")
	}
}
