package journal

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
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
	var p Passed
	for _, data := range parts {
		for len(data) > 0 {
			var ok bool
			p = Passed{}
			if data, ok = p.read(data); ok {
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

// read reads what append wrote, as far as it is wanted, and returns what follows. What it does not understand is the end.
func (p *Passed) read(data []byte) (rest []byte, ok bool) {
	if len(data) < headSize || int(data[12]) >= len(steps) {
		return nil, false
	}
	p.At = int64(binary.LittleEndian.Uint64(data))
	present := binary.LittleEndian.Uint32(data[8:]) & (1<<numTexts - 1)
	numbers := data[13]
	p.Step = steps[data[12]]
	data = data[headSize:]
	for numbers &^= hasDuplicate; numbers != 0; numbers &= numbers - 1 {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			return nil, false
		}
		data = data[n:]
		switch numbers & -numbers {
		case hasAttempt:
			p.Attempt = int(min(v, math.MaxInt32))
		case hasDelay:
			if p.Step == StepStored {
				p.Took = time.Duration(int64(v>>1) ^ -int64(v&1))
			}
		}
	}
	var uuid, delivery []byte
	for ; present != 0; present &= present - 1 {
		if len(data) == 0 {
			return nil, false
		}
		n, size := uint64(data[0]), 1 // nearly always: a varint of one byte
		if n >= 0x80 {
			if n, size = binary.Uvarint(data); size <= 0 {
				return nil, false
			}
		}
		if n > uint64(len(data)-size) {
			return nil, false
		}
		end := size + int(n)
		value := data[size:end:end]
		data = data[end:]
		switch text(bits.TrailingZeros32(present)) {
		case textRoute:
			p.Route = value
		case textTenant:
			p.Tenant = value
		case textEndpoint:
			p.Endpoint = value
		case textUUID:
			uuid = value
		case textDelivery:
			delivery = value
		case textMessageIDs:
			if p.ID = value; bytes.IndexByte(value, ',') >= 0 {
				p.ID, _, _ = bytes.Cut(value, []byte{','})
			}
		}
	}
	if p.ID == nil {
		if p.ID = delivery; p.ID == nil {
			p.ID = uuid
		}
	}
	return data, true
}
