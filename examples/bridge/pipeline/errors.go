package pipeline

import (
	"errors"

	"github.com/agrimill/agrimill/router"
)

var (
	// ErrConfig is matched by the errors of New and Reload for a configuration
	// that cannot work.
	ErrConfig = errors.New("invalid configuration")
	// ErrRefused is matched by the error of Run when the gateway refuses this
	// application for good. It is a *RefusedError.
	ErrRefused = errors.New("the gateway refuses")
	// ErrNotRunning: Reload was called before Run, or after it.
	ErrNotRunning = errors.New("the pipeline does not run")
	// ErrStarted: Run was called before.
	ErrStarted = errors.New("the pipeline was started before")
)

// RefusedError says what the gateway refuses, and why. It matches [ErrRefused].
type RefusedError struct {
	// What is "the credentials" or "the event stream".
	What string
	// Err is the gateway's answer.
	Err error
}

// Error tells both.
func (e *RefusedError) Error() string {
	return "the gateway refuses " + e.What + ": " + router.RedactError(e.Err, nil)
}

// Is matches [ErrRefused].
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Unwrap returns the answer.
func (e *RefusedError) Unwrap() error { return e.Err }

// configError marks an error as one of the configuration.
type configError struct{ error }

// Is makes errors.Is(err, ErrConfig) true and leaves the text as it is.
func (e configError) Is(target error) bool { return target == ErrConfig }

// Unwrap returns the error that is marked.
func (e configError) Unwrap() error { return e.error }
