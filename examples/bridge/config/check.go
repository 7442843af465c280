package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	cloudblob "gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // the driver of file:// buckets
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/examples/bridge/admin"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/boltstore"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/blob"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/sinks/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// This file holds what the values mean together. What a single value may be is the
// rule of the package that it is for: its Validate is asked, and the names of its
// fields are translated into keys.

type checker struct {
	*decoder
	c *Config
	// rules is a client that is asked for the rules of messages and never used to call.
	rules *gateway.Client
}

func (d *decoder) check(c *Config) {
	rules, err := gateway.New(gateway.Config{BaseURL: "http://localhost", TokenURL: "http://localhost", ClientID: "rules", ClientSecret: "rules"})
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
	k.rest()
}

// at returns where a path is, or else the nearest thing around it.
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
	// What is wrong in itself was told when it was read.
	told := func(p Problem) bool { return p.Severity == SeverityError && p.Path == path }
	if !d.excused[path] && !slices.ContainsFunc(d.problems, told) {
		d.add(SeverityError, d.at(path), path, message, suggestion)
	}
}

func (d *decoder) warn(path, message, suggestion string) {
	d.add(SeverityWarning, d.at(path), path, message, suggestion)
}

// ruling reports what a package says about its configuration, which was made of the
// section at path. names maps fields that the section calls otherwise to its keys.
func (d *decoder) ruling(path string, section any, err error, names map[string]string) {
	if err == nil {
		return
	}
	if errors.Is(err, ErrTLS) {
		path, section = join(path, "tls"), TLS{}
	}
	t := reflect.TypeOf(section)
	for _, one := range separate(err) {
		text := one.Error()
		for _, prefix := range []string{
			kafka.ErrConfig.Error(), nats.ErrConfig.Error(), blob.ErrConfig.Error(), kvstore.ErrConfig.Error(), router.ErrConfig.Error(),
			admin.ErrConfig.Error(), ErrTLS.Error(), "gateway: config", "subscriber: invalid configuration", "publisher: invalid configuration",
			"claim check: invalid configuration", "boltstore: invalid configuration", "retry", "dedup",
		} {
			text = strings.TrimPrefix(text, prefix+": ")
		}
		text, key := translate(text, t, names)
		at := path
		if key != "" && key != "." {
			at = strings.TrimPrefix(path+"."+key, ".")
			text = strings.TrimPrefix(strings.TrimPrefix(text, key+" "), key+": ")
		}
		d.fail(at, text, "")
	}
}

