package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

func streamOf(parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		rc := http.NewResponseController(w)
		for _, p := range parts {
			_, _ = io.WriteString(w, p)
			_ = rc.Flush()
		}
	}
}

func TestReceiveEvents(t *testing.T) {
	s := newService(t)
	var r record
	s.mux.HandleFunc("GET /events", r.handler(streamOf(
		": hello\n\nevent: MESSAGE_RECEIVED\ndata: {\"a\":1}\n\n",
		"event: FILE_REC", "EIVED\r\ndata: {}\r\n\r\nretry: 1500\n\nevent: NEW\ndata: {}\n\ndata: {}\n\nevent: unfinished\ndata: {}\n")))
	c := s.client(t)
	stream := testkit.Must(c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
	for _, want := range []struct {
		name EventType
		data string
	}{{EventMessageReceived, `{"a":1}`}, {EventFileReceived, "{}"}, {"NEW", "{}"}, {"", "{}"}} {
		e, err := stream.Next()
		if err != nil || e.Type != want.name || string(e.Data) != want.data {
			t.Fatalf("got %q %q, %v; want %q %q", e.Type, e.Data, err, want.name, want.data)
		}
	}
	for range 2 {
		if _, err := stream.Next(); err != io.EOF {
			t.Fatalf("got %v, want io.EOF", err)
		}
	}
	if d, ok := stream.Retry(); !ok || d != 1500*time.Millisecond {
		t.Errorf("retry %v, %v", d, ok)
	}
	testkit.NoError(t, stream.Close())
	requests, _ := r.all()
	q := requests[0]
	if q.Header.Get("Accept") != "text/event-stream" || q.Header.Get("Authorization") != "Bearer token-1" || q.URL.RawQuery != "" || q.Header.Get("Accept-Encoding") != "identity" {
		t.Errorf("request %v %s", q.Header, q.URL)
	}
}

func TestEventTypesQuery(t *testing.T) {
	s := newService(t)
	var r record
	s.mux.HandleFunc("GET /events", r.handler(streamOf()))
	two := []EventType{EventMessageReceived, EventAuthorizationRevoked}
	for _, tt := range []struct {
		encoding EventTypesEncoding
		types    []EventType
		want     string
	}{
		{EventTypesRepeated, two, "types=MESSAGE_RECEIVED&types=AUTHORIZATION_REVOKED"},
		{EventTypesComma, two, "types=MESSAGE_RECEIVED,AUTHORIZATION_REVOKED"},
		{EventTypesComma, two[:1], "types=MESSAGE_RECEIVED"},
		{EventTypesRepeated, nil, ""},
	} {
		c := s.client(t, func(c *Config) { c.EventTypesEncoding = tt.encoding })
		stream := testkit.Must(c.ReceiveEvents(t.Context(), ReceiveEventsRequest{Types: tt.types}))(t)
		_ = stream.Close()
		requests, _ := r.all()
		if got := requests[len(requests)-1].URL.RawQuery; got != tt.want {
			t.Errorf("query %q, want %q", got, tt.want)
		}
	}
	_, err := s.client(t).ReceiveEvents(t.Context(), ReceiveEventsRequest{Types: []EventType{"x"}})
	wantOnly(t, err, ErrInvalid)
}

func TestStreamThatIsNone(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"HTML": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(200)
		},
		"JSON":    func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, map[string]any{}) },
		"no type": func(w http.ResponseWriter, _ *http.Request) { w.Header()["Content-Type"] = nil; w.WriteHeader(200) },
		"no content": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(204)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			s.mux.HandleFunc("GET /events", h)
			_, err := s.client(t).ReceiveEvents(t.Context(), ReceiveEventsRequest{})
			if name == "HTML" {
				wantOnly(t, err, ErrBadResponse, ErrIntermediary, ErrUnavailable)
				return
			}
			wantOnly(t, err, ErrBadResponse)
		})
	}
}

