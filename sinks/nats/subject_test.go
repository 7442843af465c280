package nats

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

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
