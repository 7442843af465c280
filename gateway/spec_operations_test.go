package gateway_test

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// Every header of POST /messages: how it leaves the client, what comes of it at
// the receiver, and whether the service takes a message without it.
func TestSpecMessageHeaders(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	other := w.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{specType}})
	req := w.message("payload")
	req.IsPublish, req.DirectRecipients = false, []string{w.receiver.ID, other.ID}
	req.SentAt = time.Date(2026, 5, 4, 3, 2, 1, 500, time.UTC)
	req.ContextID, req.TeamsetContextID, req.Filename = uuid.NewString(), "Gespann 7", "Äcker.zip"
	w.send(t, req)
	sent := w.wire.seen("POST", "/messages")[0]
	m := nextMessage(t, w.stream(t, gateway.EventMessageReceived))

	for _, row := range []struct {
		name      string
		got, want any
		required  bool
		bad       string
	}{
		{"content-length", sent.ContentLength, int64(len("payload")), true, ""},
		{"x-router-is-publish", sent.Header.Get("x-router-is-publish"), "false", true, "maybe"},
		{"x-router-direct-recipients", sent.Header.Get("x-router-direct-recipients"), w.receiver.ID + "," + other.ID, false, "no,uuid"},
		{"x-router-sent-timestamp", m.SentAt, req.SentAt, true, "yesterday"},
		{"x-router-endpoint-id", sent.Header.Get("x-router-endpoint-id"), w.sender.ID, true, "no UUID"},
		{"x-router-teamset-context-id", m.TeamsetContextID, "Gespann 7", false, strings.Repeat("x", 101)},
		{"x-router-message-type", m.MessageType, specType, true, strings.Repeat("x", 101)},
		{"x-router-tenant-id", m.TenantID, w.Tenant(), true, "no UUID"},
		{"x-router-context-id", m.AppMessageID, req.ContextID, true, "no UUID"},
		{"x-router-filename", m.Filename, "Äcker.zip", false, strings.Repeat("x", 101)},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.got != row.want {
				t.Errorf("got %v, want %v", row.got, row.want)
			}
			attempt := func(change func(*http.Request)) error {
				w.wire.set(func(x *wire) { x.request = change })
				defer w.wire.set(nil)
				published := w.message("x")
				published.TeamsetContextID, published.Filename = "team", "file"
				return w.client.SendMessage(t.Context(), published)
			}
			err := attempt(func(r *http.Request) {
				if row.name == "content-length" {
					r.ContentLength = -1
					r.Body = struct {
						io.Reader
						io.Closer
					}{r.Body, r.Body}
				}
				r.Header.Del(row.name)
			})
			if row.required {
				wantError(t, err, gateway.ErrBadRequest)
			} else if err != nil {
				t.Errorf("without the optional header: %v", err)
			}
			if row.bad != "" {
				wantError(t, attempt(func(r *http.Request) { r.Header.Set(row.name, row.bad) }), gateway.ErrBadRequest)
			}
		})
	}
}

func TestSpecPublishAndDirect(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	silent := w.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{specType}})
	unable := w.AddEndpoint(gatewaytest.EndpointConfig{Subscribe: []string{specType}})
	got := func(t *testing.T, publish bool, direct ...string) (receivers []string) {
		t.Helper()
		before := len(w.Ledger())
		req := w.message("x")
		req.IsPublish, req.DirectRecipients = publish, direct
		w.send(t, req)
		for _, e := range w.Ledger()[before:] {
			receivers = append(receivers, e.EndpointID)
		}
		return receivers
	}
	t.Run("published to subscribers", func(t *testing.T) {
		if r := got(t, true); len(r) != 1 || r[0] != w.receiver.ID || r[0] == unable.ID {
			t.Errorf("got %v", r)
		}
	})
	t.Run("provided routing conditions are met", func(t *testing.T) {
		w.SetRoute(w.sender.ID, w.receiver.ID, false)
		defer w.SetRoute(w.sender.ID, w.receiver.ID, true)
		if r := got(t, true); len(r) != 0 {
			t.Errorf("got %v", r)
		}
	})
	t.Run("direct needs no subscription", func(t *testing.T) {
		if r := got(t, false, silent.ID); len(r) != 1 || r[0] != silent.ID {
			t.Errorf("got %v", r)
		}
	})
	t.Run("both", func(t *testing.T) {
		if r := got(t, true, silent.ID); len(r) != 2 {
			t.Errorf("got %v", r)
		}
	})
}

