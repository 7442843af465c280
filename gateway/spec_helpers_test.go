package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The tests named TestSpec… go through the specification row by row; each row
// is a subtest. They run the client against the service in memory, with a wire
// between the two that a test can look at and change, so that both sides are
// held to the row. internal/test/coverage.md lists them.

const (
	specType  = "iso:11783:-10:taskdata:zip"
	specOther = "img:png"
)

// wire passes requests on and can change them and their answers.
type wire struct {
	next http.RoundTripper

	mu       sync.Mutex
	requests []*http.Request
	request  func(*http.Request)
	answer   func(map[string]any)
	event    func(map[string]any)
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	w.mu.Lock()
	w.requests = append(w.requests, out.Clone(out.Context()))
	request, answer, event := w.request, w.answer, w.event
	w.mu.Unlock()
	if strings.HasSuffix(out.URL.Path, "/token") {
		return w.next.RoundTrip(out)
	}
	if request != nil {
		request(out)
	}
	resp, err := w.next.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	switch resp.Header.Get("Content-Type") {
	case "application/json":
		if answer == nil {
			break
		}
		defer func() { _ = resp.Body.Close() }()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		data, err = edited(data, answer)
		if err != nil {
			return nil, err
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		resp.Header.Del("Content-Length")
	case "text/event-stream":
		if event != nil {
			resp.Body = &eventEditor{Closer: resp.Body, lines: bufio.NewReader(resp.Body), edit: event}
		}
	}
	return resp, nil
}

func edited(data []byte, edit func(map[string]any)) ([]byte, error) {
	var o map[string]any
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, err
	}
	edit(o)
	return json.Marshal(o)
}

// editBody replaces the JSON body of a request on its way.
func editBody(t *testing.T, r *http.Request, edit func(map[string]any)) {
	t.Helper()
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = r.Body.Close()
	}
	if err == nil {
		data, err = edited(data, edit)
	}
	if err != nil {
		t.Error(err)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
}

// eventEditor changes the data of every event of a stream.
type eventEditor struct {
	io.Closer
	lines *bufio.Reader
	rest  []byte
	edit  func(map[string]any)
}

func (e *eventEditor) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		line, err := e.lines.ReadBytes('\n')
		if err != nil {
			return 0, err
		}
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			if data, err = edited(data, e.edit); err != nil {
				return 0, err
			}
			line = append(append([]byte("data: "), data...), '\n')
		}
		e.rest = line
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

func (w *wire) set(change func(*wire)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.request, w.answer, w.event = nil, nil, nil
	if change != nil {
		change(w)
	}
}

// seen returns the requests for a path, oldest first.
func (w *wire) seen(method, path string) []*http.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*http.Request
	for _, r := range w.requests {
		if r.Method == method && strings.HasPrefix(r.URL.EscapedPath(), path) {
			list = append(list, r)
		}
	}
	return list
}

type specWorld struct {
	*gatewaytest.Server
	wire     *wire
	client   *gateway.Client
	sender   gateway.Endpoint
	receiver gateway.Endpoint
	created  bool // what the latest call of putEndpoint returned
}

// newSpecWorld has a sender and a subscribed receiver of specType. The client
// makes one attempt of each call.
func newSpecWorld(t *testing.T, cfg gatewaytest.Config, change ...func(*gateway.Config)) *specWorld {
	t.Helper()
	s := gatewaytest.New(t, cfg)
	w := &specWorld{
		Server: s,
		sender: s.AddEndpoint(gatewaytest.EndpointConfig{ExternalID: "urn:farm:sender", Name: "Sender", Send: []string{specType, specOther}}),
		receiver: s.AddEndpoint(gatewaytest.EndpointConfig{
			ExternalID: "urn:farm:receiver", Name: "Receiver", Receive: []string{specType, specOther}, Subscribe: []string{specType},
		}),
	}
	w.client, w.wire = specClient(t, s.ClientConfig(), change...)
	return w
}

func specClient(t *testing.T, cfg gateway.Config, change ...func(*gateway.Config)) (*gateway.Client, *wire) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: cfg.TLS}
	t.Cleanup(transport.CloseIdleConnections)
	between := &wire{next: transport}
	cfg.Transport = between
	cfg.Retry = gateway.RetryConfig{MaxAttempts: 1, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond}
	cfg.RateLimit = gateway.RateLimitConfig{Pause: time.Millisecond, MinRate: 1000}
	for _, f := range change {
		f(&cfg)
	}
	c := testkit.Must(gateway.New(cfg))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, between
}

func (w *specWorld) message(payload string) gateway.SendMessageRequest {
	return gateway.SendMessageRequest{
		TenantID: w.Tenant(), EndpointID: w.sender.ID, MessageType: specType, IsPublish: true, Payload: []byte(payload),
	}
}

func (w *specWorld) send(t *testing.T, req gateway.SendMessageRequest) {
	t.Helper()
	testkit.NoError(t, w.client.SendMessage(t.Context(), req))
}

func (w *specWorld) stream(t *testing.T, types ...gateway.EventType) *gateway.EventStream {
	t.Helper()
	s := testkit.Must(w.client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{Types: types}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *specWorld) putRequest() gateway.PutEndpointRequest {
	return gateway.PutEndpointRequest{
		Name: "Hof Müller", ApplicationID: w.Application().ID, SoftwareVersionID: w.Application().SoftwareVersionID,
		Capabilities:  []gateway.EndpointCapability{{MessageType: specType, Direction: gateway.DirectionSendReceive}},
		Subscriptions: []gateway.EndpointSubscription{{MessageType: specType}},
		EndpointType:  gateway.EndpointTypeCloudSoftware,
	}
}

func (w *specWorld) put(t *testing.T, externalID string, req gateway.PutEndpointRequest) gateway.Endpoint {
	t.Helper()
	e, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), externalID, req)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// call makes one call of an operation of the specification.
