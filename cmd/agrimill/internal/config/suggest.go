package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
)

// nearest returns the candidate that name was probably meant to be, empty if there is none.
func nearest(name string, candidates []string) string {
	best, distance := "", max(2, len(name)/3)+1
	fold := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "_")) }
	for _, candidate := range candidates {
		if n := levenshtein.Distance(fold(name), fold(candidate), nil); n < distance && n < len(candidate) {
			best, distance = candidate, n
		}
	}
	return best
}

func didYouMean(name string, candidates []string) string {
	if len(name) <= 64 {
		if near := nearest(name, candidates); near != "" {
			return "did you mean " + near + "?"
		}
	}
	if len(candidates) > 0 && len(candidates) <= 12 {
		return "use " + oneOf(candidates)
	}
	return ""
}

// suggestKey suggests what an unknown key of a section may have been meant to be: one with
// nearly the same name there, or one of the same name elsewhere.
func suggestKey(name, path string, known []field) (near, suggestion string) {
	names := make([]string, len(known))
	for i, f := range known {
		names[i] = f.name
	}
	if len(name) > 64 {
		return "", ""
	}
	if text := formerKey(join(path, name)); text != "" {
		return "", text
	}
	if near := nearest(name, names); near != "" {
		return near, "did you mean " + join(path, near) + "?"
	}
	var elsewhere []string
	walk(reflect.TypeFor[Config](), "", func(at string, f field) {
		if f.name == name && !slices.Contains(elsewhere, at) {
			elsewhere = append(elsewhere, at)
		}
	})
	if len(elsewhere) > 0 && len(elsewhere) <= 4 {
		return "", "it belongs to " + oneOf(elsewhere)
	}
	slices.Sort(names)
	if len(names) <= 20 {
		return "", "use " + oneOf(names)
	}
	return "", ""
}

// walk calls use for every key of a section and its subsections, with its path; names in
// tables are <name>, and list items are [].
func walk(t reflect.Type, path string, use func(path string, f field)) {
	for _, f := range fields(t) {
		at := join(path, f.name)
		use(at, f)
		inner := f.typ
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map {
			switch inner.Kind() {
			case reflect.Slice:
				at += "[]"
			case reflect.Map:
				at += ".<name>"
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && !isScalar(inner) {
			walk(inner, at, use)
		}
	}
}
