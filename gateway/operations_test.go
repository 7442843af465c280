package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
)

// operation runs one call of the service; all six are tried with every status.
type operation struct {
	name, pattern string
	call          func(context.Context, *Client) error
}

func operations() []operation {
	return []operation{
		{opSend, "POST /messages", func(ctx context.Context, c *Client) error { return c.SendMessage(ctx, testMessageRequest()) }},
		{opEvents, "GET /events", func(ctx context.Context, c *Client) error {
			s, err := c.ReceiveEvents(ctx, ReceiveEventsRequest{})
			if err == nil {
				err = s.Close()
			}
			return err
		}},
		{opConfirm, "POST /confirmations", func(ctx context.Context, c *Client) error {
			return c.ConfirmMessages(ctx, testTenant, []MessageConfirmation{{testMessage, testEndpoint}})
		}},
		{opTenants, "GET /tenants", func(ctx context.Context, c *Client) error {
			_, err := c.ListAuthorizedTenants(ctx)
			return err
		}},
		{opTenantEndpoints, "GET /tenants/{id}/endpoints", func(ctx context.Context, c *Client) error {
			_, err := c.ListTenantEndpoints(ctx, testTenant)
			return err
		}},
		{opPutEndpoint, "PUT /endpoints/{id}", func(ctx context.Context, c *Client) error {
			_, _, err := c.PutEndpoint(ctx, testTenant, "farm:1", testPutRequest())
			return err
		}},
		{opDeleteEndpoint, "DELETE /endpoints/{id}", func(ctx context.Context, c *Client) error {
			return c.DeleteEndpoint(ctx, testTenant, "farm:1")
		}},
	}
}

func TestEveryStatusOfEveryOperation(t *testing.T) {
	intermediary := []error{ErrIntermediary, ErrUnavailable}
	forbidden := []error{ErrForbidden, ErrUnavailable} // nothing has succeeded yet
	tests := []struct {
		status  int
		targets []error
		// attempts with an ErrorResponse, and without. -1: as an intermediary's.
		attempts, without int64
	}{
		{400, []error{ErrBadRequest}, 1, -1},
		{401, []error{ErrUnauthorized}, 2, 2}, // the second with a fresh token
		{403, forbidden, 1, -1},
		{404, []error{ErrNotFound}, 1, -1},
		{405, intermediary, 3, -1},
		{408, []error{ErrUnavailable}, 3, 3},
		{409, intermediary, 3, -1},
		{413, []error{ErrTooLarge}, 1, -1},
		{429, []error{ErrRateLimited}, 3, 3},
		{500, []error{ErrUnavailable}, 3, 3},
		{501, []error{ErrUnavailable}, 1, 1},
		{502, []error{ErrUnavailable}, 3, 3},
		{503, []error{ErrUnavailable}, 3, 3},
		{504, []error{ErrUnavailable}, 3, 3},
		{304, []error{ErrBadResponse}, 1, 1},
	}
	const text = "said by the service"
	for _, op := range operations() {
		for _, tt := range tests {
			for form, answer := range map[string]http.HandlerFunc{"ErrorResponse": fail(tt.status, text), "page": page(tt.status)} {
				t.Run(op.name+"/"+http.StatusText(tt.status)+"/"+form, func(t *testing.T) {
					targets, attempts := tt.targets, tt.attempts
					switch {
					case op.name == opEvents && tt.status == 403:
						targets = []error{ErrForbidden}
					case op.name == opEvents && tt.status == 400:
					case op.name == opEvents && (tt.status == 404 || tt.status == 413),
						(op.name == opSend || op.name == opConfirm) && tt.status == 404,
						form == "page" && tt.without < 0:
						targets, attempts = intermediary, 3
					}
					if op.name == opEvents && attempts == 3 {
						attempts = 1 // reconnecting is the caller's
					}
					s := newService(t)
					var n atomic.Int64
					s.mux.HandleFunc(op.pattern, inOrder(&n, answer))
					c := s.client(t)
					err := op.call(t.Context(), c)
					wantOnly(t, err, targets...)
					var e *Error
					if !errors.As(err, &e) || e.Op != op.name || e.StatusCode != tt.status {
						t.Fatalf("got %#v", err)
					}
					if told := tt.status != 304 && form == "ErrorResponse"; told != e.ErrorResponse || told != (e.Message == text) || told != strings.Contains(err.Error(), text) {
						t.Errorf("ErrorResponse %v, message %q in %q", e.ErrorResponse, e.Message, err)
					}
					if n.Load() != attempts {
						t.Errorf("%d requests, want %d", n.Load(), attempts)
					}
					now := c.Intermediaries().Now
					if want := slices.Contains(targets, ErrIntermediary); want != (len(now) == 1) || want && (now[0].Operation != op.name || now[0].StatusCode != tt.status) {
						t.Errorf("intermediaries: %+v", now)
					}
				})
			}
		}
	}
}