func TestStreamCutInTheMiddle(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		streamOf("data: whole\n\ndata: hal")(w, r)
		panic(http.ErrAbortHandler)
	})
	stream := testkit.Must(s.client(t).ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
	defer func() { _ = stream.Close() }()
	if e, err := stream.Next(); err != nil || string(e.Data) != "whole" {
		t.Fatalf("got %q, %v", e.Data, err)
	}
	_, err := stream.Next()
	wantOnly(t, err, ErrUnavailable)
}

func TestStreamSkipsAnEventThatIsTooLarge(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /events", streamOf("event: MESSAGE_RECEIVED\ndata: "+strings.Repeat("x", 5000)+"\n\ndata: next\n\n"))
	stream := testkit.Must(s.client(t, func(c *Config) { c.MaxEventSize = 1000 }).ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
	defer func() { _ = stream.Close() }()
	_, err := stream.Next()
	wantOnly(t, err, ErrEventTooLarge)
	var large *EventTooLargeError
	if !errors.As(err, &large) || large.Limit != 1000 || large.Type != EventMessageReceived || len(large.Head) == 0 || strings.Contains(err.Error(), "xxx") {
		t.Errorf("got %+v", large)
	}
	if e, err := stream.Next(); err != nil || string(e.Data) != "next" {
		t.Errorf("got %q, %v", e.Data, err)
	}
}

func TestStreamCloseWhileNextWaits(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		streamOf("data: x\n\n")(w, r)
		<-r.Context().Done()
	})
	stream := testkit.Must(s.client(t).ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
	testkit.Must(stream.Next())(t)
	got := make(chan error, 1)
	go func() {
		_, err := stream.Next()
		got <- err
	}()
	for range 3 {
		testkit.NoError(t, stream.Close())
	}
	wantOnly(t, <-got, ErrClosed)
}

// piped serves GET /events from a pipe, in a bubble where time is virtual.
func piped(t *testing.T, change ...func(*Config)) (*Client, *io.PipeWriter) {
	t.Helper()
	pr, pw := io.Pipe()
	mux, _ := offlineMux()
	return offline(t, mux, append([]func(*Config){func(c *Config) {
		c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/events" {
				return inProcess{mux}.RoundTrip(r)
			}
			// As in package http, the end of the request's context breaks the body.
			context.AfterFunc(r.Context(), func() { _ = pr.CloseWithError(r.Context().Err()) })
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr, Request: r}, nil
		})
	}}, change...)...), pw
}

func TestStreamIdleWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, pw := piped(t)
		stream := testkit.Must(c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
		defer func() { _ = stream.Close() }()
		go func() {
			for range 5 { // a comment now and then keeps it alive
				time.Sleep(defaultStreamIdleTimeout - time.Second)
				_, _ = io.WriteString(pw, ": still here\n")
			}
			_, _ = io.WriteString(pw, "data: x\n\n")
		}()
		testkit.Must(stream.Next())(t)
		start := time.Now()
		_, err := stream.Next()
		wantOnly(t, err, ErrIdle)
		if d := time.Since(start); d != defaultStreamIdleTimeout {
			t.Errorf("after %v, want %v", d, defaultStreamIdleTimeout)
		}
	})
}

// A service that hears of the end of a request may end its answer as if it were
// complete, and that may arrive: it is not the service that ended it.
func TestEndThatThisSideCausedIsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		c := offline(t, mux, func(c *Config) {
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == "/token" {
					return inProcess{mux}.RoundTrip(r)
				}
				pr, pw := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = pw.Close() })
				return &http.Response{StatusCode: 200, ContentLength: -1, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr, Request: r}, nil
			})
			c.Retry.MaxAttempts = 1
		})
		open := func(ctx context.Context) error {
			stream, err := c.ReceiveEvents(ctx, ReceiveEventsRequest{})
			if err != nil {
				return err
			}
			defer func() { _ = stream.Close() }()
			_, err = stream.Next()
			return err
		}
		wantOnly(t, open(t.Context()), ErrIdle)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantOnly(t, open(ctx), context.DeadlineExceeded)
		// Of a payload whose size nobody said, this would be all.
		_, err := download(t.Context(), c, "https://payloads.example/x", -1)
		wantIs(t, err, ErrPayloadTruncated, ErrIdle)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = download(ctx, c, "https://payloads.example/x", -1)
		wantOnly(t, err, context.DeadlineExceeded)
	})
}