func TestSpecSplitting(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{ChunkSize: 1000})
	for _, row := range []struct {
		name     string
		size     int
		messages int
	}{
		{"one message", 1000, 1},
		{"several messages", 2500, 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			before, posts := len(w.Ledger()), len(w.wire.seen("POST", "/messages"))
			req := w.message(strings.Repeat("x", row.size))
			req.ContextID = uuid.NewString()
			w.send(t, req)
			if n := len(w.wire.seen("POST", "/messages")) - posts; n != 1 {
				t.Errorf("the client made %d requests of one payload", n)
			}
			entries := w.Ledger()[before:]
			if len(entries) != row.messages {
				t.Errorf("%d messages", len(entries))
			}
			for _, e := range entries {
				if e.ContextID != req.ContextID {
					t.Errorf("context ID %s, want that of the payload", e.ContextID)
				}
			}
		})
	}
}

// A retry after a failure carries the context ID of the first attempt, so that
// the receiver sees the duplicate; a new payload carries a new one.
func TestSpecContextID(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{}, func(c *gateway.Config) { c.Retry.MaxAttempts = 2 })
	w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{DropAnswer: true, Times: 1})
	w.send(t, w.message("first"))
	w.send(t, w.message("second"))
	s := w.stream(t, gateway.EventMessageReceived)
	a, b, c := nextMessage(t, s), nextMessage(t, s), nextMessage(t, s)
	if a.AppMessageID != b.AppMessageID || a.ID == b.ID || c.AppMessageID == a.AppMessageID || !isUUID(a.AppMessageID) {
		t.Errorf("got %s, %s, %s", a.AppMessageID, b.AppMessageID, c.AppMessageID)
	}
}

