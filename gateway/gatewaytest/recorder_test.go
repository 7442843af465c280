package gatewaytest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Whatever a gateway answers, and wherever, the recording has no secret and no payload.
func TestRecordingHasNoSecrets(t *testing.T) {
	const secret, token = "Leak-Farm", "ab/cd<e"
	event := func(field string) string { return "event: MESSAGE_RECEIVED\ndata: {" + field + "}\n\n" }
	for name, answer := range map[string]struct {
		request     string
		status      int
		contentType string
		body        string
	}{
		"token at another address":    {"POST /auth/token", 200, "application/json", `{"access_token":"Leak-Farm"}`},
		"token as events":             {"POST /oauth/token", 200, "text/event-stream", event(`"access_token":"Leak-Farm"`)},
		"unknown operation":           {"GET /elsewhere", 200, "text/plain", secret},
		"media type in capitals":      {"GET /events", 200, "Text/Event-Stream", event(`"payload":"TGVhay1GYXJt"`)},
		"events without a media type": {"GET /events", 200, "", event(`"payload":"TGVhay1GYXJt"`)},
		"error that quotes":           {"POST /messages", 400, "application/json", `{"error":"cannot parse Leak-Farm"}`},
		"redirect":                    {"GET /tenants", 302, "text/html", `<a href="/?code=Leak-Farm">`},
		"other keys":                  {"GET /events", 200, "text/event-stream", event(`"payloads":"Leak-Farm","x":[{"p\u0061yload":"Leak-Farm"}]`)},
		"keys and numbers below":      {"GET /events", 200, "text/event-stream", event(`"x":[[{"payload":{"Leak-Farm":[{"Leak-Farm":1},"Leak-Farm",7e999]}}]],"id":"1"`)},
		"a key twice":                 {"GET /events", 200, "text/event-stream", event(`"payload":null,"payload":"!Leak-Farm","payload" : [ "Leak-Farm" ]`)},
		"token, as JSON":              {"GET /tenants", 400, "application/json", `{"error":"ab\/cd\u003ce ab/cd<e"}`},
	} {
		t.Run(name, func(t *testing.T) {
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", answer.contentType)
				w.WriteHeader(answer.status)
				_, _ = io.WriteString(w, answer.body)
			}))
			defer gateway.Close()
			var to bytes.Buffer
			passed := recorded(t, RecorderConfig{BaseURL: gateway.URL, TokenURL: gateway.URL + "/auth", To: &to}, answer.request, token)
			for _, leak := range []string{secret, "TGVhay1GYXJt", "ab/cd", `ab\\/cd`, `ab\/cd`} {
				if strings.Contains(to.String(), leak) {
					t.Errorf("%s", to.String())
				}
			}
			if passed != answer.body {
				t.Errorf("passed on %q, want %q", passed, answer.body)
			}
		})
	}
}

// An event that is all payloads, or all brackets, is passed on as it is, and takes no more of the recording than others.
func TestRecordingOfAHostileEventIsSmall(t *testing.T) {
	for name, data := range map[string]string{
		"payloads": `{"payload":[` + strings.Repeat("1,", 100_000) + `1]}`,
		"brackets": `{"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "}",
	} {
		t.Run(name, func(t *testing.T) {
			event := "event: MESSAGE_RECEIVED\ndata: " + data + "\n\n"
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, event)
			}))
			defer gateway.Close()
			var to bytes.Buffer
			if passed := recorded(t, RecorderConfig{BaseURL: gateway.URL, TokenURL: gateway.URL + "/auth", To: &to}, "GET /events", "token"); passed != event {
				t.Errorf("passed on %d bytes, want %d", len(passed), len(event))
			}
			if to.Len() > len(event) {
				t.Errorf("recorded %d bytes of %d", to.Len(), len(event))
			}
			testkit.Must(decodeRecording(&to))(t)
		})
	}
}

// recorded sends a request, with a token, through a recorder, and returns what came back.
func recorded(t *testing.T, cfg RecorderConfig, request, token string) string {
	t.Helper()
	recorder := testkit.Must(NewRecorder(cfg))(t)
	defer recorder.Close()
	method, path, _ := strings.Cut(request, " ")
	req := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	req.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	recorder.ServeHTTP(w, req)
	return w.Body.String()
}

// A payload is asked for without the token, which is not for its host, and an error that quotes its address is not
// recorded, not even with payloads.
func TestRecorderAsksForPayloads(t *testing.T) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Authorization", "Cookie"} {
			if r.Header.Get(name) != "" {
				t.Errorf("%s is sent", name)
			}
		}
		http.Error(w, "no "+r.URL.RawQuery, http.StatusForbidden)
	}))
	defer host.Close()
	var to bytes.Buffer
	recorder := testkit.Must(NewRecorder(RecorderConfig{BaseURL: host.URL, TokenURL: host.URL, To: &to, Payloads: true}))(t)
	defer recorder.Close()
	x := &exchange{recorder: recorder}
	_, own := x.ownURI(host.URL + "/file?signature=Leak-Farm")
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, own, http.NoBody)
	req.Header.Set("Authorization", "Bearer token")
	req.Header.Set("Cookie", "a=b")
	recorder.ServeHTTP(httptest.NewRecorder(), req)
	if text := to.String(); strings.Contains(text, "Leak-Farm") || !strings.Contains(text, `"status":403`) {
		t.Errorf("%s", text)
	}
}

// fullAfter is a file that takes so many lines.
type fullAfter struct{ lines int }

func (f *fullAfter) Write(p []byte) (int, error) {
	if f.lines--; f.lines < 0 {
		return 0, errors.New("the disk is full")
	}
	return len(p), nil
}

// What cannot be recorded is not passed on.
func TestRecorderStopsWhenTheFileIsFull(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer gateway.Close()
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
			t.Errorf("the stream ends with %v", err)
		}
	}()
	recorder := testkit.Must(NewRecorder(RecorderConfig{BaseURL: gateway.URL, TokenURL: gateway.URL, To: &fullAfter{3}}))(t) // head, request, status
	defer recorder.Close()
	w := httptest.NewRecorder()
	ctx := context.WithValue(t.Context(), http.ServerContextKey, new(http.Server)) // so that the proxy cuts
	recorder.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events", http.NoBody))
	if w.Body.Len() > 0 {
		t.Errorf("%q is passed on", w.Body)
	}
}
