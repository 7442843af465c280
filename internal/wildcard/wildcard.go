// Package wildcard has texts in which * matches any characters, including none, and ? exactly one.
package wildcard

import (
	"regexp"
	"slices"
	"strings"
)

// Patterns are such texts. Unlike those of path.Match they have no other special characters: brackets and slashes are legal in
// message types and file names.
type Patterns []*regexp.Regexp

// New compiles texts. The flag i ignores case.
func New(flags string, texts ...string) Patterns {
	list := make(Patterns, len(texts))
	for i, text := range texts {
		pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(strings.ToValidUTF8(text, "\uFFFD")))
		list[i] = regexp.MustCompile("(?s" + flags + ")^(?:" + pattern + ")$") // quoted, so it is valid
	}
	return list
}

// Match reports whether all of a value matches one of the patterns, or there are none.
func (p Patterns) Match(value string) bool {
	return len(p) == 0 || slices.ContainsFunc(p, func(one *regexp.Regexp) bool { return one.MatchString(value) })
}
