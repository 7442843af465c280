package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
)

// Secret is a text that is never printed, logged or marshaled: formatting it yields
// "[redacted]", or nothing if it is empty. string(s) is the text itself. Package fmt
// cannot call the methods of a Secret in an unexported field.
type Secret string

const redactedSecret = "[redacted]"

// String returns "[redacted]", or an empty string for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redactedSecret
}

// Format writes String for every verb.
func (s Secret) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, s.String()) }

// LogValue returns String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns String: a secret is read from files, but never written to them.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the secret to the text.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}

// echoedCredentials matches what a service may echo of a request's Authorization header.
var echoedCredentials = regexp.MustCompile(`(?i)\b(bearer|basic|authorization["']?\s*[:=])(\s|%20|\+)*["']?[a-z0-9._~+/=%-]{12,}`)

// withoutEcho removes the token, and whatever looks like credentials, from a text of the service.
func withoutEcho(text, token string) string {
	if text == "" {
		return ""
	}
	if token != "" {
		text = strings.NewReplacer(token, "…", url.QueryEscape(token), "…").Replace(text)
	}
	return echoedCredentials.ReplaceAllString(text, "$1 …")
}
