package redact

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Struct formats the exported fields of a struct as %+v does, without what addresses in its texts may hold. Of functions,
// interfaces and other structs behind pointers it tells only whether they are set. Embedded structs are flat.
func Struct(v any) string {
	var fields []string
	addFields(reflect.ValueOf(v), &fields)
	return "{" + strings.Join(fields, " ") + "}"
}

// Format writes Struct for every verb. It is for the Format method of a configuration.
func Format(state fmt.State, v any) { _, _ = io.WriteString(state, Struct(v)) }

func addFields(v reflect.Value, fields *[]string) {
	for field, value := range v.Fields() {
		switch {
		case !field.IsExported():
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			addFields(value, fields)
		default:
			*fields = append(*fields, field.Name+":"+shown(value))
		}
	}
}

func shown(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case fmt.Stringer:
		if v.Kind() != reflect.Struct && v.Kind() != reflect.Pointer && v.Kind() != reflect.Interface {
			return Addresses(value.String())
		}
	case encoding.TextMarshaler:
		if text, err := value.MarshalText(); err == nil {
			return Addresses(string(text))
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		return Struct(v.Interface())
	case reflect.Slice, reflect.Array:
		var list []string
		for i := range v.Len() {
			list = append(list, shown(v.Index(i)))
		}
		return "[" + strings.Join(list, " ") + "]"
	case reflect.Pointer, reflect.Interface, reflect.Func, reflect.Map, reflect.Chan:
		if v.IsNil() {
			return "<nil>"
		}
		return "set"
	}
	return Addresses(fmt.Sprint(v.Interface()))
}
