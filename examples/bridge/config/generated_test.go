package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/sinks"
)

// schema.json and the page of the documentation are made of the types, their tags and
// their comments. They are made here, so that the bridge need not contain what makes
// them:
//
//	UPDATE=1 go test ./examples/bridge/config -run Generated

const pagePath = "../../../docs/bridge-configuration.md"

func TestGeneratedSchema(t *testing.T) {
	current(t, "schema.json", schema(t))
}

func TestGeneratedPage(t *testing.T) {
	current(t, pagePath, page(t))
}

// current holds a file against what it has to be, or writes it.
func current(t *testing.T, path string, want []byte) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, want, 0o644))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s is not current: UPDATE=1 go test ./examples/bridge/config -run Generated", filepath.Base(path))
	}
}

// comments returns the doc comments of types ("Sink") and fields ("Sink.NATS").
func comments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			types, ok := decl.(*ast.GenDecl)
			if !ok || types.Tok != token.TYPE {
				continue
			}
			for _, spec := range types.Specs {
				spec := spec.(*ast.TypeSpec)
				all[spec.Name.Name] = oneLine(types.Doc)
				if fields, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range fields.Fields.List {
						for _, name := range f.Names {
							all[spec.Name.Name+"."+name.Name] = oneLine(f.Doc)
						}
					}
				}
			}
		}
	}
	return all
}

func oneLine(doc *ast.CommentGroup) string { return strings.Join(strings.Fields(doc.Text()), " ") }

// meaning returns the comment of a field, with keys for the names of fields, each in
// the marks.
func meaning(t *testing.T, all map[string]string, section reflect.Type, name, mark string) string {
	t.Helper()
	owner := section
	f, ok := section.FieldByName(name)
	require.True(t, ok)
	if len(f.Index) > 1 {
		owner = section.Field(f.Index[0]).Type
	}
	text := all[owner.Name()+"."+name]
	require.NotEmpty(t, text, "%s.%s has no comment", owner.Name(), name)
	// Only names of two words and more are certainly names of fields, besides the one that
	// begins the comment.
	compound := regexp.MustCompile(`\b(?:[A-Z]+[a-z]+[A-Z]\w*|[A-Z]{2,}[a-z]\w*)\b`)
	key, _ := keyOf(section, name)
	text = compound.ReplaceAllStringFunc(text, func(word string) string {
		if key, _ := keyOf(section, word); key != "" && word != "CloudEvents" { // the name of a standard
			return mark + key + mark
		}
		return word
	})
	for _, before := range []string{"a file with ", "belongs to "} {
		if i := strings.Index(text, before); i >= 0 {
			word, rest, _ := strings.Cut(text[i+len(before):], ".")
			if key, _ := keyOf(section, strings.TrimSuffix(word, ", when it holds secrets")); key != "" {
				text = text[:i+len(before)] + mark + key + mark + strings.TrimPrefix(word, strings.TrimSuffix(word, ", when it holds secrets")) + "." + rest
			}
		}
	}
	return withoutName(text, name, mark+key+mark)
}

// withoutName takes the name that it is about off the beginning of a comment.
func withoutName(text string, names ...string) string {
	for _, name := range names {
		if rest, ok := strings.CutPrefix(text, name+" "); ok && !strings.HasPrefix(rest, "of ") {
			text = rest
		}
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "is "), "are ")
	if text != "" && text[0] != '`' {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return text
}

// defaults returns the defaults of a section by key, as they are written in a file. Keys
// without one are missing.
func defaults(section reflect.Type) map[string]string {
	v := reflect.New(section).Elem()
	new(decoder).fill(v)
	all := map[string]string{}
	for _, f := range fields(section) {
		value := v.FieldByIndex(f.index)
		var text string
		switch value := value.Interface().(type) {
		case Secret, List:
		case Backoff:
			text = durationText(value.Min) + " to " + durationText(value.Max)
		case time.Duration:
			text = durationText(value)
			if section == reflect.TypeFor[Backoff]() {
				text = "" // each place has its own
			}
		case Size:
			text = strings.NewReplacer(" ", "", ".0", "").Replace(humanize.IBytes(uint64(value)))
			if value == 0 {
				text = "0"
			}
		case URL:
			text = string(value)
		case string, bool, int, int64, float64:
			text = fmt.Sprint(value)
		}
		if text != "" {
			all[f.name] = text
		}
	}
	return all
}

