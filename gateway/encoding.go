package gateway

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// acceptIdentity is the Accept-Encoding of every request: a compressing intermediary
// would delay events until its window is full, and payload sizes must be those of
// the payload itself.
const acceptIdentity = "identity"

// unzipped returns the body of an error response, which an intermediary may compress although nobody asked for it: whether a
// message may be sent again is in its text. No JSON begins like gzip. What is zipped is limited, too: it may be endless and
// have no content.
func unzipped(body io.Reader) io.Reader {
	head := bufio.NewReader(io.LimitReader(body, maxErrorBody))
	if magic, _ := head.Peek(2); string(magic) != "\x1f\x8b" {
		return head
	}
	z, err := gzip.NewReader(head)
	if err != nil {
		return http.NoBody // it cannot be read
	}
	return z
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
				return fmt.Errorf("%w: %+q", ErrContentEncoding, coding)
			}
		}
	}
	return nil
}
