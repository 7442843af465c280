package nats

import (
	"errors"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/sinks"
)

// Error codes of the JetStream API that nats.go has no name for.
const (
	codeHeaderTooLarge   jetstream.ErrorCode = 10097
	codeTTLInvalid       jetstream.ErrorCode = 10165
	codeTTLDisabled      jetstream.ErrorCode = 10166
	codeCounterDisabled  jetstream.ErrorCode = 10168
	codeCounterPayload   jetstream.ErrorCode = 10170
	codeCounterInvalid   jetstream.ErrorCode = 10171
	codeSourceNotAllowed jetstream.ErrorCode = 10227
)

// classify gives an error of a publish its class. What is not known to be the
// message's fault counts as an outage: retried, never thrown away.
func classify(err error) error {
	switch {
	// The client refuses, before sending.
	case errors.Is(err, natsgo.ErrMaxPayload):
		return sinks.ErrTooLarge
	case errors.Is(err, natsgo.ErrBadSubject), errors.Is(err, natsgo.ErrBadHeaderMsg), errors.Is(err, errBadTopic):
		return sinks.ErrRejected
	}
	var apiError *jetstream.APIError
	if errors.As(err, &apiError) {
		switch apiError.ErrorCode {
		// The stream's limit was lowered after the sink read it.
		case jetstream.JSErrCodeStreamMessageExceedsMaximum, codeHeaderTooLarge:
			return sinks.ErrTooLarge
		// Control headers that only a marshaler other than ours lets pass.
		case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant,
			jetstream.JSErrCodeMessageSchedulesDisabled, jetstream.JSErrCodeSchedulePatternInvalid,
			jetstream.JSErrCodeScheduleTargetInvalid, jetstream.JSErrCodeScheduleTTLInvalid,
			jetstream.JSErrCodeScheduleRollupInvalid, jetstream.JSErrCodeScheduleSourceInvalid,
			codeTTLInvalid, codeTTLDisabled, codeCounterDisabled, codeCounterPayload, codeCounterInvalid, codeSourceNotAllowed:
			return sinks.ErrRejected
		}
	}
	// The stream being full or its disk failing, no resources, no leader, too many requests, sealed, the first copy of
	// a duplicate still under way, a stream that takes counts only; no connection, no acknowledgment in time, no JetStream or no stream
	// behind the subject, not authorised: an operator's business, after which
	// the same message goes through.
	return sinks.ErrUnavailable
}
