package command

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agrimill/agrimill/cmd/agrimill/config"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// Exit statuses.
const (
	statusOK     = 0
	statusFailed = 1
	statusUsage  = 2 // also: invalid configuration
	// statusUnfinished: run was stopped and left something open.
	statusUnfinished = 3
)

// usageError is a mistake in the arguments. It is printed with a usage line.
type usageError struct{ text string }

// Error describes what is wrong with the arguments.
func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// statusError ends the program with a specific status. Without an error nothing more is
// printed: the command has said what there is to say.
type statusError struct {
	status int
	err    error
}

// Error is the text of the cause. Without a cause it names the status and is not shown.
func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

// Unwrap returns the cause, nil if there is none.
func (e *statusError) Unwrap() error { return e.err }

// invalid marks an error as an invalid configuration: status 2.
func invalid(err error) error { return &statusError{statusUsage, err} }

// exitWith ends the program with a status when the command itself has already said why.
func exitWith(status int) error { return &statusError{status: status} }

// report prints an error to stderr and returns its exit status. An error before the command
// itself began is wrong usage.
func (p *program) report(cmd *cobra.Command, began bool, err error) int {
	var usage *usageError
	var status *statusError
	switch {
	case err == nil:
		return statusOK
	case errors.As(err, &usage), !began:
		p.notef("%s: %s\nUsage: %s\nSee: %s --help", cmd.CommandPath(), redact(err), useLine(cmd), cmd.CommandPath())
		return statusUsage
	case errors.As(err, &status):
		p.printInvalid(status.err)
		return status.status
	default:
		p.notef("agrimill: %s", redact(err))
		if text := advice(err); text != "" {
			p.notef("  %s", text)
		}
		return statusFailed
	}
}

// printInvalid prints what is wrong with a configuration, one line per problem. Each line
// starts with the position, in the form that editors understand.
func (p *program) printInvalid(err error) {
	var problems *config.Problems
	switch {
	case errors.As(err, &problems):
		for _, problem := range problems.List {
			p.notef("%s", redact(errors.New(problem.String())))
		}
	case err != nil:
		p.notef("agrimill: %s", redact(err))
	}
}

// redact returns the text of an error as it may be shown: without secrets and without
// control characters.
func redact(err error) string { return cell(router.RedactError(err, nil)) }

// advice suggests what to do about a failed call to the gateway; empty if there is nothing
// to add to the error.
func advice(err error) string {
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
		return "the server's certificate is not valid for its address; set SSL_CERT_FILE to trust a private certificate authority"
	case errors.Is(err, gateway.ErrIntermediary):
		return "something in between, such as an ingress or a proxy, answered instead of the gateway: check the addresses, or try again later"
	case errors.Is(err, gateway.ErrUnavailable):
		return "the gateway is down or unreachable: try again later, or add --verbose for details"
	case errors.Is(err, gateway.ErrRateLimited):
		return "this application sent too many requests: try again later"
	case errors.Is(err, gateway.ErrBadResponse):
		return "the answer is not from a gateway, or from a version that agrimill does not know: check the addresses"
	}
	return ""
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
		return "the certificate of the token endpoint is not valid for its address; set SSL_CERT_FILE to trust a private certificate authority"
	case errors.Is(err, gateway.ErrIntermediary), errors.Is(err, gateway.ErrBadResponse), errors.Is(err, gateway.ErrRedirect):
		return "what answers at the address of the token endpoint is something else, or its answer cannot be read: check that address"
	}
	return "the token endpoint is down or unreachable, not the gateway: check its address, or try again later"
}