// every returns all mistakes of a configuration whose Validate tells the first only:
// each field is tried alone beside those that are valid, and then the fields that passed
// together.
func every[T interface{ Validate() error }](config, valid T) error {
	passed := valid
	from, to := reflect.ValueOf(config), reflect.ValueOf(&passed).Elem()
	var all []error
	for i := range from.NumField() {
		one := valid
		reflect.ValueOf(&one).Elem().Field(i).Set(from.Field(i))
		if err := one.Validate(); err != nil {
			all = append(all, err)
		} else {
			to.Field(i).Set(from.Field(i))
		}
	}
	if err := passed.Validate(); err != nil {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func validKafka() kafka.Config { return kafka.Config{Brokers: []string{"localhost:9092"}} }

func kafkaTopic(name string) bool {
	config := validKafka()
	config.TopicPrefix = name
	return config.Validate() == nil
}

// separate returns the errors that were joined.
func separate(err error) []error {
	var several interface {
		error
		Unwrap() []error
	}
	// One that wraps several in a sentence of its own is one error.
	if !errors.As(err, &several) || several.Error() != errors.Join(several.Unwrap()...).Error() {
		return []error{err}
	}
	var all []error
	for _, one := range several.Unwrap() {
		all = append(all, separate(one)...)
	}
	return all
}

// translate replaces names of fields of a section's type by its keys, and returns the
// first.
func translate(text string, t reflect.Type, names map[string]string) (translated, first string) {
	inner, around := t, t // the section of the first field, if it is one, and the one around it
	goName := regexp.MustCompile(`\b[A-Z][A-Za-z]*(?:\.[A-Z][A-Za-z]*)*(?:\[\d+\])?`)
	translated = goName.ReplaceAllStringFunc(text, func(name string) string {
		name, index, found := strings.Cut(name, "[")
		if found {
			index = "[" + index
		}
		key, typ := names[name], t
		if key == "" {
			key, typ = keyOf(t, name)
		}
		if key == "" {
			key, typ = keyOf(inner, name)
		}
		if key == "" {
			key, typ = keyOf(around, name)
		}
		if key == "" {
			return name + index
		}
		if first == "" {
			first, inner = key+index, typ
			if dot := strings.LastIndexByte(name, '.'); dot > 0 {
				_, around = keyOf(t, name[:dot])
			}
			if around == nil {
				around = t
			}
		}
		return key + index
	})
	return translated, first
}

// keyOf returns the key of a field, such as retry.max_attempts for Retry.MaxAttempts, and
// its type; empty when there is none.
func keyOf(t reflect.Type, name string) (string, reflect.Type) {
	var keys []string
	for part := range strings.SplitSeq(name, ".") {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return "", nil
		}
		f, ok := t.FieldByName(part)
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !ok || key == "" || key == "-" {
			return "", nil
		}
		keys, t = append(keys, key), f.Type
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return strings.Join(keys, "."), t
}

// rule reports what the gateway says about a value that messages carry.
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
		k.excused["gateway.client_secret"] = true // what is wrong was told with the file
	case !g.ClientSecret.IsSet() && !k.has("gateway.client_secret"):
		k.fail("gateway.client_secret", "is required", "write client_secret: ${NAME}, or client_secret_file")
	}
	config, err := g.ClientConfig()
	k.ruling(section, g, err, nil)
	k.ruling(section, g, config.Validate(), nil)
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
		if u, err := url.Parse(string(value)); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
			k.warn(join(section, key), "is not encrypted: the client secret, tokens and data can be read on the way", "use https")
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
				k.fail(path+"."+key, "is required", "write it here, or once as gateway."+key)
			}
		}
		const id = "00000000-0000-4000-8000-000000000000"
		valid := gateway.PutEndpointRequest{ApplicationID: id, SoftwareVersionID: id, EndpointType: gateway.EndpointTypeCloudSoftware}
		for _, err := range separate(every(e.Request(), valid)) {
			var invalid *gateway.ValidationError
			if !errors.As(err, &invalid) {
				continue
			}
			field := strings.NewReplacer("endpoint_type", "type", ".message_type", ".type").Replace(invalid.Field)
			if strings.HasPrefix(field, "subscriptions") {
				field = strings.TrimSuffix(field, ".type")
			}
			if (field != "application_id" && field != "software_version_id") || k.has(path+"."+field) {
				k.fail(path+"."+field, invalid.Rule, "")
			}
		}
		if e.Type == deprecatedType {
			k.warn(path+".type", "is deprecated, and will be refused some day", "write "+string(gateway.EndpointTypeCloudSoftware))
		}
		key := [2]string{e.Tenant, e.ExternalID}
		if before, twice := seen[key]; twice && e.ExternalID != "" {
			k.fail(path+".external_id", "is that of "+before+" already", "give each endpoint of a tenant an external ID of its own")
		}
		seen[key] = path
		if len(e.Capabilities) == 0 && e.ExternalID != "" {
			k.warn(path, "has no capabilities: it can neither send nor receive", "add capabilities: [{type: …, direction: SEND_RECEIVE}]")
		}
	}
}

// deprecatedType is what the service still accepts for cloud_software.
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
	names := map[string]string{
		"Payload.Mode": "payload", "Payload.MaxInline": "max_inline", "Payload.MaxDownloads": "max_downloads", "Payload.Retry": "download_retry",
		"Payload.ClaimCheckFrom": ".", "Payload.ClaimCheck": "payload",
	}
	if k.c.Subscriber.Payload == PayloadClaimCheck {
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
	k.ruling("subscriber", k.c.Subscriber, config.Validate(), names)

	publisher := k.c.PublisherConfig(ToGateway{})
	publisher.Client = k.rules
	k.ruling("publisher", k.c.Publisher, publisher.Validate(), nil)
	for i, t := range k.c.Subscriber.Files {
		k.messageType(k.item("subscriber.files", i, len(k.c.Subscriber.Files)), t)
	}
}

