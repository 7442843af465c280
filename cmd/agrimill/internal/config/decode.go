package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// The YAML library's own decoder stops at the first unknown key, reports neither columns
// nor paths, and substitutes no variables. So the library only parses, and this walk over
// its nodes fills the types.

// place is a position in the file; zero if there is none.
type place struct{ line, column int }

type decoder struct {
	*sources
	dir      string
	options  Options
	problems []Problem
	// excused has paths that are probably present under a wrong name, so that they are not
	// reported as missing, too.
	excused map[string]bool
	// nodes counts the values that were visited.
	nodes   int
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
	}
	list := value // a missing item may be reported for the whole list
	if i := strings.LastIndexByte(value, '['); i >= 0 && strings.HasSuffix(value, "]") {
		list = value[:i]
	}
	d.excused[path], d.excused[value], d.excused[list] = true, true, true
	d.add(severity, at, path, message, suggestion)
}

func (d *decoder) wrong(node *yaml.Node, path, message, suggestion string) {
	d.add(SeverityError, place{node.Line, node.Column}, path, message, suggestion)
}

func (d *decoder) value(node *yaml.Node, v reflect.Value, path string, tag reflect.StructTag) {
	if d.stopped {
		return
	}
	if d.nodes++; d.nodes > maxNodes { // how deep it goes, the types bound
		d.tooMuch(node, path)
		return
	}
	if _, ok := d.values[path]; !ok {
		d.values[path] = place{node.Line, node.Column}
	}
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if v.Kind() == reflect.Struct && !isScalar(v.Type()) { // also one with a mistake, so that nothing is said of what it lacks
		fill(v)
	}
	if node.Style&yaml.TaggedStyle != 0 { // such as !include or !!binary
		d.wrong(node, path, fmt.Sprintf("has the tag %s; tags are not supported", node.ShortTag()), "remove it")
		return
	}
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" {
		if path == "" {
			d.wrong(node, path, "is empty", "")
		} else {
			suggestion := "remove the key for the default"
			if v.Kind() == reflect.Pointer {
				suggestion = "write {} for the defaults, or remove the key"
			}
			d.wrong(node, path, "has no value", suggestion)
		}
		return
	}
	switch kind := v.Kind(); {
	case isScalar(v.Type()):
		d.scalar(node, v, path, tag)
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(node, v.Elem(), path, tag)
	case kind == reflect.Struct:
		d.section(node, v, path)
	case kind == reflect.Map:
		d.table(node, v, path)
	case kind == reflect.Slice:
		d.sequence(node, v, path)
	default:
		d.scalar(node, v, path, tag)
	}
}

func (d *decoder) tooMuch(node *yaml.Node, path string) {
	if !d.stopped {
		d.stopped = true
		d.wrong(node, path, fmt.Sprintf("is too large after expanding aliases: at most %d values", maxNodes), "")
	}
}

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
	first := map[string]*yaml.Node{}
	d.merge(node, path, first, use)
	return true
}

// merge is pairs for a mapping, or each one of a list, of which the keys that are there first already do not count.
func (d *decoder) merge(node *yaml.Node, path string, first map[string]*yaml.Node, use func(key, value *yaml.Node)) {
	at := node
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch d.nodes++; {
	case d.stopped:
		return
	case d.nodes > maxNodes:
		d.tooMuch(node, path)
		return
	case node.Kind == yaml.SequenceNode:
		for _, item := range node.Content {
			d.merge(item, path, first, use)
		}
		return
	case node.Kind != yaml.MappingNode:
		d.wrong(at, path, "merges (<<) something other than a section", "")
		return
	}
	var merged []*yaml.Node
	for i := 0; i+1 < len(node.Content) && !d.stopped; i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		named, at := key, place{key.Line, key.Column}
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
			if slices.Contains(node.Content[:i], before) { // it does not just take precedence over what is merged
				d.add(SeverityError, at, join(path, key.Value), fmt.Sprintf("is a duplicate of line %d", before.Line), "remove one")
			}
			continue
		}
		first[key.Value] = named
		use(key, value)
	}
	for _, value := range merged {
		d.merge(value, path, first, use)
	}
}

func (d *decoder) section(node *yaml.Node, v reflect.Value, path string) {
	known := fields(v.Type())
	seen := map[string]bool{}
	ok := d.pairs(node, path, "a section with keys", func(key, value *yaml.Node) {
		i := slices.IndexFunc(known, func(f field) bool { return f.name == key.Value })
		at := join(path, key.Value)
		switch {
		case i >= 0:
			seen[key.Value] = true
			d.keys[at] = place{key.Line, key.Column}
			if known[i].base == "" {
				d.value(value, v.FieldByIndex(known[i].index), at, known[i].tag)
				break
			}
			file := reflect.New(known[i].typ).Elem()
			d.value(value, file, at, known[i].tag)
			if file.String() != "" {
				d.secrets[join(path, known[i].base)] = file.String()
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

func (d *decoder) table(node *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(node, path, "a section with names", func(key, value *yaml.Node) {
		at := join(path, key.Value)
		d.keys[at] = place{key.Line, key.Column}
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(value, element, at, `empty:"true"`)
		v.SetMapIndex(reflect.ValueOf(key.Value), element)
	})
}

// sequence decodes a list; a single string is a list of one.
func (d *decoder) sequence(node *yaml.Node, v reflect.Value, path string) {
	switch list := node.Kind == yaml.SequenceNode; {
	case !list && v.Type().Elem().Kind() == reflect.String:
		text := reflect.New(v.Type().Elem()).Elem()
		if d.scalar(node, text, path, ""); text.String() != "" {
			v.Set(reflect.Append(v, text))
		}
		return
	case !list:
		d.wrong(node, path, fmt.Sprintf("must be a list, not %s", kindName(node)), `begin each item with "- "`)
		return
	}
	for i, item := range node.Content {
		element := reflect.New(v.Type().Elem()).Elem()
		d.value(item, element, fmt.Sprintf("%s[%d]", path, i), "")
		v.Set(reflect.Append(v, element))
		if d.stopped {
			return
		}
	}
}
