package testkit_test

import (
	"fmt"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// recorder is a test whose failures are kept.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestEqual(t *testing.T) {
	r := &recorder{TB: t}
	testkit.Equal(r, map[string][]int{"a": {1}}, map[string][]int{"a": {1}})
	if len(r.failures) != 0 {
		t.Fatalf("equal maps: %q", r.failures)
	}
	testkit.Equal(r, map[string][]int{"a": {1}}, map[string][]int{"a": {2}})
	if want := "got  map[a:[1]]\nwant map[a:[2]]"; len(r.failures) != 1 || r.failures[0] != want {
		t.Errorf("got %q, want %q", r.failures, want)
	}
}
