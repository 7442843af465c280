package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// The body of an error: `message` only, with the IDs in it, and what the client
// makes of it.
func TestSpecErrorBody(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	var body map[string]any
	w.wire.set(func(x *wire) { x.answer = func(o map[string]any) { body = o } })
	req := w.message("x")
	req.EndpointID = uuid.NewString()
	err := w.client.SendMessage(t.Context(), req)
	var e *gateway.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	t.Run("message", func(t *testing.T) {
		if body["message"] != e.Message || e.Message == "" {
			t.Errorf("body %v, error %+v", body, e)
		}
	})
	t.Run("IDs are substituted", func(t *testing.T) {
		if !strings.Contains(e.Message, req.EndpointID) || strings.Contains(e.Message, "%") {
			t.Errorf("message %q", e.Message)
		}
	})
	t.Run("no code", func(t *testing.T) {
		if len(body) != 1 {
			t.Errorf("body %v", body)
		}
		// A code in a body changes nothing: only status and text count.
		w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{
			Status: 400, ContentType: "application/json", Body: []byte(`{"code":"VAL_000005","message":"no such thing","error_code":413}`), Times: 1,
		})
		w.wire.set(nil)
		err := w.client.SendMessage(t.Context(), w.message("x"))
		wantError(t, err, gateway.ErrBadRequest)
		if errors.Is(err, gateway.ErrPartialDelivery) || errors.Is(err, gateway.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("duplicate", func(t *testing.T) {
		req := w.message("x")
		req.ContextID = uuid.NewString()
		for id, want := range map[string]error{req.ContextID: nil, uuid.NewString(): gateway.ErrBadRequest} {
			body, _ := json.Marshal(map[string]string{"message": "Duplicate message " + strings.ToUpper(id) + "."})
			w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 400, ContentType: "application/json", Body: body, Times: 1})
			if err := w.client.SendMessage(t.Context(), req); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", body, err, want)
			}
		}
	})
	t.Run("only of the service", func(t *testing.T) {
		for body, want := range map[string]error{
			// Some encoders begin with a byte order mark.
			"\ufeff" + `{"message":"Recipient is not allowed from this sender"}`: gateway.ErrPartialDelivery,
			// So answer servers and proxies in the way.
			`{"Message":"The request is invalid."}`: gateway.ErrIntermediary,
		} {
			w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 400, ContentType: "application/json", Body: []byte(body), Times: 1})
			err := w.client.SendMessage(gateway.SingleAttempt(t.Context()), w.message("x"))
			wantError(t, err, want)
			if gateway.Refused(err) == gateway.Retryable(err) || gateway.Refused(err) != (want == gateway.ErrPartialDelivery) {
				t.Errorf("%s: got %v", body, err)
			}
		}
	})
	t.Run("whole in an answer that breaks off", func(t *testing.T) {
		body := `{"message":"Recipient is not allowed from this sender"}`
		w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{
			Status: 400, ContentType: "application/json", Body: []byte(body + "\n\n"), CutAfter: int64(len(body)), Times: 1,
		})
		wantError(t, w.client.SendMessage(gateway.SingleAttempt(t.Context()), w.message("x")), gateway.ErrPartialDelivery)
	})
	t.Run("wrapped with context", func(t *testing.T) {
		if !strings.HasPrefix(err.Error(), "gateway: send message: status 403") || e.Op == "" || e.StatusCode != 403 {
			t.Errorf("got %v", err)
		}
	})
}

