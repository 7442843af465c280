// Package final marks subscriber errors that the same call will always return
// again: a configuration mistake, or a closed
// subscriber. The router, which does not know the subscriber, does not retry such a call.
package final

import "errors"

// sentinel is compared by address, like the result of errors.New.
type sentinel struct{ text string }

func (s *sentinel) Error() string { return s.text }

// New returns a marked sentinel error, for use with errors.Is and for wrapping.
func New(text string) error { return &sentinel{text} }

// Is reports whether err is or wraps an error created by [New].
func Is(err error) bool {
	var s *sentinel
	return errors.As(err, &s)
}
