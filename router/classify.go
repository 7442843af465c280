package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"syscall"

	"github.com/eapache/go-resiliency/breaker"
	"github.com/sony/gobreaker"
	gobreaker2 "github.com/sony/gobreaker/v2"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/enum"
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
	// ClassShutdown: the work was interrupted by a shutdown that is under way. The
	// message is returned.
	ClassShutdown
	// ClassRedeliver: this delivery is of no use any more, a new one would be.
	// The message is returned without another attempt.
	ClassRedeliver
)

// String returns the class in lower case, e.g. "permanent".
func (c Class) String() string { return enum.Text(c, classNames) }

var classNames = []string{"none", "permanent", "handler", "outage", "shutdown", "redeliver"}

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

// WithClass gives err a class that overrides what [ClassOf] would say. The text
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

// ClassOf returns the class of an error. First match wins:
//
//  1. the error says so itself ([Classified])
//  2. [gateway.Refused]: permanent
//  3. a sink or store was not reached since the start ([sinks.ErrNotConnected]), the token endpoint failed, or an
//     intermediary answered instead of the gateway: outage
//  4. a circuit breaker is open (Watermill's CircuitBreaker, gobreaker, go-resiliency, and errors with a method
//     CircuitOpen() bool): outage
//  5. a payload address has expired: redeliver. Only a new event has a new one.
//  6. undecodable, too large for or rejected by the sink: permanent
//  7. context.Canceled: handler, also in the middle of a request
//  8. 401, 429, 5xx, a 403 while the operation succeeds for nobody, an answer or a redirect that the specification does
//     not know, a payload of the wrong size, sink unavailable, sink or client closed, network errors, a full disk: outage
//  9. anything else, context.DeadlineExceeded included: handler
//
// An error does not tell whose context has ended, nor whether a shutdown is under way. That is known where the error passes: a
// route takes an ended context from its sink for an outage, [Retry] and [PoisonQueue] never blame a handler for
// what fails after the message's own context has ended or a shutdown has begun.
func ClassOf(err error) Class {
	if err == nil {
		return ClassNone
	}
	if own, ok := errors.AsType[Classified](err); ok {
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
	if circuit, ok := errors.AsType[circuitError](err); ok && circuit.CircuitOpen() {
		return ClassOutage
	}
	if is[*gateway.DecodeError](err) {
		return ClassPermanent
	}
	if isNetwork(err) {
		return ClassOutage
	}
	return ClassHandler
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// circuitError is what circuit breakers' errors are that tell it, as those of cep21/circuit do.
type circuitError interface {
	error
	CircuitOpen() bool
}

// classifier is [Config.Classify], which may be nil.
type classifier func(error) (Class, bool)

// class asks the application, which may know better, and then [ClassOf].
func (ask classifier) class(err error) Class {
	if ask == nil || err == nil || decided(err) {
		return ClassOf(err)
	}
	if class, ok := ask.safely(err); ok && class > ClassNone && class <= ClassRedeliver {
		return class
	}
	return ClassOf(err)
}

// safely calls the application's function. One that panics does not know.
func (ask classifier) safely(err error) (class Class, ok bool) {
	defer func() {
		if recover() != nil {
			class, ok = ClassNone, false
		}
	}()
	return ask(err)
}

// decision is an error by which the middlewares of this package tell each other what to do. No application is asked.
type decision struct{ classifiedError }

func decide(err error, class Class) error { return &decision{classifiedError{err, class}} }

func decided(err error) bool { return is[*RetryError](err) || is[*decision](err) }

// isNetwork reports whether err comes from the network, or from a system that has nothing left. A context's expired
// deadline says that it is a timeout, as errors of the network do, and is none of them; so does every [syscall.Errno],
// and a file that does not exist is not there at the next attempt either.
func isNetwork(err error) bool {
	switch {
	case errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed):
		return true
	case is[*net.OpError](err), is[*net.DNSError](err):
		return true
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Op != "parse" // that of url.Parse, which asks nobody
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return slices.Contains(outages, errno)
	}
	other, ok := errors.AsType[net.Error](err)
	return ok && error(other) != context.DeadlineExceeded //nolint:errorlint // only a bare one is the context's own
}

// outages are what a system says of a connection, and of what it has no more of. It is never changed.
var outages = []syscall.Errno{
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE,
	syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT,
	syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.EROFS, syscall.EAGAIN, syscall.EINTR,
}

// classes is the table behind [ClassOf], in the order in which it is read. It
// is never changed.
var classes = []struct {
	class  Class
	errors []error
}{
	{ClassOutage, []error{sinks.ErrNotConnected, gateway.ErrToken, gateway.ErrIntermediary}},
	{ClassOutage, []error{
		gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests, // also of Watermill's CircuitBreaker
		gobreaker2.ErrOpenState, gobreaker2.ErrTooManyRequests, breaker.ErrBreakerOpen,
	}},
	{ClassRedeliver, []error{gateway.ErrPayloadExpired}},
	{ClassPermanent, []error{gateway.ErrEventTooLarge, sinks.ErrTooLarge, sinks.ErrRejected}},
	{ClassHandler, []error{context.Canceled}},
	{ClassOutage, []error{
		gateway.ErrUnauthorized, gateway.ErrRateLimited, gateway.ErrUnavailable,
		gateway.ErrBadResponse, gateway.ErrRedirect, gateway.ErrPayloadTruncated, gateway.ErrPayloadSize,
		gateway.ErrClosed, sinks.ErrUnavailable, sinks.ErrClosed,
	}},
}