// Every status that an operation declares, as the client reports it. Where the
// service in memory has a cause for it, that is what happens; the rest is
// injected.
func TestSpecStatuses(t *testing.T) {
	type world = specWorld
	badToken := func(w *world) {
		w.Inject(gatewaytest.OpToken, gatewaytest.Fault{Body: []byte(`{"access_token":"wrong","expires_in":3600}`), ContentType: "application/json"})
	}
	revoked := func(w *world) { w.Revoke(w.Application(), w.Tenant(), gateway.ScopeEndpointsManage) }
	noTenant := func(w *world) {
		w.wire.set(func(x *wire) { x.request = func(r *http.Request) { r.Header.Del("x-router-tenant-id") } })
	}
	status := func(op gatewaytest.Operation, code int) func(*world) {
		return func(w *world) { w.Inject(op, gatewaytest.Fault{Status: code, Message: "as told"}) }
	}
	for _, row := range []struct {
		name   string
		cause  func(*world)
		target error // nil: success
	}{
		{"sendMessages 200", nil, nil},
		{"sendMessages 400", noTenant, gateway.ErrBadRequest},
		{"sendMessages 401", badToken, gateway.ErrUnauthorized},
		{"sendMessages 403", revoked, gateway.ErrForbidden},
		{"sendMessages 413", func(w *world) {
			w.wire.set(func(x *wire) {
				x.request = func(r *http.Request) { r.Body, r.ContentLength = swap(r.Body, strings.Repeat("x", 2000)), 2000 }
			})
		}, gateway.ErrTooLarge},
		{"sendMessages 500", status(gatewaytest.OpSendMessage, 500), gateway.ErrUnavailable},

		{"receiveEvents 200", nil, nil},
		{"receiveEvents 400", func(w *world) {
			w.wire.set(func(x *wire) { x.request = func(r *http.Request) { r.URL.RawQuery = "types=NONSENSE" } })
		}, gateway.ErrBadRequest},
		{"receiveEvents 401", badToken, gateway.ErrUnauthorized},
		{"receiveEvents 403", status(gatewaytest.OpEvents, 403), gateway.ErrForbidden},
		{"receiveEvents 500", status(gatewaytest.OpEvents, 500), gateway.ErrUnavailable},

		{"confirmMessages 202", nil, nil},
		{"confirmMessages 400", noTenant, gateway.ErrBadRequest},
		{"confirmMessages 401", badToken, gateway.ErrUnauthorized},
		{"confirmMessages 403", revoked, gateway.ErrForbidden},
		{"confirmMessages 500", status(gatewaytest.OpConfirm, 500), gateway.ErrUnavailable},

		{"listTenantEndpoints 200", nil, nil},
		{"listTenantEndpoints 400", func(w *world) {
			w.wire.set(func(x *wire) { x.request = func(r *http.Request) { r.URL.Path = "/tenants/nonsense/endpoints" } })
		}, gateway.ErrBadRequest},
		{"listTenantEndpoints 401", badToken, gateway.ErrUnauthorized},
		{"listTenantEndpoints 403", revoked, gateway.ErrForbidden},
		{"listTenantEndpoints 500", status(gatewaytest.OpListEndpoints, 500), gateway.ErrUnavailable},

		{"listAuthorizedTenants 200", nil, nil},
		{"listAuthorizedTenants 400", status(gatewaytest.OpListTenants, 400), gateway.ErrBadRequest},
		{"listAuthorizedTenants 401", badToken, gateway.ErrUnauthorized},
		{"listAuthorizedTenants 403", status(gatewaytest.OpListTenants, 403), gateway.ErrForbidden},
		{"listAuthorizedTenants 500", status(gatewaytest.OpListTenants, 500), gateway.ErrUnavailable},

		{"putEndpoint 200", nil, nil},
		{"putEndpoint 201", func(w *world) { w.DeleteEndpointByUser(w.receiver.ID) }, nil},
		{"putEndpoint 400", noTenant, gateway.ErrBadRequest},
		{"putEndpoint 401", badToken, gateway.ErrUnauthorized},
		{"putEndpoint 403", revoked, gateway.ErrForbidden},
		{"putEndpoint 413", func(w *world) {
			w.wire.set(func(x *wire) {
				x.request = func(r *http.Request) {
					body := `{"x":"` + strings.Repeat("x", 2<<20) + `"}`
					r.Body, r.ContentLength = swap(r.Body, body), int64(len(body))
				}
			})
		}, gateway.ErrTooLarge},
		{"putEndpoint 500", status(gatewaytest.OpPutEndpoint, 500), gateway.ErrUnavailable},
		{"putEndpoint 502", status(gatewaytest.OpPutEndpoint, 502), gateway.ErrUnavailable},
		{"putEndpoint 503", status(gatewaytest.OpPutEndpoint, 503), gateway.ErrUnavailable},
		{"putEndpoint 504", status(gatewaytest.OpPutEndpoint, 504), gateway.ErrUnavailable},

		{"deleteEndpoint 204", nil, nil},
		{"deleteEndpoint 400", noTenant, gateway.ErrBadRequest},
		{"deleteEndpoint 401", badToken, gateway.ErrUnauthorized},
		{"deleteEndpoint 403", revoked, gateway.ErrForbidden},
		{"deleteEndpoint 404", func(w *world) { w.DeleteEndpointByUser(w.receiver.ID) }, gateway.ErrNotFound},
		{"deleteEndpoint 500", status(gatewaytest.OpDeleteEndpoint, 500), gateway.ErrUnavailable},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newSpecWorld(t, gatewaytest.Config{MaxPayloadSize: 1000})
			if row.cause != nil {
				row.cause(w)
			}
			op, code, _ := strings.Cut(row.name, " ")
			err := w.call(t.Context(), op)
			if n, _ := strconv.Atoi(code); w.Stats(gatewaytest.Operation(op)).Status[n] == 0 {
				t.Errorf("the service answered %v", w.Stats(gatewaytest.Operation(op)).Status)
			}
			if row.target == nil {
				if err != nil || w.created != (code == "201") {
					t.Errorf("told as created: %v, %v", w.created, err)
				}
				return
			}
			wantError(t, err, row.target)
			var e *gateway.Error
			if !errors.As(err, &e) || strconv.Itoa(e.StatusCode) != code || e.Message == "" {
				t.Errorf("got %#v", err)
			}
		})
	}
}

// swap closes one request body and gives another.
func swap(old io.Closer, body string) io.ReadCloser {
	_ = old.Close()
	return io.NopCloser(strings.NewReader(body))
}

