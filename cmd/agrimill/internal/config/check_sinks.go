package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	cloudblob "gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // the driver of file:// buckets
	"gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/filesync"
	"github.com/agrimill/agrimill/internal/natssubject"
	"github.com/agrimill/agrimill/router/farm"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/cloudevents"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
)

func (k *checker) sinks() {
	used := map[string]bool{k.c.Poison.Sink: true}
	for _, r := range k.c.Routes {
		used[r.To.Sink] = true
	}
	mistyped := slices.ContainsFunc(slices.Collect(maps.Keys(used)), func(name string) bool { return name != "" && k.c.Sinks[name] == (Sink{}) })
	for _, name := range slices.Sorted(maps.Keys(k.c.Sinks)) {
		s, path := k.c.Sinks[name], join("sinks", name)
		if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			k.fail(path, "must have a name of 1 to 64 letters, digits, - or _", "")
		}
		if !used[name] && !mistyped {
			k.warn(path, "is not used by any route", "remove it, or name it in a route's to.sink")
		}
		if !k.exactlyOne(path, "nats", "kafka", "blob", "log") {
			continue
		}
		switch path = join(path, s.Kind()); {
		case s.NATS != nil:
			config, err := s.NATS.SinkConfig(name)
			k.report(path, *s.NATS, err, config.Validate())
			k.contentTypes(path, name, s.NATS.CloudEvents)
		case s.Kafka != nil:
			config, err := s.Kafka.SinkConfig(name)
			k.report(path, *s.Kafka, err, config.Validate())
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

// collide finds topics that differ only in . and _: a Kafka cluster makes only one of them. Those that depend on a message are
// not known.
func (k *checker) collide() {
	names := map[[2]string]string{} // by brokers and the topic with _ for each dot
	add := func(path string, brokers []string, topic string) {
		if topic == "" {
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
		if s == nil || topic == "" || strings.ContainsAny(topic, "{}") {
			return
		}
		add(path, s.Brokers, kafka.TopicName(s.TopicPrefix, topic))
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
			takes(path+"nats.durable", i, "nats", account(s.Connection, s.TLS), s.Stream, s.Durable)
		}
		if s := r.From.Kafka; s != nil && k.has(path+"kafka.group") {
			for _, topic := range s.Topics {
				takes(path+"kafka.group", i, "kafka", strings.Join(s.Brokers, ","), topic, s.Group)
			}
		}
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(k.c.Sinks)), func(name string) bool { return k.c.Sinks[name].NATS == nil })
	for i, name := range names {
		for _, other := range names[:i] {
			s, first, path := k.c.Sinks[name].NATS, k.c.Sinks[other].NATS, join("sinks", name)+".nats."
			if account(s.Connection, s.TLS) != account(first.Connection, first.TLS) {
				continue
			}
			if s.Stream == first.Stream && s.SubjectPrefix != first.SubjectPrefix {
				k.fail(path+"stream", fmt.Sprintf("is also used by %s, which has a different subject_prefix", join("sinks", other)), "use different streams, or the same subject_prefix for both")
				break
			}
			if s.Stream != first.Stream && natssubject.Overlap(s.SubjectPrefix+".>", first.SubjectPrefix+".>") {
				k.fail(path+"subject_prefix", fmt.Sprintf("has subjects of %s, which has a different stream: NATS keeps a subject in one", join("sinks", other)), "use a different subject_prefix, or one stream for both")
				break
			}
		}
	}
}

// account tells apart the accounts of NATS that connections may be in. What is in the same one shares its streams.
func account(c nats.Connection, t *TLS) string {
	certificate := ""
	if t != nil {
		certificate = t.CertFile
	}
	return strings.Join([]string{c.URL, c.Domain, c.User, string(c.Token), c.CredentialsFile, c.NKeySeedFile, certificate}, "\x00")
}

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

// topics returns which topics a sink takes: all, if its own settings are wrong.
func (k *checker) topics(sink string) sinks.Topics {
	section := join("sinks", sink) + "."
	if slices.ContainsFunc(k.problems, func(p Problem) bool { return p.Severity == SeverityError && strings.HasPrefix(p.Path, section) }) {
		return sinks.AnyTopics{}
	}
	switch s := k.c.Sinks[sink]; {
	case s.NATS != nil:
		return asWritten{s.NATS, "nats", func(topic string) string { return nats.Subject(nats.NoSubjectPrefix, topic) }}
	case s.Kafka != nil:
		return asWritten{s.Kafka, "kafka", func(topic string) string { return kafka.TopicName(kafka.NoTopicPrefix, topic) }}
	default:
		return s.Topics()
	}
}

// asWritten takes no topic that the sink stores under another name: in the file it is a mistake.
type asWritten struct {
	sinks.Topics
	sink string
	name func(topic string) string
}

// CheckTopic implements [sinks.Topics].
func (a asWritten) CheckTopic(topic string) error {
	err := a.Topics.CheckTopic(topic)
	if name := a.name(topic); err == nil && name != topic {
		return sinks.NewError(a.sink, topic, sinks.ErrRejected, fmt.Errorf("%q would become %q", topic, name))
	}
	return err
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
		subjects := strings.Split(nats.Subject(s.SubjectPrefix, regexp.MustCompile(`\{[^{}]*\}`).ReplaceAllString(r.To.Topic, "x")), ".")
		for i, token := range subjects {
			if token == "x" {
				subjects[i] = "*"
			}
		}
		if natssubject.Overlap(source.Subject, strings.Join(subjects, ".")) {
			k.warn(path, "publishes to subjects that route "+back.Name+" sends back to the gateway", "use a separate subject for the way back")
		}
	}
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
	for i, r := range k.c.Routes {
		if path, reads := k.readsPoison(r); reads {
			k.warn(fmt.Sprintf("routes[%d].from.%s", i, path), "takes what is in the poison queue: what this route poisons comes back to it, without end", "leave the topic of the poison queue out")
		}
	}
	k.report("retry", k.c.Retry, k.c.Retry.Validate())
	poison := p.PoisonConfig
	poison.Publisher = discard{}
	k.report("poison", p, poison.Validate())
}

// readsPoison reports whether a route takes the records of the poison queue, and the key that says so.
func (k *checker) readsPoison(r Route) (path string, reads bool) {
	topic, sink := k.c.Poison.Topic, k.c.Sinks[k.c.Poison.Sink]
	switch from := r.From; {
	case from.NATS != nil && sink.NATS != nil:
		same := account(from.NATS.Connection, from.NATS.TLS) == account(sink.NATS.Connection, sink.NATS.TLS) &&
			(from.NATS.Stream == "" || from.NATS.Stream == sink.NATS.Stream) // NATS keeps a subject in one
		return "nats.subject", same && natssubject.Overlap(from.NATS.Subject, nats.Subject(sink.NATS.SubjectPrefix, topic))
	case from.Kafka != nil && sink.Kafka != nil:
		return "kafka.topics", slices.Equal(from.Kafka.Brokers, sink.Kafka.Brokers) && slices.Contains(from.Kafka.Topics, kafka.TopicName(sink.Kafka.TopicPrefix, topic))
	}
	return "", false
}
