package gateway

import (
	"net/http"
	"strconv"
	"strings"
)

// acceptIdentity is the Accept-Encoding of every request: a compressing intermediary
// would delay events until its window is full, and payload sizes must be those of
// the payload itself.
const acceptIdentity = "identity"

// contentEncodingError is a response with an unrequested encoding. It
// matches [ErrContentEncoding] and [ErrBadResponse].
type contentEncodingError struct{ coding string }

func (e *contentEncodingError) Error() string {
	return ErrContentEncoding.Error() + ": " + strconv.QuoteToASCII(e.coding)
}

func (e *contentEncodingError) Is(target error) bool {
	return target == ErrContentEncoding || target == ErrBadResponse
}

// checkEncoding rejects a response that has a content encoding.
func checkEncoding(h http.Header) error {
	for _, value := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(value, ",") {
			coding = strings.TrimSpace(coding)
			if coding != "" && !strings.EqualFold(coding, acceptIdentity) {
				if len(coding) > 20 { // no registered one is that long; it may be anything
					coding = "unknown"
				}
				return &contentEncodingError{coding: coding}
			}
		}
	}
	return nil
}
