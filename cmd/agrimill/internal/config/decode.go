package config

import (
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/nats-io/nats.go/jetstream"
	"go.yaml.in/yaml/v4"

	"github.com/agrimill/agrimill/sinks"
)

// The YAML library's own decoder stops at the first unknown key, reports neither columns
// nor paths, and substitutes no variables. So the library only parses, and this walk over
// its nodes fills the types.

// place is a position in the file; zero if there is none.
type place struct{ line, column int }

// decoder fills a Config and collects problems.
type decoder struct {
	file, dir string
	options   Options
	problems  []Problem
	// places and values have the position of each key and each value, by path.
	places, values map[string]place
	// environment has the values that have an environment variable in them, by path.
	environment map[string]bool
	// excused has paths that are probably present under a wrong name, so that they are not
	// reported as missing, too.
	excused map[string]bool
	// files has the files that secrets were read from, by the paths of the secrets.
	files map[string]string
	// contents has digests of the other files, by the paths that name them.
	contents map[string][sha256.Size]byte
	// nodes counts the values that were visited; open has the aliases around the current
	// one.
	nodes   int
	depth   int
	open    []*yaml.Node
	stopped bool
}

func (d *decoder) add(severity Severity, at place, path, message, suggestion string) {
	if d.stopped && len(d.problems) >= maxProblems {
		return
	}
	if len(d.problems) == maxProblems-1 {
		d.stopped, severity, path = true, SeverityError, ""
		message, suggestion = "has more mistakes than are reported", ""
	}
	d.problems = append(d.problems, Problem{
		Severity: severity, File: d.file, Line: at.line, Column: at.column, Path: path, Message: message, Suggestion: suggestion,
	})
}

// missing reports something that the configuration refers to but that does not exist. value
// is the path that has no value as a result.
func (d *decoder) missing(at place, path, value, message, suggestion string) {
	severity := SeverityError
	if d.options.AllowMissing {
		severity = SeverityWarning
		list := value // a missing item may be reported for the whole list
		if i := strings.LastIndexByte(value, '['); i >= 0 && strings.HasSuffix(value, "]") {
			list = value[:i]
		}
		d.excused[path], d.excused[value], d.excused[list] = true, true, true
	}
	d.add(severity, at, path, message, suggestion)
}

func (d *decoder) wrong(node *yaml.Node, path, message, suggestion string) {
	d.add(SeverityError, place{node.Line, node.Column}, path, message, suggestion)
}

// fill sets agrimill's own defaults in a section and its subsections.
func (d *decoder) fill(v reflect.Value) {
	if section, ok := v.Addr().Interface().(defaulter); ok {
		section.setDefaults()
	}
	for i := range v.NumField() {
		if field := v.Field(i); field.Kind() == reflect.Struct && v.Type().Field(i).IsExported() {
			d.fill(field)
		}
	}
}

// value decodes a node into v, which is at path and has the tag.
func (d *decoder) value(node *yaml.Node, v reflect.Value, path string, tag reflect.StructTag) {
	if d.stopped {
		return
	}
	d.nodes++
	d.depth++
	defer func() { d.depth-- }()
	if d.nodes > maxNodes || d.depth > maxDepth {
		d.tooMuch(node, path)
		return
	}
	if _, ok := d.values[path]; !ok {
		d.values[path] = place{node.Line, node.Column}
	}
	if node.Kind == yaml.AliasNode {
		if slices.Contains(d.open, node.Alias) {
			d.wrong(node, path, "refers to itself", "")
			return
		}
		d.open = append(d.open, node.Alias)
		defer func() { d.open = d.open[:len(d.open)-1] }()
		node = node.Alias
	}
	if d.foreignTag(node, path) {
		return
	}
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" {
		if path == "" {
			d.wrong(node, path, "is empty", "")
		} else {
			d.wrong(node, path, "has no value", d.emptySuggestion(v))
		}
		return
	}
	if isScalar(v.Type()) {
		d.scalar(node, v, path, tag)
		return
	}
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String {
		d.list(node, v, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		section := reflect.New(v.Type().Elem())
		d.fill(section.Elem())
		d.value(node, section.Elem(), path, tag)
		v.Set(section)
	case reflect.Struct:
		d.section(node, v, path)
	case reflect.Map:
		d.table(node, v, path)
	case reflect.Slice:
		d.sequence(node, v, path)
	default:
		d.scalar(node, v, path, tag)
	}
}

