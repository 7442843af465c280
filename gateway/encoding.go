package gateway

import (
	"fmt"
	"net/http"
	"strings"
)

// acceptIdentity is the Accept-Encoding of every request: a compressing intermediary
// would delay events until its window is full, and payload sizes must be those of
// the payload itself.
const acceptIdentity = "identity"

// checkEncoding rejects a response that has a content encoding.
func checkEncoding(h http.Header) error {
	for _, value := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(value, ",") {
			coding = strings.TrimSpace(coding)
			if coding != "" && !strings.EqualFold(coding, acceptIdentity) {
				if len(coding) > 20 { // no registered one is that long; it may be anything
					coding = "unknown"
				}
				return fmt.Errorf("%w: %+q", ErrContentEncoding, coding)
			}
		}
	}
	return nil
}
