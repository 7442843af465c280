package config

import (
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
	"go.yaml.in/yaml/v4"
)

// The YAML library's own decoder stops at the first unknown key, knows neither
// columns nor paths, and substitutes nothing. So the library parses, and this walk
// over its nodes fills the types.

// place is where something stands in the file; zero when nowhere.
type place struct{ line, column int }

// decoder fills a Config and collects what is wrong.
type decoder struct {
	file, dir string
	options   Options
	problems  []Problem
	// places and values are where each key and each value is, by path.
	places, values map[string]place
	// excused are paths that are probably there under a wrong name, so that they are not
	// told to be missing, too.
	excused map[string]bool
	// nodes counts the values that were visited; open are the aliases around the current
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
		message, suggestion = "has more mistakes than are told", ""
	}
	d.problems = append(d.problems, Problem{
		Severity: severity, File: d.file, Line: at.line, Column: at.column, Path: path, Message: message, Suggestion: suggestion,
	})
}

// missing reports something that the configuration refers to. value is the path that has
// no value for want of it.
func (d *decoder) missing(at place, path, value, message, suggestion string) {
	severity := SeverityError
	if d.options.AllowMissing {
		severity = SeverityWarning
		list := value // that one item of a list is missing may be told of the list
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

// fill sets the defaults of a section and of those in it.
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

// value decodes a node into v, which stands at path and has the tag.
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
		d.wrong(node, path, "has no value", d.emptySuggestion(v))
		return
	}
	switch v.Interface().(type) {
	case Secret, URL, Size, time.Duration:
		d.scalar(node, v, path, tag)
		return
	case List:
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

// tooMuch ends the reading.
func (d *decoder) tooMuch(node *yaml.Node, path string) {
	if !d.stopped {
		d.stopped = true
		d.wrong(node, path, fmt.Sprintf("is too large once aliases are followed: at most %d values, %d deep", maxNodes, maxDepth), "")
	}
}

func (d *decoder) emptySuggestion(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		return "write {} for the defaults, or remove the key"
	}
	return "remove the key for the default"
}

// foreignTag reports a tag such as !include or !!binary, which would mean something
// that is not done.
func (d *decoder) foreignTag(node *yaml.Node, path string) bool {
	if node.Style&yaml.TaggedStyle == 0 {
		return false
	}
	d.wrong(node, path, fmt.Sprintf("has the tag %s, and tags mean nothing here", node.ShortTag()), "remove it")
	return true
}

// field is one key of a section.
type field struct {
	name  string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
}

// fields returns the keys of a section, those of embedded ones included, in the order
// of the type.
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

// pairs calls use for each key of a mapping; keys that << brings in come last and only
// when they are not there. false means that the node is no mapping.
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
			d.add(SeverityError, at, path, "has a key that is no text", "")
			continue
		case key.Value == "<<" && key.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0:
			merged = append(merged, value)
			continue
		}
		if before, twice := first[key.Value]; twice {
			if level == 0 {
				d.add(SeverityError, at, join(path, key.Value), fmt.Sprintf("is there twice; the first is on line %d", before.line), "remove one")
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
		d.wrong(at, path, "merges (<<) something that is no section", "")
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
			d.value(value, v.FieldByIndex(known[i].index), at, known[i].tag)
		case path == "" && strings.HasPrefix(key.Value, "x-"):
			// A place for anchors, as in other tools.
		default:
			near, suggestion := suggestKey(key.Value, path, known)
			seen[near], d.excused[join(path, near)] = true, true
			d.add(SeverityError, place{key.Line, key.Column}, at, "is not a key here", suggestion)
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
		d.files(v, known, path)
	}
}

