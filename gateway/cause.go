package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
)

// errAttemptTimeout ends one attempt. It is not the caller's deadline.
var errAttemptTimeout = errors.New("no response within the request timeout")

// errAnsweredEarly means that a request was accepted by somebody who cannot have all of it.
var errAnsweredEarly = errors.New("accepted before the whole payload was sent")

// transportError is a failure below HTTP. Its text is composed only of parts known to
// be harmless: the errors of package http quote URLs and responses.
type transportError struct {
	cause       error
	certificate bool
}

// transportCause converts an error of an http.Client or a body into the cause of an [Error].
func transportCause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	for _, find := range []func(error) (bool, error){as[*tokenError], as[*transportError]} { // the first may wrap the second
		if ok, own := find(err); ok {
			return own
		}
	}
	for _, own := range []error{ErrRedirect, ErrClosed, ErrIdle} {
		if errors.Is(err, own) {
			return own
		}
	}
	return &transportError{cause: err, certificate: has[*tls.CertificateVerificationError](err) || has[x509.CertificateInvalidError](err) ||
		has[x509.HostnameError](err) || has[x509.UnknownAuthorityError](err)}
}

// as is errors.AsType with a result that does not depend on the type.
func as[E error](err error) (bool, error) {
	e, ok := errors.AsType[E](err)
	return ok, e
}

func has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// Error omits what causes from the standard library may quote.
func (e *transportError) Error() string {
	for _, own := range []error{errAttemptTimeout, errAnsweredEarly} {
		if errors.Is(e.cause, own) {
			return own.Error()
		}
	}
	for _, find := range []func(error) (bool, error){as[*tls.CertificateVerificationError], as[*net.DNSError], as[*net.OpError], as[syscall.Errno]} {
		if ok, harmless := find(e.cause); ok {
			return harmless.Error()
		}
	}
	timeout, _ := errors.AsType[net.Error](e.cause)
	switch {
	case has[tls.RecordHeaderError](e.cause), errors.Is(e.cause, http.ErrSchemeMismatch):
		return "the peer does not speak TLS"
	case errors.Is(e.cause, io.EOF), errors.Is(e.cause, io.ErrUnexpectedEOF):
		return "connection closed before the end of the response"
	case timeout != nil && timeout.Timeout():
		return "timeout"
	}
	return "HTTP exchange failed"
}

// Unwrap hides context errors, so that a context error always means that the
// caller's context ended, and the end of the connection, which is not that of what was read.
func (e *transportError) Unwrap() error {
	if matchesAny(e.cause, context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF) {
		return nil
	}
	return e.cause
}

// Is matches [ErrUnavailable], and [ErrCertificate] for a bad certificate.
func (e *transportError) Is(target error) bool {
	return target == ErrUnavailable || (e.certificate && target == ErrCertificate)
}