func TestSpecRoutingFailures(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{}, func(c *gateway.Config) { c.Retry.MaxAttempts = 5 })
	silent := w.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{specType}})
	unable := w.AddEndpoint(gatewaytest.EndpointConfig{})
	unrouted := w.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{specType}})
	w.SetRoute(w.sender.ID, unrouted.ID, false)
	for _, row := range []struct {
		name      string
		direct    []string
		target    error
		message   string
		receivers []string
	}{
		{
			"No recipients for this sender and info type",
			[]string{unable.ID, unrouted.ID},
			gateway.ErrNoRecipients, gateway.MessageNoRecipients, nil,
		},
		{
			"Recipient is not allowed from this sender",
			[]string{unable.ID, silent.ID, unrouted.ID, w.receiver.ID},
			gateway.ErrPartialDelivery, gateway.MessagePartialDelivery,
			[]string{silent.ID, w.receiver.ID},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			before, posts := len(w.Ledger()), len(w.wire.seen("POST", "/messages"))
			req := w.message("x")
			req.IsPublish, req.DirectRecipients = false, row.direct
			err := w.client.SendMessage(t.Context(), req)
			wantError(t, err, row.target, gateway.ErrBadRequest)
			if errors.Is(err, gateway.ErrNoRecipients) == errors.Is(err, gateway.ErrPartialDelivery) || gateway.Retryable(err) {
				t.Errorf("got %v", err)
			}
			var e *gateway.Error
			if !errors.As(err, &e) || e.StatusCode != 400 || e.Message != row.name || row.name != row.message {
				t.Errorf("got %+v", e)
			}
			var receivers []string
			for _, entry := range w.Ledger()[before:] {
				receivers = append(receivers, entry.EndpointID)
			}
			slices.Sort(receivers)
			slices.Sort(row.receivers)
			if !slices.Equal(receivers, row.receivers) {
				t.Errorf("delivered to %v, want %v", receivers, row.receivers)
			}
			if n := len(w.wire.seen("POST", "/messages")) - posts; n != 1 {
				t.Errorf("sent %d times", n)
			}
		})
	}
	// Each recipient on its own: no capability, no route, unknown, itself.
	t.Run("each recipient individually", func(t *testing.T) {
		for _, id := range []string{unable.ID, unrouted.ID, uuid.NewString(), w.sender.ID} {
			req := w.message("x")
			req.IsPublish, req.DirectRecipients = false, []string{id}
			wantError(t, w.client.SendMessage(t.Context(), req), gateway.ErrNoRecipients)
			req.DirectRecipients = []string{id, silent.ID}
			wantError(t, w.client.SendMessage(t.Context(), req), gateway.ErrPartialDelivery)
		}
	})
}

// Status 429 as the service gives it, and what the client makes of it.
func TestSpecRateLimit(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{RateLimit: 1, RateBurst: 3}, func(c *gateway.Config) { c.Retry.MaxAttempts = 1 })
	var err error
	for range 1000 {
		if _, err = w.client.ListAuthorizedTenants(t.Context()); err != nil {
			break
		}
	}
	wantError(t, err, gateway.ErrRateLimited)
	var e *gateway.Error
	if !errors.As(err, &e) || e.StatusCode != 429 || e.Message != "rate limit exceeded" || !gateway.Retryable(err) {
		t.Errorf("got %+v", e)
	}
	t.Run("per application, over all its endpoints", func(t *testing.T) {
		other := w.AddApplication(gatewaytest.ApplicationConfig{})
		w.Authorize(other, w.Tenant())
		testkit.Must(other.Client().ListAuthorizedTenants(t.Context()))(t)
		wantError(t, w.client.SendMessage(t.Context(), w.message("x")), gateway.ErrRateLimited)
	})
	t.Run("the whole client slows down", func(t *testing.T) {
		if state := w.client.RateLimit(); state.Rejected == 0 {
			t.Errorf("got %+v", state)
		}
	})
	t.Run("passes", func(t *testing.T) {
		w.Advance(time.Minute)
		client, _ := specClient(t, w.ClientConfig())
		testkit.Must(client.ListAuthorizedTenants(t.Context()))(t)
	})
}