func durationText(d time.Duration) string {
	text := d.String()
	for _, unit := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, unit) {
			text = strings.TrimSuffix(text, unit[1:])
		}
	}
	return text
}

// durations and sizes as they are written, for editors.
const (
	fromEnvironment = `\$\{`
	durationPattern = `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$|^[0-9]+d$|^0$`
	sizePattern     = `^[0-9]+(\.[0-9]+)? ?([kKMGTP]i?)?B?$`
)

// schema returns the JSON Schema of the configuration.
func schema(t *testing.T) []byte {
	t.Helper()
	all := comments(t)
	substituted := &jsonschema.Schema{Type: "string", Pattern: fromEnvironment}
	either := func(one *jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{one, substituted}}
	}
	text := func() *jsonschema.Schema {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}}}
	}
	reflector := jsonschema.Reflector{
		FieldNameTag: "yaml", RequiredFromJSONSchemaTags: true, ExpandedStruct: true, Anonymous: true,
		Mapper: func(typ reflect.Type) *jsonschema.Schema {
			switch typ {
			case reflect.TypeFor[Secret](), reflect.TypeFor[URL](), reflect.TypeFor[string]():
				return text()
			case reflect.TypeFor[time.Duration]():
				return either(&jsonschema.Schema{Type: "string", Pattern: durationPattern})
			case reflect.TypeFor[Size]():
				return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "integer", Minimum: "0"}, {Type: "string", Pattern: sizePattern}, substituted}}
			case reflect.TypeFor[List]():
				return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "array", Items: text()}}}
			case reflect.TypeFor[int](), reflect.TypeFor[int64]():
				return either(&jsonschema.Schema{Type: "integer"})
			case reflect.TypeFor[float64]():
				return either(&jsonschema.Schema{Type: "number"})
			case reflect.TypeFor[bool]():
				return either(&jsonschema.Schema{Type: "boolean"})
			}
			return nil
		},
	}
	root := reflector.Reflect(&Config{})
	root.Title = "Configuration of the bridge"
	root.PatternProperties = map[string]*jsonschema.Schema{"^x-": jsonschema.TrueSchema}

	seen := map[reflect.Type]bool{}
	var visit func(section reflect.Type)
	visit = func(section reflect.Type) {
		if seen[section] {
			return
		}
		seen[section] = true
		node := root
		if section != reflect.TypeFor[Config]() {
			node = root.Definitions[section.Name()]
		}
		require.NotNil(t, node, section.Name())
		node.Description = withoutName(all[section.Name()], section.Name())
		values := defaults(section)
		for _, f := range fields(section) {
			property, ok := node.Properties.Get(f.name)
			require.True(t, ok, "%s.%s", section.Name(), f.name)
			name := section.FieldByIndex(f.index).Name
			if allowed := f.tag.Get("enum"); allowed != "" {
				enum := &jsonschema.Schema{Type: "string"}
				for value := range strings.SplitSeq(allowed, ",") {
					enum.Enum = append(enum.Enum, value)
				}
				*property = *either(enum)
			}
			if f.tag.Get("off") == "true" {
				property.AnyOf = append(property.AnyOf, &jsonschema.Schema{Const: "off"})
			}
			property.Description = meaning(t, all, section, name, "")
			if value, ok := values[f.name]; ok && f.typ != reflect.TypeFor[Backoff]() {
				property.Default = value
				switch f.typ {
				case reflect.TypeFor[int](), reflect.TypeFor[int64](), reflect.TypeFor[float64](), reflect.TypeFor[bool]():
					property.Default = json.RawMessage(value)
				}
			}
			if f.tag.Get("required") == "true" {
				node.Required = append(node.Required, f.name)
			}
			inner := f.typ
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[Secret]() {
				visit(inner)
			}
		}
	}
	visit(reflect.TypeFor[Config]())
	one := uint64(1)
	for _, union := range []string{"Sink", "From"} {
		root.Definitions[union].MinProperties, root.Definitions[union].MaxProperties = &one, &one
	}
	out, err := json.MarshalIndent(root, "", "  ")
	require.NoError(t, err)
	return append(out, '\n')
}

