package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// These tests run the client against the service in memory, with the faults
// that a real one has.

const scanType = "doc:pdf"

type world struct {
	*gatewaytest.Server
	client   *gateway.Client
	sender   gateway.Endpoint
	receiver gateway.Endpoint
}

func newWorld(t *testing.T, server gatewaytest.Config, change ...func(*gateway.Config)) *world {
	t.Helper()
	s := gatewaytest.New(t, server)
	w := &world{
		Server:   s,
		sender:   s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{scanType}}),
		receiver: s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{scanType}, Subscribe: []string{scanType}}),
	}
	cfg := s.ClientConfig()
	cfg.Retry = gateway.RetryConfig{MaxAttempts: 20, InitialBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, MaxRetryAfter: 50 * time.Millisecond}
	cfg.RateLimit = gateway.RateLimitConfig{Pause: 5 * time.Millisecond, MinRate: 20}
	for _, f := range change {
		f(&cfg)
	}
	c, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	w.client = c
	return w
}

func (w *world) request(payload []byte) gateway.SendMessageRequest {
	return gateway.SendMessageRequest{TenantID: w.Tenant(), EndpointID: w.sender.ID, MessageType: scanType, IsPublish: true, Payload: payload}
}

func (w *world) send(t *testing.T, payload []byte) {
	t.Helper()
	if err := w.client.SendMessage(t.Context(), w.request(payload)); err != nil {
		t.Fatal(err)
	}
}