func (w *specWorld) call(ctx context.Context, operation string) (err error) {
	switch operation {
	case "sendMessages":
		err = w.client.SendMessage(ctx, w.message("x"))
	case "receiveEvents":
		var stream *gateway.EventStream
		if stream, err = w.client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{}); err == nil {
			err = stream.Close()
		}
	case "confirmMessages":
		err = w.client.ConfirmMessages(ctx, w.Tenant(), []gateway.MessageConfirmation{{MessageID: uuid.NewString(), EndpointID: w.receiver.ID}})
	case "listTenantEndpoints":
		_, err = w.client.ListTenantEndpoints(ctx, w.Tenant())
	case "listAuthorizedTenants":
		_, err = w.client.ListAuthorizedTenants(ctx)
	case "putEndpoint":
		_, w.created, err = w.client.PutEndpoint(ctx, w.Tenant(), "urn:farm:receiver", w.putRequest())
	case "deleteEndpoint":
		err = w.client.DeleteEndpoint(ctx, w.Tenant(), "urn:farm:receiver")
	default:
		err = errors.New("no operation of the specification: " + operation)
	}
	return err
}

// listed is an endpoint as the tenant's listing has it.
func (w *specWorld) listed(t *testing.T, id string) gateway.TenantEndpointInfo {
	t.Helper()
	list := testkit.Must(w.client.ListTenantEndpoints(t.Context(), w.Tenant()))(t)
	for _, e := range list {
		if e.ID == id {
			return e
		}
	}
	t.Fatalf("endpoint %s is not listed", id)
	return gateway.TenantEndpointInfo{}
}

// nothingElse proves that the stream has no other event before a marker.
func (w *specWorld) nothingElse(t *testing.T, s *gateway.EventStream, app *gatewaytest.Application) {
	t.Helper()
	w.EmitRaw(app, []byte("event: MARKER\ndata: {\"event_type\":\"MARKER\"}\n\n"))
	if e := next(t, s); e.Type() != "MARKER" {
		t.Fatalf("got %+v, want nothing", e)
	}
}

// field is one row of a resource: its value as the client has it, the value it
// must have, and whether the answer may go without it.
type field struct {
	name      string
	got, want any
	required  bool
}

// fields runs one subtest for each row. Without gets what must be left out of
// the answer, and asks for it again: an error that names the field when it is
// required, none when it is optional. Null for one of the lists is an empty list.
func (w *specWorld) fields(t *testing.T, rows []field, at func(map[string]any) map[string]any, again func(t *testing.T) error, lists ...string) {
	t.Helper()
	for _, f := range rows {
		t.Run(f.name, func(t *testing.T) {
			testkit.Equal(t, f.got, f.want)
			for _, null := range []bool{false, true} {
				edit := func(o map[string]any) {
					o = at(o)
					if _, given := o[f.name]; !given && f.required {
						t.Errorf("the service did not give %s", f.name)
					}
					if o[f.name] = nil; !null {
						delete(o, f.name)
					}
					o["unknown_to_this_version"] = map[string]any{"x": []int{1}}
				}
				w.wire.set(func(x *wire) { x.answer, x.event = edit, edit })
				err := again(t)
				w.wire.set(nil)
				if !f.required || null && slices.Contains(lists, f.name) {
					if err != nil {
						t.Errorf("without the optional field, or with null for a list: %v", err)
					}
					continue
				}
				var decode *gateway.DecodeError
				var entry *gateway.EntryError
				if !errors.Is(err, gateway.ErrBadResponse) && !errors.As(err, &decode) && !errors.As(err, &entry) || !strings.Contains(err.Error(), f.name) {
					t.Errorf("without the required field: %v", err)
				}
			}
		})
	}
}

// unreadable lists the endpoints of the tenant. The error is that of the call, or
// says why an endpoint was left out of the answer.
func (w *specWorld) unreadable(t *testing.T) error {
	t.Helper()
	info, err := w.client.TenantEndpoints(t.Context(), w.Tenant())
	if err == nil && len(info.Unreadable) > 0 {
		return info.Unreadable[0]
	}
	return err
}

func top(o map[string]any) map[string]any { return o }

// item finds the object with the id in o[key].
func item(o map[string]any, key, id string) map[string]any {
	list, _ := o[key].([]any)
	for _, e := range list {
		if m, ok := e.(map[string]any); ok && m["id"] == id {
			return m
		}
	}
	return map[string]any{}
}

func child(o map[string]any, key string) map[string]any {
	m, _ := o[key].(map[string]any)
	if m == nil {
		m = map[string]any{}
	}
	return m
}

func wantError(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		testkit.ErrorIs(t, err, target)
	}
}

func isUUID(s string) bool { return len(s) == 36 && strings.Count(s, "-") == 4 }

func next(t *testing.T, s *gateway.EventStream) gateway.Event {
	t.Helper()
	raw := testkit.Must(s.Next())(t)
	return testkit.Must(gateway.DecodeEvent(raw.Type, raw.Data))(t)
}

func nextMessage(t *testing.T, s *gateway.EventStream) *gateway.MessageReceived {
	t.Helper()
	m, ok := next(t, s).(*gateway.MessageReceived)
	if !ok {
		t.Fatal("not a message")
	}
	return m
}

func fetch(ctx context.Context, c *gateway.Client, uri string, size int64) ([]byte, error) {
	r, err := c.OpenPayload(ctx, uri, size)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}
