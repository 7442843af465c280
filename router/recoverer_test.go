package router_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/router"
)

func TestRecoverer(t *testing.T) {
	book := newLogBook()
	cause := errors.New("cause")
	h := router.NewRecoverer(book)(func(*message.Message) ([]*message.Message, error) { panic(cause) })
	_, err := h(message.NewMessage("1", nil))
	var caught *router.PanicError
	require.ErrorAs(t, err, &caught)
	require.ErrorIs(t, err, cause)
	assert.Equal(t, "panic: cause", err.Error())
	assert.Contains(t, string(caught.Stack), "TestRecoverer")
	assert.Equal(t, router.ClassHandler, router.Classify(err))
	require.Len(t, book.all(), 1)
	assert.True(t, strings.HasPrefix(book.all()[0], "DEBUG"))
	assert.Contains(t, book.all()[0], "TestRecoverer")

	h = router.NewRecoverer(nil)(func(*message.Message) ([]*message.Message, error) { panic(strings.Repeat("x", 1<<20)) })
	_, err = h(message.NewMessage("1", nil))
	assert.Less(t, len(err.Error()), 512)

	want := []*message.Message{message.NewMessage("2", nil)}
	h = router.NewRecoverer(nil)(func(*message.Message) ([]*message.Message, error) { return want, cause })
	out, err := h(message.NewMessage("1", nil))
	assert.Equal(t, want, out)
	assert.Equal(t, cause, err)
}