// tooMuch stops decoding.
func (d *decoder) tooMuch(node *yaml.Node, path string) {
	if !d.stopped {
		d.stopped = true
		d.wrong(node, path, fmt.Sprintf("is too large after expanding aliases: at most %d values, %d levels deep", maxNodes, maxDepth), "")
	}
}

func (d *decoder) emptySuggestion(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		return "write {} for the defaults, or remove the key"
	}
	return "remove the key for the default"
}

// foreignTag reports a tag such as !include or !!binary, whose meaning is not implemented.
func (d *decoder) foreignTag(node *yaml.Node, path string) bool {
	if node.Style&yaml.TaggedStyle == 0 {
		return false
	}
	d.wrong(node, path, fmt.Sprintf("has the tag %s; tags are not supported", node.ShortTag()), "remove it")
	return true
}

// field is one key of a section.
type field struct {
	name  string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
	// base is the key of the secret whose file this key names; empty for others.
	base string
}

// twinTag is the tag of keys that name files with secrets.
const twinTag reflect.StructTag = `file:"true"`

// fields returns the keys of a section, including embedded ones, in the order of the type.
// A secret has a second key, for a file that contains it.
func fields(t reflect.Type) []field {
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			for _, inner := range fields(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				all = append(all, inner)
			}
		case name != "" && name != "-":
			all = append(all, field{name: name, index: []int{i}, typ: f.Type, tag: f.Tag})
			if f.Type == reflect.TypeFor[Secret]() || f.Tag.Get("twin") == "true" {
				all = append(all, field{name: name + "_file", index: []int{i}, typ: reflect.TypeFor[string](), tag: twinTag, base: name})
			}
		}
	}
	return all
}

// join appends a key to a path.
func join(path, key string) string {
	plain := key != "" && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
	switch {
	case !plain:
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}

// pairs calls use for each key of a mapping; keys merged by << come last and only if they
// are not set. false means that the node is not a mapping.
func (d *decoder) pairs(node *yaml.Node, path, what string, use func(key, value *yaml.Node)) bool {
	if node.Kind != yaml.MappingNode {
		d.wrong(node, path, fmt.Sprintf("must be %s, not %s", what, kindName(node)), "")
		return false
	}
	first := map[string]place{}
	d.merge(node, path, first, use, 0)
	return true
}

func (d *decoder) merge(node *yaml.Node, path string, first map[string]place, use func(key, value *yaml.Node), level int) {
	d.nodes++
	if level > maxDepth || d.nodes > maxNodes {
		d.tooMuch(node, path)
		return
	}
	var merged []*yaml.Node
	for i := 0; i+1 < len(node.Content) && !d.stopped; i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at := place{key.Line, key.Column}
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			d.add(SeverityError, at, path, "has a key that is not a string", "")
			continue
		case key.Value == "<<" && key.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0:
			merged = append(merged, value)
			continue
		}
		if before, twice := first[key.Value]; twice {
			if level == 0 {
				d.add(SeverityError, at, join(path, key.Value), fmt.Sprintf("is a duplicate of line %d", before.line), "remove one")
			}
			continue
		}
		first[key.Value] = at
		use(key, value)
	}
	for _, value := range merged {
		d.mergeOne(value, path, first, use, level)
	}
}

func (d *decoder) mergeOne(value *yaml.Node, path string, first map[string]place, use func(key, value *yaml.Node), level int) {
	at := value
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch {
	case d.stopped:
	case value.Kind == yaml.MappingNode:
		d.merge(value, path, first, use, level+1)
	case value.Kind == yaml.SequenceNode && level <= maxDepth:
		for _, item := range value.Content {
			d.mergeOne(item, path, first, use, level+1)
		}
	default:
		d.wrong(at, path, "merges (<<) something other than a section", "")
	}
}