const pageIntro = `# Configuration of the bridge

One YAML file. ` + "`bridge validate FILE`" + ` tells every mistake in it at once, offline, and ` + "`bridge check FILE`" + ` also tries the
connections. ` + "`bridge schema`" + ` prints the JSON Schema, by which editors complete and check the file; with the YAML language
server, put ` + "`# yaml-language-server: $schema=…`" + ` at the top.

- [minimal.yaml](../examples/bridge/examples/minimal.yaml): from the gateway to NATS in 20 lines
- [full.yaml](../examples/bridge/examples/full.yaml): every section, with comments

How values are written:

- ` + "`${NAME}`" + ` in a value is replaced by an environment variable, which has to be set; ` + "`${NAME:-default}`" + ` by the default when it
  is not. ` + "`$${`" + ` is ` + "`${`" + ` itself. Names of keys are not substituted.
- Secrets come from the environment, or from a file: every secret, headers of tracing aside, has a second key that ends in ` + "`_file`" + `. One that stands
  in the file itself is a warning. They appear in no log, no error and on no page.
- Durations are ` + "`500ms`, `30s`, `1h30m` or `7d`" + `; sizes are ` + "`64KiB`, `16MiB`, `1.5GiB`" + ` or a number of bytes.
- A list may be a single value.
- Templates of topics have variables in braces, VARIABLES and ` + "`{meta:KEY}`" + ` for any other metadata; after a
  bar stands what takes the place of a missing value. See [topics-and-keys.md](topics-and-keys.md).
- Names of files are relative to the directory of the configuration.
- Unknown keys, and keys that are there twice, are mistakes. Keys at the top that begin with ` + "`x-`" + ` are left alone: a place for anchors, which
  ` + "`<<: *name`" + ` merges into a section.
- 0 and an empty text mean the default wherever they are not said to mean something else.

This page is made of the types: ` + "`go generate ./examples/bridge/config`" + `.

`

// page returns the page of the documentation.
func page(t *testing.T) []byte {
	t.Helper()
	all := comments(t)
	var out strings.Builder
	variables := "`{" + strings.Join(slices.Sorted(maps.Keys(sinks.TopicVariables())), "}`, `{") + "}`"
	out.WriteString(strings.Replace(pageIntro, "VARIABLES", variables, 1))
	type part struct {
		typ  reflect.Type
		path string
	}
	var order []part
	paths := map[reflect.Type][]string{}
	walk(reflect.TypeFor[Config](), "", func(path string, f field) {
		inner := f.typ
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
			switch inner.Kind() {
			case reflect.Slice:
				path += "[]"
			case reflect.Map:
				path += ".<name>"
			}
			inner = inner.Elem()
		}
		if inner.Kind() != reflect.Struct || inner == reflect.TypeFor[Secret]() {
			return
		}
		if paths[inner] == nil {
			order = append(order, part{inner, path})
		}
		paths[inner] = append(paths[inner], path)
	})
	// The top, then every section where it first appears.
	table(t, &out, all, reflect.TypeFor[Config](), paths)
	for _, p := range order {
		fmt.Fprintf(&out, "## `%s`\n\n", p.path)
		if others := paths[p.typ][1:]; len(others) > 0 {
			fmt.Fprintf(&out, "Also `%s`.\n\n", strings.Join(others, "`, `"))
		}
		text := all[p.typ.Name()]
		fmt.Fprintf(&out, "%s\n\n", withoutName(text, p.typ.Name()))
		table(t, &out, all, p.typ, paths)
	}
	return []byte(out.String())
}

func table(t *testing.T, out *strings.Builder, all map[string]string, section reflect.Type, paths map[reflect.Type][]string) {
	t.Helper()
	values := defaults(section)
	out.WriteString("| key | value | default | meaning |\n|---|---|---|---|\n")
	for _, f := range fields(section) {
		value := valueName(f, paths)
		text, ok := values[f.name]
		switch {
		case f.tag.Get("required") == "true":
			text = "required"
		case ok && f.typ != reflect.TypeFor[bool]() || text == "true":
			text = "`" + text + "`"
		}
		what := meaning(t, all, section, section.FieldByIndex(f.index).Name, "`")
		what = strings.NewReplacer("|", `\|`, "{", "`{", "}", "}`").Replace(what)
		what = strings.NewReplacer("``", "`").Replace(what)
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", f.name, value, strings.ReplaceAll(text, "|", `\|`), what)
	}
	out.WriteString("\n")
}

