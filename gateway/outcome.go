package gateway

import (
	"cmp"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// maxErrorBody is how much of an error response is read, in bytes.
	maxErrorBody = 64 << 10
	// maxBodyTime bounds reading a body whose head says enough, or that has no other limit.
	maxBodyTime = 5 * time.Second
	// maxErrorMessage is how much of an error message is kept, in bytes.
	maxErrorMessage = 1 << 10
	// maxIgnoredBody is how much of an ignored body is read, so that the connection can be reused.
	maxIgnoredBody = 64 << 10
	// sniffed is how much of a response is examined to detect a web page.
	sniffed = 512
)

// take reads and closes a response, unless it is to be streamed.
func (x *exchange) take(resp *http.Response, err error) *Error {
	if p := x.callerErr.Swap(nil); p != nil {
		if resp != nil {
			_ = resp.Body.Close()
		}
		return &Error{Op: x.req.op, Err: *p}
	}
	if err != nil {
		e := &Error{Op: x.req.op, Err: transportCause(err)}
		if token, ok := errors.AsType[*tokenError](e.Err); ok {
			x.retryAfter = max(time.Until(token.notAgain), 0)
			e.RetryAfter = x.retryAfter
		}
		if resp != nil { // a refused redirect
			_ = resp.Body.Close()
			e.StatusCode = resp.StatusCode
		}
		return e
	}
	x.status, x.header, x.media = resp.StatusCode, resp.Header, mediaType(resp.Header)
	good := isGood(resp.StatusCode)
	if good && isWebPage(x.media) && x.req.op != opPayload {
		_ = resp.Body.Close()
		return x.webPage()
	}
	if stream, ok := resp.Body.(*attemptBody); ok && good && x.req.streaming {
		return x.takeStream(resp, stream)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case !good:
		x.retryAfter = x.c.cfg.Retry.retryAfter(resp.Header, time.Now())
		return x.unlessDuplicate(x.statusError(resp))
	case x.req.op == opConfirm && x.status == http.StatusMultiStatus:
		return &Error{Op: x.req.op, StatusCode: x.status, Err: &ResponseError{Reason: "it does not accept all confirmations"}}
	case x.req.ignoreBody:
		return x.takeStatus(resp)
	}
	return x.takeBody(resp)
}

func isGood(status int) bool { return status >= 200 && status <= 299 }

// takeStream leaves the body of a response to the caller, or closes it if it is not what was asked for.
func (x *exchange) takeStream(resp *http.Response, stream *attemptBody) *Error {
	err := checkEncoding(resp.Header)
	if err == nil {
		err = x.req.accept(resp)
	}
	if err != nil {
		_ = resp.Body.Close()
		return &Error{Op: x.req.op, StatusCode: resp.StatusCode, ContentType: withoutEcho(x.media, strings.ToLower(x.token)), Err: err}
	}
	x.stream = stream
	return nil
}

// takeStatus takes a response of which only the status counts, unless an intermediary sent it.
func (x *exchange) takeStatus(resp *http.Response) *Error {
	if body, ok := resp.Body.(*attemptBody); ok && body.body == http.NoBody {
		return nil
	}
	defer closeLate(resp.Body)()
	head, _ := io.ReadAll(io.LimitReader(resp.Body, sniffed))
	_, _ = io.CopyN(io.Discard, resp.Body, maxIgnoredBody)
	if sniffWebPage(x.media, head) {
		return x.webPage()
	}
	return nil
}

// takeBody reads the body of a response, within MaxResponseSize.
func (x *exchange) takeBody(resp *http.Response) *Error {
	if err := checkEncoding(resp.Header); err != nil {
		return &Error{Op: x.req.op, StatusCode: resp.StatusCode, Err: err}
	}
	limit := x.c.cfg.MaxResponseSize
	if limit == math.MaxInt64 {
		limit--
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return &Error{Op: x.req.op, Err: transportCause(err)}
	}
	if int64(len(body)) > limit {
		return &Error{Op: x.req.op, Err: &ResponseError{Reason: "longer than the limit"}}
	}
	if sniffWebPage(x.media, body) {
		return x.webPage()
	}
	x.body = body
	return nil
}

// discard reads and closes a body that does not matter, so that the connection can be reused. It may hang.
func discard(body io.ReadCloser) {
	defer closeLate(body)()
	_, _ = io.CopyN(io.Discard, body, maxIgnoredBody)
	_ = body.Close()
}

// closeLate closes a body unless the returned function is called within maxBodyTime.
func closeLate(body io.Closer) (stop func() bool) {
	return time.AfterFunc(maxBodyTime, func() { _ = body.Close() }).Stop
}

func (x *exchange) webPage() *Error {
	return &Error{Op: x.req.op, StatusCode: x.status, ContentType: cmp.Or(x.media, "text/html"), Err: errWebPage()}
}

// statusError reads an error response, up to a limit.
func (x *exchange) statusError(resp *http.Response) *Error {
	e := &Error{Op: x.req.op, StatusCode: resp.StatusCode, RetryAfter: x.retryAfter, ContentType: withoutEcho(x.media, strings.ToLower(x.token))}
	if x.req.op == opPayload && isExpired(resp.StatusCode) {
		e.Err = ErrPayloadExpired
	}
	if x.req.streaming {
		defer closeLate(resp.Body)() // the timeout applied to the head; the rest may hang
	}
	body, _ := io.ReadAll(io.LimitReader(unzipped(resp.Body), maxErrorBody)) // an object that is whole says all, however the response ends
	if x.req.op == opPayload {
		return e // the text of a payload host may quote the URL that grants access
	}
	e.Message, e.ErrorResponse = errorMessage(body, x.token)
	if resp.StatusCode == http.StatusForbidden && e.ErrorResponse && x.req.op != opEvents {
		e.unproven = !x.c.answers.proven(x.req.op, x.sentAt, time.Now())
	}
	if x.req.op == opSend && resp.StatusCode == http.StatusBadRequest {
		e.routing = routingFailure(e.Message)
	}
	return e
}

// errorMessage extracts the message of an ErrorResponse, truncated and without credentials. ok reports
// whether the body is one; a web page, for example, is not.
func errorMessage(body []byte, token string) (message string, ok bool) {
	answer, _ := parseObject(body)
	m, ok := answer.peek("message")
	if !ok {
		return "", false
	}
	m = withoutEcho(m, token)
	if len(m) > maxErrorMessage {
		m = m[:maxErrorMessage]
		for len(m) > 0 && !utf8.ValidString(m[max(0, len(m)-utf8.UTFMax):]) {
			m = m[:len(m)-1]
		}
		m += "…"
	}
	return m, true
}
