package router

import (
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/warnlog"
)

// PanicError represents a panic in a handler. Its class is [ClassHandler].
type PanicError struct {
	// Value is what was passed to panic.
	Value any
	// Stack is the stack of the goroutine that panicked. It is logged at debug
	// level and never becomes part of the error's text.
	Stack []byte
}

// Error returns the truncated value, without the stack.
func (e *PanicError) Error() string {
	return "panic: " + capText(fmt.Sprint(e.Value), maxReasonLength/2)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ErrorClass returns [ClassHandler]: whatever the value is, a panic is a failure
// of the code and not an outage.
func (e *PanicError) ErrorClass() Class { return ClassHandler }

// NewRecoverer returns a middleware that converts a panic of the handler to a
// [*PanicError], so that it is retried and, if it persists, poisoned. The stack
// is logged at debug level; a nil logger discards it.
func NewRecoverer(logger watermill.LoggerAdapter) message.HandlerMiddleware {
	logger = warnlog.Or(logger)
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			defer func() {
				if value := recover(); value != nil {
					caught := &PanicError{Value: value, Stack: debug.Stack()}
					logger.Debug("handler panicked", watermill.LogFields{
						"message_uuid": msg.UUID,
						"error":        RedactError(caught, msg),
						"stack":        string(caught.Stack),
					})
					out, err = nil, caught
				}
			}()
			return h(msg)
		}
	}
}
