package farmfile

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestWireFilename(t *testing.T) {
	long := strings.Repeat("ä", 120)
	tests := []struct{ name, want string }{
		{"short.zip", "short.zip"},
		{strings.Repeat("x", 100), strings.Repeat("x", 100)},
		{long + ".zip", strings.Repeat("ä", 96) + ".zip"},
		{"two\nlines\xff.zip", "two_lines_.zip"},
		{" field 7.zip  ", "field 7.zip"},
		{"  ", ""},
		{strings.Repeat("x", 99) + " y", strings.Repeat("x", 99)},
		{"a." + long, "a." + strings.Repeat("ä", 98)},
	}
	for _, tt := range tests {
		got := WireFilename(tt.name)
		if got != tt.want {
			t.Errorf("WireFilename(%q) = %q, want %q", tt.name, got, tt.want)
		}
		if n := utf8.RuneCountInString(got); n > MaxFilename {
			t.Errorf("WireFilename(%q) has %d characters", tt.name, n)
		}
	}
}
