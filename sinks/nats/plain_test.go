package nats

import (
	"strings"
	"testing"
)

// Each byte counts at each place.
func TestPlainValueAtEachPlace(t *testing.T) {
	t.Parallel()
	const length = 19
	for c := range 256 {
		for at := range length {
			value := strings.Repeat("a", at) + string([]byte{byte(c)}) + strings.Repeat("~", length-1-at)
			want := c > ' ' && c < 0x7f || c == ' ' && at > 0 && at < length-1
			if got := isPlainValue(value); got != want {
				t.Errorf("%q is plain: %v, want %v", value, got, want)
			}
		}
	}
	for _, value := range []string{"zwölf Hektar Gerste", "1234567ä", "ä", "~~~~~~~~"} {
		if !isPlainValue(value) {
			t.Errorf("%q is not plain", value)
		}
	}
}

func TestPlainNameInEachCase(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Nats-Msg-Id", "nats-x", "agrimill-key-x", "Status", "Description", "_watermill_message_uuid"} {
		for _, taken := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
			if isPlainName(taken) {
				t.Errorf("%q is a plain name", taken)
			}
		}
	}
	for _, name := range []string{"n", "nats", "natural-x", "a", "agrimill-keys", "s", "statuses", "d", "describe", "_", "x-status", "%"} {
		if !isPlainName(name) {
			t.Errorf("%q is not a plain name", name)
		}
	}
}
