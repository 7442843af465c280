package gatewaytest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// A server of package http keeps a connection half a second that it has refused to read on, which is more
// than goleak waits.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const typeA, typeB = "iso:11783:-10:taskdata:zip", "img:png"

// caller speaks plain HTTP as one application. The service is tested through
// the wire, not through our own client.
type caller struct {
	t      *testing.T
	s      *gatewaytest.Server
	app    *gatewaytest.Application
	tenant string
	http   *http.Client
	token  string
}

func newCaller(t *testing.T, s *gatewaytest.Server, app *gatewaytest.Application) *caller {
	t.Helper()
	client := s.HTTPClient()
	t.Cleanup(client.CloseIdleConnections)
	return &caller{t: t, s: s, app: app, tenant: s.Tenant(), http: client, token: s.IssueToken(app)}
}

func start(t *testing.T, cfg gatewaytest.Config) (*gatewaytest.Server, *caller) {
	t.Helper()
	if !cfg.InMemory { // nobody takes its ports while it is stopped
		cfg.Listen, cfg.PayloadListen = testkit.FreeAddress(t), testkit.FreeAddress(t)
	}
	s := gatewaytest.New(t, cfg)
	return s, newCaller(t, s, s.Application())
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // of reading the body
}

func (r reply) message() string {
	var body gateway.ErrorResponse
	_ = json.Unmarshal(r.body, &body)
	return body.Message
}

func (c *caller) request(method, path string, body []byte, header map[string]string) *http.Request {
	c.t.Helper()
	address := path
	if strings.HasPrefix(path, "/") {
		address = c.s.BaseURL() + path
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req := testkit.Must(http.NewRequestWithContext(testContext(c.t), method, address, reader))(c.t)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, value := range header {
		if value == "" {
			req.Header.Del(name)
			continue
		}
		req.Header.Set(name, value)
	}
	return req
}

func (c *caller) send(req *http.Request) (reply, error) {
	res, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return reply{status: res.StatusCode, header: res.Header, body: body, err: err}, nil
}

func (c *caller) do(method, path string, body []byte, header map[string]string) reply {
	c.t.Helper()
	r, err := c.send(c.request(method, path, body, header))
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return r
}

func (c *caller) key(key string) string { return gateway.HeaderName(c.s.ServiceName(), key) }

// message is the full set of headers of a published message; change or remove
// ("") what a test is about.
func (c *caller) messageHeaders(sender string, change map[string]string) map[string]string {
	header := map[string]string{
		"Content-Type":                     "application/octet-stream",
		c.key(gateway.KeyIsPublish):        "true",
		c.key(gateway.KeySentTimestamp):    "2026-05-01T10:20:30.5+02:00",
		c.key(gateway.KeyEndpointID):       sender,
		c.key(gateway.KeyMessageType):      typeA,
		c.key(gateway.KeyTenantID):         c.tenant,
		c.key(gateway.KeyContextID):        uuid.NewString(),
		c.key(gateway.KeyFilename):         "",
		c.key(gateway.KeyTeamsetContextID): "",
	}
	for key, value := range change {
		header[c.key(key)] = value
	}
	return header
}

func (c *caller) post(sender string, payload []byte, change map[string]string) reply {
	c.t.Helper()
	if payload == nil {
		payload = []byte{}
	}
	return c.do("POST", "/messages", payload, c.messageHeaders(sender, change))
}

func (c *caller) confirm(confirmations ...gateway.MessageConfirmation) reply {
	c.t.Helper()
	body := testkit.Must(json.Marshal(gateway.ConfirmMessagesRequest{Confirmations: confirmations}))(c.t)
	return c.do("POST", "/confirmations", body, map[string]string{"Content-Type": "application/json", c.key(gateway.KeyTenantID): c.tenant})
}

func (c *caller) endpointBody(change map[string]any) []byte {
	c.t.Helper()
	body := map[string]any{
		"application_id": c.app.ID, "software_version_id": c.app.SoftwareVersionID, "endpoint_type": "cloud_software",
		"capabilities":  []any{map[string]any{"message_type": typeA, "direction": "SEND_RECEIVE"}},
		"subscriptions": []any{map[string]any{"message_type": typeA}},
	}
	for key, value := range change {
		body[key] = value
		if value == missing {
			delete(body, key)
		}
	}
	return testkit.Must(json.Marshal(body))(c.t)
}

const missing = "\x00missing"

func (c *caller) put(externalID string, change map[string]any) reply {
	c.t.Helper()
	return c.do("PUT", "/endpoints/"+url.PathEscape(externalID), c.endpointBody(change),
		map[string]string{"Content-Type": "application/json", c.key(gateway.KeyTenantID): c.tenant})
}

func (c *caller) delete(externalID string) reply {
	c.t.Helper()
	return c.do("DELETE", "/endpoints/"+url.PathEscape(externalID), nil, map[string]string{c.key(gateway.KeyTenantID): c.tenant})
}

func want(t *testing.T, r reply, status int) reply {
	t.Helper()
	if r.status != status {
		t.Fatalf("status %d, want %d; body %s", r.status, status, r.body)
	}
	return r
}

func wantMessage(t *testing.T, r reply, status int, part string) {
	t.Helper()
	want(t, r, status)
	testkit.Contains(t, r.message(), part)
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Fatalf("error Content-Type %q", got)
	}
}