// valueName says what kind of value a key has.
func valueName(f field, paths map[reflect.Type][]string) string {
	inner, many := f.typ, ""
	for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
		switch {
		case inner == reflect.TypeFor[List]():
			return "list"
		case inner.Kind() == reflect.Slice:
			many = "list of "
		case inner.Kind() == reflect.Map && inner.Elem().Kind() != reflect.Struct || inner == reflect.TypeFor[map[string]Secret]():
			return "names and texts"
		case inner.Kind() == reflect.Map:
			many = "names and "
		}
		inner = inner.Elem()
	}
	if known := paths[inner]; known != nil {
		anchor := strings.NewReplacer(".", "", "[", "", "]", "", "<", "", ">", "").Replace(strings.ToLower(known[0]))
		return fmt.Sprintf("%s[section](#%s)", many, anchor)
	}
	switch inner {
	case reflect.TypeFor[Secret]():
		return "secret"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[URL]():
		return "address"
	}
	if allowed := f.tag.Get("enum"); allowed != "" {
		return "`" + strings.Join(strings.Split(allowed, ","), "`, `") + "`"
	}
	return strings.TrimPrefix(typeName(inner, f.tag), "a ")
}

// Editors accept the examples, and what the reader accepts.
func TestSchemaAcceptsExamples(t *testing.T) {
	compiled := compile(t)
	paths, err := filepath.Glob("../examples/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range append(paths, "../deploy/compose/bridge.yaml", "../deploy/systemd/bridge.yaml") {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, compiled.Validate(asJSON(t, data)), path)
	}
}

// Editors mark what the reader refuses, as far as a schema can tell.
func TestSchemaRefuses(t *testing.T) {
	compiled := compile(t)
	for _, change := range [][2]string{
		{"base_url:", "base_ur:"},
		{"poison: {sink: farm}", ""},
		{"poison: {sink: farm}", "poison: {sink: farm, timeout: 30}"},
		{"poison: {sink: farm}", "poison: {sink: farm, timeout: soon}"},
		{"poison: {sink: farm}", "poison: {sink: farm}\nlog: {level: loud}"},
		{"poison: {sink: farm}", "poison: {sink: farm}\nsubscriber: {max_in_flight: many}"},
		{"poison: {sink: farm}", "poison: {sink: farm}\nadmin: {pprof: perhaps}"},
		{"gateway: all", "gateway: all, nats: {subject: x}"},
	} {
		require.Contains(t, small, change[0])
		text := strings.Replace(small, change[0], change[1], 1)
		require.Error(t, compiled.Validate(asJSON(t, []byte(text))), change[1])
	}
	require.NoError(t, compiled.Validate(asJSON(t, []byte(small))))
}

func compile(t *testing.T) *validator.Schema {
	t.Helper()
	document, err := validator.UnmarshalJSON(bytes.NewReader([]byte(Schema())))
	require.NoError(t, err)
	compiler := validator.NewCompiler()
	require.NoError(t, compiler.AddResource("schema.json", document))
	compiled, err := compiler.Compile("schema.json")
	require.NoError(t, err)
	return compiled
}

func asJSON(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	require.NoError(t, yaml.Load(data, &value))
	text, err := json.Marshal(value)
	require.NoError(t, err)
	value, err = validator.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return value
}

// The full example has every key of every section but those of which one excludes the
// other.
func TestFullExampleIsFull(t *testing.T) {
	data, err := os.ReadFile("../examples/full.yaml")
	require.NoError(t, err)
	var missing []string
	walk(reflect.TypeFor[Config](), "", func(path string, f field) {
		if !regexp.MustCompile(`\b` + f.name + `\b`).Match(data) {
			missing = append(missing, path)
		}
	})
	slices.Sort(missing)
	require.Empty(t, missing)
}
