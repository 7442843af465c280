package content

import (
	"cmp"
	"slices"
)

// span is a time without a gap, in Unix milliseconds.
type span struct{ from, to int64 }

// mostSpans is how many of them are kept of a log or a machine, beyond which nothing is found.
const mostSpans = 1000

// twice says whether the log has the same time twice, or a machine of it was in an earlier one at the same time, and notes when it was in this
// one. Logs that are beside each other may have the second between them both.
func (m *meter) twice() (detail string) {
	const between = 1000
	found := false
	slices.SortFunc(m.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i, s := range m.spans[min(1, len(m.spans)):] {
		if min(m.spans[i].to, s.to)-s.from > between {
			detail = "the same seconds are there twice, because a clock was set back or records are there again: both count"
		}
	}
	for _, at := range m.order {
		known := m.works.busy[at.id]
		rest := known
		for _, s := range m.spans {
			for len(rest) > 0 && rest[0].to <= s.from+between {
				rest = rest[1:]
			}
			found = found || len(rest) > 0 && min(rest[0].to, s.to)-max(rest[0].from, s.from) > between
		}
		if at.device == nil || len(known) >= mostSpans {
			continue // nobody knows which machine it is
		}
		known = slices.Concat(known, m.spans)
		slices.SortFunc(known, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		m.works.busy[at.id] = known
	}
	if found {
		detail = "a machine is in an earlier log in the same seconds, too: what it did then counts in both"
	}
	return detail
}
