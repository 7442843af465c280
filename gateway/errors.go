package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Sentinels for errors.Is. One error may match several: a partial delivery is
// also a bad request, an unreachable token endpoint is [ErrToken] and
// [ErrUnavailable].
var (
	// ErrInvalid: the request breaks a rule of the specification and was not
	// sent. The error is a [*ValidationError]. Do not retry.
	ErrInvalid = errors.New("invalid request")
	// ErrNoRecipients: no direct recipient is reachable; nothing was delivered.
	// Do not retry without new routes.
	ErrNoRecipients = errors.New("no recipients")
	// ErrPartialDelivery: the message was delivered to the reachable direct
	// recipients, but not to all. It must not be sent to the full list again.
	ErrPartialDelivery = errors.New("partial delivery")
	// ErrBadRequest: the service refused the request as it is: status 400, or
	// any 4xx that has no sentinel of its own. Do not retry.
	ErrBadRequest = errors.New("bad request")
	// ErrUnauthorized: the access token was refused, also a fresh one, or the
	// token endpoint refused the credentials. Check the credentials.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden: the endpoint or tenant does not belong to a tenant that the
	// application is authorized for.
	ErrForbidden = errors.New("forbidden")
	// ErrNotFound: the endpoint, message or resource does not exist.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: the payload exceeds the limit (status 413, or found before
	// sending or while downloading).
	ErrTooLarge = errors.New("too large")
	// ErrRateLimited: status 429 outlasted the retries. The whole client has
	// been slowed down; try again later.
	ErrRateLimited = errors.New("rate limited")
	// ErrUnavailable: the other side is down: 5xx, 408, network, TLS, or a
	// token endpoint in that state. Nothing is wrong with the request.
	ErrUnavailable = errors.New("unavailable")
	// ErrToken: no access token could be had. It comes with [ErrUnavailable]
	// when the token endpoint is down or answers nonsense, and with
	// [ErrUnauthorized] when it refused the credentials.
	ErrToken = errors.New("no access token")
	// ErrBadResponse: the answer is not what the specification says: required
	// fields missing, not JSON, wrong content type, too long. See [*ResponseError].
	ErrBadResponse = errors.New("bad response")
	// ErrRedirect: a redirect was refused, because it leads to another host, to
	// another scheme, to a private address, changes the method, or is one too many.
	ErrRedirect = errors.New("redirect refused")
	// ErrCertificate: the other side's TLS certificate is not valid for it. It
	// always comes with [ErrUnavailable]; it is not retried by itself.
	ErrCertificate = errors.New("invalid certificate")
	// ErrIdle: no byte came on a stream for the idle timeout. Reconnect.
	ErrIdle = errors.New("stream idle")
	// ErrEventTooLarge: one event exceeded [Config.MaxEventSize] and was
	// skipped; the stream goes on. The error is a [*EventTooLargeError].
	ErrEventTooLarge = errors.New("event too large")
	// ErrPayloadExpired: the payload host no longer gives the payload: status
	// 403, 404, 410, or another 4xx that does not ask to try again. The message
	// comes again with a fresh URI when it is not confirmed.
	ErrPayloadExpired = errors.New("payload expired")
	// ErrPayloadTruncated: the payload ended early and could not be resumed.
	ErrPayloadTruncated = errors.New("payload truncated")
	// ErrPayloadSize: the payload does not have the size that was announced.
	ErrPayloadSize = errors.New("payload has the wrong size")
	// ErrClosed: the client or the stream has been closed.
	ErrClosed = errors.New("closed")
)

// Error is the error of one operation. It says which, what the service
// answered, and why it failed; it holds no token, secret or payload.
type Error struct {
	// Op is the operation, e.g. "send message".
	Op string
	// StatusCode is the HTTP status, 0 when there was no answer.
	StatusCode int
	// Message is the `message` of the service's ErrorResponse, shortened;
	// empty when there was none. Do not show it unchanged to end users.
	Message string
	// Attempts is how many requests were made.
	Attempts int
	// Err is the cause, nil when the answer itself is the failure.
	Err error

	routing routingFailure
	last    *Error // the last answer when a context ended the retries
}