func (w *world) stream(t *testing.T) *gateway.EventStream {
	t.Helper()
	s, err := w.client.ReceiveEvents(t.Context(), gateway.ReceiveEventsRequest{
		Types: []gateway.EventType{gateway.EventMessageReceived, gateway.EventFileReceived},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func next(t *testing.T, s *gateway.EventStream) gateway.Event {
	t.Helper()
	raw, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	e, err := gateway.DecodeEvent(raw.Type, raw.Data)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func nextMessage(t *testing.T, s *gateway.EventStream) *gateway.MessageReceived {
	t.Helper()
	m, ok := next(t, s).(*gateway.MessageReceived)
	if !ok {
		t.Fatal("not a message")
	}
	return m
}

func randomPayload(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(b)
	return b
}

func TestTokenExpiresInMidSession(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	s := w.stream(t)
	for round := range 3 {
		w.ExpireTokens()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := w.client.SendMessage(t.Context(), w.request([]byte("x"))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got, most := w.Stats(gatewaytest.OpToken).Requests, round+2; got > most {
			t.Fatalf("%d token requests after %d expiries", got, most-1)
		}
		for range 20 {
			nextMessage(t, s) // the open stream goes on
		}
	}
}

func TestTokenEndpointOutage(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	s := w.stream(t)
	for _, fault := range []gatewaytest.Fault{
		{Status: 500},
		{Refuse: true},
		{Body: []byte("<html>login</html>"), ContentType: "text/html"},
		{Body: []byte(`{"access_token":`)},
	} {
		w.ExpireTokens()
		down := w.Inject(gatewaytest.OpToken, fault)
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			for { // as a caller does that holds on to its message
				err := w.client.SendMessage(ctx, w.request([]byte("held")))
				if err == nil || !errors.Is(err, gateway.ErrUnavailable) {
					done <- err
					return
				}
				if down.Hits() > 3 {
					down.Lift()
				}
			}
		}()
		if err := <-done; err != nil {
			t.Fatalf("%+v: %v", fault, err)
		}
		if m := nextMessage(t, s); string(m.Payload) != "held" {
			t.Errorf("got %q", m.Payload)
		}
	}
	// No expiry told, or zero: one token serves until it is refused.
	for _, body := range []string{`{"access_token":"%"}`, `{"access_token":"%","expires_in":0}`} {
		w.ExpireTokens()
		token := []byte(w.IssueToken(w.Application()))
		fault := w.Inject(gatewaytest.OpToken, gatewaytest.Fault{Body: bytes.ReplaceAll([]byte(body), []byte("%"), token), ContentType: "application/json"})
		for range 3 {
			w.send(t, []byte("x"))
		}
		if fault.Hits() != 1 {
			t.Errorf("%s: %d token requests", body, fault.Hits())
		}
		fault.Lift()
	}
}

// A client secret that was rotated counts with the next token request.
func TestClientSecretIsRotated(t *testing.T) {
	var secret atomic.Pointer[gateway.Secret]
	broken := errors.New("no such file")
	w := newWorld(t, gatewaytest.Config{}, func(c *gateway.Config) {
		first := c.ClientSecret
		secret.Store(&first)
		c.ClientSecret = ""
		c.ClientSecretFunc = func() (gateway.Secret, error) {
			if s := secret.Load(); s != nil {
				return *s, nil
			}
			return "", broken
		}
	})
	w.send(t, []byte("with the first secret"))
	rotated := gateway.Secret(w.RotateClientSecret(w.Application()))
	w.send(t, []byte("with the token that is there"))
	w.ExpireTokens()
	if err := w.client.SendMessage(t.Context(), w.request([]byte("x"))); !errors.Is(err, gateway.ErrUnauthorized) {
		t.Fatalf("with the old secret: %v", err)
	}
	send := func() error { return w.client.SendMessage(t.Context(), w.request([]byte("x"))) }
	secret.Store(nil) // the failure before is remembered for some milliseconds
	testkit.Eventually(t, "a secret that cannot be read", func() bool {
		err := send()
		return errors.Is(err, gateway.ErrToken) && errors.Is(err, gateway.ErrUnavailable) && errors.Is(err, broken)
	})
	secret.Store(&rotated)
	testkit.EventuallyNil(t, send)
	if cfg := w.client.Config(); cfg.ClientSecretFunc != nil {
		t.Error("Client.Config gives the secret away")
	}
}

func TestRateLimitStorm(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{RateLimit: 20, RateBurst: 5})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := w.client.SendMessage(t.Context(), w.request([]byte("x"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stats := w.Stats(gatewaytest.OpSendMessage)
	if stats.Status[200] != 100 || stats.Status[429] == 0 {
		t.Errorf("answers %v", stats.Status)
	}
	if s := w.client.RateLimit(); int(s.Rejected) != stats.Status[429] {
		t.Errorf("state %+v, answers %v", s, stats.Status)
	}
}

func TestRetryAfterOfEveryKindIsCapped(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	for _, value := range []string{"1", "86400", "99999999999999999999", "Fri, 31 Dec 2199 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT", "soon", ""} {
		w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 429, Message: "rate limit exceeded", Header: http.Header{"Retry-After": {value}}, Times: 1})
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		if err := w.client.SendMessage(ctx, w.request([]byte("x"))); err != nil {
			t.Errorf("%q: %v", value, err)
		}
		cancel()
	}
}

// The confirmation was taken, but the answer was lost: it is sent again, and
// the message is confirmed once or twice, but confirmed.
func TestConfirmationAnswerLost(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	w.send(t, []byte("x"))
	m := nextMessage(t, w.stream(t))
	lost := w.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{DropAnswer: true, Times: 2})
	err := w.client.ConfirmMessages(t.Context(), m.TenantID, []gateway.MessageConfirmation{{MessageID: m.ID, EndpointID: m.ReceivingEndpointID}})
	if err != nil || lost.Hits() != 2 {
		t.Fatalf("%v after %d lost answers", err, lost.Hits())
	}
	if l := w.Ledger(); len(l) != 1 || len(l[0].Confirmations) != 3 {
		t.Errorf("ledger %+v", l)
	}
}

func TestConfirmationsThroughAnOutage(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{StrictConfirmations: true})
	w.send(t, []byte("x"))
	m := nextMessage(t, w.stream(t))
	good := gateway.MessageConfirmation{MessageID: m.ID, EndpointID: m.ReceivingEndpointID}
	bad := gateway.MessageConfirmation{MessageID: m.ReceivingEndpointID, EndpointID: m.ID}
	err := w.client.ConfirmMessages(t.Context(), m.TenantID, []gateway.MessageConfirmation{good, bad})
	if !errors.Is(err, gateway.ErrBadRequest) || w.Ledger()[0].Confirmed() {
		t.Fatalf("got %v, confirmed: %v", err, w.Ledger()[0].Confirmed())
	}
	for _, status := range []int{500, 502, 503, 504, 429, 408} {
		w.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: status, Times: 1})
	}
	if err := w.client.ConfirmMessages(t.Context(), m.TenantID, []gateway.MessageConfirmation{good}); err != nil {
		t.Fatal(err)
	}
	if !w.Ledger()[0].Confirmed() {
		t.Error("not confirmed")
	}
}

