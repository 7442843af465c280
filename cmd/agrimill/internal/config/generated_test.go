package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/invopop/jsonschema"
	"github.com/nats-io/nats.go/jetstream"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// schema.json and the page of the documentation are made of the types, their tags and
// their comments. They are made here, so that agrimill need not contain what makes
// them:
//
//	UPDATE=1 go test ./cmd/agrimill/internal/config -run Generated

const pagePath = "../../../../docs/reference.md"

func TestGeneratedSchema(t *testing.T) {
	current(t, "schema.json", schema(t))
}

func TestGeneratedPage(t *testing.T) {
	current(t, pagePath, page(t))
}

// The page leaves the variables of templates to another one.
func TestTopicVariablesAreDocumented(t *testing.T) {
	page := testkit.Must(os.ReadFile("../../../../docs/topics-and-keys.md"))(t)
	for name := range sinks.TopicVariables() {
		if !strings.Contains(string(page), "`{"+name+"}`") {
			t.Errorf("docs/topics-and-keys.md does not have {%s}", name)
		}
	}
}

// current holds a file against what it has to be, or writes it.
func current(t *testing.T, path string, want []byte) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		testkit.NoError(t, os.WriteFile(path, want, 0o644))
	}
	got := testkit.Must(os.ReadFile(path))(t)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s is not current: UPDATE=1 go test ./cmd/agrimill/internal/config -run Generated", filepath.Base(path))
	}
}

// comments returns the doc comments of types ("sinks/nats.Config") and fields
// ("sinks/nats.Config.URL"), of the packages whose configurations have keys.
func comments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	dirs := map[string]bool{}
	var visit func(section reflect.Type)
	visit = func(section reflect.Type) {
		for section.Kind() == reflect.Pointer || section.Kind() == reflect.Slice || section.Kind() == reflect.Map {
			section = section.Elem()
		}
		if section.Kind() != reflect.Struct || isScalar(section) || !strings.HasPrefix(section.PkgPath(), modulePath) {
			return
		}
		dirs[strings.TrimPrefix(section.PkgPath(), modulePath)] = true
		for i := range section.NumField() {
			if tag := section.Field(i).Tag.Get("yaml"); tag != "" && tag != "-" {
				visit(section.Field(i).Type)
			}
		}
	}
	visit(reflect.TypeFor[Config]())
	for dir := range dirs {
		files := testkit.Must(filepath.Glob(filepath.Join("../../../..", dir, "*.go")))(t)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file := testkit.Must(parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments))(t)
			collect(file, dir, all)
		}
	}
	return all
}

const modulePath = "github.com/agrimill/agrimill/"

func collect(file *ast.File, dir string, all map[string]string) {
	for _, decl := range file.Decls {
		types, ok := decl.(*ast.GenDecl)
		if !ok || types.Tok != token.TYPE {
			continue
		}
		for _, spec := range types.Specs {
			spec := spec.(*ast.TypeSpec)
			name := dir + "." + spec.Name.Name
			all[name] = oneLine(types.Doc)
			fields, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			before := ""
			for _, f := range fields.Fields.List {
				doc := oneLine(f.Doc)
				if doc == "" {
					doc = before // one comment for several fields
				}
				before = doc
				for _, n := range f.Names {
					all[name+"."+n.Name] = doc
				}
			}
		}
	}
}

// typeKey is the key of a type in [comments].
func typeKey(t reflect.Type) string {
	return strings.TrimPrefix(t.PkgPath(), modulePath) + "." + t.Name()
}

func oneLine(doc *ast.CommentGroup) string { return strings.Join(strings.Fields(doc.Text()), " ") }

