package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
)

// A service, or something before it, that echoes the request's credentials has them in no error.
func TestErrorsEchoNoCredentials(t *testing.T) {
	const token = "s3cret.T0ken-of-the+service"
	for _, tt := range []struct {
		name, media, encoding, body string
		status                      int
		want                        string // of the text that is kept
	}{
		{"the header", "application/json", "", `{"message":"rejected: Authorization: Bearer ` + token + ` for this tenant"}`, 400, "for this tenant"},
		{"the token alone", "application/json", "", `{"message":"token ` + token + ` has expired"}`, 403, "has expired"},
		{"escaped", "application/json", "", `{"message":"token ` + url.QueryEscape(token) + ` has expired"}`, 400, "has expired"},
		{"of another attempt", "application/json", "", `{"message":"Bearer s3cret.another-T0ken is unknown"}`, 400, "is unknown"},
		{"of an intermediary", "application/json", "", `{"message":"headers: {\"authorization\": \"basic czNjcmV0OlQwa2Vu\"} refused"}`, 400, "refused"},
		{"across the end of a long message", "application/json", "", `{"message":"` + strings.Repeat("x", 1010) + token + `"}`, 400, "xxx"},
		{"text", "text/plain", "", token, 400, "400"},
		{"a page", "text/html", "", "<html>" + token, 502, "502"},
		{"the media type", token + "/x", "", "{}", 400, "400"},
		{"the content encoding", "application/json", token, "{}", 200, "encoding"},
		{"nothing secret", "application/json", "", `{"message":"Bearer token is missing"}`, 400, "Bearer token is missing"},
	} {
		testkit.RunBubble(t, tt.name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
				writeJSON(w, 200, map[string]any{"access_token": token})
			})
			answer := func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", tt.media)
				if tt.encoding != "" {
					w.Header().Set("Content-Encoding", tt.encoding)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}
			mux.HandleFunc("POST /messages", answer)
			mux.HandleFunc("GET /events", answer)
			mux.HandleFunc("GET /tenants", answer)
			c := offline(t, mux, func(c *Config) { c.Retry.MaxAttempts = 1 })
			_, stream := c.ReceiveEvents(t.Context(), ReceiveEventsRequest{})
			_, list := c.ListAuthorizedTenants(t.Context())
			send := c.SendMessage(t.Context(), testMessageRequest())
			for _, err := range []error{stream, list, send} {
				var e *Error
				text := fmt.Sprintf("%v %+v %#v", err, err, err)
				if errors.As(err, &e) {
					text += e.Message + e.ContentType
				}
				if strings.Contains(strings.ToLower(text), "s3cret") || strings.Contains(text, "czNjcmV0") {
					t.Errorf("got %s", text)
				}
			}
			if list == nil || !strings.Contains(list.Error(), tt.want) {
				t.Errorf("got %v, want it to say %q", list, tt.want)
			}
		})
	}
}
