package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestTransportErrorsTellNoSecrets(t *testing.T) {
	wrap := func(err error) error {
		return &url.Error{Op: "Get", URL: "https://host/p?signature=s3cret", Err: err}
	}
	tests := []struct {
		err  error
		text string
	}{
		{&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "dial tcp: connect: connection refused"},
		{&net.DNSError{Err: "no such host", Name: "gateway.example"}, "lookup gateway.example: no such host"},
		{syscall.ECONNRESET, "connection reset by peer"},
		{io.EOF, "connection closed before the end of the response"},
		{fmt.Errorf("http: %w", io.ErrUnexpectedEOF), "connection closed before the end of the response"},
		{tls.RecordHeaderError{Msg: "s3cret"}, "the peer does not speak TLS"},
		{http.ErrSchemeMismatch, "the peer does not speak TLS"},
		{os.ErrDeadlineExceeded, "timeout"},
		{context.Canceled, "HTTP exchange failed"},
		{errors.New(`malformed HTTP response "s3cret"`), "HTTP exchange failed"},
		{x509.HostnameError{Certificate: &x509.Certificate{}, Host: "h"}, "HTTP exchange failed"},
	}
	for _, tt := range tests {
		err := transportCause(wrap(tt.err))
		wantIs(t, err, ErrUnavailable)
		if err.Error() != tt.text {
			t.Errorf("%v: %q, want %q", tt.err, err, tt.text)
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v looks like the end of the caller's context", tt.err)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v looks like the end of what was read", tt.err)
		}
	}
	if err := transportCause(wrap(fmt.Errorf("dial: %w", ErrRedirect))); !errors.Is(err, ErrRedirect) || errors.Is(err, ErrUnavailable) {
		t.Errorf("a refused redirect became %v", err)
	}
	if !errors.Is(transportCause(wrap(syscall.ECONNRESET)), syscall.ECONNRESET) {
		t.Error("the cause is lost")
	}
}

// With a proxy the client does not see the address that is connected to, and
// looks the name up instead.
func TestRedirectsThroughAProxy(t *testing.T) {
	first, _ := url.Parse("https://payloads.example/p")
	reached := roundTripper(func(*http.Request) (*http.Response, error) { return nil, nil })
	ts := payloadTransports{first: reached, proxy: func(*http.Request) (*url.URL, error) { return url.Parse("http://10.0.0.1:3128") }}
	toward := func(target string, allow bool) error {
		req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))(t)
		rt, err := ts.toward(req, first, allow)
		if (err == nil) && rt == nil && !allow {
			t.Errorf("%s: no transport", target)
		}
		return err
	}
	for target, want := range map[string]error{
		"https://8.8.8.8/p":           nil,
		"https://payloads.example/q":  nil,
		"https://10.0.0.2/p":          ErrRedirect,
		"https://LOCALHOST/p":         ErrRedirect,
		"https://[::ffff:127.0.0.1]/": ErrRedirect,
	} {
		if err := toward(target, false); !errors.Is(err, want) {
			t.Errorf("%s: %v", target, err)
		}
	}
	testkit.NoError(t, toward("https://10.0.0.2/p", true))
}

// A source that hangs does not hold the call when its context has ended.
func TestSendMessageReturnsWhenItsSourceHangs(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("POST /messages", ok)
	c := s.client(t)
	pr, pw := io.Pipe()
	defer func() { _ = pw.Close() }()
	req := testMessageRequest()
	req.Payload, req.Size = nil, 10
	req.Body = func() (io.ReadCloser, error) { return io.NopCloser(pr), nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.SendMessage(ctx, req) }()
	_, _ = pw.Write([]byte("x")) // returns when it has been read
	cancel()
	wantOnly(t, <-done, context.Canceled)
}

func TestErrorText(t *testing.T) {
	e := &Error{Op: opSend, StatusCode: 400, Message: "two\nlines", ContentType: "application/json", ErrorResponse: true, Attempts: 3, last: &Error{Op: opSend, StatusCode: 599}}
	want := `gateway: send message: status 400 Bad Request: "two\nlines" (after 3 attempts), last failure: gateway: send message: status 599`
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
	e = &Error{Op: opSend, StatusCode: 404, ContentType: "text/html"}
	if want := `gateway: send message: status 404 Not Found (text/html): not answered by the service`; e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
	if strings.Contains((&Error{Op: opSend, Err: ErrClosed, Attempts: 1}).Error(), "attempt") {
		t.Error("one attempt is not worth telling")
	}
}
