package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

func TestSendMessageOnTheWire(t *testing.T) {
	s := newService(t)
	var r record
	s.mux.HandleFunc("POST /messages", r.handler(ok))
	c := s.client(t)
	sent := time.Date(2026, 5, 4, 3, 2, 1, 123456789, time.FixedZone("", 7200))
	testkit.NoError(t, c.SendMessage(t.Context(), SendMessageRequest{
		TenantID: testTenant, EndpointID: testEndpoint, MessageType: "iso:11783:-10:taskdata:zip",
		DirectRecipients: []string{testRecipient, testMessage}, ContextID: testContext, SentAt: sent,
		TeamsetContextID: "Gespann 7", Filename: "Äcker — 農場.zip", Payload: []byte("\x00\xffbinary"),
	}))
	requests, bodies := r.all()
	want := map[string]string{
		"Authorization":               "Bearer token-1",
		"Content-Type":                "application/octet-stream",
		"Content-Length":              "8",
		"User-Agent":                  "agrimill",
		"X-Router-Is-Publish":         "false",
		"X-Router-Direct-Recipients":  testRecipient + "," + testMessage,
		"X-Router-Sent-Timestamp":     "2026-05-04T01:02:01.123456789Z",
		"X-Router-Endpoint-Id":        testEndpoint,
		"X-Router-Teamset-Context-Id": "Gespann 7",
		"X-Router-Message-Type":       "iso:11783:-10:taskdata:zip",
		"X-Router-Tenant-Id":          testTenant,
		"X-Router-Context-Id":         testContext,
		"X-Router-Filename":           "Äcker — 農場.zip",
		"Accept-Encoding":             "identity",
	}
	for name, value := range want {
		if got := requests[0].Header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
	if bodies[0] != "\x00\xffbinary" {
		t.Errorf("body %q", bodies[0])
	}
}

func TestSendMessageHasContentLengthAndIsNeverChunked(t *testing.T) {
	s := newService(t)
	type seen struct {
		length   int64
		encoding []string
		n        int64
	}
	got := make(chan seen, 1)
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		if r.Header.Get("Content-Length") == "" {
			t.Error("no Content-Length header")
		}
		got <- seen{r.ContentLength, r.TransferEncoding, n}
	})
	c := s.client(t)
	for _, size := range []int64{0, 1, 511, 512, 64 << 10, 3<<20 + 1} {
		data := bytes.Repeat([]byte{7}, int(size))
		inMemory, streamed := testMessageRequest(), testMessageRequest()
		inMemory.Payload = data
		streamed.Payload, streamed.Size = nil, size
		// A type that tells nothing of its size, and reads that give little.
		streamed.Body = func() (io.ReadCloser, error) {
			return io.NopCloser(io.MultiReader(bytes.NewReader(data[:size/2]), bytes.NewReader(data[size/2:]))), nil
		}
		for name, req := range map[string]SendMessageRequest{"memory": inMemory, "stream": streamed} {
			testkit.NoError(t, c.SendMessage(t.Context(), req))
			if g := <-got; g.length != size || len(g.encoding) != 0 || g.n != size {
				t.Errorf("%s of %d bytes: Content-Length %d, encoding %v, %d bytes", name, size, g.length, g.encoding, g.n)
			}
		}
	}
}

func TestSendMessageRepeatsTheSameMessage(t *testing.T) {
	s := newService(t)
	var (
		r record
		n atomic.Int64
	)
	s.mux.HandleFunc("POST /messages", r.handler(inOrder(&n, fail(503, "down"), hangUp, ok)))
	c := s.client(t)
	opened, closed := 0, new(atomic.Int64)
	req := testMessageRequest()
	req.Payload, req.Size = nil, 5
	req.Body = func() (io.ReadCloser, error) {
		opened++
		return &closeCounter{strings.NewReader("hello"), closed}, nil
	}
	testkit.NoError(t, c.SendMessage(t.Context(), req))
	requests, bodies := r.all()
	if len(requests) != 3 || opened != 3 || closed.Load() != 3 {
		t.Fatalf("%d attempts, body opened %d and closed %d times, want 3", len(requests), opened, closed.Load())
	}
	for i, q := range requests {
		for _, name := range []string{"X-Router-Context-Id", "X-Router-Sent-Timestamp"} {
			if q.Header.Get(name) == "" || q.Header.Get(name) != requests[0].Header.Get(name) {
				t.Errorf("attempt %d: %s is %q, was %q", i, name, q.Header.Get(name), requests[0].Header.Get(name))
			}
		}
		if bodies[i] != "hello" {
			t.Errorf("attempt %d: body %q", i, bodies[i])
		}
	}
}

type closeCounter struct {
	io.Reader
	n *atomic.Int64
}

func (c *closeCounter) Close() error { c.n.Add(1); return nil }

