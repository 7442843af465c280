package router

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks"
)

// Class says what is to be done about an error.
type Class int

const (
	// ClassNone is the class of nil.
	ClassNone Class = iota
	// ClassPermanent: this message will never pass, however often it is tried.
	ClassPermanent
	// ClassHandler: the handling failed, for no known reason. It is tried again
	// a bounded number of times. The class of every error that is not known.
	ClassHandler
	// ClassOutage: the other side is down, or refuses everybody. Tried without
	// limit; no message is to blame.
	ClassOutage
	// ClassShutdown: the work was interrupted. The message is returned.
	ClassShutdown
	// ClassRedeliver: this delivery is of no use any more, a new one would be.
	// The message is returned without another attempt.
	ClassRedeliver
)

// String returns the class in lower case, e.g. "permanent".
func (c Class) String() string {
	switch c {
	case ClassNone:
		return "none"
	case ClassPermanent:
		return "permanent"
	case ClassHandler:
		return "handler"
	case ClassOutage:
		return "outage"
	case ClassShutdown:
		return "shutdown"
	case ClassRedeliver:
		return "redeliver"
	default:
		return "unknown"
	}
}

// Classified is implemented by errors that know their class. It is looked for
// with errors.As, so wrapping keeps the class, and the outermost one decides.
// An answer of [ClassNone] means "do not know".
type Classified interface {
	error
	ErrorClass() Class
}

type classifiedError struct {
	error
	class Class
}

func (e *classifiedError) Unwrap() error     { return e.error }
func (e *classifiedError) ErrorClass() Class { return e.class }

// WithClass gives err a class that overrides what [Classify] would say. The text
// of the error stays. nil stays nil.
func WithClass(err error, class Class) error {
	if err == nil {
		return nil
	}
	return &classifiedError{error: err, class: class}
}

// Permanent marks err as hopeless for this message: it goes to the poison queue
// without another try. nil stays nil.
func Permanent(err error) error { return WithClass(err, ClassPermanent) }

// Outage marks err as the fault of something that is down: the message is tried
// until it passes. nil stays nil.
func Outage(err error) error { return WithClass(err, ClassOutage) }

// Classify returns the class of an error. It is the only place where that is
// decided. First match wins:
//
//  1. the error says so itself ([Classified])
//  2. [gateway.Refused]: permanent
//  3. the token endpoint failed, or an intermediary answered instead of the
//     gateway: outage. That says nothing about a message.
//  4. a payload address has expired: redeliver. Only a new event has a new one.
//  5. undecodable, too large for or rejected by the sink: permanent
//  6. context.Canceled, sink or client closed: shutdown
//  7. 401, 429, 5xx, network, a 403 while the operation succeeds for nobody, an answer or a redirect that the specification
//     does not know, a payload of the wrong size, sink unavailable: outage
//  8. an expired deadline, a network error, a refused, reset or broken
//     connection: outage
//  9. anything else: handler
func Classify(err error) Class {
	if err == nil {
		return ClassNone
	}
	var own Classified
	if errors.As(err, &own) {
		if class := own.ErrorClass(); class != ClassNone {
			return class
		}
	}
	// Before any outage: a publisher wrapped by sinks.FromPublisher reports errors
	// that the wrapper does not know as sinks.ErrUnavailable, and the gateway's
	// verdict is the better one.
	if gateway.Refused(err) {
		return ClassPermanent
	}
	for _, row := range classes {
		for _, target := range row.errors {
			if errors.Is(err, target) {
				return row.class
			}
		}
	}
	var decode *gateway.DecodeError
	if errors.As(err, &decode) {
		return ClassPermanent
	}
	var network net.Error
	if errors.As(err, &network) {
		return ClassOutage
	}
	return ClassHandler
}

// classes is the table behind [Classify], in the order in which it is read. It
// is never changed.
var classes = []struct {
	class  Class
	errors []error
}{
	{ClassOutage, []error{gateway.ErrToken, gateway.ErrIntermediary}},
	{ClassRedeliver, []error{gateway.ErrPayloadExpired}},
	{ClassPermanent, []error{gateway.ErrEventTooLarge, sinks.ErrTooLarge, sinks.ErrRejected}},
	{ClassShutdown, []error{context.Canceled, sinks.ErrClosed, gateway.ErrClosed}},
	{ClassOutage, []error{
		gateway.ErrUnauthorized, gateway.ErrRateLimited, gateway.ErrUnavailable,
		gateway.ErrBadResponse, gateway.ErrRedirect, gateway.ErrPayloadTruncated, gateway.ErrPayloadSize,
		sinks.ErrUnavailable,
		context.DeadlineExceeded, os.ErrDeadlineExceeded, net.ErrClosed, io.ErrClosedPipe,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE,
		syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT,
	}},
}
