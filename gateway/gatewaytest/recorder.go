package gatewaytest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// RecorderConfig is the configuration of a [Recorder].
type RecorderConfig struct {
	// BaseURL and TokenURL are those of the real gateway. Required.
	BaseURL, TokenURL string
	// To receives the recording, whole lines at a time. Required.
	To io.Writer
	// Payloads keeps the payloads. By default a payload is replaced by its size and digest.
	Payloads bool
}

// Recorder is a reverse proxy in front of a real gateway, which records what that answers to a program, and when;
// [Config.Replay] plays it back. Give the program the recorder's address as its base URL, and with the path /oauth/token as
// its token URL. Payloads are downloaded through it, too.
//
// The recording has no request bodies and no client secrets, tokens or payload URIs, and no text of answers that may quote
// a payload or are none of the specification. It does have IDs, filenames, and the names of endpoints.
type Recorder struct {
	cfg       RecorderConfig
	base      *url.URL
	token     *url.URL
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	started   time.Time

	mu       sync.Mutex
	err      error // of writing; nothing is passed on after that
	requests int
	uris     []recordedURI
	secrets  []string // what was seen of them, not to be written
}

// NewRecorder returns a recorder, which must be closed. It writes the first line at once.
func NewRecorder(cfg RecorderConfig) (*Recorder, error) {
	r := &Recorder{cfg: cfg, started: time.Now()}
	for _, given := range []struct {
		field, value string
		into         **url.URL
	}{{"BaseURL", cfg.BaseURL, &r.base}, {"TokenURL", cfg.TokenURL, &r.token}} {
		u, err := url.Parse(given.value)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("%w: %s must be an absolute http or https address", ErrConfig, given.field)
		}
		*given.into = u
	}
	if cfg.To == nil {
		return nil, fmt.Errorf("%w: To is required", ErrConfig)
	}
	r.transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true, ForceAttemptHTTP2: true}
	r.proxy = &httputil.ReverseProxy{
		Rewrite:        r.rewrite,
		Transport:      r.transport,
		ModifyResponse: r.head,
		FlushInterval:  -1,
		ErrorLog:       log.New(io.Discard, "", 0),
		ErrorHandler: func(_ http.ResponseWriter, req *http.Request, err error) {
			x := exchangeOf(req.Context())
			x.line(recordedLine{End: x.ended(err)})
			panic(http.ErrAbortHandler) // no answer, as the program would have had none
		},
	}
	r.write(recordingHead{Version: recordingVersion, Started: r.started.UTC(), Payloads: cfg.Payloads})
	return r, r.err
}

// Close reports the first error of writing, after which every answer was 502. Nobody may use the recorder any more.
func (r *Recorder) Close() error {
	r.transport.CloseIdleConnections()
	return r.failed()
}

// exchange is a request that is being recorded.
type exchange struct {
	recorder *Recorder
	request  *http.Request
	number   int
	target   *url.URL // nil: below the base URL
	kind     bodyKind
	own      string // where this recorder is served
}

// bodyKind is what the body of an answer has.
type bodyKind int

const (
	bodyText bodyKind = iota
	bodyToken
	bodyPayload
)

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// ServeHTTP passes a request on and records its answer.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	x := &exchange{recorder: r, request: req, own: "http://" + req.Host}
	if req.TLS != nil {
		x.own = "https://" + req.Host
	}
	path := req.URL.EscapedPath()
	if !strings.HasPrefix(path, "/") { // a proxy is asked so
		http.Error(w, "the path has to begin with /", http.StatusBadRequest)
		return
	}
	switch {
	case path == tokenPath:
		x.target, x.kind = r.token, bodyToken
	case strings.HasPrefix(path, payloadPath):
		var ok bool
		if path, x.target, ok = r.payload(path); !ok {
			http.NotFound(w, req)
			return
		}
		x.kind = bodyPayload
	}
	if err := r.learn(req, x.kind); err != nil {
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.requests++
	x.number = r.requests
	r.mu.Unlock()
	x.line(recordedLine{Method: req.Method, Path: string(r.redact([]byte(path)))})
	if r.failed() != nil {
		http.Error(w, "the recording cannot be written", http.StatusBadGateway)
		return
	}
	r.proxy.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), exchangeKey{}, x)))
}

func (r *Recorder) rewrite(p *httputil.ProxyRequest) {
	p.Out.Header.Set("Accept-Encoding", "identity") // what is compressed cannot be looked through
	p.Out.Header.Del("Connection")                  // no other protocol could be recorded
	p.Out.Header.Del("Upgrade")
	x := exchangeOf(p.In.Context())
	if x.kind == bodyPayload { // another host: the token is not for it
		p.Out.Header.Del("Authorization")
		p.Out.Header.Del("Cookie")
	}
	if x.target == nil {
		p.SetURL(r.base)
		return
	}
	p.Out.URL, p.Out.Host = x.target, ""
}