// Error tells the operation, the status, the service's message and the cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("gateway: ")
	b.WriteString(e.Op)
	if e.StatusCode != 0 {
		b.WriteString(": status ")
		b.WriteString(strconv.Itoa(e.StatusCode))
		if t := http.StatusText(e.StatusCode); t != "" {
			b.WriteString(" " + t)
		}
	}
	if e.Message != "" {
		b.WriteString(": " + strconv.Quote(e.Message))
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Attempts > 1 {
		fmt.Fprintf(&b, " (after %d attempts)", e.Attempts)
	}
	if e.last != nil {
		b.WriteString(", last failure: " + e.last.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches the sentinels of this package by status and routing failure.
func (e *Error) Is(target error) bool {
	// What a payload host answers says nothing about the service, and a
	// failure that has a cause of its own is told by that.
	if e.StatusCode >= 300 && e.Err == nil && target == statusSentinel(e.StatusCode) {
		return true
	}
	switch target {
	case ErrNoRecipients:
		return e.routing == routingNoRecipients
	case ErrPartialDelivery:
		return e.routing == routingPartial
	}
	return false
}

// statusSentinel is the sentinel of an error status.
func statusSentinel(status int) error {
	switch status {
	case http.StatusUnauthorized:
		return ErrUnauthorized
	case http.StatusForbidden:
		return ErrForbidden
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusRequestEntityTooLarge:
		return ErrTooLarge
	case http.StatusTooManyRequests:
		return ErrRateLimited
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return ErrUnavailable
	}
	switch {
	case status >= 500:
		return ErrUnavailable
	case status >= 400:
		return ErrBadRequest
	}
	return ErrBadResponse
}

// ValidationError names the field and the rule that it breaks. It matches
// [ErrInvalid], and [ErrTooLarge] when the rule is the payload limit. The value
// is left out on purpose.
type ValidationError struct {
	// Field is the field as Go or the specification names it.
	Field string
	// Rule is what the field must be.
	Rule string

	tooLarge bool
}

// Error tells field and rule.
func (e *ValidationError) Error() string { return e.Field + " " + e.Rule }

// Is matches [ErrInvalid] and, for the payload limit, [ErrTooLarge].
func (e *ValidationError) Is(target error) bool {
	return target == ErrInvalid || (e.tooLarge && target == ErrTooLarge)
}

// ResponseError says what is wrong with an answer. It matches [ErrBadResponse].
type ResponseError struct {
	// Missing are the required fields that the answer lacks, as paths such as
	// tenants[0].endpoints[2].name.
	Missing []string
	// Reason says what else is wrong.
	Reason string
}

// Error names the missing fields or tells the reason.
func (e *ResponseError) Error() string {
	if len(e.Missing) > 0 {
		return "bad response: required fields missing: " + strings.Join(e.Missing, ", ")
	}
	return "bad response: " + e.Reason
}

// Is matches [ErrBadResponse].
func (e *ResponseError) Is(target error) bool { return target == ErrBadResponse }

// EventTooLargeError reports an event that was skipped because it exceeds the
// limit. The stream goes on. It matches [ErrEventTooLarge].
type EventTooLargeError struct {
	// Limit is [Config.MaxEventSize], in bytes.
	Limit int
	// Type is the event's type as far as it was known, at most 1 KiB of it.
	Type EventType
	// Head is a copy of the first bytes of the data, at most 1 KiB, to find
	// out what was skipped. It may hold payload: keep it out of logs.
	Head []byte
}

// Error tells the limit.
func (e *EventTooLargeError) Error() string {
	return "gateway: receive events: event larger than " + strconv.Itoa(e.Limit) + " bytes was skipped"
}

// Is matches [ErrEventTooLarge].
func (e *EventTooLargeError) Is(target error) bool { return target == ErrEventTooLarge }
