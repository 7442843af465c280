package topicmap_test

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/topicmap"
)

// Legal segments stay, so that the name of a name is the name, and dots separate as before.
func FuzzName(f *testing.F) {
	for _, seed := range []string{"", ".", "a", "a.b", "a..b", "a b", "a b.c", "iso:11783:-10:time_log:protobuf", "ü.x"} {
		f.Add(seed)
	}
	legal := func(b byte) bool { return b >= 'a' && b <= 'z' }
	segment := func(s string) string { return "s" + strings.Repeat("x", len(s)) }
	f.Fuzz(func(t *testing.T, topic string) {
		name := topicmap.Name(topic, legal, segment)
		if again := topicmap.Name(name, legal, segment); again != name {
			t.Errorf("%q becomes %q, and that %q", topic, name, again)
		}
		before, after := strings.Split(topic, "."), strings.Split(name, ".")
		if len(before) != len(after) {
			t.Fatalf("%q becomes %q", topic, name)
		}
		for i, s := range before {
			if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == "" && after[i] != s || strings.Trim(after[i], "abcdefghijklmnopqrstuvwxyz") != "" {
				t.Errorf("segment %q of %q becomes %q", s, topic, after[i])
			}
		}
	})
}
