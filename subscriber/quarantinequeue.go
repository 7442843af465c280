package subscriber

import (
	"crypto/sha256"
	"time"
)

// quarantinePatience is how long the stream waits for room in the quarantine. A store that takes
// longer holds up everybody, and what it is for can as well come again later.
const quarantinePatience = 5 * time.Second

// quarantineState is the state of an event, by its digest.
type quarantineState uint8

const (
	quarantineWaiting quarantineState = iota + 1
	quarantineStored
	quarantineNoticed // the store has a notice of it, but does not accept its body
)

// quarantineQueue decides which records wait to be stored, which events are left with the service
// instead, and which have come before. It is a state machine: no goroutine, no clock, no lock. The
// quarantine owns it.
type quarantineQueue struct {
	cfg     QuarantineConfig
	records []*quarantined // to be stored, in order
	gone    int            // of them: notices of payloads that are gone
	bytes   int64
	failing bool // the latest publish failed
	behind  bool // there was no room for too long, and still is not much
	left    bool // something has been left with the service since it was last asked for
	known   map[[sha256.Size]byte]quarantineState
	recent  [][sha256.Size]byte // ring of stored events, in storage order
	head    int
}

// quarantineAnswer is what becomes of an event that comes.
type quarantineAnswer int

const (
	quarantineKnown quarantineAnswer = iota // it has come before
	quarantineTaken                         // it waits to be stored
	quarantineFull                          // there is no room now
	quarantineLeft                          // it is left with the service
)

func newQuarantineQueue(cfg QuarantineConfig) *quarantineQueue {
	return &quarantineQueue{cfg: cfg, known: make(map[[sha256.Size]byte]quarantineState)}
}

// add takes in r, which has waited for room for so long.
func (q *quarantineQueue) add(r *quarantined, waited time.Duration) quarantineAnswer {
	if q.known[r.digest] != 0 {
		return quarantineKnown
	}
	if !q.hasRoom(r) {
		if q.behind = q.behind || waited >= quarantinePatience; !q.failing && !q.behind {
			return quarantineFull
		}
		q.left = true
		return quarantineLeft
	}
	q.known[r.digest] = quarantineWaiting
	q.records = append(q.records, r)
	q.bytes += int64(len(r.body))
	if r.class == QuarantinePayloadGone {
		q.gone++
	}
	return quarantineTaken
}

// hasRoom reports whether r may wait. The notice of a payload that is gone has room of its own: its message may be open when
// it is delivered again, and then would not come here once more.
func (q *quarantineQueue) hasRoom(r *quarantined) bool {
	if r.class == QuarantinePayloadGone {
		return q.gone < maxGone
	}
	return q.events() == 0 || q.events() < q.cfg.MaxWaiting && q.bytes+int64(len(r.body)) <= q.cfg.MaxWaitingBytes
}

// events returns how many records wait in the room that MaxWaiting bounds.
func (q *quarantineQueue) events() int { return len(q.records) - q.gone }

// first returns the record to be stored next; nil without one.
func (q *quarantineQueue) first() *quarantined {
	if len(q.records) == 0 {
		return nil
	}
	return q.records[0]
}

// stored records what became of the first record, and forgets the oldest of those that it remembers
// beyond their number.
func (q *quarantineQueue) stored(state quarantineState) {
	r := q.records[0]
	q.records[0] = nil
	q.records = q.records[1:]
	q.bytes -= int64(len(r.body))
	if r.class == QuarantinePayloadGone {
		q.gone--
	}
	if q.events() <= q.cfg.MaxWaiting/2 && q.bytes <= q.cfg.MaxWaitingBytes/2 {
		q.behind = false
	}
	q.known[r.digest] = state
	if len(q.recent) < q.cfg.Remember {
		q.recent = append(q.recent, r.digest)
		return
	}
	delete(q.known, q.recent[q.head])
	q.recent[q.head] = r.digest
	q.head = (q.head + 1) % len(q.recent)
}

// takeLeft reports whether something was left with the service that there is room for now.
func (q *quarantineQueue) takeLeft() bool {
	left := q.left
	q.left = false
	return left
}
