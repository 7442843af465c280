package sinks

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TemplateError says what is wrong with a template: the error of [ParseTopicTemplate].
type TemplateError struct {
	// Text is the template.
	Text string
	// Reason is what is wrong with it.
	Reason string
	// Variable is the variable that is not known; empty when that is not the mistake.
	Variable string
}

// Error returns the template and the reason.
func (e *TemplateError) Error() string {
	return fmt.Sprintf("bad topic template %q: %s", e.Text, e.Reason)
}

// ErrMissingValue is wrapped by the errors of [TopicTemplate.Topic]. It also
// matches [ErrRejected]: without the value, the message has no topic.
var ErrMissingValue = errors.New("message lacks a value of the topic template")

// missingValue is an error that says once what is missing.
type missingValue struct{ template, name string }

// Error names the template and the variable.
func (e *missingValue) Error() string {
	return fmt.Sprintf("the message has no %s, which the template %q needs", e.name, e.template)
}

// Is matches [ErrMissingValue] and [ErrRejected].
func (e *missingValue) Is(target error) bool {
	return target == ErrMissingValue || target == ErrRejected
}

// Variables of topic templates, with the metadata keys they stand for.
var templateVariables = map[string]string{
	"tenant":    "x-router-tenant-id",
	"type":      "x-router-message-type",
	"event":     "x-router-event-type",
	"receiver":  "x-router-receiving-endpoint-id",
	"sender":    "x-router-endpoint-id",
	"context":   "x-router-context-id",
	"recipient": "x-router-direct-recipients",
	"teamset":   "x-router-teamset-context-id",
	"filename":  "x-router-filename",
}

// TopicVariables returns the variables of topic templates with the metadata
// keys they stand for. The caller may change the map.
func TopicVariables() map[string]string { return maps.Clone(templateVariables) }

// TopicTemplate makes topics out of the metadata of messages. It is immutable.
type TopicTemplate struct {
	text   string
	parts  []templatePart
	recent *recentTexts // nil in the zero value
}

// templatePart is either literal text or, when key is set, a value.
type templatePart struct {
	literal  string
	name     string
	key      string
	fallback string
}

// ParseTopicTemplate reads a template such as "{tenant}.{type}". Text outside
// of braces is copied as it is and has to be legal in the sink's topics. In
// braces stands a variable of [TopicVariables], or "meta:" and a metadata key.
// After "|" may follow a text that is used when the message has no such value
// or an empty one: "{tenant}.{type|untyped}".
//
// Each value becomes one segment by the sink's TopicSegment, so values cannot
// add segments of their own. The error is a [*TemplateError].
func ParseTopicTemplate(text string) (*TopicTemplate, error) {
	return ParseTemplate(text, templateVariables)
}

// ParseTemplate is [ParseTopicTemplate] with other variables: variables maps
// their names to metadata keys. The map is not kept.
func ParseTemplate(text string, variables map[string]string) (*TopicTemplate, error) {
	if text == "" {
		return nil, &TemplateError{Reason: "must not be empty"}
	}
	t := &TopicTemplate{text: text, recent: &recentTexts{seed: maphash.MakeSeed()}}
	rest := text
	for rest != "" {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			t.parts = append(t.parts, templatePart{literal: rest})
			break
		}
		if rest[open] == '}' {
			return nil, &TemplateError{Text: text, Reason: "has } without {"}
		}
		if open > 0 {
			t.parts = append(t.parts, templatePart{literal: rest[:open]})
		}
		end := strings.IndexByte(rest[open:], '}')
		if end < 0 {
			return nil, &TemplateError{Text: text, Reason: "has { without }"}
		}
		name, fallback, hasFallback := strings.Cut(rest[open+1:open+end], "|")
		if hasFallback && fallback == "" {
			return nil, &TemplateError{Text: text, Reason: fmt.Sprintf("has nothing after | of %q", name)}
		}
		key, ok := variables[name]
		if metaKey, isMeta := strings.CutPrefix(name, "meta:"); isMeta && metaKey != "" {
			key, ok = metaKey, true
		}
		if !ok {
			return nil, &TemplateError{Text: text, Variable: name, Reason: fmt.Sprintf("has the unknown variable %q; known are %s and meta:<metadata key>",
				name, strings.Join(slices.Sorted(maps.Keys(variables)), ", "))}
		}
		t.parts = append(t.parts, templatePart{name: name, key: key, fallback: fallback})
		rest = rest[open+end+1:]
	}
	return t, nil
}

