// Package streamrule tells streams apart that acknowledge messages which cannot be found in them afterwards.
package streamrule

import (
	"cmp"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/natssubject"
)

// Loses returns how a stream acknowledges messages of subject, a pattern, and has them nowhere or under another
// subject, with the remedy; empty if it does not.
func Loses(have jetstream.StreamConfig, subject string) string {
	if have.Retention == jetstream.InterestPolicy {
		return "deletes at once what no consumer waits for (retention interest): change its retention to limits"
	}
	if t := have.SubjectTransform; t != nil {
		source := t.Source
		source = cmp.Or(source, ">")
		if source != t.Destination && natssubject.Overlap(source, subject) {
			return fmt.Sprintf("stores %s as %s, where nobody looks for it (subject_transform): remove that, or use another stream", source, t.Destination)
		}
	}
	return ""
}