// An operation wants its token and, where it has one, its tenant header.
func TestSpecEveryOperation(t *testing.T) {
	for _, row := range []struct {
		name, method, path string
		tenant             bool
	}{
		{"sendMessages", "POST", "/messages", true},
		{"receiveEvents", "GET", "/events", false},
		{"confirmMessages", "POST", "/confirmations", true},
		{"listTenantEndpoints", "GET", "/tenants/", false},
		{"listAuthorizedTenants", "GET", "/tenants", false},
		{"putEndpoint", "PUT", "/endpoints/", true},
		{"deleteEndpoint", "DELETE", "/endpoints/", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newSpecWorld(t, gatewaytest.Config{})
			testkit.NoError(t, w.call(t.Context(), row.name))
			r := w.wire.seen(row.method, row.path)[0]
			if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") || (r.Header.Get("x-router-tenant-id") == w.Tenant()) != row.tenant {
				t.Errorf("headers %v", r.Header)
			}
			if !strings.HasPrefix(r.URL.String(), w.BaseURL()+row.path) || r.URL.RawQuery != "" {
				t.Errorf("address %s", r.URL)
			}
			// No version is in the path or in a header.
			for name := range r.Header {
				if strings.Contains(strings.ToLower(name), "version") {
					t.Errorf("header %s", name)
				}
			}
			w.wire.set(func(x *wire) { x.request = func(r *http.Request) { r.Header.Del("Authorization") } })
			wantError(t, w.call(t.Context(), row.name), gateway.ErrUnauthorized)
			if row.tenant {
				w.wire.set(func(x *wire) { x.request = func(r *http.Request) { r.Header.Set("x-router-tenant-id", "no UUID") } })
				wantError(t, w.call(t.Context(), row.name), gateway.ErrBadRequest)
			}
		})
	}
}

// Each type alone, and all of them when the filter is omitted.
func TestSpecEventTypesFilter(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{ChunkSize: 10})
	tenant := w.AddTenant()
	streams := map[string]*gateway.EventStream{"omitted": w.stream(t)}
	for _, name := range gateway.EventTypes() {
		streams[string(name)] = w.stream(t, name)
	}
	w.send(t, w.message("a payload of chunks"))
	w.DeleteEndpointByUser(w.sender.ID)
	w.Authorize(w.Application(), tenant)
	w.Revoke(w.Application(), tenant, gateway.ScopeEndpointsManage)
	w.EmitRaw(w.Application(), []byte("event: MARKER\ndata: {\"event_type\":\"MARKER\"}\n\n"))
	for _, row := range []struct {
		name string
		want []gateway.EventType
	}{
		{"MESSAGE_RECEIVED", []gateway.EventType{gateway.EventMessageReceived}},
		{"FILE_RECEIVED", []gateway.EventType{gateway.EventFileReceived}},
		{"ENDPOINT_DELETED", []gateway.EventType{gateway.EventEndpointDeleted}},
		{"ENDPOINTS_LIST_CHANGED", []gateway.EventType{gateway.EventEndpointsListChanged}},
		{"AUTHORIZATION_ADDED", []gateway.EventType{gateway.EventAuthorizationAdded}},
		{"AUTHORIZATION_REVOKED", []gateway.EventType{gateway.EventAuthorizationRevoked}},
		{"omitted", gateway.EventTypes()},
	} {
		t.Run(row.name, func(t *testing.T) {
			seen := map[gateway.EventType]bool{}
			for e := next(t, streams[row.name]); e.Type() != "MARKER"; e = next(t, streams[row.name]) {
				seen[e.Type()] = true
			}
			if len(seen) != len(row.want) {
				t.Errorf("got %v", seen)
			}
			for _, name := range row.want {
				if !seen[name] {
					t.Errorf("no %s in %v", name, seen)
				}
			}
		})
	}
}

func TestSpecConfirmations(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{ConfirmationLag: time.Minute})
	second := w.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{specType}, Subscribe: []string{specType}})
	w.send(t, w.message("x"))
	id := w.Ledger()[0].MessageID
	pair := func(endpoint string) gateway.MessageConfirmation {
		return gateway.MessageConfirmation{MessageID: id, EndpointID: endpoint}
	}
	confirmed := func() (n int) {
		for _, e := range w.Ledger() {
			if e.MessageID == id && e.Confirmed() {
				n++
			}
		}
		return n
	}
	t.Run("each endpoint on its own", func(t *testing.T) {
		if err := w.client.ConfirmMessages(t.Context(), w.Tenant(), []gateway.MessageConfirmation{pair(w.receiver.ID)}); err != nil || confirmed() != 1 {
			t.Errorf("%v, %d confirmed", err, confirmed())
		}
	})
	t.Run("the feed follows eventually", func(t *testing.T) {
		s := w.stream(t, gateway.EventMessageReceived)
		nextMessage(t, s)
		nextMessage(t, s) // both: the confirmation has no effect yet
		w.Advance(time.Minute)
		client, _ := specClient(t, w.ClientConfig()) // the old token has aged too
		s = testkit.Must(client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{Types: []gateway.EventType{gateway.EventMessageReceived}}))(t)
		defer func() { _ = s.Close() }()
		if m := nextMessage(t, s); m.ReceivingEndpointID != second.ID {
			t.Errorf("got %+v", m)
		}
		w.nothingElse(t, s, w.Application())
	})
	t.Run("several in one request", func(t *testing.T) {
		if err := w.client.ConfirmMessages(t.Context(), w.Tenant(), []gateway.MessageConfirmation{pair(w.receiver.ID), pair(second.ID)}); err != nil || confirmed() != 2 {
			t.Errorf("%v, %d confirmed", err, confirmed())
		}
	})
}