// meaning returns the comment of a field for someone who writes the file: with keys
// for the names of fields, each in the marks, and without what is about Go.
func meaning(t *testing.T, all map[string]string, section reflect.Type, f field, mark string) string {
	t.Helper()
	if f.base != "" {
		return "File with " + mark + f.base + mark + "."
	}
	owner := ownerOf(section, f)
	name := owner.Field(f.index[len(f.index)-1]).Name
	text := all[typeKey(owner)+"."+name]
	if text == "" {
		t.Fatalf("%s.%s has no comment", typeKey(owner), name)
	}
	text = withoutGo(text)
	// Names of two words and more are certainly names of fields, besides the one that begins
	// the comment. One capitalized word is, inside of a sentence of a library's comment.
	names := `[A-Z]+[a-z]+[A-Z]\w*|[A-Z]{2,}[a-z]\w*`
	if owner.PkgPath() != reflect.TypeFor[Config]().PkgPath() {
		names += `|\w*[a-z,] [A-Z][a-z]+`
	}
	key, _ := keyOf(owner, name)
	text = regexp.MustCompile(`\b(?:`+names+`)\b`).ReplaceAllStringFunc(text, func(found string) string {
		before, word := "", found
		if i := strings.LastIndexByte(found, ' '); i >= 0 {
			before, word = found[:i+1], found[i+1:]
		}
		if key, ok := keyOf(owner, word); ok && word != "CloudEvents" { // the name of a standard
			return before + mark + key + mark
		}
		return found
	})
	return withoutName(speaksYAML(t, text), name, mark+key+mark)
}

// goNames are names of Go in a comment. Names of products look like them.
var goNames = regexp.MustCompile(`\b[a-z]+\.[A-Z]\w+|\b[A-Z]+[a-z]+[A-Z]\w*|\b(New|Conn|Publish|Describe|Store|Put|Close|[Nn]il)\b`)

// speaksYAML leaves out the sentences that name something of Go; the first must not.
func speaksYAML(t *testing.T, text string) string {
	t.Helper()
	var kept []string
	for i, sentence := range strings.Split(text, ". ") {
		plain := strings.NewReplacer("JetStream", "", "TaskData", "", "GeoParquet", "", "CloudEvent", "", "OpenTelemetry", "").Replace(sentence)
		if i == 0 { // begins with the name of the field
			_, plain, _ = strings.Cut(plain, " ")
		}
		switch name := goNames.FindString(plain); {
		case name == "":
			kept = append(kept, sentence)
		case i == 0:
			t.Errorf("%q speaks of %s", sentence, name)
		}
	}
	return strings.TrimSuffix(strings.Join(kept, ". "), ".") + "."
}

// withoutGo takes the sentences off a comment that are about Go: defaults, which have a
// column of their own, and links. "off with [Off]" becomes off.
func withoutGo(text string) string {
	var kept []string
	for sentence := range strings.SplitSeq(strings.TrimSuffix(text, "."), ". ") {
		switch {
		case strings.HasPrefix(sentence, "Default") && strings.Contains(sentence, "off with ["):
			kept = append(kept, "`off` for none")
			continue
		case strings.HasPrefix(sentence, "Default"), sentence == "Required", sentence == "Optional", strings.Contains(sentence, " is an error"),
			strings.HasPrefix(sentence, "Required, "), strings.HasPrefix(sentence, "Not together with Marshaler"),
			strings.HasPrefix(sentence, "Nil means"), strings.HasPrefix(sentence, "0 means ["), strings.HasPrefix(sentence, "Empty means ["):
			continue
		}
		kept = append(kept, sentence)
	}
	text = strings.Join(kept, ". ") + "."
	text = regexp.MustCompile(` is \[\w+\] by default`).ReplaceAllString(text, " is chosen by name")
	text = regexp.MustCompile(`[;,] see \[[\w.]+\]| \((?:see )?\[[\w.]+\]\)`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\[(?:\w+\.)*(\w+)\]`).ReplaceAllString(text, "$1")
	return text
}

// withoutName takes the name that it is about off the beginning of a comment.
func withoutName(text string, names ...string) string {
	for _, name := range names {
		if rest, ok := strings.CutPrefix(text, name+" "); ok && !strings.HasPrefix(rest, "of ") {
			text = rest
		}
	}
	for _, verb := range []string{"is ", "are ", "says "} {
		if !strings.HasPrefix(text, "says that ") {
			text = strings.TrimPrefix(text, verb)
		}
	}
	if text != "" && text[0] != '`' {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return text
}

// defaults returns the defaults of a section by key, as they are written in a file. Keys
// without one are missing.
func defaults(section reflect.Type) map[string]string {
	v, ok := instances()[section]
	if !ok {
		v = reflect.New(section).Elem()
	}
	all := map[string]string{}
	for _, f := range fields(section) {
		if text := valueText(v.FieldByIndex(f.index), f); text != "" && f.base == "" {
			all[f.name] = text
		}
	}
	return all
}

// instances returns a section of each type as it is by default, where it first stands: the
// defaults of a part are those of the whole.
var instances = sync.OnceValue(func() map[reflect.Type]reflect.Value {
	all := map[reflect.Type]reflect.Value{}
	var visit func(v reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			v = reflect.New(v.Type().Elem())
		case reflect.Slice, reflect.Map:
			v = reflect.New(v.Type().Elem())
			if v.Elem().Kind() == reflect.Pointer {
				return
			}
		}
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
			if v.Kind() == reflect.Struct {
				fill(v)
				fillDefaults(v)
			}
		}
		if v.Kind() != reflect.Struct || isScalar(v.Type()) {
			return
		}
		if _, ok := all[v.Type()]; !ok {
			all[v.Type()] = v
		}
		for _, f := range fields(v.Type()) {
			visit(v.FieldByIndex(f.index))
		}
	}
	visit(reflect.ValueOf(new(Config)))
	return all
})

