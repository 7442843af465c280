package admin

import (
	"crypto/tls"
	"errors"
	"net/http"
	"syscall"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/subscriber"
)

// Advice suggests what to do about a failed call to the gateway, or an address that is taken; empty if there is nothing
// to add to the error.
func Advice(err error) string {
	switch {
	case errors.Is(err, subscriber.ErrStreamRefused):
		return "the gateway, or something in between, refuses this application: ask its operator; subscriber.stream_refused_for sets how long agrimill waits before it gives up"
	case errors.Is(err, gateway.ErrPartialDelivery):
		return "the reachable recipients have it: do not send it to all of them again; agrimill tenants shows what can be routed"
	case errors.Is(err, gateway.ErrNoRecipients):
		return "nobody received it: there is no route for this type from the sender to a recipient, or no recipient accepts the type; see agrimill tenants"
	case errors.Is(err, gateway.ErrToken):
		return tokenAdvice(err)
	case errors.Is(err, gateway.ErrUnauthorized):
		return "the gateway refuses a token that the token endpoint has just issued: check that both addresses are of the same environment, and that the tenant has authorized the application"
	case errors.Is(err, gateway.ErrForbidden):
		return "the tenant has not authorized the application, or the endpoint does not belong to it; see agrimill tenants"
	case errors.Is(err, gateway.ErrCertificate):
		return "the server's certificate is not valid for its address; set gateway.tls.ca_file, or SSL_CERT_FILE, to trust a private certificate authority, or gateway.tls.server_name if the certificate has another name"
	case errors.Is(err, gateway.ErrIntermediary):
		return "something in between, such as an ingress or a proxy, answered instead of the gateway: check the addresses, or try again later"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space on that disk, and try again"
	case errors.As(err, new(*claimcheck.Error)): // unavailable as well
		return "is claim_check.url right, and may this user read and write there?"
	case plain(err):
		return "the gateway has no TLS at an https address: its scheme or its port is wrong"
	case errors.Is(err, gateway.ErrUnavailable):
		return "the gateway is down or unreachable: check the way to it, or ask its operator"
	case errors.Is(err, gateway.ErrRateLimited):
		return "this application sent too many requests: try again later"
	case errors.Is(err, syscall.EADDRINUSE):
		return "another process listens on this address, perhaps an agrimill: stop it, or give another address"
	case errors.Is(err, gateway.ErrBadResponse):
		return "the answer is not from a gateway, or from a version that agrimill does not know: check the addresses"
	}
	return ""
}

// plain reports whether what should be TLS was answered without.
func plain(err error) bool {
	return errors.As(err, new(tls.RecordHeaderError)) || errors.Is(err, http.ErrSchemeMismatch)
}

// tokenAdvice is advice for a failure of the token endpoint, which says nothing about the gateway.
func tokenAdvice(err error) string {
	switch {
	case errors.Is(err, gateway.ErrTokenRequest):
		return "the credentials are not at fault: check gateway.scopes, and ask the operator of the token endpoint whether this client may use client credentials"
	case errors.Is(err, gateway.ErrRateLimited):
		return "the token endpoint got too many token requests, perhaps from other processes with this client ID: try again later"
	case errors.Is(err, gateway.ErrUnauthorized):
		return "check the client ID, the client secret and the address of the token endpoint"
	case errors.Is(err, gateway.ErrCertificate):
		return "the certificate of the token endpoint is not valid for its address; set gateway.tls.ca_file, or SSL_CERT_FILE, to trust a private certificate authority"
	case errors.Is(err, gateway.ErrIntermediary), errors.Is(err, gateway.ErrBadResponse), errors.Is(err, gateway.ErrRedirect):
		return "something else answers at the address of the token endpoint, or its answer cannot be read: check that address"
	case plain(err):
		return "the token endpoint has no TLS at an https address: its scheme or its port is wrong"
	}
	return "the token endpoint is down or unreachable, not the gateway: check its address, or try again later"
}
