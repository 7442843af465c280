package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

const payloadQuery = "/p?signature=s3cret"

// payloadHost serves on another address than the service, and fails the test
// when a credential reaches it.
func payloadHost(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Authorization", "Cookie", "Referer", "X-Router-Tenant-Id"} {
			if r.Header.Get(name) != "" {
				t.Errorf("%s %q reached a payload host", name, r.Header.Get(name))
			}
		}
		if r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("Accept-Encoding %q", r.Header.Get("Accept-Encoding"))
		}
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func testPayload(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func whole(data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
	}
}

func chunked(data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(data)
	}
}

func download(ctx context.Context, c *Client, uri string, size int64) ([]byte, error) {
	r, err := c.OpenPayload(ctx, uri, size)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

func TestOpenPayload(t *testing.T) {
	s := newService(t)
	c := s.client(t)
	for _, n := range []int{0, 1, 100000} {
		data := testPayload(n)
		for name, h := range map[string]http.HandlerFunc{"length": whole(data), "chunked": chunked(data)} {
			uri := payloadHost(t, func(w http.ResponseWriter, r *http.Request) {
				if r.RequestURI != payloadQuery {
					t.Errorf("asked for %q", r.RequestURI)
				}
				h(w, r)
			}) + payloadQuery
			for _, size := range []int64{int64(n), -1} {
				r, err := c.OpenPayload(t.Context(), uri, size)
				if err != nil {
					t.Fatalf("%s, %d bytes announced as %d: %v", name, n, size, err)
				}
				if want := int64(n); (name == "length" || size >= 0) && r.Size() != want {
					t.Errorf("%s: size %d, want %d", name, r.Size(), want)
				}
				got, err := io.ReadAll(r)
				if err != nil || !bytes.Equal(got, data) || r.Size() != int64(n) {
					t.Errorf("%s, %d bytes announced as %d: got %d, size %d, %v", name, n, size, len(got), r.Size(), err)
				}
				for range 2 {
					testkit.NoError(t, r.Close())
				}
			}
		}
	}
	if s.tokens.Load() != 0 {
		t.Error("a download asked for a token")
	}
}

func TestPayloadOfTheWrongSize(t *testing.T) {
	c := newService(t).client(t)
	page := []byte("<html>sorry</html>")
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    error
	}{
		"page instead of the bytes": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(page)
		}, ErrPayloadSize},
		"longer":                 {whole(testPayload(101)), ErrPayloadSize},
		"longer, without length": {chunked(testPayload(101)), ErrPayloadSize},
		"shorter":                {whole(testPayload(99)), ErrPayloadSize},
		"shorter, without length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Accept-Ranges", "none")
			chunked(testPayload(99))(w, nil)
		}, ErrPayloadTruncated},
		"encoded": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(testPayload(100))
		}, ErrContentEncoding},
		"a part that was not asked for": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(206)
			_, _ = w.Write(testPayload(100))
		}, ErrBadResponse},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := download(t.Context(), c, payloadHost(t, tt.handler)+payloadQuery, 100)
			wantIs(t, err, tt.want)
			if len(got) > 100 {
				t.Errorf("%d bytes were delivered", len(got))
			}
		})
	}
}

// A page of a proxy in the way may be gone at the next attempt.
func TestPayloadOfTheWrongSizeIsAskedForAgain(t *testing.T) {
	var n atomic.Int64
	data := testPayload(100)
	uri := payloadHost(t, inOrder(&n, whole([]byte("<html>")), fail(503, "busy"), whole(data)))
	got, err := download(t.Context(), newService(t).client(t), uri, 100)
	if err != nil || !bytes.Equal(got, data) || n.Load() != 3 {
		t.Errorf("%d bytes, %v, %d requests", len(got), err, n.Load())
	}
}

func TestPayloadExpired(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 410} {
		var n atomic.Int64
		uri := payloadHost(t, inOrder(&n, fail(status, "the address http://x/p?signature=s3cret is no longer valid")))
		_, err := download(t.Context(), newService(t).client(t), uri+payloadQuery, 100)
		// Nothing that looks like the service's word about the message.
		wantOnly(t, err, ErrPayloadExpired)
		var e *Error
		if !errors.As(err, &e) || e.StatusCode != status || n.Load() != 1 {
			t.Errorf("got %#v after %d requests", err, n.Load())
		}
	}
}