// A reader that is held up for an hour is not a stream that went silent.
func TestStreamIdleWatchdogIgnoresASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, pw := piped(t)
		stream := testkit.Must(c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
		defer func() { _ = stream.Close() }()
		go func() {
			w := bufio.NewWriterSize(pw, 1) // every event blocks until it is read
			for range 3 {
				_, _ = w.WriteString("data: x\n\n")
				_ = w.Flush()
			}
		}()
		for range 3 {
			testkit.Must(stream.Next())(t)
			time.Sleep(time.Hour)
		}
	})
}

func TestStreamIdleWatchdogOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, pw := piped(t, func(c *Config) { c.StreamIdleTimeout = Off })
		stream := testkit.Must(c.ReceiveEvents(t.Context(), ReceiveEventsRequest{}))(t)
		defer func() { _ = stream.Close() }()
		go func() {
			time.Sleep(1000 * time.Hour)
			_, _ = io.WriteString(pw, "data: x\n\n")
		}()
		testkit.Must(stream.Next())(t)
	})
}

// The limits of one attempt follow each other; only the current one counts.
func TestAttemptLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := &attemptLimit{abort: cancel}
		l.set(time.Second, errAttemptTimeout)
		if !l.set(time.Minute, ErrIdle) || !l.set(0, nil) || !l.set(time.Hour, ErrIdle) {
			t.Fatal("the limit cannot be replaced")
		}
		start := time.Now()
		<-ctx.Done()
		if d := time.Since(start); d != time.Hour || context.Cause(ctx) != ErrIdle || l.set(0, nil) || l.stop() != ErrIdle {
			t.Errorf("ended after %v with %v", d, context.Cause(ctx))
		}
		ctx, cancel = context.WithCancelCause(t.Context())
		defer cancel(nil)
		l = &attemptLimit{abort: cancel}
		l.set(time.Second, errAttemptTimeout)
		if err := l.stop(); err != nil || l.set(time.Second, ErrIdle) {
			t.Errorf("stopped: %v", err)
		}
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Error("an attempt that is over was ended")
		}
	})
}

func TestStreamConnectTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		mux.HandleFunc("GET /events", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		c := offline(t, mux)
		start := time.Now()
		_, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
		wantOnly(t, err, ErrUnavailable)
		if d := time.Since(start); d != defaultStreamConnectTimeout {
			t.Errorf("after %v", d)
		}
	})
}

// A comment says that the service is there, as an event does.
func TestLastHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		reader, writer := io.Pipe()
		r := newIdleReader(&attemptBody{body: reader, ctx: t.Context()}, 0)
		stream := &EventStream{source: r}
		for _, part := range []string{": still here\n\n", "event: X\n"} {
			if got := stream.LastHeard(); !got.Equal(began) {
				t.Errorf("heard %v ago, want %v", time.Since(got), time.Since(began))
			}
			time.Sleep(time.Minute)
			began = time.Now()
			go func() { _, _ = io.WriteString(writer, part) }()
			if n, err := r.Read(make([]byte, 100)); n != len(part) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
		}
		time.Sleep(time.Minute)
		_ = writer.Close()
		if n, err := r.Read(make([]byte, 100)); n != 0 || err != io.EOF {
			t.Fatalf("%d, %v", n, err)
		}
		if got := stream.LastHeard(); !got.Equal(began) {
			t.Errorf("heard %v ago, want %v: an end is no sign of life", time.Since(got), time.Since(began))
		}
	})
}