// item returns the path of an item of a list, which is the list's own when it was
// written as a single value.
func (d *decoder) item(path string, i, n int) string {
	at := fmt.Sprintf("%s[%d]", path, i)
	if _, ok := d.values[at]; !ok && n == 1 {
		return path
	}
	return at
}

// exactlyOne reports sections of which one has to be there.
func (d *decoder) exactlyOne(path string, keys ...string) bool {
	var there []string
	for _, key := range keys {
		if d.has(join(path, key)) {
			there = append(there, key)
		}
	}
	switch {
	case len(there) == 0:
		d.fail(path, "needs "+oneOf(keys), "")
	case len(there) > 1:
		d.fail(join(path, there[1]), "excludes "+there[0], "remove one")
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
			k.fail(path, "has a name that is not 1 to 64 letters, digits, - or _", "")
		}
		if !used[name] {
			k.warn(path, "is used by no route", "remove it, or write it to a route's to.sink")
		}
		if !k.exactlyOne(path, "nats", "kafka", "blob", "log") {
			continue
		}
		switch path = join(path, s.Kind()); {
		case s.NATS != nil:
			config, err := s.NATS.SinkConfig(name)
			k.ruling(path, *s.NATS, err, nil)
			k.ruling(path, *s.NATS, every(config, nats.Config{}), nil)
			k.cloudEvents(path, s.NATS.CloudEvents)
		case s.Kafka != nil:
			config, err := s.Kafka.SinkConfig(name)
			k.ruling(path, *s.Kafka, err, nil)
			k.ruling(path, *s.Kafka, every(config, validKafka()), nil)
			k.cloudEvents(path, s.Kafka.CloudEvents)
		case s.Blob != nil:
			k.bucket(path, s.Blob.URL)
			bucket := memblob.OpenBucket(nil)
			config := s.Blob.SinkConfig()
			config.Bucket = bucket
			_, err := blob.New(config)
			_ = bucket.Close() // in memory
			k.ruling(path, *s.Blob, err, nil)
		}
	}
}

func (k *checker) cloudEvents(path string, c *CloudEvents) {
	if c != nil {
		k.ruling(join(path, "cloud_events"), *c, c.config().Validate(), nil)
	}
}

// bucket checks the address of a bucket.
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
		k.fail(at, "must be an absolute address", "e.g. file:///var/lib/agrimill/payloads?create_dir=true")
	case !mux.ValidBucketScheme(u.Scheme):
		k.fail(at, "has a scheme that the bridge was built without: "+u.Scheme, "there is "+oneOf(mux.BucketSchemes()))
	case u.Scheme == memblob.Scheme:
		k.warn(at, "is in memory: what goes there is gone when the bridge ends", "use file:///… or another bucket that lasts")
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
			k.fail(path+".name", fmt.Sprintf("is that of routes[%d] already", first), "give each route a name of its own")
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
	}
	k.shared()
}

