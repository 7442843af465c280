package claimcheck

import (
	"context"
	"errors"
	"regexp"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/redact"
)

// Error is the error type of a [Store].
type Error struct {
	// Op is the operation: "put", "open", "delete" or "open bucket".
	Op string
	// Kind is gateway.ErrInvalid, ErrNotFound, ErrClosed or ErrUnavailable.
	Kind error
	// Cause is the error of the bucket, nil when there is none. Its own text may
	// hold addresses with secrets; that of Error does not.
	Cause error
}

// Error tells operation, kind and cause.
func (e *Error) Error() string {
	text := "claim check: " + e.Op + ": " + e.Kind.Error()
	if e.Cause != nil {
		text += ": " + redacted(e.Cause.Error())
	}
	return text
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// bucketError makes an outage of an error of the bucket. The end of ctx passes
// through; a driver's inner timeout must not look like it.
func bucketError(ctx context.Context, op string, err error) error {
	return kindError(ctx, op, gateway.ErrUnavailable, err)
}

func kindError(ctx context.Context, op string, kind, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = errors.New(err.Error())
	}
	return &Error{Op: op, Kind: kind, Cause: err}
}

// query is what follows a question mark, also in what is no address.
var query = regexp.MustCompile(`\?[^\s"']*`)

// redacted is text without what may be secret in addresses.
func redacted(text string) string { return query.ReplaceAllString(redact.Addresses(text), "?…") }
