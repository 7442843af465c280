package natssubject_test

import (
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/natssubject"
)

// lists returns all lists of one to most of the tokens, joined by dots. A > is at the end only.
func lists(most int, tokens ...string) (all []string) {
	for _, token := range tokens {
		all = append(all, token)
		if most > 1 && token != ">" {
			for _, rest := range lists(most-1, tokens...) {
				all = append(all, token+"."+rest)
			}
		}
	}
	return all
}

// matches reports whether a pattern matches a subject.
func matches(pattern, subject string) bool {
	token, more, further := strings.Cut(pattern, ".")
	first, rest, longer := strings.Cut(subject, ".")
	switch {
	case token == ">":
		return true
	case token != "*" && token != first || further != longer:
		return false
	}
	return !further || matches(more, rest)
}

// All pairs of short patterns say what all subjects say that are a little longer.
func TestPatterns(t *testing.T) {
	t.Parallel()
	subjects := lists(4, "a", "b", "c")
	patterns := lists(3, "a", "b", "*", ">")
	for _, one := range patterns {
		for _, other := range patterns {
			covers, overlap := true, false
			for _, subject := range subjects {
				covers = covers && (matches(one, subject) || !matches(other, subject))
				overlap = overlap || matches(one, subject) && matches(other, subject)
			}
			if got := natssubject.Covers(one, other); got != covers {
				t.Errorf("Covers(%q, %q) = %v", one, other, got)
			}
			if got := natssubject.Overlap(one, other); got != overlap {
				t.Errorf("Overlap(%q, %q) = %v", one, other, got)
			}
		}
	}
}