// shared finds routes that take each other's messages, and sinks that want one stream
// to be two different ones.
func (k *checker) shared() {
	takers := map[string]int{}
	takes := func(path string, i int, what ...string) {
		key := strings.Join(what, "\x00")
		if first, twice := takers[key]; twice {
			k.fail(path, fmt.Sprintf("is that of routes[%d] too: each would get only a part of the messages", first), "give each route one of its own")
			return
		}
		takers[key] = i
	}
	for i, r := range k.c.Routes {
		path := fmt.Sprintf("routes[%d].from.", i)
		if s := r.From.NATS; s != nil && k.has(path+"nats.durable") {
			takes(path+"nats.durable", i, "nats", string(s.URL), s.Stream, s.Durable)
		}
		if s := r.From.Kafka; s != nil && k.has(path+"kafka.group") {
			for _, topic := range s.Topics {
				takes(path+"kafka.group", i, "kafka", strings.Join(s.Brokers, ","), topic, s.Group)
			}
		}
	}
	streams := map[[2]string]string{}
	for _, name := range slices.Sorted(maps.Keys(k.c.Sinks)) {
		s := k.c.Sinks[name].NATS
		if s == nil {
			continue
		}
		key := [2]string{string(s.URL), s.Stream}
		if first, twice := streams[key]; !twice {
			streams[key] = name
		} else if s.SubjectPrefix != k.c.Sinks[first].NATS.SubjectPrefix {
			k.fail(join("sinks", name)+".nats.stream", fmt.Sprintf("is that of %s too, which has another subject_prefix", join("sinks", first)), "give each a stream of its own, or both one subject_prefix")
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
		config := nats.Config{}
		err := s.connect(&config)
		k.ruling(at, *s, err, nil)
		k.ruling(at, *s, every(config, nats.Config{}), nil)
		if s.Subject != "" && !validSubject(s.Subject) {
			k.fail(at+".subject", "must be a NATS subject: parts without white space, joined by dots; * for one part, > at the end for the rest", "")
		}
		for key, name := range map[string]string{"stream": s.Stream, "durable": s.Durable} {
			if strings.ContainsAny(name, " \t\r\n.*>/\\") {
				k.fail(join(at, key), "must not contain white space, '.', '*', '>', '/' or '\\'", "")
			}
		}
		if s.MaxInFlight < 1 {
			k.fail(at+".max_in_flight", "must be at least 1", "")
		}
	case r.From.Kafka != nil:
		s, at := r.From.Kafka, join(path, "kafka")
		config := kafka.Config{}
		err := s.connect(&config)
		k.ruling(at, *s, err, nil)
		k.ruling(at, *s, every(config, validKafka()), nil)
		for i, topic := range s.Topics {
			if topic == "" || topic == kafka.NoTopicPrefix || !kafkaTopic(topic) {
				k.fail(k.item(at+".topics", i, len(s.Topics)), fmt.Sprintf("must be a Kafka topic of letters, digits, '-', '_' and single dots, not %q", topic), "")
			}
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

// fromGateway checks that something can come to the route at all.
func (k *checker) fromGateway(path string, r Route) {
	topic := r.From.Gateway
	if topic == "" {
		k.fail(path, "must not be empty", "write all, everything, an event type or a message type")
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
			k.warn(path, fmt.Sprintf("is taken for a message type: %q", topic), "did you mean "+near+"?")
		}
		k.messageType(path, topic)
	}
	if types := k.c.Subscriber.EventTypes; len(types) > 0 && !slices.ContainsFunc(needs, func(t string) bool { return slices.Contains(types, t) }) {
		k.fail(path, "gets nothing: subscriber.event_types lacks "+oneOf(needs), "add it there")
	}
	if isType && !k.received(topic) {
		k.warn(path, "may get nothing: none of the endpoints receives the message type "+topic, "add it to an endpoint's capabilities")
	}
}

// received reports whether an endpoint of the configuration receives the type, or may do
// so, because endpoints are made elsewhere.
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
	for key, values := range map[string]List{"tenant": f.Tenant, "endpoint": f.Endpoint} {
		for i, value := range values {
			k.uuid(k.item(join(path, key), i, len(values)), value)
		}
	}
	for key, values := range map[string]List{"type": f.Type, "filename": f.Filename} {
		for i, value := range values {
			at := k.item(join(path, key), i, len(values))
			if value == "" {
				k.fail(at, "must not be empty", "")
			} else if plain := strings.ReplaceAll(value, "*", ""); key == "type" && plain != "" {
				k.messageType(at, plain)
			}
		}
	}
	topic := r.From.Gateway
	isType := topic != "" && topic != FromAll && topic != FromEverything && !gateway.EventType(topic).Known()
	if isType && len(f.Type) > 0 && !slices.ContainsFunc(f.Type, func(pattern string) bool { return match(pattern, topic) }) {
		k.fail(join(path, "type"), "lets nothing through: the route takes only "+topic, "remove the filter, or take all")
	}
}

// match reports whether the whole of text matches a pattern of a filter, in which *
// stands for any characters, also none, and ? for one. Unlike path.Match it knows no other
// special characters: brackets and slashes are legal in message types and names of files.
func match(pattern, text string) bool {
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

func (k *checker) to(path string, r Route) {
	if !k.exactlyOne(path, "sink", "gateway") {
		return
	}
	if g := r.To.Gateway; g != nil {
		at := join(path, "gateway")
		if k.has(path + ".topic") {
			k.fail(path+".topic", "is for sinks; the gateway has none", "remove it, or write gateway.type for the message type")
		}
		config := k.c.PublisherConfig(*g)
		config.Client = k.rules
		config.MaxRequests, config.PartialDelivery = 0, 0 // told at their own section
		k.ruling(at, *g, config.Validate(), map[string]string{"TenantID": "tenant", "EndpointID": "endpoint", "DirectRecipients": "recipients"})
		k.template(at+".type", g.Type)
		if r.From.Kind() == "gateway" && g.Endpoint == "" {
			k.fail(at+".endpoint", "is required: messages from the gateway do not say who sends them on", "write the ID of your endpoint")
		}
		if r.From.Kind() != "gateway" && g.Endpoint != "" && g.Tenant == "" {
			k.warn(at, "names the sending endpoint, but not its tenant: a message without the header "+gateway.KeyTenantID+" goes to the poison queue",
				"add tenant, the ID of the endpoint's tenant")
		}
		return
	}
	k.reference(path+".sink", r.To.Sink)
	if !k.template(path+".topic", r.To.Topic) {
		return
	}
	k.topic(path+".topic", r.To.Sink, withoutVariables(r.To.Topic))
	if s, ok := k.c.Sinks[r.To.Sink]; ok && s.Log != nil {
		k.warn(path+".sink", "stores nothing: what goes there is confirmed and gone", "use a log sink only for looking")
	}
	k.circle(path+".topic", r)
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
	k.fail(path, fmt.Sprintf("names a sink that is not there: %q", name), suggestion)
	return false
}

// template checks a template of topics or message types.
func (k *checker) template(path, text string) bool {
	_, err := sinks.ParseTopicTemplate(text)
	if err == nil {
		return true
	}
	message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), sinks.ErrBadTemplate.Error()+fmt.Sprintf(" %q", text)), ": ")
	var names []string
	for name := range sinks.TopicVariables() {
		names = append(names, name)
	}
	slices.Sort(names)
	suggestion := ""
	for _, used := range regexp.MustCompile(`\{([^{}|]*)`).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, used[1]) && !strings.HasPrefix(used[1], "meta:") {
			if near := nearest(used[1], names); near != "" {
				suggestion = "did you mean {" + near + "}?"
			}
		}
	}
	k.fail(path, message, suggestion)
	return false
}

