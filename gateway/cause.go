package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"
)

// errAttemptTimeout ends one attempt. It is distinct from the caller's deadline and
// must not be mistaken for it.
var errAttemptTimeout = errors.New("no response within the request timeout")

// transportError is a failure below HTTP. Its text is composed only of parts known to
// be harmless: the errors of package http quote URLs and responses.
type transportError struct {
	cause       error
	certificate bool
}

// transportCause converts an error of an http.Client or a body into the cause of
// an [Error]. It keeps errors of this package found inside.
func transportCause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var (
		t *transportError
		k *tokenError
	)
	switch {
	case errors.As(err, &k): // may wrap the other
		return k
	case errors.As(err, &t):
		return t
	case errors.Is(err, ErrRedirect):
		return ErrRedirect
	case errors.Is(err, ErrClosed):
		return ErrClosed
	case errors.Is(err, ErrIdle):
		return ErrIdle
	}
	var (
		verify   *tls.CertificateVerificationError
		invalid  x509.CertificateInvalidError
		hostname x509.HostnameError
		unknown  x509.UnknownAuthorityError
	)
	certificate := errors.As(err, &verify) || errors.As(err, &invalid) || errors.As(err, &hostname) || errors.As(err, &unknown)
	return &transportError{cause: err, certificate: certificate}
}

// Error omits what causes from the standard library may quote: URLs with their
// queries.
func (e *transportError) Error() string {
	var (
		op   *net.OpError
		dns  *net.DNSError
		errn syscall.Errno
		ne   net.Error
		rec  tls.RecordHeaderError
		crt  *tls.CertificateVerificationError
	)
	switch {
	case errors.Is(e.cause, errAttemptTimeout):
		return errAttemptTimeout.Error()
	case errors.As(e.cause, &crt):
		return crt.Error()
	case errors.As(e.cause, &dns):
		return dns.Error()
	case errors.As(e.cause, &op):
		return op.Error()
	case errors.As(e.cause, &errn):
		return errn.Error()
	case errors.As(e.cause, &rec):
		return "the peer does not speak TLS"
	case errors.Is(e.cause, io.EOF), errors.Is(e.cause, io.ErrUnexpectedEOF):
		return "connection closed before the end of the response"
	case errors.As(e.cause, &ne) && ne.Timeout():
		return "timeout"
	}
	return "HTTP exchange failed"
}

// Unwrap hides context errors, so that a context error always means that the
// caller's context ended.
func (e *transportError) Unwrap() error {
	if errors.Is(e.cause, context.Canceled) || errors.Is(e.cause, context.DeadlineExceeded) {
		return nil
	}
	return e.cause
}

// Is matches [ErrUnavailable], and [ErrCertificate] for a bad certificate.
func (e *transportError) Is(target error) bool {
	return target == ErrUnavailable || (e.certificate && target == ErrCertificate)
}
