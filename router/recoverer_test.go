package router_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

func TestRecoverer(t *testing.T) {
	book := testkit.NewLog()
	cause := errors.New("cause")
	h := router.NewRecoverer(book)(func(*message.Message) ([]*message.Message, error) { panic(cause) })
	_, err := h(message.NewMessage("1", nil))
	var caught *router.PanicError
	if !errors.As(err, &caught) {
		t.Fatalf("err = %v, want a %T", err, caught)
	}
	testkit.ErrorIs(t, err, cause)
	if got, want := err.Error(), "panic: cause"; got != want {
		t.Errorf("err.Error() = %q, want %q", got, want)
	}
	testkit.Contains(t, string(caught.Stack), "TestRecoverer")
	wantClass(t, err, router.ClassHandler)
	if got := book.Texts(); len(got) != 1 {
		t.Fatalf("book.Texts() has %d elements, want 1: %q", len(got), got)
	}
	if line := book.Texts()[0]; !strings.HasPrefix(line, "DEBUG") || !strings.Contains(line, "TestRecoverer") {
		t.Errorf("log line %q, want a debug line with the stack", line)
	}

	h = router.NewRecoverer(nil)(func(*message.Message) ([]*message.Message, error) { panic(strings.Repeat("x", 1<<20)) })
	_, err = h(message.NewMessage("1", nil))
	if got := len(err.Error()); got >= 512 {
		t.Errorf("len(err.Error()) = %d, want less than 512", got)
	}

	want := []*message.Message{message.NewMessage("2", nil)}
	h = router.NewRecoverer(nil)(func(*message.Message) ([]*message.Message, error) { return want, cause })
	out, err := h(message.NewMessage("1", nil))
	testkit.Equal(t, out, want)
	testkit.Equal(t, err, cause)
}