// section decodes a mapping into a struct.
func (d *decoder) section(node *yaml.Node, v reflect.Value, path string) {
	known := fields(v.Type())
	seen := map[string]bool{}
	ok := d.pairs(node, path, "a section with keys", func(key, value *yaml.Node) {
		i := slices.IndexFunc(known, func(f field) bool { return f.name == key.Value })
		at := join(path, key.Value)
		switch {
		case i >= 0:
			seen[key.Value] = true
			d.places[at] = place{key.Line, key.Column}
			if known[i].base == "" {
				d.value(value, v.FieldByIndex(known[i].index), at, known[i].tag)
				break
			}
			file := reflect.New(known[i].typ).Elem()
			d.value(value, file, at, known[i].tag)
			if file.String() != "" {
				d.files[join(path, known[i].base)] = file.String()
			}
		case path == "" && strings.HasPrefix(key.Value, "x-"):
			// Reserved for anchors, as in other tools.
		default:
			near, suggestion := suggestKey(key.Value, path, known)
			seen[near], d.excused[join(path, near)] = true, true
			d.add(SeverityError, place{key.Line, key.Column}, at, "is not a known key", suggestion)
		}
	})
	if d.stopped {
		return
	}
	for _, f := range known {
		if ok && f.tag.Get("required") == "true" && !seen[f.name] {
			d.wrong(node, join(path, f.name), "is required", "")
		}
	}
	if ok {
		d.readFiles(v, known, path)
	}
}

// readFiles reads the files with secrets of a section, and checks that its other files are
// readable.
func (d *decoder) readFiles(v reflect.Value, known []field, path string) {
	for _, f := range known {
		at := join(path, f.name)
		name, base := d.files[join(path, f.base)], join(path, f.base)
		if f.base == "" {
			if f.tag.Get("file") != "true" || !strings.HasSuffix(f.name, "_file") {
				continue
			}
			name, base = v.FieldByIndex(f.index).String(), at
		}
		if name == "" {
			continue
		}
		place := d.values[at]
		data, err := readBounded(name, maxSecretSize)
		if err != nil {
			d.missing(place, at, base, fileError(err), "")
			continue
		}
		if f.base == "" {
			d.contents[at] = sha256.Sum256(data)
			continue // its user reports what is wrong with it
		}
		text, err := singleLine(data)
		_, both := d.places[base]
		switch {
		case both:
			d.add(SeverityError, place, at, "cannot be combined with "+f.base, "remove one")
		case err != nil:
			d.add(SeverityError, place, at, "must be a file with a single line, the "+strings.ReplaceAll(f.base, "_", " "), "")
		default:
			v.FieldByIndex(f.index).SetString(text)
		}
	}
}

// errNotOneLine: a file with a secret does not have exactly one line.
var errNotOneLine = errors.New("must be a file with a single line")

// readSecret reads a file with a single line, a secret.
func readSecret(name string) (string, error) {
	data, err := readBounded(name, maxSecretSize)
	if err != nil {
		return "", err
	}
	return singleLine(data)
}

func singleLine(data []byte) (string, error) {
	text := strings.TrimRight(string(data), "\r\n")
	if strings.TrimSpace(text) == "" || strings.ContainsAny(text, "\x00\r\n") {
		return "", errNotOneLine
	}
	return text, nil
}

// table decodes a mapping into a map.
func (d *decoder) table(node *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(node, path, "a section with names", func(key, value *yaml.Node) {
		at := join(path, key.Value)
		d.places[at] = place{key.Line, key.Column}
		element := reflect.New(v.Type().Elem()).Elem()
		if element.Kind() == reflect.Struct {
			d.fill(element)
		}
		d.value(value, element, at, `empty:"true"`)
		v.SetMapIndex(reflect.ValueOf(key.Value), element)
	})
}

func (d *decoder) sequence(node *yaml.Node, v reflect.Value, path string) {
	if node.Kind != yaml.SequenceNode {
		d.wrong(node, path, fmt.Sprintf("must be a list, not %s", kindName(node)), `begin each item with "- "`)
		return
	}
	for i, item := range node.Content {
		element := reflect.New(v.Type().Elem()).Elem()
		if element.Kind() == reflect.Struct {
			d.fill(element)
		}
		d.value(item, element, fmt.Sprintf("%s[%d]", path, i), "")
		v.Set(reflect.Append(v, element))
		if d.stopped {
			return
		}
	}
}

// list decodes a list of strings, or a single string as a list of one.
func (d *decoder) list(node *yaml.Node, v reflect.Value, path string) {
	if node.Kind == yaml.SequenceNode {
		d.sequence(node, v, path)
		return
	}
	text := reflect.New(v.Type().Elem()).Elem()
	d.scalar(node, text, path, "")
	if text.String() != "" {
		v.Set(reflect.Append(v, text))
	}
}

