package gateway

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

func gzipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.Bytes()
}

// A proxy that compresses although nobody asked for it: an event stream would
// deliver nothing and tell nobody.
func TestEncodedAnswersAreRefused(t *testing.T) {
	s := newService(t)
	var r record
	encoded := func(coding, media, body string) http.HandlerFunc {
		return r.handler(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.Header().Set("Content-Encoding", coding)
			_, _ = w.Write(gzipped(body))
		})
	}
	s.mux.HandleFunc("GET /events", encoded("identity, gzip", "text/event-stream", strings.Repeat("data: {}\n\n", 100)))
	s.mux.HandleFunc("GET /tenants", encoded("GZIP", "application/json", `{"tenants":[]}`))
	s.mux.HandleFunc("GET /payload", encoded("br", "application/octet-stream", "payload"))
	c := s.client(t)
	for name, call := range map[string]func() error{
		"stream": func() error {
			_, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
			return err
		},
		"call": func() error {
			_, err := c.ListAuthorizedTenants(t.Context())
			return err
		},
		"payload": func() error {
			_, err := c.OpenPayload(t.Context(), s.URL+"/payload", -1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := call()
			wantOnly(t, err, ErrContentEncoding, ErrBadResponse)
			var e *Error
			if !errors.As(err, &e) || e.Attempts != 1 || e.StatusCode != 200 {
				t.Errorf("got %+v, want one attempt and status 200", e)
			}
		})
	}
	t.Run("token", func(t *testing.T) {
		s := newService(t)
		s.token = encoded("gzip", "application/json", `{"access_token":"token-1"}`)
		err := s.client(t).SendMessage(t.Context(), testMessageRequest())
		wantOnly(t, err, ErrContentEncoding, ErrBadResponse, ErrToken, ErrUnavailable)
	})
	requests, _ := r.all()
	if len(requests) < 4 {
		t.Fatalf("%d requests", len(requests))
	}
	for _, q := range requests {
		if got := q.Header["Accept-Encoding"]; len(got) != 1 || got[0] != "identity" {
			t.Errorf("%s %s: Accept-Encoding %q", q.Method, q.URL.Path, got)
		}
	}
}

func TestIdentityIsNoEncoding(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Encoding"] = []string{"", " Identity "}
		streamOf("event: NEW\ndata: {}\n\n")(w, r)
	})
	stream := testkit.Must(s.client(t).ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
	defer func() { _ = stream.Close() }()
	if e, err := stream.Next(); err != nil || e.Type != "NEW" {
		t.Errorf("got %q, %v", e.Type, err)
	}
}

// An intermediary compresses although nobody asked, or only says so. Only the text of a refusal tells that some recipients
// have the message: whoever cannot read it sends it to all of them again.
func TestCompressedRefusalIsRead(t *testing.T) {
	for name, body := range map[string][]byte{
		"gzip":     gzipped(`{"message":"` + MessagePartialDelivery + `"}`),
		"not gzip": []byte(`{"message":"` + MessagePartialDelivery + `"}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			var r record
			s.mux.HandleFunc("POST /messages", r.handler(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", "gzip")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = w.Write(body)
			}))
			err := s.client(t).SendMessage(t.Context(), testMessageRequest())
			wantOnly(t, err, ErrPartialDelivery, ErrBadRequest)
			if sent, _ := r.all(); len(sent) != 1 {
				t.Errorf("sent %d times", len(sent))
			}
		})
	}
}

// Gzip that goes on without any content ends at the limit of a response, too.
func TestEmptyGzipThatNeverEnds(t *testing.T) {
	endless := bytes.NewReader(bytes.Repeat(gzipped(""), maxErrorBody))
	if body, _ := io.ReadAll(unzipped(endless)); len(body) > 0 || endless.Len() == 0 {
		t.Errorf("got %d bytes, and all of %d of gzip was read", len(body), endless.Size())
	}
}
