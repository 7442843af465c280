package config

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
)

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
	k.apart()
	k.rest()
}

// at returns the position of a path, or else of the nearest parent.
func (d *decoder) at(path string) place {
	for path != "" {
		if at, ok := d.values[path]; ok {
			return at
		}
		if at, ok := d.keys[path]; ok {
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
	_, ok := d.keys[path]
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
func (d *decoder) report(path string, section any, errs ...error) {
	t := reflect.TypeOf(section)
	key := func(field string) string {
		if key, ok := keyOf(t, field); ok {
			return key
		}
		return field // one that agrimill sets itself
	}
	for _, err := range errs {
		for _, one := range validate.Fields(err) {
			at := strings.TrimSuffix(path+"."+key(one.Path), ".")
			section := at[:strings.LastIndexByte(at, '.')+1]
			d.fail(at, one.Rule(func(field string) string { return strings.TrimPrefix(path+"."+key(field), section) }), "")
		}
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
	request := gateway.SendMessageRequest{TenantID: anyID, EndpointID: anyID, MessageType: "any"}
	set(&request)
	k.invalid(path, k.rules.ValidateMessage(request))
}

func (k *checker) uuid(path, value string) {
	k.rule(path, func(r *gateway.SendMessageRequest) { r.TenantID = value })
}

func (k *checker) messageType(path, value string) {
	k.rule(path, func(r *gateway.SendMessageRequest) { r.MessageType = value })
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

// discard is a placeholder for a publisher: only its presence is checked.
type discard struct{ message.Publisher }

func absoluteHTTP(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

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
	if !absoluteHTTP(address) {
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
		k.report("admin", a, a.Validate())
	}
	k.report("journal", c.Journal, c.Journal.Config.Validate())
	t := c.Tracing
	if t.OTLPEndpoint != "" {
		if !absoluteHTTP(string(t.OTLPEndpoint)) {
			k.fail("tracing.otlp_endpoint", "must be an absolute http or https address", "e.g. http://127.0.0.1:4318")
		}
		_, err := t.TLS.Config()
		k.report("tracing", t, err)
	}
	if t.SampleRatio < 0 || t.SampleRatio > 1 {
		k.fail("tracing.sample_ratio", "must be 0 to 1", "")
	}
}
