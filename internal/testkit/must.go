package testkit

import "testing"

// Must returns a function that returns value, or ends the test that it gets if there is an error:
//
//	sink := testkit.Must(nats.New(config, nil))(t)
func Must[V any](value V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
