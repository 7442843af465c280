package config

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
)

const redacted = "[redacted]"

// Secret is a value that is never printed: whatever formats it gets "[redacted]",
// or nothing when there is none.
type Secret struct{ value string }

// NewSecret makes a Secret.
func NewSecret(value string) Secret { return Secret{value: value} }

// Reveal returns the value.
func (s Secret) Reveal() string { return s.value }

// IsSet reports whether there is a value.
func (s Secret) IsSet() bool { return s.value != "" }

// String returns "[redacted]", or nothing when there is no value.
func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return redacted
}

// Format writes String, whatever the verb.
func (s Secret) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, s.String()) }

// MarshalText returns String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// URL is an address, or several separated by commas. It may hold secrets, so it is
// printed without user, password, query and fragment. string(u) has everything.
type URL string

// String returns the address without what may be secret.
func (u URL) String() string {
	parts := strings.Split(string(u), ",")
	for i, part := range parts {
		parsed, err := url.Parse(strings.TrimSpace(part))
		if err != nil {
			parts[i] = redacted
			continue
		}
		if parsed.User != nil {
			parsed.User = url.User("redacted")
		}
		if parsed.RawQuery != "" {
			parsed.RawQuery = "redacted"
		}
		parsed.Fragment, parsed.RawFragment = "", ""
		parts[i] = parsed.String()
	}
	return strings.Join(parts, ",")
}

// Format writes String, whatever the verb.
func (u URL) Format(state fmt.State, _ rune) { _, _ = io.WriteString(state, u.String()) }

// MarshalText returns String.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue returns String.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// Size is a number of bytes. In the file it is a number, or a number with a unit: KiB, MiB,
// GiB, kB, MB, GB.
type Size int64

// List is a list of texts. In the file it may be a single one.
type List []string