// The service took the message, but the answer was lost: what is sent again
// carries the same context ID, so receivers recognize it.
func TestSendAnswerLost(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{DropAnswer: true, Times: 1})
	w.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{AfterWork: true, Status: 500, Times: 1})
	w.send(t, []byte("x"))
	l := w.Ledger()
	if len(l) == 0 {
		t.Fatal("nothing arrived")
	}
	for _, e := range l {
		if e.ContextID != l[0].ContextID {
			t.Errorf("context IDs %s and %s", l[0].ContextID, e.ContextID)
		}
	}
}

func TestServiceSaysTooLarge(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{MaxPayloadSize: 1 << 20})
	w.send(t, make([]byte, 1<<20))
	err := w.client.SendMessage(t.Context(), w.request(make([]byte, 1<<20+1)))
	if !errors.Is(err, gateway.ErrTooLarge) || errors.Is(err, gateway.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if n := w.Stats(gatewaytest.OpSendMessage).Requests; n != 2 {
		t.Errorf("%d requests", n)
	}
}

func TestForbiddenEndpoint(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	req := w.request([]byte("x"))
	req.TenantID = w.AddTenant()
	if err := w.client.SendMessage(t.Context(), req); !errors.Is(err, gateway.ErrForbidden) {
		t.Errorf("got %v", err)
	}
	if err := w.client.DeleteEndpoint(t.Context(), w.Tenant(), "farm:none"); !errors.Is(err, gateway.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestPayloadFromTheService(t *testing.T) {
	payload := randomPayload(3<<20 + 17)
	sum := sha256.Sum256(payload)
	for name, tt := range map[string]struct {
		server gatewaytest.Config
		faults []gatewaytest.Fault
		want   error
	}{
		"whole":             {},
		"busy at first":     {faults: []gatewaytest.Fault{{Status: 503, Times: 2}, {Refuse: true, Times: 1}}},
		"cut and resumed":   {faults: []gatewaytest.Fault{{CutAfter: 1 << 20, Times: 1}, {CutAfter: 5, Cut: gatewaytest.CutReset, Times: 1}, {CutAfter: gatewaytest.AfterHeader, Times: 1}}},
		"cut, no ranges":    {server: gatewaytest.Config{PayloadNoRange: true}, faults: []gatewaytest.Fault{{CutAfter: 1 << 20, Times: 1}}, want: gateway.ErrPayloadTruncated},
		"a page":            {faults: []gatewaytest.Fault{{Body: []byte("<html>sorry</html>"), ContentType: "text/html"}}, want: gateway.ErrPayloadSize},
		"a page for a time": {faults: []gatewaytest.Fault{{Body: []byte("<html>sorry</html>"), ContentType: "text/html", Times: 2}}},
		"gone":              {faults: []gatewaytest.Fault{{Status: 410}}, want: gateway.ErrPayloadExpired},
	} {
		t.Run(name, func(t *testing.T) {
			tt.server.InlineLimit = gatewaytest.NoInline
			w := newWorld(t, tt.server)
			w.send(t, payload)
			s := w.stream(t)
			var file *gateway.FileReceived
			for file == nil { // the chunks come first
				file, _ = next(t, s).(*gateway.FileReceived)
			}
			for _, f := range tt.faults {
				w.Inject(gatewaytest.OpPayload, f)
			}
			got, err := fetch(t.Context(), w.client, file.PayloadURI, file.Size)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if tt.want == nil && (sha256.Sum256(got) != sum || file.Size != int64(len(payload))) {
				t.Errorf("%d bytes that are not the payload", len(got))
			}
			if n := w.Stats(gatewaytest.OpPayload).WithAuthorization; n != 0 {
				t.Errorf("%d requests to the payload host carried credentials", n)
			}
		})
	}
}

func fetch(ctx context.Context, c *gateway.Client, uri string, size int64) ([]byte, error) {
	r, err := c.OpenPayload(ctx, uri, size)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

func TestPayloadURIExpires(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	w.send(t, []byte("payload"))
	m := nextMessage(t, w.stream(t))
	w.Advance(15*time.Minute + time.Second)
	_, err := fetch(t.Context(), w.client, m.PayloadURI, -1)
	if !errors.Is(err, gateway.ErrPayloadExpired) || errors.Is(err, gateway.ErrForbidden) {
		t.Fatalf("got %v", err)
	}
	// A new stream brings the message again, with a fresh address.
	m = nextMessage(t, w.stream(t))
	data, err := fetch(t.Context(), w.client, m.PayloadURI, -1)
	if err != nil || string(data) != "payload" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestPayloadIsNotSentElsewhereByARedirect(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{InlineLimit: gatewaytest.NoInline})
	w.send(t, []byte("payload"))
	m := nextMessage(t, w.stream(t))
	before := w.Stats(gatewaytest.OpListTenants).Requests
	// To the service itself: there the token would be of use.
	w.Inject(gatewaytest.OpPayload, gatewaytest.Fault{Status: 307, Header: http.Header{"Location": {w.BaseURL() + "/tenants"}}})
	_, err := fetch(t.Context(), w.client, m.PayloadURI, -1)
	if !errors.Is(err, gateway.ErrRedirect) || w.Stats(gatewaytest.OpListTenants).Requests != before {
		t.Errorf("got %v", err)
	}
}

func TestStreamThatFallsSilent(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{KeepAlive: 20 * time.Millisecond}, func(c *gateway.Config) { c.StreamIdleTimeout = 300 * time.Millisecond })
	s := w.stream(t)
	w.send(t, []byte("x"))
	nextMessage(t, s)
	lift := w.StallStreams()
	defer lift()
	if _, err := s.Next(); !errors.Is(err, gateway.ErrIdle) {
		t.Errorf("got %v", err)
	}
}

func TestStreamThatIsCut(t *testing.T) {
	w := newWorld(t, gatewaytest.Config{})
	s := w.stream(t)
	if w.CutStreams() != 1 {
		t.Fatal("no stream was open")
	}
	if _, err := s.Next(); !errors.Is(err, gateway.ErrUnavailable) && !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	// What was not confirmed comes again on the next one.
	w.send(t, []byte("x"))
	first := nextMessage(t, w.stream(t))
	if again := nextMessage(t, w.stream(t)); again.ID != first.ID {
		t.Errorf("%s came, then %s", first.ID, again.ID)
	}
}

func TestDeploymentSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		server gatewaytest.Config
		client func(*gateway.Config)
	}{
		"service name":        {gatewaytest.Config{ServiceName: "agrirouter"}, func(*gateway.Config) {}},
		"TLS":                 {gatewaytest.Config{TLS: true}, func(*gateway.Config) {}},
		"types in one":        {gatewaytest.Config{}, func(c *gateway.Config) { c.EventTypesEncoding = gateway.EventTypesComma }},
		"credentials in form": {gatewaytest.Config{}, func(c *gateway.Config) { c.AuthStyle = gateway.AuthStyleParams }},
		"credentials, Basic":  {gatewaytest.Config{TokenAuth: gatewaytest.TokenAuthBasic}, func(c *gateway.Config) { c.AuthStyle = gateway.AuthStyleBasic }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tt.server, tt.client)
			req := w.request([]byte("x"))
			req.Filename, req.TeamsetContextID = "Äcker 東.pdf", "Gespann Süd"
			if err := w.client.SendMessage(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			m := nextMessage(t, w.stream(t))
			if m.Filename != req.Filename || m.TeamsetContextID != req.TeamsetContextID || string(m.Payload) != "x" {
				t.Errorf("got %+v", m)
			}
			if err := w.client.ConfirmMessages(t.Context(), m.TenantID, []gateway.MessageConfirmation{{MessageID: m.ID, EndpointID: m.ReceivingEndpointID}}); err != nil {
				t.Error(err)
			}
		})
	}
}
