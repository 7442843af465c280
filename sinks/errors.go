package sinks

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"unicode"

	"github.com/agrimill/agrimill/internal/redact"
)

// The classes of a sink's errors. Every error of a sink, context errors aside,
// matches exactly one of them with errors.Is, [ErrNotConnected] aside.
var (
	// ErrTooLarge: this message is larger than the sink takes. Permanent for
	// the message; a claim check helps.
	ErrTooLarge = errors.New("message too large for the sink")

	// ErrRejected: the sink will never take this message as it is, e.g. because
	// its topic is not legal. Permanent for the message.
	ErrRejected = errors.New("message rejected by the sink")

	// ErrUnavailable: the broker is unreachable, does not answer, has no room or
	// refuses this client. Not the message's fault: retry, without end.
	ErrUnavailable = errors.New("sink unavailable")

	// ErrNotConnected is matched by errors of what has not been reached since it was made, such as a sink
	// that was told to connect in the background. Of a sink it comes with ErrUnavailable.
	ErrNotConnected = errors.New("not connected yet")

	// ErrClosed: Close was called. Repeating the call is pointless, the message
	// is to be left open.
	ErrClosed = errors.New("sink closed")
)

// Error is the error type of all sinks. It matches its Kind and whatever Cause
// matches.
type Error struct {
	// Sink is the Name of the sink's Description.
	Sink string
	// Topic is the topic of the failed call, empty when there is none.
	Topic string
	// Kind is ErrTooLarge, ErrRejected, ErrUnavailable or ErrClosed.
	Kind error
	// Cause is the broker's or its client's error, nil when there is none. It
	// is never a context error.
	Cause error
}

// NewError makes the error of a sink. For a cause that is an *Error of the same
// kind already it returns that one. The error does not match context.Canceled
// or context.DeadlineExceeded, whatever the cause does: callers read context errors
// as the end of the message's own context, and a broker client's inner timeout
// is something else.
func NewError(sink, topic string, kind, cause error) *Error {
	var same *Error
	if errors.As(cause, &same) && errors.Is(same.Kind, kind) {
		return same
	}
	if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		cause = innerEnd{cause}
	}
	return &Error{Sink: sink, Topic: topic, Kind: kind, Cause: cause}
}

// innerEnd hides the context errors of a cause, and nothing else. It has no Unwrap:
// that would show them.
type innerEnd struct{ error }

func (e innerEnd) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(e.error, target)
}

func (e innerEnd) As(target any) bool { return errors.As(e.error, target) }

// Error tells sink, topic, kind and cause; never a payload, nor userinfo and
// queries of addresses. Those may be in the text of Cause.
func (e *Error) Error() string {
	text := "sink " + e.Sink
	switch {
	case strings.ContainsFunc(e.Topic, unicode.IsControl): // senders may choose topics, and what is one line must not look like two
		text += ", topic " + strconv.Quote(e.Topic)
	case e.Topic != "":
		text += ", topic " + e.Topic
	}
	text += ": " + e.Kind.Error()
	if e.Cause != nil {
		// A publisher may have named the kind already.
		text += ": " + strings.TrimPrefix(redact.Addresses(e.Cause.Error()), e.Kind.Error()+": ")
	}
	return text
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}
