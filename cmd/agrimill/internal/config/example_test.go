package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"go.yaml.in/yaml/v4"
)

// examples/full.yaml is what testdata/example.yaml says, with every key that it leaves out:
// with its default, or commented out where there is none. So a new setting gets there by
// its field, and values that mean something are all that is written by hand.

const examplePath = "../../examples/full.yaml"

func TestGeneratedExample(t *testing.T) {
	current(t, examplePath, example(t))
}

// What is added is only defaults: the example means what it is made of.
func TestExampleAddsDefaultsOnly(t *testing.T) {
	dir := t.TempDir() // one for both, since paths are relative to it
	load := func(path string) string {
		data := testkit.Must(os.ReadFile(path))(t)
		c := testkit.Must(Parse(filepath.Join(dir, "agrimill.yaml"), data, exampleEnvironment))(t)
		settings := c.Settings()
		for i := range settings {
			settings[i].Source = ""
		}
		text := testkit.Must(json.MarshalIndent(settings, "", " "))(t)
		return string(text)
	}
	got, want := strings.Split(load(examplePath), "\n"), strings.Split(load("testdata/example.yaml"), "\n")
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("as JSON, line %d: got %s, want %s", i, got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d lines of JSON, want %d", len(got), len(want))
	}
}

var exampleEnvironment = environment(map[string]string{
	"AGRIMILL_BASE_URL": "http://127.0.0.1:8081", "AGRIMILL_TOKEN_URL": "http://127.0.0.1:8081/oauth/token", "AGRIMILL_CLIENT_ID": "agrimill",
	"AGRIMILL_CLIENT_SECRET": "secret", "AGRIMILL_APPLICATION_ID": "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d01",
	"AGRIMILL_SOFTWARE_VERSION_ID": "3d3ef5a4-4a4c-4f0f-9d0c-6b5f0f8a5d02", "AGRIMILL_ADMIN_TOKEN": "long-enough-this-one", "OTLP_KEY": "key",
})

const exampleIntro = `# yaml-language-server: $schema=../internal/config/schema.json
#
# Every key of the configuration, most of them with their defaults: what is left out has
# its default. docs/reference.md says more about each. "agrimill validate FILE" reports
# every mistake in a file at once, and "agrimill check FILE" tries the connections.
#
# ${NAME} is an environment variable, ${NAME:-default} one that may be missing; $${ is ${.
# Every secret has a second key that ends in _file. Durations are 500ms, 30s, 1h30m or 7d,
# sizes 64KiB, 16MiB or a number of bytes. Names of files are relative to the directory of
# this file. Keys at the top that begin with x- are left alone: a place for anchors, which
# <<: *name merges into a section.
#
# Made of the types and of internal/config/testdata/example.yaml: go generate ./cmd/agrimill/internal/config
`

// example returns examples/full.yaml.
func example(t *testing.T) []byte {
	t.Helper()
	data := testkit.Must(os.ReadFile("testdata/example.yaml"))(t)
	var document yaml.Node
	testkit.NoError(t, yaml.Unmarshal(data, &document))
	e := &exampleWriter{T: t, comments: comments(t), seen: map[reflect.Type]bool{}}
	e.out.WriteString(exampleIntro)
	e.section(reflect.TypeFor[Config](), document.Content[0], "", false)
	return []byte(e.out.String())
}

// exampleWriter writes the example. A type is shown with all of its keys where it first
// stands, elsewhere with those that testdata/example.yaml has.
type exampleWriter struct {
	*testing.T
	out      strings.Builder
	comments map[string]string
	seen     map[reflect.Type]bool
}

// width is where comments are wrapped.
const width = 110

// alternatives are the types of whose keys one excludes the others.
var alternatives = map[reflect.Type]bool{reflect.TypeFor[Sink](): true, reflect.TypeFor[From](): true, reflect.TypeFor[To](): true}

// section writes the keys of a section that stands indented; given is what the example
// has of it, or nil. The first key of an item is one that is given.
func (e *exampleWriter) section(section reflect.Type, given *yaml.Node, indent string, isItem bool) {
	values := defaults(section)
	shown := map[reflect.Type]bool{}
	keys := fields(section)
	// What stands behind the dash of an item may not be a comment.
	if first := slices.IndexFunc(keys, func(f field) bool { _, value := lookup(given, f.name); return value != nil }); isItem && first > 0 {
		keys = slices.Concat(keys[first:first+1], keys[:first], keys[first+1:])
	}
	for _, f := range keys {
		key, value := lookup(given, f.name)
		owner := ownerOf(section, f)
		shown[owner] = true
		if value == nil && (f.base != "" || e.seen[owner] || alternatives[section]) {
			continue
		}
		comment := e.comment(section, f)
		if e.seen[owner] || alternatives[section] {
			comment = "" // stands where the type first stands
		}
		switch {
		case indent == "":
			e.out.WriteByte('\n')
			e.above(indent, meaning(e.T, e.comments, section, f, ""))
			comment = ""
		case key != nil && key.HeadComment != "":
			e.above(indent, strings.TrimPrefix(strings.ReplaceAll(key.HeadComment, "\n# ", " "), "# "))
		}
		if value != nil && value.LineComment != "" {
			comment = strings.TrimPrefix(value.LineComment, "# ")
		}
		e.key(f, value, values[f.name], indent, comment)
	}
	for owner := range shown {
		e.seen[owner] = true
	}
}