// listener is an open event stream.
type listener struct {
	t      *testing.T
	res    *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

func (c *caller) listen(query string) *listener {
	c.t.Helper()
	ctx, cancel := context.WithCancel(testContext(c.t))
	req := c.request("GET", "/events"+query, nil, nil).WithContext(ctx)
	res, err := c.http.Do(req)
	if err != nil {
		cancel()
		c.t.Fatalf("GET /events: %v", err)
	}
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body)
		cancel()
		c.t.Fatalf("GET /events: %d %s", res.StatusCode, body)
	}
	l := &listener{t: c.t, res: res, lines: newLineReader(res.Body), cancel: cancel}
	c.t.Cleanup(l.close)
	return l
}

func newLineReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64<<10) }

func (l *listener) close() {
	l.cancel()
	_ = l.res.Body.Close()
}

type event struct {
	name string
	data map[string]any
	raw  string
}

func (e event) text(field string) string {
	value, _ := e.data[field].(string)
	return value
}

func (e event) pair() gateway.MessageConfirmation {
	return gateway.MessageConfirmation{MessageID: e.text("id"), EndpointID: e.text("receiving_endpoint_id")}
}

// read returns the next event or the error that ended the stream. Comments are
// skipped.
func (l *listener) read() (event, error) {
	var e event
	for {
		line, err := l.lines.ReadString('\n')
		if err != nil {
			return e, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "event: "):
			e.name = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			e.raw = line[len("data: "):]
			if err := json.Unmarshal([]byte(e.raw), &e.data); err != nil {
				return e, err
			}
		case line == "" && e.name != "":
			if e.text("event_type") != e.name {
				return e, fmt.Errorf("event_type %q under event: %s", e.text("event_type"), e.name)
			}
			return e, nil
		}
	}
}

func (l *listener) mustRead() event {
	l.t.Helper()
	return testkit.Must(l.read())(l.t)
}

func (l *listener) next(name gateway.EventType) event {
	l.t.Helper()
	e, err := l.read()
	if err != nil {
		l.t.Fatalf("waiting for %s: %v", name, err)
	}
	if e.name != string(name) {
		l.t.Fatalf("event %s, want %s; data %s", e.name, name, e.raw)
	}
	return e
}

// nothingBefore proves that nothing was pending: a marker sent now comes first.
func (l *listener) nothingBefore(s *gatewaytest.Server, app *gatewaytest.Application) {
	l.t.Helper()
	s.EmitRaw(app, []byte("event: marker\ndata: {\"event_type\":\"marker\"}\n\n"))
	l.next("marker")
}

// pair of endpoints: a sender and a receiver of typeA.
func pairOf(s *gatewaytest.Server) (sender, receiver gateway.Endpoint) {
	sender = s.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{typeA, typeB}})
	receiver = s.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{typeA, typeB}, Subscribe: []string{typeA}})
	return sender, receiver
}