// withoutVariables puts a letter in the place of each variable of a template.
func withoutVariables(template string) string {
	return regexp.MustCompile(`\{[^{}]*\}`).ReplaceAllString(template, "x")
}

// topic checks what stands in a topic as it is against the sink.
func (k *checker) topic(path, sink, topic string) {
	s, ok := k.c.Sinks[sink]
	switch {
	case !ok:
	case s.NATS != nil && (nats.Config{SubjectPrefix: s.NATS.SubjectPrefix + "." + topic}).Validate() != nil && (nats.Config{SubjectPrefix: s.NATS.SubjectPrefix}).Validate() == nil:
		k.fail(path, "is no topic for NATS: parts without white space, '*' and '>', joined by single dots", "")
	case s.Kafka != nil && !kafkaTopic(topic):
		k.fail(path, "is no topic for Kafka: letters, digits, '-', '_' and single dots", "")
	case strings.Contains("."+topic+".", ".."):
		k.fail(path, "has an empty part", "join parts by single dots")
	}
}

// circle warns of a route that feeds a route back to the gateway.
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
			k.warn(path, "goes to subjects that the route "+back.Name+" sends back to the gateway", "give the way back a subject of its own")
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
		k.warn("poison.sink", "stores nothing: messages that cannot be handled are confirmed and gone", "use a sink of NATS, Kafka or blob")
	}
	switch {
	case strings.ContainsAny(p.Topic, "{}"):
		k.fail("poison.topic", "must not be a template", "write a plain topic such as poison")
	default:
		k.topic("poison.topic", p.Sink, p.Topic)
	}
	k.ruling("retry", k.c.Retry, every(k.c.RouterConfig().Retry, router.RetryConfig{}), nil)
}

