package subscriber

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed: Subscribe was called on a closed subscriber.
	ErrClosed = errors.New("subscriber: closed")
	// ErrUnconfirmed: Close could not send every confirmation. The messages are
	// held by their handlers and will come again. The error is an
	// [*UnconfirmedError].
	ErrUnconfirmed = errors.New("subscriber: confirmations not sent")
	// ErrPayloadTooLarge: a payload exceeds PayloadConfig.MaxInline. Raise it,
	// or configure a claim check.
	ErrPayloadTooLarge = errors.New("subscriber: payload larger than Payload.MaxInline; raise it or configure a claim check")
)

// UnconfirmedError says how many acked messages could not be confirmed before
// Close gave up. It matches [ErrUnconfirmed].
type UnconfirmedError struct {
	// Count is the number of messages.
	Count int
}

// Error tells the number.
func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("subscriber: %d acked messages could not be confirmed before the close timeout; they will be delivered again", e.Count)
}

// Is matches [ErrUnconfirmed].
func (e *UnconfirmedError) Is(target error) bool { return target == ErrUnconfirmed }