// files reads the files of a section that hold secrets, and sees whether the other ones
// are there.
func (d *decoder) files(v reflect.Value, known []field, path string) {
	for _, f := range known {
		at := join(path, f.name)
		base, isFile := strings.CutSuffix(f.name, "_file")
		name := ""
		if isFile && f.typ.Kind() == reflect.String {
			name = v.FieldByIndex(f.index).String()
		}
		if name == "" {
			continue
		}
		place := d.values[at]
		data, err := readBounded(name, maxSecretSize)
		if err != nil {
			d.missing(place, at, join(path, base), fileError(err), "")
			continue
		}
		i := slices.IndexFunc(known, func(f field) bool { return f.name == base })
		if i < 0 {
			continue // its reader says what is wrong with it
		}
		text := strings.TrimRight(string(data), "\r\n")
		target := v.FieldByIndex(known[i].index)
		_, both := d.places[join(path, base)]
		switch {
		case both:
			d.add(SeverityError, place, at, "excludes "+base, "remove one")
		case text == "" || strings.ContainsAny(text, "\x00\r\n"):
			d.add(SeverityError, place, at, "must be a file with one line, the "+strings.ReplaceAll(base, "_", " "), "")
		case target.Type() == reflect.TypeFor[Secret]():
			target.Set(reflect.ValueOf(NewSecret(text)))
		case target.Kind() == reflect.String:
			target.SetString(text)
		}
	}
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
		d.value(value, element, at, "")
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

// list decodes a text, or a list of texts.
func (d *decoder) list(node *yaml.Node, v reflect.Value, path string) {
	if node.Kind == yaml.SequenceNode {
		texts := reflect.New(reflect.TypeFor[[]string]()).Elem()
		d.sequence(node, texts, path)
		v.Set(texts.Convert(v.Type()))
		return
	}
	text := reflect.New(reflect.TypeFor[string]()).Elem()
	d.scalar(node, text, path, "")
	if text.String() != "" {
		v.Set(reflect.ValueOf(List{text.String()}))
	}
}

// scalar decodes one value. Nothing, and 0 where it is a count, a size or a duration,
// leaves the default: where 0 means something else, that is the default.
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
	bad := func(suggestion string) {
		shown := strconv.Quote(text)
		if whole {
			shown = "what the environment says" // perhaps a secret in the wrong place
		}
		d.wrong(node, path, fmt.Sprintf("must be %s, not %s", typeName(v.Type(), tag), shown), suggestion)
	}
	if text == "" {
		return // the default
	}
	switch target := v.Addr().Interface().(type) {
	case *Secret:
		*target = NewSecret(text)
		if !whole {
			d.add(SeverityWarning, place{node.Line, node.Column}, path, "is a secret in the file itself",
				"take it from the environment with ${NAME}, or from a file with "+lastKey(path)+"_file")
		}
	case *URL:
		*target = URL(text)
		if parsed, err := url.Parse(text); err == nil && parsed.User != nil && !whole {
			if _, secret := parsed.User.Password(); secret && !strings.Contains(node.Value, "${") {
				d.add(SeverityWarning, place{node.Line, node.Column}, path, "holds a password in the file itself", "take it from the environment with ${NAME}")
			}
		}
	case *Size:
		n, err := humanize.ParseBytes(text)
		if err != nil || n > math.MaxInt64 {
			bad("write a number of bytes, or one with KiB, MiB or GiB")
			return
		}
		if n != 0 { // which is the default
			*target = Size(n)
		}
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
	case *string:
		if !whole && node.ShortTag() == "!!bool" && node.Style == 0 {
			bad("put it in quotes if that is what is meant")
			return
		}
		*target = text
		if allowed := tag.Get("enum"); allowed != "" && !slices.Contains(strings.Split(allowed, ","), text) {
			near := nearest(text, strings.Split(allowed, ","))
			if near != "" {
				near = "did you mean " + near + "?"
			}
			bad(near)
		}
		if tag.Get("file") == "true" && !filepath.IsAbs(text) {
			*target = filepath.Join(d.dir, text)
		}
	case *bool:
		switch text {
		case "true":
			*target = true
		case "false":
			*target = false
		case "yes", "on", "Yes", "On", "True", "TRUE", "1":
			bad("write true")
		default:
			bad("write true or false")
		}
	case *int, *int64:
		n, err := strconv.ParseInt(text, 10, strconv.IntSize)
		if err != nil {
			bad("")
			return
		}
		if n != 0 { // which is the default
			v.SetInt(n)
		}
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			bad("")
			return
		}
		*target = n
	default:
		// A key that was added without a way to read it: no input leads here.
		d.wrong(node, path, "cannot be read: this version knows no values of type "+v.Type().String(), "remove the key")
	}
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// maxDays is what a time.Duration can hold.
const maxDays = 100_000

// parseDuration reads a duration of Go, or a number of days.
func parseDuration(text string) (d time.Duration, suggestion string, ok bool) {
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > maxDays {
			return 0, "write whole days, e.g. 7d", false
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

// substitute returns the text of a scalar with ${NAME} replaced. fromEnv says that
// something of it came from the environment.
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
			d.wrong(node, path, "has ${ without }", "write $${ for the characters themselves")
			return "", false, false
		}
		rest = after
		name, fallback, hasFallback := strings.Cut(expression, ":-")
		if !validName(name) {
			d.wrong(node, path, fmt.Sprintf("has ${%s}, which is no name of an environment variable", expression), "write ${NAME} or ${NAME:-default}, or $${ for the characters themselves")
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
			d.missing(place{node.Line, node.Column}, path, path, "needs the environment variable "+name+", which is not set", suggestion)
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

// typeName says what a value has to be.
func typeName(t reflect.Type, tag reflect.StructTag) string {
	if allowed := tag.Get("enum"); allowed != "" {
		return oneOf(strings.Split(allowed, ","))
	}
	switch t {
	case reflect.TypeFor[time.Duration]():
		if tag.Get("off") == "true" {
			return "a duration or off"
		}
		return "a duration"
	case reflect.TypeFor[Size]():
		return "a size"
	case reflect.TypeFor[URL]():
		return "an address"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a text"
}

func oneOf(values []string) string {
	if len(values) < 2 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}
