package gateway

import (
	"strings"
	"testing"
)

func TestLookupLegacyCode(t *testing.T) {
	// Every template is found by a text that fills it in, and by itself.
	for _, c := range LegacyCodes() {
		parts := strings.Split(c.Message, "%")
		for i := 1; i < len(parts); i += 2 {
			parts[i] = "iso:11783 of 4711"
		}
		text := strings.Join(parts, "")
		for _, s := range []string{text, " " + text + "\n", c.Message} {
			if got, ok := LookupLegacyCode(s); !ok || got.Code != c.Code {
				t.Errorf("%q: %v %v, want %s", s, got, ok, c.Code)
			}
		}
		if c.Meaning == "" {
			t.Errorf("%s has no meaning", c.Code)
		}
		if _, ok := LookupLegacyCode(text + " x"); ok && !strings.HasSuffix(c.Message, "%") {
			t.Errorf("%q with something behind it was found", text)
		}
	}
	for _, s := range []string{"", "nonsense", "Duplicate message ", "Message  exceeds maximum size", "Chunk 1 of 2 for context is invalid"} {
		if got, ok := LookupLegacyCode(s); ok {
			t.Errorf("%q: %v", s, got)
		}
	}
	if n := len(LegacyCodes()); n != 30 {
		t.Errorf("%d codes, want 30", n)
	}
}