// A Body whose size is not the announced one is never sent whole, nor again.
func TestSendMessageRefusesABodyOfAnotherSize(t *testing.T) {
	s := newService(t)
	var whole atomic.Int64
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			whole.Add(1)
		}
	})
	c := s.client(t)
	// So says package http of a connection that was closed, which is not the end of the body either.
	errSource := &url.Error{Op: "Get", URL: "https://files.example", Err: io.EOF}
	for name, test := range map[string]struct {
		read io.Reader
		want error
	}{
		"longer":  {strings.NewReader("123456"), ErrInvalid},
		"shorter": {strings.NewReader("1234"), ErrInvalid},
		"empty":   {strings.NewReader(""), ErrInvalid},
		"failing": {io.MultiReader(strings.NewReader("12"), iotest.ErrReader(errSource)), errSource},
	} {
		data, failure := io.ReadAll(test.read)
		t.Run(name, func(t *testing.T) {
			req := testMessageRequest()
			req.Payload, req.Size = nil, 5
			req.Body = func() (io.ReadCloser, error) {
				return io.NopCloser(io.MultiReader(bytes.NewReader(data), iotest.ErrReader(cmp.Or(failure, io.EOF)))), nil
			}
			err := c.SendMessage(t.Context(), req)
			wantIs(t, err, test.want)
			var e *Error
			if !errors.As(err, &e) || e.Attempts != 1 || errors.Is(err, ErrInvalid) != (test.want == ErrInvalid) {
				t.Errorf("got %v, want %v in one attempt", err, test.want)
			}
		})
	}
	req := testMessageRequest()
	req.Payload, req.Size = nil, 5
	req.Body = func() (io.ReadCloser, error) { return nil, errSource }
	wantOnly(t, c.SendMessage(t.Context(), req), errSource)
	req.Size = 0
	wantOnly(t, c.SendMessage(t.Context(), req), errSource)
	req.Size, req.Body = 5, func() (io.ReadCloser, error) { return nil, io.EOF } // not the end of a body that was never there
	wantOnly(t, c.SendMessage(t.Context(), req), ErrInvalid)
	req.Size = 0
	req.Body = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("1")), nil }
	wantIs(t, c.SendMessage(t.Context(), req), ErrInvalid)
	if whole.Load() != 0 {
		t.Errorf("%d whole messages arrived, want none", whole.Load())
	}
}

// That an attempt has no timeout does not mean that it ends at once: a source without bytes is asked for its end.
func TestSourceOfNoBytesWithoutTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &exchange{req: request{open: func() (io.ReadCloser, error) {
			time.Sleep(time.Hour)
			return http.NoBody, nil
		}}}
		testkit.NoError(t, x.verifyEmpty(t.Context()))
	})
}

// The service may refuse a message before it has read it. The call must not
// return while the transport still reads the caller's bytes: the race detector
// would see the write below.
func TestPayloadIsNotUsedAfterReturn(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("POST /messages", fail(413, "too large"))
	c := s.client(t)
	req := testMessageRequest()
	req.Payload = make([]byte, 8<<20)
	for range 5 {
		if err := c.SendMessage(t.Context(), req); err == nil {
			t.Fatal("no error")
		}
		for i := range req.Payload {
			req.Payload[i]++
		}
	}
}

// Whoever accepts a message before its payload has been sent does not have it.
func TestSendMessageIsNotAcceptedBeforeItIsSent(t *testing.T) {
	data := testPayload(32 << 20) // more than a connection takes that nobody reads
	for name, set := range map[string]func(*SendMessageRequest){
		"memory": func(r *SendMessageRequest) { r.Payload = data },
		"stream": func(r *SendMessageRequest) {
			r.Payload, r.Body, r.Size = nil, bytesBody(data), int64(len(data))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			var n, whole atomic.Int64
			over := make(chan struct{})
			early := func(w http.ResponseWriter, _ *http.Request) {
				answer := http.NewResponseController(w)
				testkit.NoError(t, answer.EnableFullDuplex())
				w.Header().Set("Content-Length", "0")
				testkit.NoError(t, answer.Flush())
				<-over
			}
			s.mux.HandleFunc("POST /messages", inOrder(&n, early, func(_ http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err == nil && bytes.Equal(body, data) {
					whole.Add(1)
				}
			}))
			c := s.client(t)
			req := testMessageRequest()
			set(&req)
			err := c.SendMessage(SingleAttempt(t.Context()), req)
			close(over)
			wantOnly(t, err, ErrUnavailable)
			testkit.NoError(t, c.SendMessage(t.Context(), req))
			if n.Load() != 2 || whole.Load() != 1 {
				t.Errorf("%d requests, %d of them whole; want 2, 1", n.Load(), whole.Load())
			}
		})
	}
}
