package journal

import "time"

// Stats tells how full a Journal is, and from when on it is complete.
type Stats struct {
	Entries, Bytes int
	Since          time.Time
}

// Stats returns how full the journal is.
func (j *Journal) Stats() Stats {
	if j == nil {
		return Stats{}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return Stats{Entries: j.entries, Bytes: j.bytes, Since: j.since()}
}