func valueText(v reflect.Value, f field) string {
	switch value := v.Interface().(type) {
	case Secret:
		return ""
	case time.Duration:
		if value == 0 {
			return "" // without limit, or said in words
		}
		return durationText(value)
	case URL:
		return string(value)
	case jetstream.StorageType:
		return strings.ToLower(value.String())
	case jetstream.RetentionPolicy:
		return strings.ToLower(value.String())
	case fmt.Stringer:
		if isScalar(v.Type()) {
			return strings.ToLower(value.String())
		}
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		if f.tag.Get("unit") == "bytes" && v.Int() > 0 {
			return strings.NewReplacer(" ", "", ".0", "").Replace(humanize.IBytes(uint64(v.Int())))
		}
		if v.Int() == 0 {
			return ""
		}
		return fmt.Sprint(v.Int())
	case reflect.String, reflect.Bool, reflect.Float64:
		return fmt.Sprint(v.Interface())
	}
	return ""
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
	s := &schemas{T: t, comments: comments(t), definitions: jsonschema.Definitions{}}
	root := s.object(reflect.TypeFor[Config]())
	root.Version = jsonschema.Version
	root.Title = "Configuration of agrimill"
	root.PatternProperties = map[string]*jsonschema.Schema{"^x-": jsonschema.TrueSchema}
	root.Definitions = s.definitions
	one := uint64(1)
	for _, union := range []reflect.Type{reflect.TypeFor[Sink](), reflect.TypeFor[From]()} {
		definition := s.definitions[definitionName(union)]
		definition.MinProperties, definition.MaxProperties = &one, &one
	}
	out := testkit.Must(json.MarshalIndent(root, "", "  "))(t)
	return append(out, '\n')
}

// schemas makes the schemas of sections.
type schemas struct {
	*testing.T
	comments    map[string]string
	definitions jsonschema.Definitions
}

// definitionName tells the types of different packages apart.
func definitionName(section reflect.Type) string {
	dir := strings.TrimPrefix(section.PkgPath(), modulePath)
	if section.PkgPath() == reflect.TypeFor[Config]().PkgPath() {
		return section.Name()
	}
	return strings.ReplaceAll(dir, "/", ".") + "." + section.Name()
}

// object returns the schema of a section.
func (s *schemas) object(section reflect.Type) *jsonschema.Schema {
	node := &jsonschema.Schema{Type: "object", AdditionalProperties: jsonschema.FalseSchema, Properties: jsonschema.NewProperties()}
	node.Description = s.about(section)
	values := defaults(section)
	for _, f := range fields(section) {
		property := s.value(f.typ, f.tag)
		if f.tag.Get("off") == "true" {
			property.AnyOf = append(property.AnyOf, &jsonschema.Schema{Const: "off"})
		}
		property.Description = meaning(s.T, s.comments, section, f, "")
		if value, ok := values[f.name]; ok {
			property.Default = value
			switch {
			case isScalar(f.typ), f.typ == reflect.TypeFor[time.Duration](), f.tag.Get("unit") != "", f.typ.Kind() == reflect.String:
			default:
				property.Default = json.RawMessage(value)
			}
		}
		if f.tag.Get("required") == "true" {
			node.Required = append(node.Required, f.name)
		}
		node.Properties.Set(f.name, property)
	}
	return node
}

