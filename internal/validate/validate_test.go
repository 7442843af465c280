package validate_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/validate"
)

var errConfig = errors.New("pump: invalid configuration")

func inner() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxAge", -time.Second)
	e.Check(false, "Window", "must not be longer than %s, %d times", validate.Field("MaxAge"), 2)
	return e.Err(errConfig)
}

func TestAllMistakesWithPaths(t *testing.T) {
	cause := errors.New("no such file")
	var e validate.Errors
	e.Check(true, "Good", "must be good")
	e.Add("", "needs User or Token")
	e.Join("Store", inner())
	e.Join("Other", nil)
	e.Join("TLS", cause)
	err := e.Err(errConfig)
	const want = "pump: invalid configuration: needs User or Token; Store.MaxAge must not be negative; " +
		"Store.Window must not be longer than Store.MaxAge, 2 times; TLS no such file"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if !errors.Is(err, errConfig) || !errors.Is(err, cause) {
		t.Error("sentinel or cause is not matched")
	}
	fields := validate.Fields(err)
	if len(fields) != 4 {
		t.Fatalf("%d mistakes, want 4", len(fields))
	}
	key := func(path string) string { return strings.ToLower(path) }
	if got, want := fields[2].Rule(key), "must not be longer than store.maxage, 2 times"; fields[2].Path != "Store.Window" || got != want {
		t.Errorf("%s: got %q, want %q", fields[2].Path, got, want)
	}
	// Joining leaves the inner error as it was.
	if got := validate.Fields(inner())[1].Error(); got != "Window must not be longer than MaxAge, 2 times" {
		t.Errorf("got %q", got)
	}
}

func TestNoMistake(t *testing.T) {
	var e validate.Errors
	testkit.NoError(t, e.Err(errConfig))
	if fields := validate.Fields(errors.New("other")); fields != nil {
		t.Errorf("got %v", fields)
	}
}