// One stream carries the events of all endpoints of the application, in all
// tenants, and of no other application.
func TestSpecOneStreamForAllEndpoints(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	tenant := w.AddTenant()
	w.Authorize(w.Application(), tenant)
	from := w.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Send: []string{specType}})
	to := w.AddEndpoint(gatewaytest.EndpointConfig{Tenant: tenant, Receive: []string{specType}, Subscribe: []string{specType}})
	other := w.AddApplication(gatewaytest.ApplicationConfig{})
	w.Authorize(other, w.Tenant())
	w.AddEndpoint(gatewaytest.EndpointConfig{App: other, Receive: []string{specType}, Subscribe: []string{specType}})
	w.send(t, w.message("here"))
	elsewhere := w.message("elsewhere")
	elsewhere.TenantID, elsewhere.EndpointID = tenant, from.ID
	w.send(t, elsewhere)
	s := w.stream(t)
	if m := nextMessage(t, s); m.ReceivingEndpointID != w.receiver.ID || m.TenantID != w.Tenant() {
		t.Errorf("got %+v", m)
	}
	if m := nextMessage(t, s); m.ReceivingEndpointID != to.ID || m.TenantID != tenant {
		t.Errorf("got %+v", m)
	}
	w.nothingElse(t, s, w.Application())
}

// PUT and DELETE of an endpoint want the scope endpoints:manage; what reads the
// tenant wants any authorization of it.
func TestSpecScope(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	w.AuthorizeScope(w.Application(), w.Tenant(), "other:scope")
	w.Revoke(w.Application(), w.Tenant(), gateway.ScopeEndpointsManage)
	t.Run("putEndpoint", func(t *testing.T) {
		_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), "urn:farm:1", w.putRequest())
		wantError(t, err, gateway.ErrForbidden)
	})
	t.Run("deleteEndpoint", func(t *testing.T) {
		wantError(t, w.client.DeleteEndpoint(t.Context(), w.Tenant(), "urn:farm:sender"), gateway.ErrForbidden)
	})
	t.Run("listTenantEndpoints", func(t *testing.T) {
		testkit.Must(w.client.ListTenantEndpoints(t.Context(), w.Tenant()))(t)
	})
	t.Run("token request", func(t *testing.T) {
		w.mustSeeNoScope(t)
	})
}

// mustSeeNoScope: the scope list of the flow is empty, so none is asked for.
func (w *specWorld) mustSeeNoScope(t *testing.T) {
	t.Helper()
	for _, r := range w.wire.seen("POST", "/oauth/token") {
		if r.GetBody == nil {
			t.Fatal("the token request cannot be read again")
		}
		body := testkit.Must(r.GetBody())(t)
		form, err := io.ReadAll(body)
		if err != nil || strings.Contains(string(form), "scope") || !strings.Contains(string(form), "grant_type=client_credentials") {
			t.Errorf("form %s, %v", form, err)
		}
	}
}

// Two environments: each client has its own addresses and token, and the token
// of one is nothing to the other.
func TestSpecEnvironments(t *testing.T) {
	qa, production := newSpecWorld(t, gatewaytest.Config{}), newSpecWorld(t, gatewaytest.Config{})
	for _, w := range []*specWorld{qa, production} {
		w.send(t, w.message("x"))
		if len(w.Ledger()) != 1 || len(w.wire.seen("POST", "/oauth/token")) != 1 || w.wire.seen("POST", "/oauth/token")[0].URL.String() != w.TokenURL() {
			t.Error("not its own addresses")
		}
	}
	foreign := qa.wire.seen("POST", "/messages")[0].Header.Get("Authorization")
	production.wire.set(func(x *wire) { x.request = func(r *http.Request) { r.Header.Set("Authorization", foreign) } })
	wantError(t, production.client.SendMessage(t.Context(), production.message("x")), gateway.ErrUnauthorized)
}