func (s *schemas) about(section reflect.Type) string {
	return withoutGo(withoutName(s.comments[typeKey(section)], section.Name()))
}

// value returns the schema of a value.
func (s *schemas) value(typ reflect.Type, tag reflect.StructTag) *jsonschema.Schema {
	substituted := &jsonschema.Schema{Type: "string", Pattern: fromEnvironment}
	either := func(one *jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{one, substituted}}
	}
	text := func() *jsonschema.Schema {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}}}
	}
	if allowed := tag.Get("enum"); allowed != "" {
		enum := &jsonschema.Schema{Type: "string"}
		for value := range strings.SplitSeq(allowed, ",") {
			enum.Enum = append(enum.Enum, value)
		}
		return either(enum)
	}
	switch {
	case typ == reflect.TypeFor[time.Duration]():
		return either(&jsonschema.Schema{Type: "string", Pattern: durationPattern})
	case tag.Get("unit") == "bytes":
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "integer", Minimum: "0"}, {Type: "string", Pattern: sizePattern}, substituted}}
	case isScalar(typ), typ.Kind() == reflect.String:
		return text()
	}
	switch typ.Kind() {
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		return either(&jsonschema.Schema{Type: "integer"})
	case reflect.Float64:
		return either(&jsonschema.Schema{Type: "number"})
	case reflect.Bool:
		return either(&jsonschema.Schema{Type: "boolean"})
	case reflect.Pointer:
		return s.value(typ.Elem(), "")
	case reflect.Map:
		return &jsonschema.Schema{Type: "object", AdditionalProperties: s.value(typ.Elem(), "")}
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.String {
			return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "array", Items: text()}}}
		}
		return &jsonschema.Schema{Type: "array", Items: s.value(typ.Elem(), "")}
	}
	if got := typ.Kind(); got != reflect.Struct {
		s.Fatalf("typ.Kind() = %v, want %v: %s", got, reflect.Struct, typ)
	}
	name := definitionName(typ)
	if s.definitions[name] == nil {
		s.definitions[name] = &jsonschema.Schema{} // a type may be in itself
		*s.definitions[name] = *s.object(typ)
	}
	return &jsonschema.Schema{Ref: "#/$defs/" + name}
}

const pageIntro = `# Configuration

agrimill reads one YAML file. ` + "`agrimill validate FILE`" + ` reports every mistake in it; ` + "`agrimill check FILE`" + ` also
tries the connections. Start from [20 lines](../cmd/agrimill/examples/minimal.yaml), or from
[every key](../cmd/agrimill/examples/full.yaml).

For completion and the full description of each key in your editor, save the output of ` + "`agrimill schema`" + ` and begin the
file with ` + "`# yaml-language-server: $schema=…`" + `.

How to write values:

- ` + "`${NAME}`" + ` in a value is replaced by an environment variable, which must be set; ` + "`${NAME:-default}`" + ` falls back to the default.
  ` + "`$${`" + ` is a literal ` + "`${`" + `. Keys are not substituted.
- A secret comes from the environment or from the file that its ` + "`_file`" + ` key names; one written into the configuration is a warning.
- Durations: ` + "`500ms`, `30s`, `1h30m`, `7d`" + `. Sizes: ` + "`64KiB`, `16MiB`, `1.5GiB`" + `, or a number of bytes.
- The value shown is the default, of several choices the bold one. A boolean is false by default; a key without a value is a string.
- A list with one value may be written as that value.
- Templates have [variables](topics-and-keys.md#how-a-topic-is-made) in braces.
- File names are relative to the directory of the configuration.
- Unknown and duplicate keys are mistakes. Top-level keys that begin with ` + "`x-`" + ` are ignored: use them for anchors, and merge those with
  ` + "`<<: *name`" + `.
- 0 means the default unless stated otherwise. An empty value is a mistake; ` + "`${NAME:-}`" + ` leaves the key out.

`

