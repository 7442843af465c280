package journal

// Mark is a place in the journal. The zero Mark is where this process began: behind what the file had.
type Mark struct {
	segment *segment
	offset  int
	added   int64 // entries, until then
}

// Follow calls f with each entry since from, oldest first, and returns the place after the last one, for the next call.
// complete is false if entries were dropped in between. It costs those who add entries nothing, and allocates nothing per entry.
func (j *Journal) Follow(from Mark, f func(*Entry)) (to Mark, complete bool) {
	if j == nil {
		return from, true
	}
	parts, to, complete := j.after(from)
	each(parts, f)
	return to, complete
}

func (j *Journal) after(from Mark) (parts [][]byte, to Mark, complete bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if from.segment == nil {
		from.segment, from.offset = j.opened.segment, j.opened.offset
	}
	complete = j.added-int64(j.entries) <= from.added
	passed := from.segment != nil && !from.segment.dropped // the segments up to that of the mark were read
	to = Mark{added: j.added}
	for _, s := range j.segments {
		offset := 0
		if passed {
			if s != from.segment {
				continue
			}
			offset, passed = from.offset, false
		}
		parts = append(parts, s.data[offset:])
		to.segment, to.offset = s, len(s.data)
	}
	return parts, to, complete
}
