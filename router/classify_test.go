package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/eapache/go-resiliency/breaker"
	"github.com/sony/gobreaker"
	gobreaker2 "github.com/sony/gobreaker/v2"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

type ownClass struct{ class router.Class }

func (e ownClass) Error() string            { return "own" }
func (e ownClass) ErrorClass() router.Class { return e.class }

type circuit bool

func (circuit) Error() string       { return "circuit" }
func (c circuit) CircuitOpen() bool { return bool(c) }

func TestClassify(t *testing.T) {
	sinkError := func(kind, cause error) error { return sinks.NewError("s", "t", kind, cause) }
	tests := []struct {
		name string
		err  error
		want router.Class
	}{
		{"nil", nil, router.ClassNone},
		{"unknown", errors.New("x"), router.ClassHandler},

		{"own word", ownClass{router.ClassRedeliver}, router.ClassRedeliver},
		{"own word, wrapped", fmt.Errorf("x: %w", ownClass{router.ClassOutage}), router.ClassOutage},
		{"own word against a sentinel", router.Outage(sinks.ErrRejected), router.ClassOutage},
		{"outermost own word", router.Permanent(router.Outage(io.EOF)), router.ClassPermanent},
		{"own word: do not know", ownClass{router.ClassNone}, router.ClassHandler},
		{"reserved", router.ErrReserved, router.ClassOutage},
		{"panic with a canceled context", &router.PanicError{Value: context.Canceled}, router.ClassHandler},

		{"partial delivery", gateway.ErrPartialDelivery, router.ClassPermanent},
		{"partial delivery through FromPublisher", sinkError(sinks.ErrUnavailable, gateway.ErrPartialDelivery), router.ClassPermanent},
		{"no recipients", gateway.ErrNoRecipients, router.ClassPermanent},
		{"invalid", gateway.ErrInvalid, router.ClassPermanent},
		{"400", gateway.ErrBadRequest, router.ClassPermanent},
		{"403", gateway.ErrForbidden, router.ClassPermanent},
		{"404", gateway.ErrNotFound, router.ClassPermanent},
		{"413", gateway.ErrTooLarge, router.ClassPermanent},
		{"undecodable", fmt.Errorf("x: %w", &gateway.DecodeError{}), router.ClassPermanent},
		{"401", gateway.ErrUnauthorized, router.ClassOutage},
		{"429", gateway.ErrRateLimited, router.ClassOutage},
		{"5xx", gateway.ErrUnavailable, router.ClassOutage},
		{"nonsense answer", gateway.ErrBadResponse, router.ClassOutage},
		{"redirect", gateway.ErrRedirect, router.ClassOutage},
		{"token refused with 400", errors.Join(gateway.ErrToken, gateway.ErrBadRequest), router.ClassOutage},
		{"token refused with 401", errors.Join(gateway.ErrToken, gateway.ErrUnauthorized), router.ClassOutage},
		{"intermediary, by its sentinel", gateway.ErrIntermediary, router.ClassOutage},
		{"intermediary", &gateway.Error{StatusCode: 404, ContentType: "text/html"}, router.ClassOutage},
		{"intermediary through FromPublisher", sinkError(sinks.ErrUnavailable, &gateway.Error{StatusCode: 413}), router.ClassOutage},
		{"403 while others succeed", &gateway.Error{StatusCode: 403, ErrorResponse: true}, router.ClassPermanent},
		{"403 while nobody succeeds", errors.Join(gateway.ErrForbidden, gateway.ErrUnavailable), router.ClassOutage},
		{"413 of the service", &gateway.Error{StatusCode: 413, ErrorResponse: true}, router.ClassPermanent},
		{"open breaker of Watermill's middleware", fmt.Errorf("x: %w", gobreaker.ErrOpenState), router.ClassOutage},
		{"half-open breaker of Watermill's middleware", gobreaker.ErrTooManyRequests, router.ClassOutage},
		{"open breaker", gobreaker2.ErrOpenState, router.ClassOutage},
		{"half-open breaker", gobreaker2.ErrTooManyRequests, router.ClassOutage},
		{"open breaker of go-resiliency", breaker.ErrBreakerOpen, router.ClassOutage},
		{"breaker that says open", fmt.Errorf("x: %w", circuit(true)), router.ClassOutage},
		{"breaker that says closed", circuit(false), router.ClassHandler},
		{"payload expired", errors.Join(gateway.ErrPayloadExpired, gateway.ErrNotFound), router.ClassRedeliver},
		{"payload truncated", gateway.ErrPayloadTruncated, router.ClassOutage},

		{"sink: too large", sinkError(sinks.ErrTooLarge, nil), router.ClassPermanent},
		{"sink: rejected", sinkError(sinks.ErrRejected, io.EOF), router.ClassPermanent},
		{"sink: unavailable", sinkError(sinks.ErrUnavailable, io.EOF), router.ClassOutage},
		{"sink: inner timeout", sinkError(sinks.ErrUnavailable, context.Canceled), router.ClassOutage},
		{"sink: closed", sinkError(sinks.ErrClosed, nil), router.ClassOutage},
		{"topic without value", fmt.Errorf("%w: %w", sinks.ErrMissingValue, sinks.ErrRejected), router.ClassPermanent},

		{"client: closed", gateway.ErrClosed, router.ClassOutage},
		{"canceled", context.Canceled, router.ClassHandler},
		{"canceled, wrapped", fmt.Errorf("x: %w", context.Canceled), router.ClassHandler},
		{"canceled within unavailable", errors.Join(gateway.ErrUnavailable, context.Canceled), router.ClassHandler},
		{"canceled request", &url.Error{Op: "Get", Err: context.Canceled}, router.ClassHandler},
		{"deadline", context.DeadlineExceeded, router.ClassHandler},
		{"deadline, wrapped", fmt.Errorf("x: %w", context.DeadlineExceeded), router.ClassHandler},
		{"deadline within unavailable", errors.Join(context.DeadlineExceeded, gateway.ErrUnavailable), router.ClassOutage},
		{"request that timed out", &url.Error{Op: "Get", Err: context.DeadlineExceeded}, router.ClassOutage},
		{"deadline beside a network error", errors.Join(context.DeadlineExceeded, &net.OpError{Op: "dial"}), router.ClassOutage},
		{"os deadline", os.ErrDeadlineExceeded, router.ClassOutage},
		{"connection refused", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, router.ClassOutage},
		{"reset", fmt.Errorf("x: %w", syscall.ECONNRESET), router.ClassOutage},
		{"DNS", &net.DNSError{Err: "no such host"}, router.ClassOutage},
		{"no address", &url.Error{Op: "parse", URL: "farm:x", Err: errors.New("invalid port")}, router.ClassHandler},
		{"no such file", &fs.PathError{Op: "open", Path: "crop.csv", Err: syscall.ENOENT}, router.ClassHandler},
		{"file of another user", &fs.PathError{Op: "open", Path: "crop.csv", Err: syscall.EACCES}, router.ClassHandler},
		{"full disk", &fs.PathError{Op: "write", Path: "crop.csv", Err: syscall.ENOSPC}, router.ClassOutage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			wantClass(t, test.err, test.want)
		})
	}
}

func TestWithClassKeepsErrors(t *testing.T) {
	testkit.NoError(t, router.Permanent(nil))
	err := router.Permanent(io.EOF)
	testkit.ErrorIs(t, err, io.EOF)
	if got := err.Error(); got != "EOF" {
		t.Errorf("err.Error() = %q, want EOF", got)
	}
}
