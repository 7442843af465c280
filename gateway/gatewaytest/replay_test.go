package gatewaytest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
)

// session reads n events, confirms every other one, waits for the end of the stream, which cut brings about, and reads
// on another one what comes again. It returns what the client saw.
func session(t *testing.T, client *gateway.Client, n int, cut func()) (seen []string) {
	t.Helper()
	ctx := testContext(t)
	if tenants, err := client.ListAuthorizedTenants(ctx); err != nil || len(tenants) != 1 || len(tenants[0].Endpoints) != 2 {
		t.Fatalf("%+v, %v", tenants, err)
	}
	first := testkit.Must(client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{}))(t)
	defer first.Close()
	for i := range n {
		message := nextMessage(ctx, t, client, first, &seen)
		if i%2 == 0 {
			continue // comes again
		}
		confirmation := gateway.MessageConfirmation{MessageID: message.ID, EndpointID: message.ReceivingEndpointID}
		testkit.NoError(t, client.ConfirmMessages(ctx, message.TenantID, []gateway.MessageConfirmation{confirmation}))
	}
	cut()
	if _, err := first.Next(); err == nil || ctx.Err() != nil {
		t.Fatalf("the stream ended with %v", err)
	}
	second := testkit.Must(client.ReceiveEvents(ctx, gateway.ReceiveEventsRequest{}))(t)
	defer second.Close()
	for range n / 2 {
		nextMessage(ctx, t, client, second, &seen)
	}
	return seen
}

func nextMessage(ctx context.Context, t *testing.T, client *gateway.Client, stream *gateway.EventStream, seen *[]string) *gateway.MessageReceived {
	t.Helper()
	raw := testkit.Must(stream.Next())(t)
	event, err := gateway.DecodeEvent(raw.Type, raw.Data)
	if err != nil {
		t.Fatalf("%v: %s", err, raw.Data)
	}
	message := event.(*gateway.MessageReceived)
	payload := message.Payload
	if message.PayloadURI != "" {
		reader, err := client.OpenPayload(ctx, message.PayloadURI, -1)
		if err != nil {
			t.Fatal(err)
		}
		payload, err = io.ReadAll(reader)
		testkit.NoError(t, errors.Join(err, reader.Close()))
	}
	*seen = append(*seen, fmt.Sprintln(message.ID, message.Filename, len(payload), string(payload)))
	return message
}

// quick returns a client that does not wait before it tries again.
func quick(t *testing.T, config gateway.Config) *gateway.Client {
	config.Retry.InitialBackoff, config.Retry.MaxBackoff = time.Microsecond, time.Microsecond
	client := testkit.Must(gateway.New(config))(t)
	return client
}

// record has a session recorded, and returns what the client saw and the file.
func record(t *testing.T, payloads bool) (seen []string, file string) {
	s := gatewaytest.New(t, gatewaytest.Config{InlineLimit: 100})
	sender := s.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{typeA}})
	s.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{typeA}, Subscribe: []string{typeA}})
	const n = 10
	for i := range n {
		payload := strings.Repeat(fmt.Sprint("farm data ", i, ". "), 1+i%3*20)
		testkit.Must(s.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeA, Filename: fmt.Sprint(i), Payload: []byte(payload)}))(t)
	}
	file = filepath.Join(t.TempDir(), "session.jsonl")
	to := testkit.Must(os.Create(file))(t)
	recorder := testkit.Must(gatewaytest.NewRecorder(gatewaytest.RecorderConfig{BaseURL: s.BaseURL(), TokenURL: s.TokenURL(), To: to, Payloads: payloads}))(t)
	front := httptest.NewServer(recorder)
	defer front.Close()
	config := s.ClientConfig()
	config.BaseURL, config.TokenURL = front.URL, front.URL+"/oauth/token"
	client := quick(t, config)
	s.Inject(gatewaytest.OpToken, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 1})
	s.Inject(gatewaytest.OpConfirm, gatewaytest.Fault{Status: http.StatusServiceUnavailable, Times: 1})
	seen = session(t, client, n, func() { s.CutStreams() })
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	front.Close()
	testkit.NoError(t, errors.Join(recorder.Close(), to.Close()))
	if s.Stats(gatewaytest.OpPayload).Requests == 0 || s.Stats(gatewaytest.OpPayload).WithAuthorization > 0 {
		t.Errorf("downloads: %+v", s.Stats(gatewaytest.OpPayload))
	}
	return seen, file
}

