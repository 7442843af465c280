package gateway

import "errors"

// Refused reports whether err is a permanent refusal: the request violates a rule of
// the specification, or the service itself has rejected it (400, 403, 404, 413). The
// same request would always get the same answer, while others may
// succeed. Everything that distinguishes a bad message from an outage relies on it.
//
// Errors that do not concern the request are not refusals, whatever their status:
// [ErrUnavailable] and everything that matches it, such as [ErrIntermediary] and a 403
// while the operation succeeds for no request; [ErrToken], [ErrUnauthorized] and
// [ErrRateLimited]; and [ErrPayloadExpired], which concerns a URI. An error may
// be neither refused nor [Retryable]: what Retryable does not retry within a call
// may succeed later.
func Refused(err error) bool {
	return matchesAny(err, ErrInvalid, ErrBadRequest, ErrForbidden, ErrNotFound, ErrTooLarge, ErrNoRecipients, ErrPartialDelivery) &&
		!matchesAny(err, ErrUnavailable, ErrIntermediary, ErrToken, ErrUnauthorized, ErrRateLimited, ErrPayloadExpired)
}

func matchesAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
