package nats

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, prefix string
		want            bool
	}{
		{"agrimill.>", "agrimill", true},
		{">", "agrimill", true},
		{"*.>", "agrimill", true},
		{"agrimill.*", "agrimill", false},
		{"agrimill.*.>", "agrimill", false},
		{"agrimill.a.>", "agrimill", false},
		{"agrimill", "agrimill", false},
		{"other.>", "agrimill", false},
		{"a.>", "a.b", true},
		{"a.*.>", "a.b", true},
		{"a.b.>", "a.b", true},
		{"*.*.>", "a.b", true},
		{"a.c.>", "a.b", false},
		{"a.b.*", "a.b", false},
		{"a.b.c.>", "a.b", false},
	} {
		if got := covers(c.pattern, c.prefix); got != c.want {
			t.Errorf("covers(%q, %q) = %v", c.pattern, c.prefix, got)
		}
	}
}

// FuzzCheckSubject holds our check against the server's.
func FuzzCheckSubject(f *testing.F) {
	for _, seed := range []string{"", ".", "a", "a.b", "a..b", "a.", ".a", "a b", "a*b", "*", ">", "a.>", "a\x00", "ü"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkSubject(s) == nil && !server.IsValidLiteralSubject(s) {
			t.Fatalf("%q passes, the server refuses it", s)
		}
		if segment := TopicSegment(s); len(s) < 600 && checkSubject(segment) != nil {
			t.Fatalf("%q becomes %q, which does not pass", s, segment)
		}
	})
}
