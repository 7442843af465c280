package readstate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/agrimill/agrimill/internal/readstate"
	"github.com/agrimill/agrimill/sinks"
)

// The error of a source names it, shows no secret of an address, and is not taken for the end of a context.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	err := readstate.Unavailable("nats, consumer c", errors.Join(errors.New("dial nats://user:secret@host"), context.Canceled))
	if got, want := err.Error(), "source nats, consumer c: unavailable: dial nats://host\ncontext canceled"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var class *sinks.Error
	if !errors.Is(err, sinks.ErrUnavailable) || !errors.As(err, &class) || errors.Is(err, context.Canceled) {
		t.Errorf("got the wrong class of %v", err)
	}
}