func TestPayloadHostDown(t *testing.T) {
	_, err := download(t.Context(), newService(t).client(t), "http://"+closedAddress(t)+payloadQuery, 100)
	wantOnly(t, err, ErrUnavailable)
}

func TestPayloadURIMustBeAnAddress(t *testing.T) {
	c := newService(t).client(t)
	for _, uri := range []string{"", "p", "ftp://x/p", "file:///etc/passwd", "https://", "http://[/", "http://x/%zz"} {
		_, err := c.OpenPayload(t.Context(), uri, -1)
		wantOnly(t, err, ErrInvalid)
	}
}

func TestPayloadLimit(t *testing.T) {
	c := newService(t).client(t, func(c *Config) { c.MaxPayloadSize = 100 })
	testkit.Must(download(t.Context(), c, payloadHost(t, whole(testPayload(100))), -1))(t)
	for name, h := range map[string]http.HandlerFunc{"length": whole(testPayload(101)), "chunked": chunked(testPayload(101))} {
		for _, size := range []int64{-1, 101} {
			got, err := download(t.Context(), c, payloadHost(t, h), size)
			wantOnly(t, err, ErrTooLarge)
			if len(got) > 100 {
				t.Errorf("%s: %d bytes", name, len(got))
			}
		}
	}
}

// flaky serves ranges of data and breaks every connection after some bytes.
type flaky struct {
	data     []byte
	etag     string
	each     int
	requests atomic.Int64
	chunked  bool
	change   func(n int64, w http.ResponseWriter, r *http.Request) bool // true: answered
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := f.requests.Add(1)
	if f.change != nil && f.change(n, w, r) {
		return
	}
	w.Header().Set("Accept-Ranges", "bytes")
	if f.etag != "" {
		w.Header().Set("ETag", f.etag)
	}
	from := 0
	if spec := r.Header.Get("Range"); spec != "" && (r.Header.Get("If-Range") == "" || r.Header.Get("If-Range") == f.etag) {
		if _, err := fmt.Sscanf(spec, "bytes=%d-", &from); err != nil {
			w.WriteHeader(416)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(f.data)-1, len(f.data)))
	}
	rest := f.data[from:]
	if !f.chunked {
		w.Header().Set("Content-Length", strconv.Itoa(len(rest)))
	}
	if from > 0 {
		w.WriteHeader(206)
	}
	_, _ = w.Write(rest[:min(f.each, len(rest))])
	_ = http.NewResponseController(w).Flush()
	if f.each < len(rest) {
		panic(http.ErrAbortHandler)
	}
}

func TestPayloadIsResumed(t *testing.T) {
	data := testPayload(300000)
	for name, f := range map[string]*flaky{
		"with an ETag":        {data: data, etag: `"v1"`, each: 70000},
		"without a validator": {data: data, each: 70000},
		"with a weak ETag":    {data: data, etag: `W/"v1"`, each: 70000},
		"without length":      {data: data, etag: `"v1"`, each: 70000, chunked: true},
	} {
		for _, size := range []int64{int64(len(data)), -1} {
			t.Run(name, func(t *testing.T) {
				f.requests.Store(0)
				uri := payloadHost(t, f.ServeHTTP)
				got, err := download(t.Context(), newService(t).client(t), uri+payloadQuery, size)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				// More connections broke than a call has attempts: what makes
				// progress goes on.
				if f.requests.Load() != 5 {
					t.Errorf("%d requests", f.requests.Load())
				}
			})
		}
	}
}

