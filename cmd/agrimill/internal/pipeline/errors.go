package pipeline

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/agrimill/agrimill/router"
)

var (
	// ErrConfig is matched by the errors of New and Reload for an invalid configuration.
	ErrConfig = errors.New("invalid configuration")
	// ErrRefused is matched by the error of Run if the gateway refuses this application for good.
	ErrRefused = errors.New("the gateway refuses")
	// ErrUnfinished is matched by the error of Run if it was stopped and left something
	// open. It is an *UnfinishedError.
	ErrUnfinished = errors.New("stopped with unfinished messages")
	// ErrNotRunning: Reload was called once the pipeline had begun to stop.
	ErrNotRunning = errors.New("the pipeline is not running")
	// ErrStarted: Run was called before.
	ErrStarted = errors.New("the pipeline was already started")
)

// UnfinishedError says what was left open when a pipeline was stopped, and is redelivered. It matches [ErrUnfinished].
type UnfinishedError struct {
	// Open is how many messages of the gateway were received and not handled: in flight, nacked,
	// queued, being downloaded, waiting for the quarantine, or left with the gateway for want of room.
	Open int
	// SetAside is how many messages fit neither their sink nor the poison queue, or cannot be delivered.
	SetAside int
	// Held is how many messages were waiting for their file.
	Held int
	// Unconfirmed is how many messages are stored but not confirmed.
	Unconfirmed int
	// Returned is how many messages of brokers the routes took and did not finish.
	Returned int
	// Err is the error of closing; nil if everything closed in time and without an error.
	Err error
}

// Error returns the counts and the text of Err.
func (e *UnfinishedError) Error() string {
	text := fmt.Sprintf("%s: %d open, %d set aside, %d held for a file, %d stored but not confirmed, %d returned to brokers",
		ErrUnfinished, e.Open, e.SetAside, e.Held, e.Unconfirmed, e.Returned)
	if e.Err != nil {
		text += ": " + router.RedactError(e.Err, nil)
	}
	return text
}

// Is matches [ErrUnfinished].
func (e *UnfinishedError) Is(target error) bool { return target == ErrUnfinished }

// Unwrap returns Err.
func (e *UnfinishedError) Unwrap() error { return e.Err }

// refused says what the gateway refuses, the credentials or the event stream, and why. It matches [ErrRefused] and the reason.
func refused(what string, reason error) error {
	return fmt.Errorf("%w %s: %w", ErrRefused, what, reason)
}

// configError marks an error as caused by the configuration.
type configError struct{ error }

// Is makes errors.Is(err, ErrConfig) true and leaves the text as it is.
func (e configError) Is(target error) bool { return target == ErrConfig }

// Unwrap returns the marked error.
func (e configError) Unwrap() error { return e.error }

// mayPass reports whether an error is caused by the system rather than the configuration,
// and so may be temporary.
func mayPass(err error) bool {
	return slices.ContainsFunc([]error{
		fs.ErrPermission, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	}, func(passing error) bool { return errors.Is(err, passing) })
}
