package content

import (
	"cmp"
	"slices"
)

// span is a time without a gap, in Unix milliseconds.
type span struct{ from, to int64 }

// mostSpans is how many of them are kept of a log, mostBusy of all machines, beyond which nothing is found.
const (
	mostSpans = 1000
	mostBusy  = 100 * mostSpans
)

// twice says whether the log has the same time twice, or a machine of it was in an earlier one at the same time, and notes when it was in this one.
func (m *meter) twice() (detail string) {
	found := false
	slices.SortFunc(m.spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i, s := range m.spans[min(1, len(m.spans)):] {
		if meet(m.spans[i:i+1], []span{s}) {
			detail = "the same seconds are there twice, because a clock was set back or records are there again: both count"
		}
	}
	for _, at := range m.order {
		known := m.works.busy[at.id]
		found = found || meet(known, m.spans)
		if at.device == nil || m.works.spans+len(m.spans) > mostBusy {
			continue // nobody knows which machine it is
		}
		m.works.spans += len(m.spans)
		known = slices.Concat(known, m.spans)
		slices.SortFunc(known, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		m.works.busy[at.id] = known
	}
	if found {
		detail = "a machine is in an earlier log in the same seconds, too: what it did then counts in both"
	}
	return detail
}

// meet reports whether spans have time in common. Logs that are beside each other may have the second between them both.
func meet(a, b []span) bool {
	const between = 1000
	for len(a) > 0 && len(b) > 0 {
		if min(a[0].to, b[0].to)-max(a[0].from, b[0].from) > between {
			return true
		}
		if a[0].to < b[0].to {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return false
}
