package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

const opPayload = "download payload"

// payloadTransports are the connections to payload hosts: one for the URI provided by the service, and one for redirects,
// which by default does not connect to private addresses.
type payloadTransports struct {
	first, redirected http.RoundTripper
	proxy             func(*http.Request) (*url.URL, error)
}

func newPayloadTransports(cfg Config, p *pools) payloadTransports {
	if cfg.Transports.Payloads != nil || cfg.Transport != nil {
		one := p.transport(cfg, cfg.Transports.Payloads, 0)
		return payloadTransports{first: one, redirected: one}
	}
	t := payloadTransports{
		first:      p.create(cfg, cfg.MaxIdleConnsPerHost, nil),
		redirected: p.create(cfg, 8, refusePrivate),
		proxy:      http.ProxyFromEnvironment,
	}
	if cfg.AllowPrivatePayloadRedirects {
		t.redirected = t.first
	}
	return t
}

// isExpired reports whether a payload host refuses permanently.
func isExpired(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusRequestedRangeNotSatisfiable:
		return false
	}
	return status >= 400 && status <= 499
}

// OpenPayload opens the download of a payload_uri, unmodified and without any authorization. size is the announced size in
// bytes, negative if it is unknown. It returns when the response head has been validated; temporary failures are retried
// according to the client's policy. The reader lives as long as ctx.
//
// [ErrPayloadExpired] means that the host no longer serves the payload, [ErrPayloadSize] that its size is not the announced
// one, [ErrTooLarge] that it exceeds [Config.MaxPayloadSize], and [ErrRedirect] that it was redirected too often, to another
// scheme, or to a private address without [Config.AllowPrivatePayloadRedirects]. None of the errors contains the URI.
func (c *Client) OpenPayload(ctx context.Context, uri string, size int64) (*PayloadReader, error) {
	var err error
	switch {
	case !validPayloadURI(uri):
		err = invalid("payload_uri", "must be an absolute http or https address")
	case size > c.cfg.MaxPayloadSize:
		err = c.payloadTooLarge()
	}
	if err != nil {
		return nil, &Error{Op: opPayload, Err: err}
	}
	r := &PayloadReader{c: c, parent: ctx, uri: uri, size: max(size, -1)}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if err := r.open(); err != nil {
		r.cancel(nil)
		return nil, err
	}
	return r, nil
}

func (c *Client) payloadTooLarge() error {
	return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, c.cfg.MaxPayloadSize)
}

// PayloadReader streams a payload. If a connection breaks or goes silent, the download is resumed at the same position if the
// host supports ranges. Read may be called by one goroutine at a time, Close by any.
type PayloadReader struct {
	c      *Client
	parent context.Context // the caller's
	ctx    context.Context // ends with Close as well
	cancel context.CancelCauseFunc
	uri    string

	size   int64 // -1 if unknown
	offset int64
	etag   string // a validator for If-Range, or empty
	ranges bool   // the host may support ranges
	stalls int    // consecutive connections without any data
	broken error  // why the download must be resumed
	err    error  // the final error

	mu     sync.Mutex
	body   *attemptBody
	reader *idleReader
	closed bool
}

// Format writes the name of the type for every verb: the URI grants access.
func (*PayloadReader) Format(state fmt.State, _ rune) {
	_, _ = io.WriteString(state, "gateway.PayloadReader")
}

// Size returns the size of the payload in bytes; -1 if neither the caller nor
// the host provided it. It may become known later, when the download is resumed.
func (r *PayloadReader) Size() int64 { return r.size }

// Read reads the payload. Besides io.EOF, at the announced size or, if that is unknown, the proper end of the response, it
// returns [ErrPayloadTruncated] if the payload ended early and could not be resumed, [ErrPayloadSize] if it continues past
// its end, [ErrPayloadExpired] if it expired during the download, [ErrTooLarge], [ErrClosed], and the context's error.
func (r *PayloadReader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.read(p)
	if err != nil {
		r.err = err
		if !errors.Is(err, io.EOF) {
			r.err = r.final(err)
		}
		_ = r.body.Close()
		if n > 0 && errors.Is(err, io.EOF) {
			return n, nil
		}
		return n, r.err
	}
	return n, nil
}