// page answers as an ingress without a backend does.
func page(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "<html>default backend</html>")
	}
}

// An ingress or a portal that answers everything with a page of status 200: the
// message was not sent, the confirmation not taken, nothing was deleted.
func TestWebPagesAreNoSuccess(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"named": page(200),
		"unnamed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<!DOCTYPE html><title>Welcome</title>")
		},
		"compressed": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			page(203)(w, r)
		},
	} {
		for _, op := range operations() {
			t.Run(name+"/"+op.name, func(t *testing.T) {
				if name == "unnamed" && op.name == opEvents {
					return // TestStreamThatIsNone
				}
				s := newService(t)
				var n atomic.Int64
				s.mux.HandleFunc(op.pattern, inOrder(&n, answer))
				err := op.call(t.Context(), s.client(t))
				wantOnly(t, err, ErrIntermediary, ErrUnavailable, ErrBadResponse)
				var e *Error
				if !errors.As(err, &e) || e.ContentType != "text/html" || !strings.Contains(err.Error(), "text/html") || !Retryable(err) {
					t.Errorf("got %+v", e)
				}
				if want := int64(3); n.Load() != want && op.name != opEvents {
					t.Errorf("%d requests, want %d", n.Load(), want)
				}
			})
		}
	}
}

func TestErrorAnswersThatAreNone(t *testing.T) {
	s := newService(t)
	bodies := []string{"<html>secret page</html>", "", `{"message":5}`, `{"message":null}`, `["message"]`, `{"error":"x"}`}
	var i atomic.Int64
	s.mux.HandleFunc("POST /messages", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, bodies[i.Load()])
	})
	c := s.client(t)
	for ; i.Load() < int64(len(bodies)); i.Add(1) {
		err := c.SendMessage(t.Context(), testMessageRequest())
		wantOnly(t, err, ErrIntermediary, ErrUnavailable)
		var e *Error
		if !errors.As(err, &e) || e.ErrorResponse || e.Message != "" || strings.Contains(err.Error(), "secret page") {
			t.Errorf("answer %.30q gave %.200q", bodies[i.Load()], err)
		}
	}
}

func TestErrorMessagesAreShortened(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("POST /messages", fail(http.StatusBadRequest, strings.Repeat("ü", 5000)))
	err := s.client(t).SendMessage(t.Context(), testMessageRequest())
	wantOnly(t, err, ErrBadRequest)
	var e *Error
	if !errors.As(err, &e) || len(e.Message) > maxErrorMessage+4 || e.Message == "" {
		t.Errorf("message of %d bytes", len(e.Message))
	}
}

// A refusal of a stream whose body never ends must not hold the reconnect up.
func TestRefusalOfTheStreamThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mux, _ := offlineMux()
		c := offline(t, mux, func(c *Config) {
			c.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := inProcess{mux}.RoundTrip(r)
				if err == nil && r.URL.Path == "/events" {
					body, _ := io.Pipe()
					resp.StatusCode, resp.Body = 404, body
				}
				return resp, err
			})
		})
		began := time.Now()
		_, err := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
		wantOnly(t, err, ErrIntermediary, ErrUnavailable)
		if took := time.Since(began); took != maxBodyTime {
			t.Errorf("took %v", took)
		}
	})
}

func TestRoutingFailuresOfSendMessage(t *testing.T) {
	tests := []struct {
		status  int
		message string
		targets []error
	}{
		{400, "No recipients for this sender and info type", []error{ErrNoRecipients, ErrBadRequest}},
		{400, " no recipients for this sender and info type.", []error{ErrNoRecipients, ErrBadRequest}},
		{400, "Recipient is not allowed from this sender", []error{ErrPartialDelivery, ErrBadRequest}},
		{400, "Recipient is not allowed", []error{ErrBadRequest}},
		{400, "Unsupported message type 'Recipient is not allowed from this sender'", []error{ErrBadRequest}},
		{413, "Recipient is not allowed from this sender", []error{ErrTooLarge}},
	}
	for _, tt := range tests {
		s := newService(t)
		var n atomic.Int64
		s.mux.HandleFunc("POST /messages", inOrder(&n, fail(tt.status, tt.message)))
		s.mux.HandleFunc("POST /confirmations", fail(tt.status, tt.message))
		c := s.client(t)
		wantOnly(t, c.SendMessage(t.Context(), testMessageRequest()), tt.targets...)
		if n.Load() != 1 {
			t.Errorf("%q was sent %d times", tt.message, n.Load())
		}
		// Only sending has routing failures.
		err := c.ConfirmMessages(t.Context(), testTenant, []MessageConfirmation{{testMessage, testEndpoint}})
		wantOnly(t, err, tt.targets[len(tt.targets)-1])
	}
}