// key writes one key, with what is given for it or else its default.
func (e *exampleWriter) key(f field, given *yaml.Node, value, indent, comment string) {
	typ := f.typ
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	isSection := typ.Kind() == reflect.Struct && !isScalar(typ)
	switch {
	case isSection && given == nil && (f.typ.Kind() == reflect.Pointer || len(defaults(typ)) == 0):
		var keys []string
		for _, inner := range fields(typ) {
			if inner.base == "" {
				keys = append(keys, inner.name+": …")
			}
		}
		e.line(indent, "# "+f.name, "{"+strings.Join(keys, ", ")+"}", comment)
	case isSection && !(e.seen[typ] && given != nil && given.Style&yaml.FlowStyle != 0):
		e.line(indent, f.name, "", comment)
		e.section(typ, given, indent+"  ", false)
	case given == nil:
		if value == "" {
			value = zero(f)
		}
		if value == "" {
			e.line(indent, "# "+f.name, "…", comment)
			return
		}
		e.line(indent, f.name, scalar(value), comment)
	case given.Kind == yaml.MappingNode && typ.Kind() == reflect.Map && typ.Elem().Kind() == reflect.Struct:
		e.line(indent, f.name, "", comment)
		for i := 0; i < len(given.Content); i += 2 {
			e.line(indent+"  ", given.Content[i].Value, "", "")
			e.section(typ.Elem(), given.Content[i+1], indent+"    ", false)
		}
	case given.Kind == yaml.SequenceNode && typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct && given.Style&yaml.FlowStyle == 0:
		e.line(indent, f.name, "", comment)
		for _, item := range given.Content {
			e.item(typ.Elem(), item, indent+"  ")
		}
	default:
		e.line(indent, f.name, inline(given), comment)
	}
}

// item writes an item of a list.
func (e *exampleWriter) item(typ reflect.Type, given *yaml.Node, indent string) {
	if given.HeadComment != "" {
		e.above(indent, strings.TrimPrefix(strings.ReplaceAll(given.HeadComment, "\n# ", " "), "# "))
	}
	if given.Style&yaml.FlowStyle != 0 {
		e.out.WriteString(indent + "- " + inline(given) + "\n")
		return
	}
	start := e.out.Len()
	e.section(typ, given, indent+"  ", true)
	text := e.out.String()
	text, item := text[:start], text[start:]
	// The dash goes to the first key, before which there may be a comment.
	for strings.HasPrefix(item, indent+"  #") {
		line, rest, _ := strings.Cut(item, "\n")
		text, item = text+indent+strings.TrimPrefix(line, indent+"  ")+"\n", rest
	}
	e.out.Reset()
	e.out.WriteString(text + indent + "- " + strings.TrimPrefix(item, indent+"  "))
}

// comment is what is said of a key: the brief meaning, and what it may be.
func (e *exampleWriter) comment(section reflect.Type, f field) string {
	if f.base != "" {
		return ""
	}
	text := strings.ReplaceAll(strings.TrimSuffix(brief(meaning(e.T, e.comments, section, f, "")), "."), "`", "")
	if f.tag.Get("off") == "true" && !strings.Contains(text, "off for none") {
		text += "; off for none"
	}
	if values := strings.Split(f.tag.Get("enum"), ","); slices.ContainsFunc(values, func(v string) bool { return !strings.Contains(text, v) }) {
		text += " (" + strings.Join(values, ", ") + ")"
	}
	if f.typ == reflect.TypeFor[Secret]() || f.tag.Get("twin") == "true" {
		text += "; or " + f.name + "_file"
	}
	return text
}

// line writes a key and its value, with the comment behind it or, where that is too
// long, above.
func (e *exampleWriter) line(indent, key, value, comment string) {
	line := indent + key + ":"
	if value != "" {
		line += " " + value
	}
	switch {
	case comment == "":
	case len(line)+3+len(comment) <= width:
		line += " # " + comment
	default:
		e.above(indent, comment)
	}
	e.out.WriteString(line + "\n")
}

// above writes a comment on lines of its own.
func (e *exampleWriter) above(indent, comment string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(comment) {
		if len(line)+1+len(word) > width {
			e.out.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	e.out.WriteString(line + "\n")
}

// zero is how the zero value of a key is written that has no default; empty when it
// cannot be.
func zero(f field) string {
	switch {
	case f.typ.Kind() == reflect.Slice:
		return "[]"
	case f.typ == reflect.TypeFor[time.Duration](), isScalar(f.typ):
		return ""
	case f.typ.Kind() >= reflect.Int && f.typ.Kind() <= reflect.Int64:
		return "0"
	}
	return ""
}

// scalar writes a value, in quotes where it would be read as something else.
func scalar(text string) string {
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil || strings.Trim(fmt.Sprint(value), "[]{}") != strings.Trim(text, "[]") {
		return strconv.Quote(text)
	}
	return text
}

// lookup returns a key of a mapping and its value.
func lookup(mapping *yaml.Node, name string) (key, value *yaml.Node) {
	if mapping == nil {
		return nil, nil
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i], mapping.Content[i+1]
		}
	}
	return nil, nil
}

// inline writes a node on one line.
func inline(node *yaml.Node) string {
	var parts []string
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			parts = append(parts, inline(node.Content[i])+": "+inline(node.Content[i+1]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case yaml.SequenceNode:
		for _, item := range node.Content {
			parts = append(parts, inline(item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	if node.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		return strconv.Quote(node.Value)
	}
	return node.Value
}
