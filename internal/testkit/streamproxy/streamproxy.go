// Package streamproxy modifies events between the gateway and its client, for tests.
package streamproxy

import (
	"bufio"
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Start starts a proxy in front of the gateway at baseURL, until the test ends, and returns its base URL. It passes everything
// unmodified except event streams: change receives each event with its trailing empty line, including keep-alive comments,
// in the goroutine of the stream, and returns what the client receives.
func Start(tb testing.TB, baseURL string, change func(event []byte) []byte) string {
	tb.Helper()
	target := testkit.Must(url.Parse(baseURL))(tb)
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // faults are wanted here
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		ModifyResponse: func(r *http.Response) error {
			if strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
				r.Body = &stream{Closer: r.Body, from: bufio.NewReader(r.Body), change: change}
			}
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	return server.URL
}

// stream reads modified events.
type stream struct {
	io.Closer
	from   *bufio.Reader
	change func([]byte) []byte
	event  []byte // the part of the current event read so far
	out    []byte // data to be returned
	err    error
}

func (s *stream) Read(p []byte) (int, error) {
	for len(s.out) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		var line []byte
		line, s.err = s.from.ReadBytes('\n')
		s.event = append(s.event, line...)
		if s.err == nil && len(bytes.TrimRight(line, "\r\n")) > 0 {
			continue
		}
		// At the end of the stream, a partial event passes unmodified.
		if s.out = s.event; s.err == nil {
			s.out = s.change(s.event)
		}
		s.event = nil
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}
