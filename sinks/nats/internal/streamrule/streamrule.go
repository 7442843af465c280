// Package streamrule tells streams apart that acknowledge messages which cannot be found in them afterwards.
package streamrule

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Loses returns how a stream acknowledges messages of subject, a pattern, and has them nowhere or under another
// subject, with the remedy; empty if it does not.
func Loses(have jetstream.StreamConfig, subject string) string {
	if have.Retention == jetstream.InterestPolicy {
		return "deletes at once what no consumer waits for (retention interest): change its retention to limits"
	}
	if t := have.SubjectTransform; t != nil {
		source := t.Source
		if source == "" {
			source = ">"
		}
		if source != t.Destination && overlap(source, subject) {
			return fmt.Sprintf("stores %s as %s, where nobody looks for it (subject_transform): remove that, or use another stream", source, t.Destination)
		}
	}
	return ""
}

// overlap reports whether there are subjects that both patterns match.
func overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != bs[i] && as[i] != "*" && bs[i] != "*":
			return false
		}
	}
	return len(as) == len(bs)
}
