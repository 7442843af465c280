package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Sentinels for errors.Is. An error may match several of them: a partial delivery is also a bad request.
var (
	// ErrInvalid: the request violates a rule and was not sent; a [*ValidationError]. Do not retry.
	ErrInvalid = errors.New("invalid request")
	// ErrNoRecipients: no direct recipient is reachable; nothing was delivered, nor will be without new routes.
	ErrNoRecipients = errors.New("no recipients")
	// ErrPartialDelivery: the message was delivered to the reachable direct
	// recipients, but not to all. Do not send it to the full list again.
	ErrPartialDelivery = errors.New("partial delivery")
	// ErrBadRequest: the service refused the request itself (status 400). Do not retry.
	ErrBadRequest = errors.New("bad request")
	// ErrUnauthorized: the service refused even a fresh access token, or the token endpoint the credentials.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden: the endpoint or tenant does not belong to a tenant that the application is authorized for. It also
	// matches [ErrUnavailable] if nothing shows that this request is at fault: the operation has not succeeded for
	// another request within the preceding minute, or has been refused more than ten times since.
	ErrForbidden = errors.New("forbidden")
	// ErrNotFound: the endpoint or resource does not exist.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: the payload exceeds the limit (status 413, or found before sending or while downloading).
	ErrTooLarge = errors.New("too large")
	// ErrRateLimited: status 429 outlasted the retries; try again later.
	ErrRateLimited = errors.New("rate limited")
	// ErrUnavailable: the peer, or the token endpoint, is down: 5xx, 408, network, TLS. Nothing is wrong with the
	// request.
	ErrUnavailable = errors.New("unavailable")
	// ErrIntermediary: an intermediary (an ingress, a proxy, a captive portal) answered instead of the service: a web
	// page with any status, a 4xx without an ErrorResponse, or one that the specification does not list for the
	// operation. It says nothing about the request, and always matches [ErrUnavailable] too. [Client.Intermediaries]
	// reports since when.
	ErrIntermediary = errors.New("not answered by the service")
	// ErrToken: no access token is available. It also matches [ErrUnavailable] if the token endpoint is down or its answer
	// is invalid, [ErrUnauthorized] if it refused, and [ErrRateLimited] if it limits the rate of requests.
	ErrToken = errors.New("no access token")
	// ErrTokenRequest: the token endpoint refused what was asked for, the scopes or the grant type,
	// and not the credentials. It always matches [ErrToken] and [ErrUnauthorized] too.
	ErrTokenRequest = errors.New("token request refused")
	// ErrBadResponse: the response violates the specification. See [*ResponseError].
	ErrBadResponse = errors.New("bad response")
	// ErrContentEncoding: the response has a Content-Encoding that was not requested,
	// so an intermediary compresses. It also matches [ErrBadResponse].
	ErrContentEncoding error = &subSentinel{"unexpected content encoding", ErrBadResponse}
	// ErrRedirect: a redirect was refused because it leads to another host,
	// another scheme or a private address, changes the method, or exceeds the limit.
	ErrRedirect = errors.New("redirect refused")
	// ErrCertificate: the peer's TLS certificate is invalid. It always
	// matches [ErrUnavailable] too, but is not retried automatically.
	ErrCertificate = errors.New("invalid certificate")
	// ErrIdle: a stream was silent for the idle timeout. Reconnect.
	ErrIdle = errors.New("stream idle")
	// ErrEventTooLarge: an event exceeded [Config.MaxEventSize] and was
	// skipped; the stream continues. The error is a [*EventTooLargeError].
	ErrEventTooLarge = errors.New("event too large")
	// ErrPayloadExpired: the payload host no longer serves the payload: a 4xx that does not ask for a retry. An unconfirmed
	// message is redelivered with a fresh URI.
	ErrPayloadExpired = errors.New("payload expired")
	// ErrPayloadTruncated: the payload ended early and could not be resumed.
	ErrPayloadTruncated = errors.New("payload truncated")
	// ErrPayloadSize: the payload does not have the announced size.
	ErrPayloadSize = errors.New("payload has the wrong size")
	// ErrEndpointDeleted: somebody else deleted the endpoint that a [Provisioner] made.
	ErrEndpointDeleted = errors.New("somebody else deleted the endpoint")
	// ErrClosed: the client or the stream has been closed.
	ErrClosed = errors.New("closed")
)

// subSentinel is a sentinel that matches another one, too.
type subSentinel struct {
	text string
	of   error
}

// Error returns the text.
func (e *subSentinel) Error() string { return e.text }

// Unwrap returns the other one.
func (e *subSentinel) Unwrap() error { return e.of }