func endpointInfoAnswer() map[string]any {
	return map[string]any{
		"id": testEndpoint, "external_id": "farm:1", "name": "Hof", "endpoint_type": "cloud_software",
		"application_id": testContext, "tenant_id": testTenant, "owned_by_your_application": true,
		"capabilities": map[string]any{"can_send": []string{"img:png"}, "can_receive": []string{}},
		"routed_endpoints": map[string]any{
			"can_send_to":      map[string]any{testRecipient: []string{"img:png"}},
			"can_receive_from": map[string]any{},
		},
		"new_field": map[string]any{"x": 1},
	}
}

func wantEndpointInfo() TenantEndpointInfo {
	return TenantEndpointInfo{
		ID: testEndpoint, ExternalID: "farm:1", Name: "Hof", EndpointType: EndpointTypeCloudSoftware,
		ApplicationID: testContext, TenantID: testTenant, OwnedByYourApplication: true,
		Capabilities: TenantEndpointCapabilities{CanSend: []string{"img:png"}, CanReceive: []string{}},
		RoutedEndpoints: &RoutedEndpoints{
			CanSendTo:      EndpointRouteMap{testRecipient: {"img:png"}},
			CanReceiveFrom: EndpointRouteMap{},
		},
	}
}

func without(m map[string]any, key string) map[string]any {
	c := make(map[string]any, len(m))
	for k, v := range m {
		if k != key {
			c[k] = v
		}
	}
	return c
}

func TestAnswersOfTheWrongShape(t *testing.T) {
	answers := []string{
		"", "html", "[]", "null", "{", "{}", `{"tenants":{}}`, `{"tenants":"x"}`,
	}
	s := newService(t)
	var i, n atomic.Int64
	s.mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		_, _ = io.WriteString(w, answers[i.Load()])
	})
	c := s.client(t)
	for ; i.Load() < int64(len(answers)); i.Add(1) {
		_, err := c.ListAuthorizedTenants(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Op != opTenants || e.StatusCode != 200 {
			t.Errorf("got %#v", err)
		}
		wantOnly(t, err, ErrBadResponse)
	}
	if n.Load() != int64(len(answers)) {
		t.Errorf("%d requests for %d answers", n.Load(), len(answers))
	}
}

func TestAnswerLongerThanTheLimit(t *testing.T) {
	s := newService(t)
	s.mux.HandleFunc("GET /tenants", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"tenants":[],"x":"`+strings.Repeat("x", 1000)+`"}`)
	})
	c := s.client(t, func(c *Config) { c.MaxResponseSize = 1000 })
	_, err := c.ListAuthorizedTenants(t.Context())
	wantOnly(t, err, ErrBadResponse)
}

func TestAnswerThatIsCutIsReadAgain(t *testing.T) {
	s := newService(t)
	var n atomic.Int64
	s.mux.HandleFunc("GET /tenants", inOrder(&n, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"tenants":[`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, map[string]any{"tenants": []any{}}) }))
	tenants, err := s.client(t).ListAuthorizedTenants(t.Context())
	if err != nil || tenants == nil || len(tenants) != 0 || n.Load() != 2 {
		t.Errorf("got %v, %v after %d requests", tenants, err, n.Load())
	}
}

// The service has taken the message when it says 200; a body that breaks cannot
// undo that, and a repetition would be a duplicate.
func TestAnswerOfSendMessageCountsByItsStatus(t *testing.T) {
	s := newService(t)
	var n atomic.Int64
	s.mux.HandleFunc("POST /messages", inOrder(&n, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"mess`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	if err := s.client(t).SendMessage(t.Context(), testMessageRequest()); err != nil || n.Load() != 1 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}

func TestCallsAfterClose(t *testing.T) {
	s := newService(t)
	c := s.client(t)
	for range 2 {
		testkit.NoError(t, c.Close())
	}
	for _, op := range operations() {
		wantOnly(t, op.call(t.Context(), c), ErrClosed)
	}
	_, err := c.OpenPayload(t.Context(), s.URL, -1)
	wantOnly(t, err, ErrClosed)
}