// page returns the page of the documentation.
func page(t *testing.T) []byte {
	t.Helper()
	all := comments(t)
	var out strings.Builder
	out.WriteString(pageIntro)
	type part struct {
		typ  reflect.Type
		path string
	}
	var order []part
	paths := map[reflect.Type][]string{}
	walk(reflect.TypeFor[Config](), "", func(path string, f field) {
		inner, suffix := sectionOf(f.typ)
		if path += suffix; inner == nil {
			return
		}
		if paths[inner] == nil {
			order = append(order, part{inner, path})
		}
		paths[inner] = append(paths[inner], path)
	})
	// The top, then every section where it first appears.
	tables := &tables{T: t, out: &out, comments: all, paths: paths, about: map[string]bool{}, rows: map[string]string{}, keys: map[string][]string{}, meanings: map[reflect.Type]string{}}
	tables.write(reflect.TypeFor[Config](), "")
	for _, p := range order {
		fmt.Fprintf(&out, "## `%s`\n\n", p.path)
		if others := paths[p.typ][1:]; len(others) > 0 {
			fmt.Fprintf(&out, "Also `%s`.\n\n", strings.Join(others, "`, `"))
		}
		about := withoutName(all[typeKey(p.typ)], p.typ.Name())
		switch own := p.typ.PkgPath() == reflect.TypeFor[Config]().PkgPath(); {
		case own && !tables.about[about]:
			fmt.Fprintf(&out, "%s\n\n", about)
		case tables.meanings[p.typ] != "":
			fmt.Fprintf(&out, "%s\n\n", marked(tables.meanings[p.typ]))
		}
		tables.write(p.typ, p.path)
	}
	return []byte(out.String())
}

// tables writes the tables of the page, and remembers what it has said.
type tables struct {
	*testing.T
	out      *strings.Builder
	comments map[string]string
	paths    map[reflect.Type][]string
	// about has the meanings so far: a section does not repeat the one of its key.
	about map[string]bool
	// meanings are those of the keys of sections that no row tells: their headings do.
	meanings map[reflect.Type]string
	// rows are the paths of the sections that have a row, by its key and value with its package and with its meaning.
	rows map[string]string
	// keys are those of the rows of each section, in order.
	keys map[string][]string
}

// listed names keys of the section at path: many that stand in one piece there, by the first and the last one.
func (w *tables) listed(path string, keys []string) string {
	all := w.keys[path]
	if first := slices.Index(all, keys[0]); len(keys) > 4 && first >= 0 && len(all) >= first+len(keys) && slices.Equal(all[first:first+len(keys)], keys) {
		return keys[0] + " to " + keys[len(keys)-1]
	}
	return strings.Join(keys, ", ")
}