// Error is the error of one operation. It reports the operation, what the service
// answered, and why it failed; it contains no token, secret or payload.
type Error struct {
	// Op is the operation, e.g. "send message".
	Op string
	// StatusCode is the HTTP status; 0 if there was no response.
	StatusCode int
	// Message is the `message` of the service's ErrorResponse, truncated, or empty. It is not for end users.
	Message string
	// ContentType is the media type of the response, in lower case and without parameters, or empty.
	ContentType string
	// ErrorResponse reports whether the response was an ErrorResponse of the specification.
	ErrorResponse bool
	// Attempts is how many attempts there were from the first that made a request on; 0 if none did.
	Attempts int
	// RetryAfter is how long the peer asked to be left alone, at most [RetryConfig.MaxRetryAfter]; zero if it did
	// not. A call that makes several attempts has heeded it between them.
	RetryAfter time.Duration
	// Err is the cause; nil if the response itself is the failure.
	Err error

	routing error // ErrNoRecipients, ErrPartialDelivery, or nil
	// unproven is set for a 403 if no other request of the operation has succeeded recently.
	unproven bool
	last     *Error // the last failure, if a context ended the retries
}

// Error reports the operation, the status, the service's message and the cause.
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
		if e.ContentType != "" && !e.ErrorResponse {
			b.WriteString(" (" + e.ContentType + ")")
		}
	}
	if e.Message != "" {
		b.WriteString(": " + strconv.Quote(e.Message))
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	} else if e.intermediary() {
		b.WriteString(": " + ErrIntermediary.Error())
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
	switch target {
	case ErrNoRecipients, ErrPartialDelivery:
		return e.routing == target
	}
	// A failure with a cause of its own matches through Unwrap.
	if e.StatusCode < 300 || e.Err != nil {
		return false
	}
	if e.intermediary() {
		return target == ErrIntermediary || target == ErrUnavailable
	}
	return target == statusSentinel(e.StatusCode) || (e.unproven && target == ErrUnavailable)
}

// intermediary reports whether an error status does not come from the service. This is the only place that decides that.
func (e *Error) intermediary() bool {
	if e.StatusCode < 400 || e.StatusCode > 499 || e.Err != nil {
		return false
	}
	switch e.StatusCode {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false // the reaction is the same, no matter who answered
	}
	switch e.Op {
	case opPayload:
		return false // whatever a payload host answers is its own
	case opEvents:
		// Its errors have no body, so only the status counts.
		return e.StatusCode != http.StatusBadRequest && e.StatusCode != http.StatusForbidden
	}
	if !e.ErrorResponse {
		return true
	}
	switch e.StatusCode {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge:
		return false
	case http.StatusNotFound:
		// Sending and confirming do not address a resource that could be missing.
		return e.Op == opSend || e.Op == opConfirm
	}
	return true
}

// statusSentinel returns the sentinel for an error status of the service.
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

// ValidationError names a field and the rule that it violates, without the value. It matches [ErrInvalid], and
// [ErrTooLarge] if the rule is the payload limit.
type ValidationError struct {
	// Field is the field's name in Go or in the specification.
	Field string
	// Rule is what the field must be.
	Rule string

	tooLarge bool
}

// Error returns field and rule.
func (e *ValidationError) Error() string { return e.Field + " " + e.Rule }

// Is matches [ErrInvalid] and, for the payload limit, [ErrTooLarge].
func (e *ValidationError) Is(target error) bool {
	return target == ErrInvalid || (e.tooLarge && target == ErrTooLarge)
}

// ResponseError describes what is wrong with a response. It matches [ErrBadResponse],
// and [ErrIntermediary] and [ErrUnavailable] if the response is a web page.
type ResponseError struct {
	// Reason describes the problem: the path of the first field that is not as specified, such as
	// tenants[0].tenant_id, and what is wrong with it, or what is wrong with the whole.
	Reason string

	intermediary bool
}

// Error returns the reason.
func (e *ResponseError) Error() string { return "bad response: " + e.Reason }

// Is matches [ErrBadResponse], and [ErrIntermediary] with [ErrUnavailable].
func (e *ResponseError) Is(target error) bool {
	return target == ErrBadResponse || (e.intermediary && (target == ErrIntermediary || target == ErrUnavailable))
}

// EventTooLargeError reports an event that was skipped because it exceeds the
// limit. The stream continues. It matches [ErrEventTooLarge].
type EventTooLargeError struct {
	// Limit is [Config.MaxEventSize], in bytes.
	Limit int
	// Type is the event's type as far as it was read, at most 1 KiB of it.
	Type EventType
	// Head is a copy of the first bytes of the data, at most 1 KiB, to identify
	// the skipped event. It may contain payload data: keep it out of logs.
	Head []byte
}

// Error reports the limit.
func (e *EventTooLargeError) Error() string {
	return "gateway: receive events: event larger than " + strconv.Itoa(e.Limit) + " bytes was skipped"
}

// Is matches [ErrEventTooLarge].
func (e *EventTooLargeError) Is(target error) bool { return target == ErrEventTooLarge }