// final converts what ended the download into the error that Read keeps returning.
func (r *PayloadReader) final(err error) error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case r.parent.Err() != nil:
		err = r.parent.Err()
	case r.ctx.Err() != nil:
		err = ErrClosed
	case ok:
		return e
	}
	return &Error{Op: opPayload, Err: err}
}

func (r *PayloadReader) read(p []byte) (int, error) {
	for {
		if r.broken != nil {
			if err := r.resume(); err != nil {
				return 0, err
			}
		}
		if r.size >= 0 && int64(len(p)) > r.size-r.offset { // which resuming may have found out
			p = p[:r.size-r.offset]
		}
		if r.offset == r.size {
			return 0, r.atEnd()
		}
		n, err := r.reader.Read(p)
		r.offset += int64(n)
		if n > 0 {
			r.stalls = 0
		}
		switch {
		case r.offset > r.c.cfg.MaxPayloadSize:
			return 0, r.c.payloadTooLarge()
		case r.offset == r.size:
			return n, r.atEnd()
		case errors.Is(err, io.EOF) && r.size < 0:
			r.size = r.offset
			return n, io.EOF
		case err != nil:
			r.broken = err
		}
		if n > 0 {
			return n, nil
		}
	}
}

// atEnd verifies that nothing follows the last byte, as far as the connection tells.
func (r *PayloadReader) atEnd() error {
	var one [1]byte
	if n, _ := io.ReadAtLeast(r.reader, one[:], 1); n > 0 {
		return fmt.Errorf("%w: it continues after %d bytes", ErrPayloadSize, r.size)
	}
	return io.EOF
}

// resume replaces a broken connection.
func (r *PayloadReader) resume() error {
	cause := transportCause(r.broken)
	if errors.Is(r.broken, ErrIdle) {
		cause = ErrIdle
	}
	_ = r.body.Close()
	truncated := func(why string) error {
		return fmt.Errorf("%w: %s after %d of %s bytes: %w", ErrPayloadTruncated, why, r.offset, sizeText(r.size), cause)
	}
	// A response that ended properly may have been something else, such as an error page.
	if !r.ranges || errors.Is(r.broken, io.EOF) && r.etag == "" {
		return truncated("cannot be resumed")
	}
	limit := r.c.cfg.Retry.MaxAttempts
	if limit != UnlimitedAttempts && r.stalls >= limit-1 {
		return truncated("gave up")
	}
	if r.stalls > 0 {
		if err := backoff.Sleep(r.ctx, r.c.cfg.Retry.backoff(r.stalls-1, 0)); err != nil {
			return err
		}
	}
	r.stalls++
	err := r.open()
	e, ok := errors.AsType[*Error](err)
	switch {
	case err == nil:
		r.broken = nil
		return nil
	case errors.Is(err, errNotResumed), ok && e.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return truncated("cannot be resumed")
	}
	return err
}

func sizeText(size int64) string {
	if size < 0 {
		return "unknown"
	}
	return strconv.FormatInt(size, 10)
}

// errNotResumed means that the host does not continue the same payload.
var errNotResumed = errors.New("the host did not resume the download")