// parsers parse values of types that cannot unmarshal themselves.
var parsers = map[reflect.Type]func(text string) (any, error){
	reflect.TypeFor[jetstream.StorageType](): func(text string) (any, error) {
		return map[string]jetstream.StorageType{"file": jetstream.FileStorage, "memory": jetstream.MemoryStorage}[text], nil
	},
	reflect.TypeFor[jetstream.RetentionPolicy](): func(text string) (any, error) {
		return map[string]jetstream.RetentionPolicy{
			"limits": jetstream.LimitsPolicy, "workqueue": jetstream.WorkQueuePolicy,
		}[text], nil
	},
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

// isScalar reports whether a type is written as a single value although its kind suggests
// otherwise.
func isScalar(t reflect.Type) bool {
	return parsers[t] != nil || reflect.PointerTo(t).Implements(textUnmarshaler)
}

// scalar decodes one value. 0 for a count, a size or a duration keeps the default: where 0 means
// something else, it is the default. An empty value is a mistake, unless it is that of ${NAME:-}.
func (d *decoder) scalar(node *yaml.Node, v reflect.Value, path string, tag reflect.StructTag) {
	if node.Kind != yaml.ScalarNode {
		d.wrong(node, path, fmt.Sprintf("must be %s, not %s", typeName(v.Type(), tag), kindName(node)), "")
		return
	}
	_, secret := v.Interface().(Secret)
	text, whole, ok := d.substitute(node, path, secret)
	if !ok {
		return
	}
	if strings.Contains(node.Value, "${") {
		d.environment[path] = true
	}
	bad := func(suggestion string) {
		shown := strconv.Quote(text)
		if whole {
			shown = "the value from the environment" // it may be a misplaced secret
		}
		d.wrong(node, path, fmt.Sprintf("must be %s, not %s", typeName(v.Type(), tag), shown), suggestion)
	}
	switch {
	case text != "" || tag.Get("empty") == "true":
	case d.environment[path] && tag.Get("required") != "true": // ${NAME:-}: as without the key
		delete(d.places, path)
		return
	default:
		d.wrong(node, path, "is empty", "write a value, or remove it")
		return
	}
	if allowed := tag.Get("enum"); allowed != "" && !slices.Contains(strings.Split(allowed, ","), text) {
		near := nearest(text, strings.Split(allowed, ","))
		if near != "" {
			near = "did you mean " + near + "?"
		}
		bad(near)
		return
	}
	switch target := v.Addr().Interface().(type) {
	case *Secret:
		*target = Secret(text)
		if !whole {
			d.add(SeverityWarning, place{node.Line, node.Column}, path, "is a secret in plain text",
				"take it from the environment with ${NAME}, or from a file with "+lastKey(path)+"_file")
		}
		return
	case *URL:
		*target = URL(text)
		d.passwordIn(text, whole, node, path)
		return
	case *time.Duration:
		if tag.Get("off") == "true" && text == "off" {
			*target = -1
			return
		}
		n, suggestion, ok := parseDuration(text)
		if !ok {
			bad(suggestion)
			return
		}
		if n != 0 { // which is the default
			*target = n
		}
		return
	case encoding.TextUnmarshaler:
		if target.UnmarshalText([]byte(text)) != nil {
			bad("")
		}
		return
	}
	if parse := parsers[v.Type()]; parse != nil {
		value, err := parse(text)
		if err != nil {
			bad("e.g. 3.6.0")
			return
		}
		v.Set(reflect.ValueOf(value))
		return
	}
	switch v.Kind() {
	case reflect.String:
		if !whole && node.ShortTag() == "!!bool" && node.Style == 0 && tag.Get("enum") == "" {
			bad("quote it if a string is intended")
			return
		}
		if tag.Get("address") == "true" {
			d.passwordIn(text, whole, node, path)
		}
		if tag.Get("file") == "true" && !filepath.IsAbs(text) {
			text = filepath.Join(d.dir, text)
		}
		v.SetString(text)
	case reflect.Bool:
		switch text {
		case "true":
			v.SetBool(true)
		case "false":
			v.SetBool(false)
		case "yes", "on", "Yes", "On", "True", "TRUE", "1":
			bad("write true")
		default:
			bad("write true or false")
		}
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if tag.Get("unit") == "bytes" {
			size, suggestion := parseSize(text)
			if suggestion != "" {
				bad(suggestion)
				return
			}
			n, err = size, nil
		}
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			bad("")
		case err != nil || v.OverflowInt(n):
			bad(fmt.Sprintf("at most %d", uint64(1)<<(v.Type().Bits()-1)-1))
		case n != 0: // which is the default
			v.SetInt(n)
		}
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			bad("")
			return
		}
		v.SetFloat(n)
	default:
		// A key that was added without support for its type: no input leads here.
		d.wrong(node, path, "cannot be decoded: this version does not support values of type "+v.Type().String(), "remove the key")
	}
}