// String returns the template's text.
func (t *TopicTemplate) String() string { return t.text }

// Required returns the metadata keys without which a message has no topic, by the names of their
// variables in the template: those without a text after "|".
func (t *TopicTemplate) Required() map[string]string {
	required := map[string]string{}
	for _, part := range t.parts {
		if part.key != "" && part.fallback == "" {
			required[part.name] = part.key
		}
	}
	return required
}

// sampleID stands for the IDs of endpoints and tenants, which the gateway makes.
const sampleID = "00000000-0000-4000-8000-000000000000"

// samples are the shortest values of variables that have a least length. Other values may be one letter.
var samples = map[string]string{"tenant": sampleID, "receiver": sampleID, "sender": sampleID, "recipient": sampleID}

// Check returns nil if topics takes what the template makes of the shortest values, and of its fallbacks.
// Otherwise no message, or no message without the value, could be stored; the error is that of CheckTopic.
func (t *TopicTemplate) Check(topics Topics) error {
	for _, values := range t.Samples() {
		topic, err := t.Topic(values, topics.TopicSegment)
		if err == nil {
			err = topics.CheckTopic(topic)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Samples returns the metadata of two messages to try the template with: one that has the shortest value
// of each variable, and one that has only those without a fallback.
func (t *TopicTemplate) Samples() [2]message.Metadata {
	all, required := message.Metadata{}, message.Metadata{}
	for _, part := range t.parts {
		if part.key == "" {
			continue
		}
		all[part.key] = cmp.Or(samples[part.name], "x")
		if part.fallback == "" {
			required[part.key] = all[part.key]
		}
	}
	return [2]message.Metadata{all, required}
}

// Topic returns the topic of a message. segment is the TopicSegment of the sink
// that gets it. The error says which value is missing and matches
// [ErrMissingValue] and [ErrRejected].
func (t *TopicTemplate) Topic(metadata message.Metadata, segment func(string) string) (string, error) {
	return t.Render(metadata, func(_, value string) string { return segment(value) })
}

// Render is Topic with an escape that also gets the name of the variable, as it
// stands in the template.
func (t *TopicTemplate) Render(metadata message.Metadata, escape func(name, value string) string) (string, error) {
	var space [128]byte // most topics
	b := space[:0]
	for _, part := range t.parts {
		if part.key == "" {
			b = append(b, part.literal...)
			continue
		}
		value := metadata.Get(part.key)
		if value == "" {
			value = part.fallback
		}
		if value == "" {
			return "", &missingValue{t.text, part.name}
		}
		b = append(b, escape(part.name, value)...)
	}
	return t.recent.text(b), nil
}

// recentTexts saves most messages a string of their own: few have another topic than the ones before
// them.
type recentTexts struct {
	seed  maphash.Seed
	slots [64]recentText // by hash
}

type recentText struct {
	// missed is the hash of the latest text that was not there. One that never comes again takes no
	// slot.
	missed atomic.Uint64
	text   atomic.Pointer[string]
}

// text returns b as a string.
func (r *recentTexts) text(b []byte) string {
	if r == nil {
		return string(b)
	}
	hash := maphash.Bytes(r.seed, b)
	slot := &r.slots[hash%uint64(len(r.slots))]
	if text := slot.text.Load(); text != nil && *text == string(b) {
		return *text
	}
	text := string(b)
	if slot.missed.Swap(hash) == hash {
		kept := text
		slot.text.Store(&kept)
	}
	return text
}