// open requests the payload from the current offset.
func (r *PayloadReader) open() error {
	header := http.Header{}
	if r.offset > 0 {
		header["Range"] = []string{"bytes=" + strconv.FormatInt(r.offset, 10) + "-"}
		if r.etag != "" {
			header["If-Range"] = []string{r.etag}
		}
	}
	x, err := r.c.call(r.ctx, request{
		op:        opPayload,
		method:    http.MethodGet,
		url:       r.uri,
		header:    header,
		streaming: true,
		accept:    r.accept,
		timeout:   r.c.requestTimeout(0),
	})
	if err != nil {
		return r.final(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.body = x.stream
	r.reader = newIdleReader(x.stream, r.c.cfg.PayloadIdleTimeout)
	if r.closed {
		_ = r.body.Close()
		return ErrClosed
	}
	return nil
}

// accept checks a response head and records what it announces.
func (r *PayloadReader) accept(resp *http.Response) error {
	if r.offset > 0 {
		return r.acceptPart(resp)
	}
	length := resp.ContentLength
	switch {
	case resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusNoContent || r.size != 0): // none is not an empty one
		return &ResponseError{Reason: "not a payload of status 200"}
	case r.size < 0 && isWebPage(mediaType(resp.Header)): // nothing else would tell it from the payload
		return errWebPage()
	case r.size >= 0 && length >= 0 && length != r.size:
		return fmt.Errorf("%w: %d bytes announced, %d offered", ErrPayloadSize, r.size, length)
	case r.size < 0 && length < 0 && resp.Close && len(resp.TransferEncoding) == 0: // it ends with the connection
		return &ResponseError{Reason: "without length or chunks, a cut payload would look whole"}
	case length > r.c.cfg.MaxPayloadSize:
		return r.c.payloadTooLarge()
	}
	if r.size < 0 && length >= 0 {
		r.size = length
	}
	r.ranges = !strings.EqualFold(strings.TrimSpace(resp.Header.Get("Accept-Ranges")), "none")
	r.etag = validatorOf(resp.Header)
	return nil
}

// acceptPart checks that a response continues where the last one broke off.
func (r *PayloadReader) acceptPart(resp *http.Response) error {
	from, total, ok := parseContentRange(resp.Header.Get("Content-Range"))
	switch {
	case resp.StatusCode != http.StatusPartialContent || !ok || from != r.offset,
		r.size >= 0 && total >= 0 && total != r.size,
		r.etag == "" && validatorOf(resp.Header) != "", // the first response was something else
		r.etag != "" && validatorOf(resp.Header) != "" && validatorOf(resp.Header) != r.etag:
		return errNotResumed
	case total > r.c.cfg.MaxPayloadSize:
		return r.c.payloadTooLarge()
	}
	if r.size < 0 {
		// Without a total, the end of this part might not be that of the payload.
		if total < 0 {
			return errNotResumed
		}
		r.size = total
	}
	return nil
}

// validatorOf returns the value for If-Range: a strong ETag, or else the date.
func validatorOf(h http.Header) string {
	if etag := h.Get("ETag"); etag != "" {
		if strings.HasPrefix(etag, "W/") {
			return ""
		}
		return etag
	}
	return h.Get("Last-Modified")
}

// parseContentRange parses "bytes from-to/total"; total is -1 for "*".
func parseContentRange(s string) (from, total int64, ok bool) {
	rest, ok := strings.CutPrefix(s, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, size, ok := strings.Cut(rest, "/")
	first, last, ok2 := strings.Cut(span, "-")
	if !ok || !ok2 {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	if err != nil || err2 != nil || from < 0 || to < from {
		return 0, 0, false
	}
	if size == "*" {
		return from, -1, true
	}
	total, err = strconv.ParseInt(size, 10, 64)
	return from, total, err == nil && total > to
}

// Close ends the download. It is idempotent and may be called during Read.
func (r *PayloadReader) Close() error {
	r.cancel(ErrClosed)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	// Errors of a connection that is being closed do not matter.
	_ = r.body.Close()
	return nil
}

// unauthorized makes a request to a payload host, with the credentials of the URI if it has any.
func (x *exchange) unauthorized(ctx context.Context, to *url.URL) (*http.Response, error) {
	a := x.newAttempt(ctx, to)
	if user := to.User; user != nil {
		password, _ := user.Password()
		a.req.SetBasicAuth(user.Username(), password)
	}
	next, err := x.c.payload.toward(a.req, x.req.like.URL, x.c.cfg.AllowPrivatePayloadRedirects)
	if err != nil {
		a.discard()
		return nil, err
	}
	x.sentAt = time.Now()
	return a.send(next)
}

// toward selects the transport for a redirect, or refuses the redirect.
func (t payloadTransports) toward(req *http.Request, first *url.URL, allowPrivate bool) (http.RoundTripper, error) {
	if sameOrigin(req.URL, first) {
		return t.first, nil
	}
	if allowPrivate {
		return t.redirected, nil
	}
	host := req.URL.Hostname()
	if a, err := netip.ParseAddr(host); (err == nil && isPrivateAddress(a)) || isLoopbackHost(host) {
		return nil, ErrRedirect
	}
	if t.proxy == nil {
		return t.redirected, nil
	}
	proxy, err := t.proxy(req)
	if err != nil || proxy == nil {
		return t.redirected, nil
	}
	// The proxy makes the connection, so the address has to be resolved here.
	addrs, err := net.DefaultResolver.LookupNetIP(req.Context(), "ip", host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if isPrivateAddress(a) {
			return nil, ErrRedirect
		}
	}
	return t.first, nil
}