// Every limit at its bound, and past it on both sides: the client refuses to
// send, and the service refuses when it is sent all the same.
func TestSpecLimits(t *testing.T) {
	const maxPayload = 2000
	w := newSpecWorld(t, gatewaytest.Config{MaxPayloadSize: maxPayload}, func(c *gateway.Config) { c.MaxPayloadSize = maxPayload })
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	sending := func(change func(*gateway.SendMessageRequest)) func(context.Context) error {
		return func(ctx context.Context) error {
			req := w.message("x")
			if change != nil {
				change(&req)
			}
			return w.client.SendMessage(ctx, req)
		}
	}
	putting := func(externalID, name string) func(context.Context) error {
		return func(ctx context.Context) error {
			req := w.putRequest()
			req.Name = name
			_, _, err := w.client.PutEndpoint(ctx, w.Tenant(), externalID, req)
			return err
		}
	}
	hundred, longType := strings.Repeat("ü", 100), strings.Repeat("t", 100)
	typed := w.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{longType}})
	longID := "urn:farm:" + strings.Repeat("x", 255-len("urn:farm:"))
	longNamespace := strings.Repeat("n", 32)
	confirmation := []gateway.MessageConfirmation{{MessageID: uuid.NewString(), EndpointID: w.receiver.ID}}
	path := func(id string) func(*http.Request) {
		return func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/endpoints/"+id, "" }
	}
	for _, row := range []struct {
		name string
		// at the bound, past it, and what gets a request past the client.
		at, past func(context.Context) error
		client   error
		change   func(*http.Request)
		service  error
	}{
		{
			"Payload size",
			sending(func(r *gateway.SendMessageRequest) { r.Payload = make([]byte, maxPayload) }),
			sending(func(r *gateway.SendMessageRequest) { r.Payload = make([]byte, maxPayload+1) }),
			gateway.ErrTooLarge,
			func(r *http.Request) {
				r.Body, r.ContentLength = swap(r.Body, strings.Repeat("x", maxPayload+1)), maxPayload+1
			},
			gateway.ErrTooLarge,
		},
		{
			"x-router-message-type",
			sending(func(r *gateway.SendMessageRequest) { r.EndpointID, r.MessageType = typed.ID, longType }),
			sending(func(r *gateway.SendMessageRequest) { r.MessageType = longType + "t" }),
			gateway.ErrInvalid, header("x-router-message-type", longType+"t"), gateway.ErrBadRequest,
		},
		{
			"x-router-teamset-context-id",
			sending(func(r *gateway.SendMessageRequest) { r.TeamsetContextID = hundred }),
			sending(func(r *gateway.SendMessageRequest) { r.TeamsetContextID = hundred + "ü" }),
			gateway.ErrInvalid, header("x-router-teamset-context-id", hundred+"ü"), gateway.ErrBadRequest,
		},
		{
			"x-router-filename",
			sending(func(r *gateway.SendMessageRequest) { r.Filename = hundred }),
			sending(func(r *gateway.SendMessageRequest) { r.Filename = hundred + "ü" }),
			gateway.ErrInvalid, header("x-router-filename", hundred+"ü"), gateway.ErrBadRequest,
		},
		{
			"Endpoint name",
			putting("urn:farm:1", strings.Repeat("ж", 200)), putting("urn:farm:1", strings.Repeat("ж", 201)),
			gateway.ErrInvalid,
			func(r *http.Request) {
				editBody(t, r, func(o map[string]any) { o["name"] = strings.Repeat("ж", 201) })
			},
			gateway.ErrBadRequest,
		},
		{"externalId", putting(longID, ""), putting(longID+"x", ""), gateway.ErrInvalid, path(longID + "x"), gateway.ErrBadRequest},
		{"externalId of 3 characters", putting("a:b", ""), putting("a:", ""), gateway.ErrInvalid, path("a:"), gateway.ErrBadRequest},
		{
			"namespace identifier",
			putting(longNamespace+":x", ""), putting(longNamespace+"n:x", ""),
			gateway.ErrInvalid, path(longNamespace + "n:x"), gateway.ErrBadRequest,
		},
		{
			"confirmations",
			func(ctx context.Context) error { return w.client.ConfirmMessages(ctx, w.Tenant(), confirmation) },
			func(ctx context.Context) error { return w.client.ConfirmMessages(ctx, w.Tenant(), nil) },
			gateway.ErrInvalid,
			func(r *http.Request) {
				editBody(t, r, func(o map[string]any) { o["confirmations"] = []any{} })
			},
			gateway.ErrBadRequest,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := row.at(t.Context()); err != nil {
				t.Errorf("at the bound: %v", err)
			}
			err := row.past(t.Context())
			wantError(t, err, row.client, gateway.ErrInvalid)
			w.wire.set(func(x *wire) { x.request = row.change })
			defer w.wire.set(nil)
			err = row.at(t.Context())
			wantError(t, err, row.service)
			if errors.Is(err, gateway.ErrInvalid) {
				t.Errorf("the service was not asked: %v", err)
			}
		})
	}
	t.Run("256 MB is the default", func(t *testing.T) {
		if got := w.Client().Config().MaxPayloadSize; got != 256<<20 {
			t.Errorf("%d bytes", got)
		}
	})
	t.Run("Payload download URI lifetime", func(t *testing.T) {
		w := newSpecWorld(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
		w.send(t, w.message("x"))
		m := nextMessage(t, w.stream(t, gateway.EventMessageReceived))
		w.Advance(15*time.Minute - time.Second)
		r := testkit.Must(w.client.OpenPayload(t.Context(), m.PayloadURI, -1))(t)
		_, err := io.Copy(io.Discard, r)
		testkit.NoError(t, errors.Join(err, r.Close()))
		w.Advance(time.Second)
		_, err = w.client.OpenPayload(t.Context(), m.PayloadURI, -1)
		wantError(t, err, gateway.ErrPayloadExpired)
	})
}