// A recorded session plays back to the same messages in the same order, each time.
func TestReplay(t *testing.T) {
	seen, file := record(t, true)
	for range 20 {
		s := gatewaytest.New(t, gatewaytest.Config{Replay: file})
		client := quick(t, s.ClientConfig())
		got := session(t, client, 10, func() {})
		if !slices.Equal(got, seen) {
			t.Fatalf("got %s\nwant %s", got, seen)
		}
		if confirms := s.Stats(gatewaytest.OpConfirm); confirms.Status[http.StatusServiceUnavailable] != 1 || confirms.Status[http.StatusAccepted] != 5 {
			t.Errorf("confirmations: %+v", confirms)
		}
		if tokens := s.Stats(gatewaytest.OpToken); tokens.Status[http.StatusServiceUnavailable] != 1 {
			t.Errorf("tokens: %+v", tokens)
		}
		testkit.NoError(t, s.WaitConfirmed(testContext(t), 5))
		s.NoLoss(t, func(e gatewaytest.LedgerEntry) bool { return len(e.Filename) == 1 })
		s.Close()
		testkit.NoError(t, client.Close())
	}
}

// A recording whose recorder was killed while it wrote is played, and a warning says that something is missing.
func TestReplayOfATornRecording(t *testing.T) {
	_, file := record(t, true)
	for text, warned := range map[string]bool{read(t, file): false, read(t, file) + `{"at":1`: true} {
		testkit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		var log bytes.Buffer
		gatewaytest.New(t, gatewaytest.Config{Replay: file, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Close()
		if strings.Contains(log.String(), "level=WARN msg=\"the recording was cut off") != warned {
			t.Errorf("warned: %t; it says %s", warned, log.String())
		}
	}
}

// Without payloads, others of the same size take their place, and neither they nor secrets get into the file.
func TestRecordingHasNoSecrets(t *testing.T) {
	seen, file := record(t, false)
	text := read(t, file)
	for _, secret := range []string{
		gatewaytest.SecretPrefix, gatewaytest.TokenPrefix, gatewaytest.SignaturePrefix, "Bearer", "Basic", "farm data", "ZmFybSBkYXRh",
	} {
		if strings.Contains(text, secret) {
			t.Errorf("the recording has %s", secret)
		}
	}
	s := gatewaytest.New(t, gatewaytest.Config{Replay: file, ReplaySpeed: 1e6})
	got := session(t, s.Client(), 10, func() {})
	if len(got) != len(seen) {
		t.Fatalf("got %d events, want %d", len(got), len(seen))
	}
	payloads := map[string]string{}
	for i := range seen {
		id, rest, _ := strings.Cut(got[i], " ")
		if !strings.HasPrefix(seen[i], strings.Join(strings.Fields(got[i])[:3], " ")) {
			t.Errorf("event %d is %.60q, want %.60q", i, got[i], seen[i])
		}
		if before, again := payloads[id]; again && before != rest {
			t.Errorf("event %d has another payload when it comes again", i)
		}
		payloads[id] = rest
	}
}

// hostile is a gateway that writes what the specification does not allow, with secrets where nobody expects them.
func TestRecorderLeavesOutWhatItCannotRead(t *testing.T) {
	const token, password, payload = "the-bearer-token", "the client's secret", "c2VjcmV0IGZhcm0gZGF0YQ=="
	stream := strings.Join([]string{
		": " + token, "\ufeffdata: {\"payload\":\"" + payload + "\"}",
		`data: {"id":"1","payload":["` + payload + `"]}`, `data: {"id":"2","more":{"payload":"` + payload + `"}}`,
		`data: {"id":"3","pay\u006coad":"` + payload + `","Payload_URI":"https://example.com/` + payload + `"}`,
		`data: {"id":"4"} ` + payload, `data: "` + payload + `"`, payload, "data: {\"id\":\"5\",", `data: "payload":"` + payload + `"}`,
		`data: {"id":"6","payload":"` + payload + "\x01" + `"}`, `data: {"id":"7","payload":"!` + payload + `"}`, `data: {"id":"8 ` + token + `","payload":"` + payload,
	}, "\r\n")
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/token":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"error":"invalid_client","error_description":%q,"access_token":%q}`, password, token)
		case "/base/events":
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Set-Cookie", token)
			_, _ = io.WriteString(w, stream)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"message":"the token %s with %s is not for %s"}`, token, password, r.URL.EscapedPath())
		}
	}))
	defer upstream.Close()
	var to bytes.Buffer
	recorder := testkit.Must(gatewaytest.NewRecorder(gatewaytest.RecorderConfig{BaseURL: upstream.URL + "/base", TokenURL: upstream.URL + "/token", To: &to}))(t)
	front := httptest.NewServer(recorder)
	defer front.Close()
	do := func(method, path, body, authorization string) string {
		req := testkit.Must(http.NewRequestWithContext(testContext(t), method, front.URL+path, strings.NewReader(body)))(t)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", authorization)
		res := testkit.Must(front.Client().Do(req))(t)
		defer res.Body.Close()
		data := testkit.Must(io.ReadAll(res.Body))(t)
		return string(data)
	}
	do("POST", "/oauth/token", "grant_type=client_credentials&client_secret=the+client%27s+secret", "")
	testkit.Contains(t, do("PUT", "/endpoints/urn:a%2Fb//c", "", "Bearer "+token), "/base/endpoints/urn:a%2Fb//c")
	passed := do("GET", "/events", "", "Bearer "+token)
	if at := strings.Index(passed, front.URL+"/payloads/1/"); at < 0 || strings.Contains(passed, "example.com") {
		t.Errorf("passed on: %s", passed)
	}
	testkit.Contains(t, do("GET", "/payloads/1/"+strings.Repeat("0", 64)+"/aHR0cHM6Ly9leGFtcGxlLmNvbS8", "", ""), "404")
	front.Close()
	testkit.NoError(t, recorder.Close())
	for _, secret := range []string{token, password, "client%27s", payload, payload[:8], "example.com", "Cookie"} {
		if strings.Contains(to.String(), secret) {
			t.Errorf("the recording has %q:\n%s", secret, to.String())
		}
	}
	for _, id := range "12345678" {
		if !strings.Contains(to.String(), `"id\":\"`+string(id)) && !strings.Contains(to.String(), `\"`+string(id)) {
			t.Errorf("the recording has no event %c:\n%s", id, to.String())
		}
	}
	file := filepath.Join(t.TempDir(), "hostile.jsonl")
	testkit.NoError(t, os.WriteFile(file, to.Bytes(), 0o600))
	_, c := start(t, gatewaytest.Config{Replay: file})
	got := want(t, c.do("GET", "/events", nil, nil), http.StatusOK)
	if a, b := strings.Count(string(got.body), "\r\n"), strings.Count(stream, "\r\n"); a != b || got.err != nil {
		t.Errorf("the replay has %d lines, want %d: %v", a, b, got.err)
	}
	want(t, c.do("PUT", "/endpoints/urn:a%2Fb//c", nil, nil), http.StatusForbidden)
}

type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errors.New("no space left")
	}
	return len(b), nil
}

// What cannot be recorded is not passed on either, so nobody takes a part for the whole.
func TestRecorderWithoutSpace(t *testing.T) {
	s := gatewaytest.New(t, gatewaytest.Config{})
	recorder := testkit.Must(gatewaytest.NewRecorder(gatewaytest.RecorderConfig{BaseURL: s.BaseURL(), TokenURL: s.TokenURL(), To: &full{left: 1}}))(t)
	answer := httptest.NewRecorder()
	recorder.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/tenants", nil))
	if err := recorder.Close(); answer.Code != http.StatusBadGateway || err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("status %d, %v", answer.Code, err)
	}
	for _, cfg := range []gatewaytest.RecorderConfig{
		{}, {BaseURL: "ftp://x", TokenURL: "http://x", To: io.Discard}, {BaseURL: "http://x", To: io.Discard}, {BaseURL: "http://x", TokenURL: "http://x"},
	} {
		if _, err := gatewaytest.NewRecorder(cfg); !errors.Is(err, gatewaytest.ErrConfig) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