func (k *checker) dedup() {
	d := k.c.Dedup
	k.ruling("dedup", d, every(k.c.RouterConfig().Dedup, router.DedupConfig{}), nil)
	for _, section := range []string{DedupMemory, DedupBBolt, DedupNATSKV} {
		at := join("dedup", section)
		switch {
		case k.has(at) && d.Store != section:
			k.fail(at, "is about another store than dedup.store, which is "+d.Store, "remove one")
		case !k.has(at) && d.Store == section && section == DedupBBolt:
			k.fail(at, "is required by dedup.store", "add bbolt: {path: /var/lib/agrimill/dedup.db}")
		case !k.has(at) && d.Store == section && section == DedupNATSKV:
			k.fail(at, "is required by dedup.store", "add nats_kv: {url: …}")
		}
	}
	switch {
	case d.Store == DedupMemory && d.Memory != nil:
		k.ruling("dedup.memory", *d.Memory, d.Memory.StoreConfig().Validate(), nil)
	case d.Store == DedupBBolt && d.BBolt != nil && d.BBolt.Path != "":
		k.ruling("dedup.bbolt", *d.BBolt, every(d.BBolt.StoreConfig(), boltstore.Config{Path: d.BBolt.Path}), nil)
	case d.Store == DedupNATSKV && d.NATSKV != nil:
		config := d.NATSKV.StoreConfig(d)
		config.Conn = new(natsgo.Conn) // only its presence is checked
		k.ruling("dedup.nats_kv", *d.NATSKV, every(config, kvstore.Config{Conn: config.Conn}), nil)
		connection := nats.Config{}
		err := d.NATSKV.connect(&connection)
		k.ruling("dedup.nats_kv", *d.NATSKV, err, nil)
		k.ruling("dedup.nats_kv", *d.NATSKV, every(connection, nats.Config{}), nil)
	}
}

func (k *checker) rest() {
	c := k.c
	if c.ClaimCheck != nil {
		k.bucket("claim_check", c.ClaimCheck.URL)
		if c.ClaimCheck.URL != "" {
			k.ruling("claim_check", *c.ClaimCheck, c.ClaimCheck.StoreConfig().Validate(), nil)
		}
	}
	a := c.Admin
	if a.Address != AdminOff {
		k.ruling("admin", a, every(admin.Config{Address: a.Address, Hosts: a.Hosts, Token: a.Token.Reveal()}, admin.Config{}), nil)
		if host, _, err := net.SplitHostPort(a.Address); err == nil && !loopback(host) && a.PProf {
			k.warn("admin.pprof", "is open to everyone who can reach "+a.Address, "listen on 127.0.0.1, or switch it off")
		}
	}
	t := c.Tracing
	if t.OTLPEndpoint != "" {
		u, err := url.Parse(string(t.OTLPEndpoint))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			k.fail("tracing.otlp_endpoint", "must be an absolute http or https address", "e.g. http://127.0.0.1:4318")
		}
		_, err = t.TLS.Config()
		k.ruling("tracing", t, err, nil)
	}
	if t.SampleRatio < 0 || t.SampleRatio > 1 {
		k.fail("tracing.sample_ratio", "must be 0 to 1", "")
	}
}
