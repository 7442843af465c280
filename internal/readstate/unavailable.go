package readstate

import (
	"github.com/agrimill/agrimill/internal/redact"
	"github.com/agrimill/agrimill/sinks"
)

// Unavailable makes the error of a source that matches [sinks.ErrUnavailable] and does not call itself a sink.
func Unavailable(source string, cause error) error {
	return &unavailable{source, sinks.NewError(source, "", sinks.ErrUnavailable, cause)}
}

type unavailable struct {
	source string
	err    *sinks.Error
}

func (e *unavailable) Error() string {
	return "source " + e.source + ": unavailable: " + redact.Addresses(e.err.Cause.Error())
}

func (e *unavailable) Unwrap() error { return e.err }
