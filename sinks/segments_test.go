package sinks_test

import (
	"errors"
	"testing"

	"github.com/agrimill/agrimill/sinks"
)

func TestSegments(t *testing.T) {
	for value, want := range map[string]string{
		"":                           "%",
		"iso:11783:-10:taskdata:zip": "iso:11783:-10:taskdata:zip",
		"a.b":                        "a%2Eb",
		"100%":                       "100%25",
		"ü":                          "%C3%BC",
		"../x":                       "%2E%2E%2Fx",
		"a\r\nb":                     "a%0D%0Ab",
	} {
		if got := sinks.DefaultSegments.Escape(value); got != want {
			t.Errorf("Escape(%q) = %q, want %q", value, got, want)
		}
		if back, err := sinks.DefaultSegments.Unescape(want); err != nil || back != value {
			t.Errorf("Unescape(%q) = %q, %v, want %q", want, back, err, value)
		}
	}
	for _, segment := range []string{"", "a.b", "%2", "%%", "%zz", "%2e", "%41", "a%", "%2", "ü", "%25%"} {
		if value, err := sinks.DefaultSegments.Unescape(segment); !errors.Is(err, sinks.ErrBadSegment) {
			t.Errorf("Unescape(%q) = %q, %v, want ErrBadSegment", segment, value, err)
		}
	}
}

func FuzzSegments(f *testing.F) {
	for _, seed := range []string{"", "%", "%2E", "a.b", "\xff\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		segment := sinks.DefaultSegments.Escape(s)
		if back, err := sinks.DefaultSegments.Unescape(segment); err != nil || back != s {
			t.Fatalf("%q becomes %q and comes back as %q, %v", s, segment, back, err)
		}
		// s as a segment: either an error or the only way to write its value.
		if value, err := sinks.DefaultSegments.Unescape(s); err == nil && sinks.DefaultSegments.Escape(value) != s {
			t.Fatalf("%q comes back as %q, which becomes %q", s, value, sinks.DefaultSegments.Escape(value))
		}
	})
}