func TestPayloadThatCannotBeResumed(t *testing.T) {
	data := testPayload(1000)
	second := func(h http.HandlerFunc) func(int64, http.ResponseWriter, *http.Request) bool {
		return func(n int64, w http.ResponseWriter, r *http.Request) bool {
			if n == 1 {
				return false
			}
			h(w, r)
			return true
		}
	}
	part := func(contentRange, etag string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", contentRange)
			if etag != "" {
				w.Header().Set("ETag", etag)
			}
			w.WriteHeader(206)
			_, _ = w.Write(data[400:])
		}
	}
	tests := map[string]struct {
		f    *flaky
		want error
	}{
		"no ranges": {&flaky{change: func(_ int64, w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Accept-Ranges", "none")
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(data[:400])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}}, ErrPayloadTruncated},
		"answered in full":   {&flaky{change: second(whole(data))}, ErrPayloadTruncated},
		"another range":      {&flaky{change: second(part("bytes 0-999/1000", `"v1"`))}, ErrPayloadTruncated},
		"another size":       {&flaky{change: second(part("bytes 400-1000/1001", `"v1"`))}, ErrPayloadTruncated},
		"another version":    {&flaky{change: second(part("bytes 400-999/1000", `"v2"`))}, ErrPayloadTruncated},
		"malformed range":    {&flaky{change: second(part("400-999/1000", `"v1"`))}, ErrPayloadTruncated},
		"not satisfiable":    {&flaky{change: second(fail(416, ""))}, ErrPayloadTruncated},
		"expired on the way": {&flaky{change: second(fail(403, "expired"))}, ErrPayloadExpired},
		"never any progress": {&flaky{change: second(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 400-999/1000")
			w.Header().Set("Content-Length", "600")
			w.WriteHeader(206)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})}, ErrPayloadTruncated},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.f.data, tt.f.etag, tt.f.each = data, `"v1"`, 400
			got, err := download(t.Context(), newService(t).client(t), payloadHost(t, tt.f.ServeHTTP)+payloadQuery, 1000)
			wantIs(t, err, tt.want)
			if !bytes.Equal(got, data[:400]) {
				t.Errorf("%d bytes", len(got))
			}
			if tt.want != ErrPayloadExpired && !strings.Contains(err.Error(), "after 400 of 1000 bytes") {
				t.Errorf("%q does not tell where", err)
			}
		})
	}
}

