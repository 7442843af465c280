package testkit

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Equal fails the test unless got and want are deeply equal. It is for values that the
// operators of the language cannot compare, such as maps and structs with slices.
func Equal[T any](t testing.TB, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// ErrorIs fails the test unless err is, or wraps, want.
func ErrorIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// Contains fails the test unless text has part in it.
func Contains(t testing.TB, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("got %q, want %q in it", text, part)
	}
}