// A service that sends the head of its answer with the first event: the stream is open all the same, far
// beyond the time that connecting may take, and it is told as soon as its request is written. The silence
// of one that never answers is bounded like that of a stream, and by the caller's context.
func TestStreamHeadComesWithTheFirstEvent(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		testkit.RunBubble(t, protocol, func(t *testing.T) {
			mux, _ := offlineMux()
			event, refuse := make(chan struct{}), make(chan struct{}, 1)
			refuse <- struct{}{}
			mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
				if r.Proto != protocol {
					t.Errorf("protocol %s", r.Proto)
				}
				select {
				case <-refuse: // the first token, which does not count
					fail(401, "expired")(w, r)
				case <-event:
					streamOf("event: NEW\ndata: {}\n\n")(w, r)
				case <-r.Context().Done():
				}
			})
			c := piping(t, mux, protocol == "HTTP/2.0")
			open := func(ctx context.Context, awaiting func()) error {
				stream, err := c.ReceiveEvents(ctx, ReceiveEventsRequest{AwaitingHead: awaiting})
				if err == nil {
					_, err = stream.Next()
					_ = stream.Close()
				}
				return err
			}
			awaiting, opened := make(chan struct{}, 10), make(chan error, 1)
			go func() { opened <- open(t.Context(), func() { awaiting <- struct{}{} }) }()
			<-awaiting
			time.Sleep(3 * defaultStreamConnectTimeout)
			synctest.Wait()
			if len(opened) > 0 {
				t.Fatalf("the stream was cut while it waited for its head: %v", <-opened)
			}
			event <- struct{}{}
			testkit.NoError(t, <-opened)

			start := time.Now()
			wantOnly(t, open(t.Context(), nil), ErrIdle)
			if d := time.Since(start); d != defaultStreamIdleTimeout {
				t.Errorf("the silence ended after %v", d)
			}
			ctx, cancel := context.WithCancel(t.Context())
			wantOnly(t, open(ctx, cancel), context.Canceled)
		})
	}
}

// A response whose head says all there is to know holds nobody until its body ends, which it may never do.
func TestBodyThatNeverEnds(t *testing.T) {
	endless := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	for name, tt := range map[string]struct {
		path    string
		answer  http.HandlerFunc
		call    func(ctx context.Context, c *Client) error
		matches error
	}{
		"stream refused": {"GET /events", endless(http.StatusUnauthorized), openEvents, ErrUnauthorized},
		"stream moved":   {"GET /events", endless(http.StatusTemporaryRedirect), openEvents, ErrForbidden},
		"payload moved": {"GET /payload", endless(http.StatusFound), func(ctx context.Context, c *Client) error {
			_, err := c.OpenPayload(ctx, c.base+"/payload", -1)
			return err
		}, ErrPayloadExpired},
		"message accepted": {"POST /messages", endless(http.StatusOK), func(ctx context.Context, c *Client) error {
			return c.SendMessage(ctx, testMessageRequest())
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mux, _ := offlineMux()
				mux.HandleFunc(tt.path, tt.answer)
				mux.HandleFunc("GET /elsewhere", fail(http.StatusForbidden, "no"))
				c := piping(t, mux, false)
				ctx, cancel := context.WithTimeout(t.Context(), c.cfg.RequestTimeout/2)
				defer cancel()
				start := time.Now()
				if err := tt.call(ctx, c); !errors.Is(err, tt.matches) {
					t.Errorf("got %v after %s, want %v", err, time.Since(start), tt.matches)
				}
				if time.Since(start) > 2*maxBodyTime {
					t.Errorf("took %s", time.Since(start))
				}
			})
		})
	}
}

func openEvents(ctx context.Context, c *Client) error {
	_, err := c.ReceiveEvents(ctx, ReceiveEventsRequest{})
	return err
}