// write writes the table of a section. Keys that a section before it has as well, such as those of a connection,
// are only named.
func (w *tables) write(section reflect.Type, path string) {
	w.Helper()
	values := defaults(section)
	var rows strings.Builder
	repeated := map[string][]string{} // keys by the path of the section that has them
	var order, sections []string
	for _, f := range fields(section) {
		if f.base != "" {
			continue // named in the row of the secret
		}
		value, to := valueName(f, w.paths)
		value = withDefault(value, values[f.name], f)
		key := "`" + f.name + "`"
		if to != "" {
			key = "[" + key + "](#" + to + ")"
		}
		if f.typ == reflect.TypeFor[Secret]() || f.tag.Get("twin") == "true" {
			key += ", `" + f.name + "_file`"
		}
		what := meaning(w.T, w.comments, section, f, "`")
		if inner, _ := sectionOf(f.typ); inner != nil && path != "" && w.once(inner, f.name) {
			if value = strings.TrimPrefix(strings.TrimPrefix(value, "section"), ", "); value != "" {
				key += " (" + value + ")"
			}
			if sections = append(sections, key); w.meanings[inner] == "" {
				w.meanings[inner] = what
			}
			continue
		}
		w.about[what] = true
		// Known by its package, or by saying the same.
		seen := false
		for _, row := range []string{strings.Join([]string{ownerOf(section, f).PkgPath(), key, value}, " "), strings.Join([]string{key, value, brief(what)}, " ")} {
			at, ok := w.rows[row]
			if own := ownerOf(section, f).PkgPath() == reflect.TypeFor[Config]().PkgPath() && !strings.HasSuffix(row, brief(what)); ok && !own && !seen {
				if repeated[at] == nil {
					order = append(order, at)
				}
				repeated[at], seen = append(repeated[at], key), true
			}
			if !ok {
				w.rows[row] = path
			}
		}
		if seen {
			continue
		}
		w.keys[path] = append(w.keys[path], key)
		what = strings.ReplaceAll(marked(brief(what)), "|", `\|`)
		// A link says that it is a section, and strings need no word.
		if value != "section" && value != "string" {
			value = strings.TrimPrefix(strings.TrimPrefix(value, "section, "), "string, ")
			key += ": " + strings.ReplaceAll(value, "|", `\|`)
		}
		fmt.Fprintf(&rows, "| %s | %s |\n", key, what)
	}
	for _, at := range order {
		fmt.Fprintf(w.out, "As in [`%s`](#%s): %s.\n\n", at, anchor(at), w.listed(at, repeated[at]))
	}
	if len(sections) > 0 {
		fmt.Fprintf(w.out, "Sections: %s.\n\n", strings.Join(sections, ", "))
	}
	if rows.Len() > 0 {
		fmt.Fprintf(w.out, "| key | meaning |\n|---|---|\n%s\n", rows.String())
	}
}

// withDefault is the kind of a value with its default, or the default alone where it shows the kind.
func withDefault(kind, value string, f field) string {
	standard := "`" + value + "`"
	switch {
	case f.tag.Get("required") == "true":
		return kind + ", required"
	case value == "", value == "false":
		return kind
	case strings.HasPrefix(kind, "`"):
		return strings.Replace(kind, standard, "**"+standard+"**", 1)
	case strings.HasSuffix(kind, " or off"):
		return standard + " or off"
	}
	return standard
}

// once reports whether a section has the same key wherever it is, so that its heading can say what it is for.
func (w *tables) once(section reflect.Type, name string) bool {
	return !slices.ContainsFunc(w.paths[section], func(path string) bool { return lastKey(strings.TrimSuffix(path, "[]")) != name })
}

// marked puts what is in braces into marks.
func marked(text string) string {
	return strings.ReplaceAll(strings.NewReplacer("{", "`{", "}", "}`").Replace(text), "``", "`")
}

