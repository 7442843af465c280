// Package testkit contains what tests of several packages share.
package testkit

import (
	"context"
	"testing"
	"time"
)

// Patience is how long a test waits for what has to happen. It tells a hang from what goes on, and promises nothing about
// time: what does is tested in a bubble of testing/synctest.
const Patience = 5 * time.Minute

// A condition is checked every shortest, and every longest once it has been waited for a second; less often
// when that would take more than a fifth of the time: it must not slow down what it waits for.
const (
	shortest = 5 * time.Millisecond
	longest  = 50 * time.Millisecond
	share    = 5
)

// Context is the context of a test that ends after [Patience].
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Receive returns what comes from a channel, called what, or its zero value when it is closed, and fails the test after [Patience].
func Receive[T any](t testing.TB, what string, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(Patience):
		t.Fatalf("%s did not come", what)
	}
	return got
}

// Eventually waits until condition, which what describes, holds, and fails the test after [Patience].
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !poll(condition) {
		t.Fatalf("%s: not within %v", what, Patience)
	}
}

// EventuallyNil calls f until it returns nil, and fails the test with its last error after [Patience].
func EventuallyNil(t testing.TB, f func() error) {
	t.Helper()
	var err error
	if !poll(func() bool { err = f(); return err == nil }) {
		t.Fatalf("not within %v: %v", Patience, err)
	}
}

// Ends runs f, called what, which must not end the test, and fails the test after [Patience].
func Ends(t testing.TB, what string, f func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { // ends with f
		defer close(ended)
		f()
	}()
	select {
	case <-ended:
	case <-time.After(Patience):
		t.Fatalf("%s: not done after %v", what, Patience)
	}
}

func poll(condition func() bool) bool {
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for start := time.Now(); ; {
		began := time.Now()
		if condition() {
			return true
		}
		select {
		case <-deadline.C:
			return false
		case <-time.After(max(min(max(shortest, time.Since(start)/20), longest), (share-1)*time.Since(began))):
		}
	}
}