// An answer of status 200 that is not the payload, and of no stated length, ends
// before the payload would. Its bytes must not become the beginning of the payload.
func TestPayloadIsNeverMixed(t *testing.T) {
	data := testPayload(1000)
	for name, tt := range map[string]struct {
		abort bool
		etag  string
	}{
		"ends": {false, `"v1"`}, "ends, no validator anywhere": {false, ""}, "breaks off": {true, `"v1"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := &flaky{data: data, etag: tt.etag, each: len(data), change: func(n int64, w http.ResponseWriter, _ *http.Request) bool {
				if n > 1 {
					return false
				}
				w.Header().Set("Content-Type", "text/html")
				_ = http.NewResponseController(w).Flush()
				_, _ = w.Write(make([]byte, 400))
				_ = http.NewResponseController(w).Flush()
				if tt.abort {
					panic(http.ErrAbortHandler)
				}
				return true
			}}
			got, err := download(t.Context(), newService(t).client(t), payloadHost(t, f.ServeHTTP)+payloadQuery, 1000)
			wantIs(t, err, ErrPayloadTruncated)
			if len(got) != 400 {
				t.Errorf("%d bytes", len(got))
			}
		})
	}
}

// A payload ends where the host says when it goes on with it, even if it sends more.
func TestResumedPayloadContinuesPastItsEnd(t *testing.T) {
	data := testPayload(1000)
	f := &flaky{data: data, etag: `"v1"`, each: 400, chunked: true, change: func(n int64, w http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			return false
		}
		w.Header().Set("Content-Range", "bytes 400-449/450")
		w.WriteHeader(206)
		_, _ = w.Write(data[400:])
		return true
	}}
	got, err := download(t.Context(), newService(t).client(t), payloadHost(t, f.ServeHTTP)+payloadQuery, -1)
	wantOnly(t, err, ErrPayloadSize)
	if !bytes.Equal(got, data[:450]) {
		t.Errorf("%d bytes, want 450", len(got))
	}
}

func TestPayloadContentRange(t *testing.T) {
	for s, want := range map[string][3]int64{
		"bytes 0-0/1":     {0, 1, 1},
		"bytes 5-9/10":    {5, 10, 1},
		"bytes 5-9/*":     {5, -1, 1},
		"bytes 5-9/9":     {},
		"bytes 9-5/10":    {},
		"bytes */10":      {},
		"bytes 5-9":       {},
		"bits 5-9/10":     {},
		"bytes -5-9/10":   {},
		"bytes 5-x/10":    {},
		"":                {},
		"bytes 5-9/1e300": {},
	} {
		from, total, ok := parseContentRange(s)
		if ok != (want[2] == 1) || ok && (from != want[0] || total != want[1]) {
			t.Errorf("%q: %d, %d, %v", s, from, total, ok)
		}
	}
}

func TestPayloadRedirects(t *testing.T) {
	data := testPayload(100)
	target := payloadHost(t, whole(data))
	redirect := func(status int, to string) string {
		return payloadHost(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(status)
		})
	}
	s := newService(t)
	private := s.client(t, func(c *Config) { c.AllowPrivatePayloadRedirects = true })

	for _, status := range []int{301, 302, 303, 307, 308} {
		got, err := download(t.Context(), private, redirect(status, target+payloadQuery)+payloadQuery, 100)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d: %d bytes, %v", status, len(got), err)
		}
	}

	t.Run("private addresses are refused by default", func(t *testing.T) {
		var reached atomic.Int64
		inside := payloadHost(t, inOrder(&reached, whole(data)))
		port := inside[strings.LastIndex(inside, ":"):]
		for _, to := range []string{inside, "http://localhost" + port, "http://[::1]" + port, "http://0.0.0.0" + port, "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/", "//[::ffff:127.0.0.1]" + port + "/"} {
			_, err := download(t.Context(), s.client(t), redirect(302, to)+payloadQuery, 100)
			wantOnly(t, err, ErrRedirect)
		}
		if reached.Load() != 0 {
			t.Errorf("%d requests got through", reached.Load())
		}
	})

	t.Run("other schemes are refused", func(t *testing.T) {
		for _, to := range []string{"https" + strings.TrimPrefix(target, "http"), "ftp://example.org/", "file:///etc/passwd", "gopher://x/", "http://user:pass@" + strings.TrimPrefix(target, "http://"), "http:///p", ":", ""} {
			_, err := download(t.Context(), private, redirect(302, to)+payloadQuery, 100)
			wantOnly(t, err, ErrRedirect)
		}
	})

	t.Run("credentials of the URI go to its host only", func(t *testing.T) {
		var users []string
		first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			users = append(users, user+":"+password)
			w.Header().Set("Location", target)
			w.WriteHeader(307)
		}))
		defer first.Close()
		got, err := download(t.Context(), private, strings.Replace(first.URL, "://", "://user:pass@", 1), 100)
		if err != nil || !bytes.Equal(got, data) || !slices.Equal(users, []string{"user:pass"}) {
			t.Errorf("%d bytes, %v, for %q", len(got), err, users)
		}
	})

	t.Run("within the host, a relative address", func(t *testing.T) {
		var users []string
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, _, _ := r.BasicAuth()
			users = append(users, user)
			if r.URL.Path == "/p" {
				w.Header().Set("Location", "/q?x=1")
				w.WriteHeader(302)
				return
			}
			whole(data)(w, r)
		}))
		defer host.Close()
		for _, from := range []string{host.URL, strings.Replace(host.URL, "://", "://user:pass@", 1)} {
			if got, err := download(t.Context(), s.client(t), from+"/p", 100); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
		if want := []string{"", "", "user", "user"}; !slices.Equal(users, want) {
			t.Errorf("credentials of %q, want %q", users, want)
		}
	})

	t.Run("at most five", func(t *testing.T) {
		for hops, want := range map[int64]error{5: nil, 6: ErrRedirect} {
			var n atomic.Int64
			uri := payloadHost(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) > hops {
					whole(data)(w, r)
					return
				}
				w.Header().Set("Location", "/again")
				w.WriteHeader(307)
			})
			_, err := download(t.Context(), s.client(t), uri, 100)
			if !errors.Is(err, want) {
				t.Errorf("%d redirects: %v", hops, err)
			}
		}
	})
}

func TestPayloadCloseWhileReadWaits(t *testing.T) {
	uri := payloadHost(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write(testPayload(10))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	r := testkit.Must(newService(t).client(t).OpenPayload(t.Context(), uri, 100))(t)
	testkit.Must(io.ReadFull(r, make([]byte, 10)))(t)
	got := make(chan error, 1)
	go func() {
		_, err := r.Read(make([]byte, 10))
		got <- err
	}()
	testkit.NoError(t, r.Close())
	wantOnly(t, <-got, ErrClosed)
}

// A payload host that goes silent is left after a while, and the download goes
// on where it was.
func TestPayloadIdleWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		var n atomic.Int64
		c := offline(t, mux, func(c *Config) {
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				pr, pw := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = pr.CloseWithError(r.Context().Err()) })
				h := http.Header{}
				status, rest := 200, "0123456789"
				if n.Add(1) > 1 {
					status, rest = 206, rest[4:]
					h.Set("Content-Range", "bytes 4-9/10")
				}
				go func() {
					if status == 200 {
						_, _ = io.WriteString(pw, rest[:4]) // and then nothing
						return
					}
					_, _ = io.WriteString(pw, rest)
					_ = pw.Close()
				}()
				return &http.Response{StatusCode: status, Header: h, Body: pr, ContentLength: int64(len(rest)), Request: r}, nil
			})
		})
		start := time.Now()
		got, err := download(t.Context(), c, "https://payloads.example/p", 10)
		if err != nil || string(got) != "0123456789" {
			t.Errorf("%q, %v", got, err)
		}
		if d := time.Since(start); d != defaultPayloadIdleTimeout {
			t.Errorf("took %v", d)
		}
	})
}

// The URI of a payload grants access to it, so no verb prints it.
func TestPayloadReaderIsPrintedWithoutItsURI(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /payload", ok)
	r := testkit.Must(s.client(t).OpenPayload(t.Context(), s.URL+"/payload?signature=s3cret", -1))(t)
	defer func() { _ = r.Close() }()
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("opened", "payload", r)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("opened", "payload", r)
	for _, text := range []string{fmt.Sprint(r), fmt.Sprintf("%v %+v %#v", r, r, r), log.String()} {
		if strings.Contains(text, "s3cret") {
			t.Errorf("prints the URI: %s", text)
		}
	}
}

// A response that ends with its connection looks whole wherever that breaks, unless the event tells the size.
func TestPayloadThatEndsWithTheConnection(t *testing.T) {
	data := testPayload(100)
	for name, tt := range map[string]struct {
		size int64
		head string
		sent []byte
		want error
	}{
		"size unknown": {-1, "0 200 OK\r\n", data[:50], ErrBadResponse}, "nothing": {-1, "0 200 OK\r\n", nil, ErrBadResponse},
		"size known": {100, "0 200 OK\r\n", data, nil}, "cut": {100, "0 200 OK\r\n", data[:50], ErrPayloadTruncated},
		"HTTP/1.1": {-1, "1 200 OK\r\nConnection: close\r\n", data[:50], ErrBadResponse},
		"chunks":   {-1, "1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n", fmt.Appendf(nil, "64\r\n%s\r\n0\r\n\r\n", data), nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := newService(t).client(t)
			host := payloadHost(t, func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = conn.Close() }()
				head := tt.head
				if r.Header.Get("Range") != "" {
					head = "0 416 Range Not Satisfiable\r\n"
				}
				_, _ = fmt.Fprintf(conn, "HTTP/1.%s\r\n%s", head, tt.sent)
			})
			got, err := download(t.Context(), c, host+"/p", tt.size)
			if !errors.Is(err, tt.want) || tt.want == nil && !bytes.Equal(got, data) {
				t.Errorf("got %d bytes and %v, want %v", len(got), err, tt.want)
			}
		})
	}
}
