package testkit

import (
	"reflect"
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