// passwordIn warns about an address with a password in plain text.
func (d *decoder) passwordIn(text string, whole bool, node *yaml.Node, path string) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.User == nil || whole {
		return
	}
	if _, secret := parsed.User.Password(); secret && !strings.Contains(node.Value, "${") {
		d.add(SeverityWarning, place{node.Line, node.Column}, path, "contains a password in plain text", "take it from the environment with ${NAME}")
	}
}

// parseSize parses a number of bytes; suggestion is empty on success.
func parseSize(text string) (n int64, suggestion string) {
	size, err := humanize.ParseBytes(text)
	if err != nil || size > math.MaxInt64 {
		return 0, "write a number of bytes, or one with KiB, MiB or GiB"
	}
	return int64(size), ""
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// maxDays fits into a time.Duration.
const maxDays = 100_000

// parseDuration parses a Go duration, or a number of days.
func parseDuration(text string) (d time.Duration, suggestion string, ok bool) {
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 32)
		switch {
		case err != nil && !errors.Is(err, strconv.ErrRange):
			return 0, "write whole days, e.g. 7d", false
		case err != nil || n > maxDays:
			return 0, fmt.Sprintf("at most %dd", maxDays), false
		}
		return time.Duration(n) * 24 * time.Hour, "", true
	}
	d, err := time.ParseDuration(text)
	if err == nil && d >= 0 {
		return d, "", true
	}
	if _, err := strconv.ParseUint(text, 10, 32); err == nil {
		return 0, "add a unit: " + text + "s", false
	}
	return 0, "write a number with ms, s, m, h or d, e.g. 30s or 1h30m", false
}

// substitute returns the text of a scalar with ${NAME} replaced. fromEnv says that part of
// it came from the environment.
func (d *decoder) substitute(node *yaml.Node, path string, secret bool) (text string, fromEnv, ok bool) {
	var b strings.Builder
	rest, ok := node.Value, true
	for {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			b.WriteString(rest)
			return b.String(), fromEnv, ok
		}
		if strings.HasSuffix(before, "$") { // $${ is ${
			b.WriteString(before[:len(before)-1] + "${")
			rest = after
			continue
		}
		b.WriteString(before)
		expression, after, found := strings.Cut(after, "}")
		if !found {
			d.wrong(node, path, "has ${ without }", "write $${ for a literal ${")
			return "", false, false
		}
		rest = after
		name, fallback, hasFallback := strings.Cut(expression, ":-")
		if !validName(name) {
			d.wrong(node, path, fmt.Sprintf("has ${%s}, which is not the name of an environment variable", expression), "write ${NAME} or ${NAME:-default}, or $${ for a literal ${")
			ok = false
			continue
		}
		switch value := d.options.Env(name); {
		case value != "":
			b.WriteString(value)
			fromEnv = true
		case hasFallback:
			b.WriteString(fallback)
		default:
			suggestion := "set it, or write ${" + name + ":-default}"
			if secret {
				suggestion = "set it"
			}
			d.missing(place{node.Line, node.Column}, path, path, "needs the environment variable "+name+", which is not set or empty", suggestion)
			ok = false
		}
	}
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func kindName(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a section with keys"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// typeName describes what a value must be.
func typeName(t reflect.Type, tag reflect.StructTag) string {
	if allowed := tag.Get("enum"); allowed != "" {
		return oneOf(strings.Split(allowed, ","))
	}
	switch {
	case t == reflect.TypeFor[time.Duration]() && tag.Get("off") == "true":
		return "a duration or off"
	case t == reflect.TypeFor[time.Duration]():
		return "a duration"
	case tag.Get("unit") == "bytes":
		return "a size"
	case t == reflect.TypeFor[URL](), tag.Get("address") == "true":
		return "an address"
	case t == reflect.TypeFor[sinks.Synced]():
		return "always, replicas, or the interval as a duration"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a string"
}

func oneOf(values []string) string {
	if len(values) < 2 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}
