package content

import (
	"cmp"
	"slices"
)

// span is a time without a gap, in Unix milliseconds.
type span struct{ from, to int64 }

// mostSpans is how many of them are kept of a log or a machine, beyond which nothing is found.
const mostSpans = 1000

// twice reports whether a machine of the log was in an earlier one at the same time, and notes when it was in this one. Logs that are
// beside each other may have the second between them both.
func (m *meter) twice() (found bool) {
	const between = 1000
	slices.SortFunc(m.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
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
	return found
}
