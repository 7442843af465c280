package journal

import (
	"bytes"
	"time"
)

// Passed is what Follow tells of an entry. Its bytes are valid during the call only.
type Passed struct {
	// At is when it was, in Unix nanoseconds.
	At   int64
	Step Step
	// Route is empty for what happens before a route gets the message, and for confirmations.
	Route []byte
	// ID is the same in all entries of a message: its message ID, of a file that of its first message. Of one that does not
	// come from the gateway it is the place with the broker, or its UUID.
	ID []byte
	// Tenant is there when a message is received and when a route begins with it, and of confirmations; Endpoint, the
	// receiving one, in all entries of what came from the gateway.
	Tenant, Endpoint []byte
	// Attempt counts the attempts of a route, that of the entry included; 0 if the entry does not tell.
	Attempt int
	// Took is how long the sink took, of StepStored.
	Took time.Duration
}

// Mark is a place in the journal. The zero Mark is its beginning.
type Mark struct {
	segment *segment
	offset  int
	added   int64 // entries, until then
}

// Follow calls f with each entry since from, oldest first, and returns the place after the last one, for the next call.
// complete is false if entries were dropped in between. It costs those who add entries nothing, and allocates nothing per entry.
func (j *Journal) Follow(from Mark, f func(*Passed)) (to Mark, complete bool) {
	if j == nil {
		return from, true
	}
	parts, to, complete := j.after(from)
	defer j.release()
	var r raw
	var p Passed
	for _, data := range parts {
		for len(data) > 0 {
			var ok bool
			if data, ok = r.read(data); ok {
				p = r.passed()
				f(&p)
			}
		}
	}
	return to, complete
}

// after returns what came after a place. The caller calls release when it has read it.
func (j *Journal) after(from Mark) (parts [][]byte, to Mark, complete bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.readers++
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

// passed is what followers get of an entry.
func (r *raw) passed() Passed {
	p := Passed{At: r.at, Step: r.step, Route: r.texts[textRoute], Tenant: r.texts[textTenant], Endpoint: r.texts[textEndpoint], Attempt: r.attempt()}
	if p.Step == StepStored {
		p.Took = r.delay()
	}
	switch {
	case r.texts[textMessageIDs] != nil:
		p.ID, _, _ = bytes.Cut(r.texts[textMessageIDs], []byte{','})
	case r.texts[textDelivery] != nil:
		p.ID = r.texts[textDelivery]
	default:
		p.ID = r.texts[textUUID]
	}
	return p
}
