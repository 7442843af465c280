package isoxml

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/agrimill/agrimill/farmdata"
)

// uncompared are the fields that are not written.
var uncompared = map[string]bool{"Set.Path": true, "Set.Findings": true, "Log.Size": true, "Log.Records": true, "Grid.Cells": true}

// implied are the fields that follow from others, so that they may be left out.
var implied = map[string]bool{"Log.Columns": true, "Grid.Columns": true}

// differs returns where a set that was read, or a part of it, is not the one that was written; empty if nowhere. Records and cells
// are looked at when they are written.
func differs(place string, a, b reflect.Value) string {
	switch a.Kind() {
	case reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			break
		}
		return differs(place, a.Elem(), b.Elem())
	case reflect.Slice, reflect.Array:
		for i := range min(a.Len(), b.Len()) {
			if at := differs(fmt.Sprintf("%s[%d]", place, i), a.Index(i), b.Index(i)); at != "" {
				return at
			}
		}
		if a.Len() != b.Len() {
			return fmt.Sprintf("%s[%d]", place, min(a.Len(), b.Len()))
		}
		return ""
	case reflect.Struct:
		if stamp, ok := a.Interface().(farmdata.Stamp); ok {
			if !sameStamp(stamp, b.Interface().(farmdata.Stamp)) {
				return place
			}
			return ""
		}
		return differsInside(place, a, b)
	}
	if a.Interface() != b.Interface() {
		return place
	}
	return ""
}

func differsInside(place string, a, b reflect.Value) string {
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		field := a.Type().Name() + "." + name
		if uncompared[field] || implied[field] && a.Field(i).Len() == 0 {
			continue
		}
		inside := place
		if !a.Type().Field(i).Anonymous {
			inside = strings.TrimPrefix(place+"."+name, ".")
		}
		if at := differs(inside, a.Field(i), b.Field(i)); at != "" {
			return at
		}
	}
	return ""
}

// sameStamp reports whether two times are the same, in the form that they have in XML.
func sameStamp(a, b farmdata.Stamp) bool {
	if a.IsZero() && b.IsZero() {
		return true
	}
	if a.Local != b.Local || !a.UTC.Equal(b.UTC) {
		return false
	}
	return a.Wall == b.Wall || (a.Local || a.Wall.Equal(b.Wall)) && wall(a) == wall(b)
}

func wall(s farmdata.Stamp) string { return farmdata.Stamp{Wall: s.Wall, Local: s.Local}.String() }
