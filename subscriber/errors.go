package subscriber

import (
	"errors"
	"fmt"

	"github.com/agrimill/agrimill/internal/final"
)

var (
	// ErrClosed: Subscribe was called on a closed subscriber.
	ErrClosed = final.New("subscriber: closed")
	// ErrUnconfirmed: Close could not send every confirmation. The messages were handled and will be redelivered. The
	// error is an [*UnconfirmedError].
	ErrUnconfirmed = errors.New("subscriber: confirmations not sent")
	// ErrStreamRefused: the service has refused the event stream for
	// Config.StreamRefusedFor, so all subscriptions have ended. The error wraps the latest answer,
	// gateway.ErrBadRequest or gateway.ErrForbidden.
	ErrStreamRefused = errors.New("subscriber: event stream refused")
	// ErrPayloadGone: the payload of a message could not be downloaded from any of the URIs
	// that the service gave out for it (PayloadConfig.RefreshEvery). The message is set aside, unconfirmed.
	ErrPayloadGone = errors.New("subscriber: the payload is gone: its host refuses fresh URIs of it, too")
	// ErrPayloadTooLarge: a payload exceeds PayloadConfig.MaxInline. Raise it,
	// or configure a claim check.
	ErrPayloadTooLarge = errors.New("subscriber: the payload is larger than a message may hold; raise the limit, or configure a claim check")
)

// UnconfirmedError reports how many acked messages could not be confirmed before
// Close gave up. It matches [ErrUnconfirmed].
type UnconfirmedError struct {
	// Count is the number of messages.
	Count int
}

// Error reports the number of messages.
func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("subscriber: %d acked messages could not be confirmed before the close timeout; they will be redelivered", e.Count)
}

// Is matches [ErrUnconfirmed].
func (e *UnconfirmedError) Is(target error) bool { return target == ErrUnconfirmed }