// The shape of externalId, on both sides, through a path that keeps it.
func TestSpecExternalID(t *testing.T) {
	w := newSpecWorld(t, gatewaytest.Config{})
	for _, row := range []struct {
		name, id string
		valid    bool
	}{
		{"urn prefix", "urn:farm:1", true},
		{"urn prefix in capitals", "URN:farm:1", true},
		{"no prefix", "farm:1", true},
		{"namespace starts with a digit", "7-f:x", true},
		{"namespace starts with a hyphen", "-f:x", false},
		{"namespace with an underscore", "f_a:x", false},
		{"namespace with a dot", "f.a:x", false},
		{"no namespace-specific string", "farm:", false},
		{"no colon", "farm", false},
		{"no namespace", ":farm", false},
		{"the prefix may be the namespace", "urn:farm", true},
		{"the prefix alone", "urn:", false},
		{"the prefix as the namespace before a colon", "urn::farm", true},
		{"the prefix as the namespace before a hyphen", "urn:-f:x", true},
		{"the prefix as the namespace before 33 characters", "urn:" + strings.Repeat("n", 33) + ":x", true},
		{"every character", "farm:aZ09()+,-.:=@;$_!*%/?#", true},
		{"dot segments", "farm:/../a//b/./", true},
		{"percent", "farm:%2F%3F%23", true},
		{"a space", "farm:a b", false},
		{"a letter beyond ASCII", "farm:ä", false},
		{"an ampersand", "farm:a&b", false},
		{"an apostrophe", "farm:a'b", false},
		{"a tilde", "farm:a~b", false},
		{"a line break", "farm:a\n", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			id := row.id
			if !row.valid {
				id = "farm:1"
				_, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), row.id, w.putRequest())
				wantError(t, err, gateway.ErrInvalid)
				w.wire.set(func(x *wire) {
					x.request = func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/endpoints/"+row.id, "" }
				})
				defer w.wire.set(nil)
			}
			e, _, err := w.client.PutEndpoint(t.Context(), w.Tenant(), id, w.putRequest())
			if !row.valid {
				wantError(t, err, gateway.ErrBadRequest)
				return
			}
			if err != nil || e.ExternalID != row.id {
				t.Fatalf("became %q, %v", e.ExternalID, err)
			}
			testkit.NoError(t, w.client.DeleteEndpoint(t.Context(), w.Tenant(), row.id))
		})
	}
}
