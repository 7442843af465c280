package wildcard_test

import (
	"testing"

	"github.com/agrimill/agrimill/internal/wildcard"
)

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"iso:*", "iso:11783", true}, {"iso:*", "is", false}, {"*", "", true}, {"", "", true}, {"", "x", false},
		{"*.zip", "a.zip", true}, {"*.zip", "a.zip.exe", false}, {"a?c", "abc", true}, {"a?c", "ac", false},
		{"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-b", false}, {"[a]/*", "[a]/b/c", true}, {"?", "é", true},
	} {
		if got := wildcard.New("", test.pattern).Match(test.text); got != test.want {
			t.Fatalf("%q, %q: got %t, want %t", test.pattern, test.text, got, test.want)
		}
	}
}