// sectionOf returns the type of the section that a key has, or of the sections in its list or map, and what that adds to the
// path; nil if it has none.
func sectionOf(t reflect.Type) (inner reflect.Type, suffix string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		switch t.Kind() {
		case reflect.Slice:
			suffix += "[]"
		case reflect.Map:
			suffix += ".<name>"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || isScalar(t) {
		return nil, suffix
	}
	return t, suffix
}

// ownerOf returns the struct that declares a field of a section: the section, or what is
// embedded in it.
func ownerOf(section reflect.Type, f field) reflect.Type {
	for _, i := range f.index[:len(f.index)-1] {
		section = section.Field(i).Type
	}
	return section
}

// briefWords is the length from which a comment is cut, after a sentence. The whole comment
// is in the schema, and so in editors.
const briefWords = 20

// brief returns the first sentence of a comment, and as many more as fit in briefWords.
func brief(text string) string {
	ends := regexp.MustCompile("\\. [A-Z0-9`]").FindAllStringIndex(text, -1)
	for len(ends) > 0 && len(strings.Fields(text)) > briefWords {
		text = text[:ends[len(ends)-1][0]+1]
		ends = ends[:len(ends)-1]
	}
	return text
}

// TestBrief: whole sentences, and never less than the first one.
func TestBrief(t *testing.T) {
	long := strings.Repeat(" word", briefWords)
	for _, tt := range []struct{ text, want string }{
		{"One.", "One."},
		{"One, e.g. two. Three.", "One, e.g. two. Three."},
		{"First" + long + ". Second.", "First" + long + "."},
		{"First. Second" + long + ".", "First."},
		{"First. Second. Third" + long + ".", "First. Second."},
		{"First. `second`" + long + ". Third.", "First."},
	} {
		if got := brief(tt.text); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
}

// anchor is the anchor of a section's heading.
func anchor(path string) string {
	return strings.NewReplacer(".", "", "[", "", "]", "", "<", "", ">", "").Replace(strings.ToLower(path))
}

// valueName says what kind of value a key has, and where the page describes a section.
func valueName(f field, paths map[reflect.Type][]string) (name, to string) {
	inner, kind := f.typ, "section"
	for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
		switch {
		case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.String:
			return "list", ""
		case inner.Kind() == reflect.Slice:
			kind = "list"
		case inner.Kind() == reflect.Map && inner.Elem().Kind() != reflect.Struct || inner == reflect.TypeFor[map[string]Secret]():
			return "map", ""
		case inner.Kind() == reflect.Map:
			kind = "map"
		}
		inner = inner.Elem()
	}
	if known := paths[inner]; known != nil {
		return kind, anchor(known[0])
	}
	switch inner {
	case reflect.TypeFor[Secret]():
		return "secret", ""
	case reflect.TypeFor[URL]():
		return "address", ""
	}
	if inner.Kind() == reflect.Bool {
		return "boolean", ""
	}
	if allowed := f.tag.Get("enum"); allowed != "" {
		return "`" + strings.Join(strings.Split(allowed, ","), "`, `") + "`", ""
	}
	_, name, _ = strings.Cut(typeName(inner, f.tag), " ")
	return name, ""
}

// Editors accept the examples, and what the reader accepts.
func TestSchemaAcceptsExamples(t *testing.T) {
	compiled := compile(t)
	paths := testkit.Must(filepath.Glob("../../examples/*.yaml"))(t)
	if len(paths) == 0 {
		t.Fatalf("paths = %q, want some", paths)
	}
	for _, path := range append(paths, "../../deploy/compose/agrimill.yaml", "../../deploy/systemd/agrimill.yaml") {
		data := testkit.Must(os.ReadFile(path))(t)
		if err := compiled.Validate(asJSON(t, data)); err != nil {
			t.Fatalf("%v: %v", err, path)
		}
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
		testkit.Contains(t, small, change[0])
		text := strings.Replace(small, change[0], change[1], 1)
		if err := compiled.Validate(asJSON(t, []byte(text))); err == nil {
			t.Fatalf("no error: %v", change[1])
		}
	}
	testkit.NoError(t, compiled.Validate(asJSON(t, []byte(small))))
}

func compile(t *testing.T) *validator.Schema {
	t.Helper()
	text, err := os.ReadFile("schema.json") // not Schema, which is older while files are written anew
	testkit.NoError(t, err)
	document := testkit.Must(validator.UnmarshalJSON(bytes.NewReader(text)))(t)
	compiler := validator.NewCompiler()
	testkit.NoError(t, compiler.AddResource("schema.json", document))
	compiled := testkit.Must(compiler.Compile("schema.json"))(t)
	return compiled
}

func asJSON(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	testkit.NoError(t, yaml.Load(data, &value))
	text := testkit.Must(json.Marshal(value))(t)
	value = testkit.Must(validator.UnmarshalJSON(bytes.NewReader(text)))(t)
	return value
}

// The full example has every key of every section but those of which one excludes the
// other.
func TestFullExampleIsFull(t *testing.T) {
	data := testkit.Must(os.ReadFile("../../examples/full.yaml"))(t)
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(string(data), -1) {
		words[word] = true
	}
	var missing []string
	walk(reflect.TypeFor[Config](), "", func(path string, f field) {
		if !words[f.name] {
			missing = append(missing, path)
		}
	})
	slices.Sort(missing)
	if len(missing) != 0 {
		t.Fatalf("missing = %q, want none", missing)
	}
}