// learn remembers the secrets of a request.
func (r *Recorder) learn(req *http.Request, kind bodyKind) error {
	_, value, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	seen := []string{value}
	if _, password, ok := req.BasicAuth(); ok {
		seen = append(seen, password, formDecoded(password))
	}
	if kind == bodyToken {
		body, err := io.ReadAll(io.LimitReader(req.Body, 64<<10+1))
		if err != nil || len(body) > 64<<10 {
			return errors.Join(errors.New("too large"), err)
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return err
		}
		for _, name := range []string{"client_secret", "client_assertion"} {
			seen = append(seen, form.Get(name), url.QueryEscape(form.Get(name)))
		}
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, secret := range seen {
		for _, written := range spellings(secret) {
			if written != "" && !slices.Contains(r.secrets, written) {
				r.secrets = append(r.secrets, written)
			}
		}
	}
	// One may begin with another.
	slices.SortFunc(r.secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return nil
}

// spellings returns how a secret may be written in JSON and in addresses.
func spellings(secret string) []string {
	quoted, _ := json.Marshal(secret) // of a string always
	escaped := string(quoted[1 : len(quoted)-1])
	unescaped := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(escaped)
	all := []string{secret, url.QueryEscape(secret), url.PathEscape(secret)}
	for _, text := range []string{escaped, unescaped} {
		all = append(all, text, strings.ReplaceAll(text, "/", `\/`))
	}
	return all
}

// redact replaces the secrets that were seen.
func (r *Recorder) redact(text []byte) []byte {
	r.mu.Lock()
	secrets := slices.Clone(r.secrets)
	r.mu.Unlock()
	for _, secret := range secrets {
		text = bytes.ReplaceAll(text, []byte(secret), []byte("REDACTED"))
	}
	return text
}

// recordedURI is a payload_uri, and who knows its key may ask for it: a number could be guessed.
type recordedURI struct{ key, uri string }

// ownURI returns the number of a payload_uri, and the recorder's URI for it.
func (x *exchange) ownURI(uri string) (int, string) {
	r := x.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	key := rand.Text()
	r.uris = append(r.uris, recordedURI{key, uri})
	return len(r.uris), fmt.Sprint(x.own, payloadPath, len(r.uris), "/", key)
}

// payload returns the path to record for one of the recorder's URIs, and the gateway's URI.
func (r *Recorder) payload(path string) (string, *url.URL, bool) {
	number, key, _ := strings.Cut(strings.TrimPrefix(path, payloadPath), "/")
	n, err := strconv.Atoi(number)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || n < 1 || n > len(r.uris) || r.uris[n-1].key != key {
		return "", nil, false
	}
	target, err := url.Parse(r.uris[n-1].uri)
	return payloadPath + number, target, err == nil
}

// head records the head of an answer, and sees to its body.
func (r *Recorder) head(resp *http.Response) error {
	x := exchangeOf(resp.Request.Context())
	if resp.StatusCode < 200 || resp.StatusCode > 599 {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	header := map[string]string{}
	for _, name := range recordedHeaders {
		if value := resp.Header.Get(name); value != "" && (name != "Content-Length" || x.kind == bodyPayload) {
			header[name] = strings.ToValidUTF8(string(r.redact([]byte(value))), "?")
		}
	}
	x.line(recordedLine{Status: resp.StatusCode, Header: header})
	encoded := resp.Header.Get("Content-Encoding")
	plain := encoded == "" || encoded == "identity"
	op := Operation("")
	if x.kind == bodyText {
		op = operationOf(x.request)
	}
	stream := op == OpEvents && resp.StatusCode == http.StatusOK
	if stream && plain {
		resp.Header.Del("Content-Length")
		resp.ContentLength = -1
		resp.Body = &eventBody{source: resp.Body, x: x, input: make([]byte, 32<<10)}
		return nil
	}
	resp.Body = &plainBody{
		source: resp.Body, x: x, digest: sha256.New(),
		// Errors of messages may quote the payload; what is no operation may have anything.
		keep: plain && !stream && op != "" && op != OpSendMessage && resp.StatusCode/100 != 3,
		// An error may quote the address.
		payload: x.kind == bodyPayload && r.cfg.Payloads && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent),
	}
	return nil
}

// failed returns the first error of writing.
func (r *Recorder) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// ended says how an answer ended.
func (x *exchange) ended(err error) string {
	switch {
	case errors.Is(err, io.EOF):
		return endComplete
	case x.request.Context().Err() != nil:
		return endClient
	}
	return endCut
}

// line writes a line of this request.
func (x *exchange) line(line recordedLine) {
	line.At, line.Request = time.Since(x.recorder.started).Microseconds(), x.number
	x.recorder.write(line)
}

func (r *Recorder) write(line any) {
	data, err := json.Marshal(line)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && err == nil {
		_, err = r.cfg.To.Write(append(data, '\n'))
	}
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("gatewaytest: recording: %w", err)
	}
}
