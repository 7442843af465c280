package subscriber

import (
	"encoding/binary"
	"regexp"
	"time"

	"github.com/zeebo/xxh3"
)

// fileWait is how long the confirmation of what may be a chunk waits for its file.
const fileWait = 10 * time.Second

// fileWaits are the confirmations that wait for a file, oldest first: once all chunks of a
// file are confirmed, the service takes the file for confirmed as well, and never delivers it
// again. They are part of the ledger.
type fileWaits struct {
	items    []fileWaiting // some may have been claimed by a file since
	n        int           // that still wait
	max      int
	released int64     // early, because there were too many
	clock    holdClock // stands still while the file may be the next event on the stream
}

// fileWaiting is the identity of one of them.
type fileWaiting struct {
	entry                     entryRef
	at                        time.Duration // that of the entry
	since                     time.Time     // on the clock
	tenant, endpoint, message string
}

// wait makes the confirmation of the i-th message of d wait for a file.
func (l *ledger) wait(now time.Time, ref entryRef, d *delivery, i int) {
	w := &l.waiting
	if len(w.items) >= 2*max(w.max, w.n) { // many of them were claimed
		items := make([]fileWaiting, 0, w.max+1)
		for _, item := range w.items {
			if l.waits(item) {
				items = append(items, item)
			}
		}
		w.items = items
	}
	e := &l.entries[ref.slot]
	e.state, e.at = stateWaiting, now.Sub(l.began)
	w.items = append(w.items, fileWaiting{ref, e.at, w.clock.now(now), d.tenant, d.endpoint, d.message(i)})
	w.n++
}

// unwait is called when e, which may be waiting, is claimed by a file or left.
func (l *ledger) unwait(e *messageEntry) {
	if e.state == stateWaiting {
		l.waiting.n--
	}
}

func (l *ledger) waits(item fileWaiting) bool {
	e := l.get(item.entry)
	return e != nil && e.state == stateWaiting && e.at == item.at
}

// nextDue returns when due is to be called; zero if nothing waits, or while the clock stands
// still.
func (l *ledger) nextDue(now time.Time) time.Time {
	w := &l.waiting
	switch {
	case w.n == 0:
		return time.Time{}
	case w.n > w.max:
		return now
	case w.clock.stopped():
		return time.Time{}
	}
	return now.Add(w.items[0].since.Add(fileWait).Sub(w.clock.now(now)))
}

// due returns confirmations that have waited long enough, all of one tenant, and those that
// are too many. It is to be called until it returns none.
func (l *ledger) due(now time.Time) (tenant string, items []confirmation) {
	w := &l.waiting
	for len(w.items) > 0 {
		first := w.items[0]
		if l.waits(first) {
			over := w.n > w.max
			if !over && w.clock.now(now).Sub(first.since) < fileWait || len(items) > 0 && first.tenant != tenant {
				break
			}
			if over {
				w.released++
			}
			w.n--
			e := &l.entries[first.entry.slot]
			if l.settle(now, first.entry) {
				e.state = stateConfirming
				delete(l.ackedBy, e.key)
				tenant = first.tenant
				items = append(items, confirmation{entry: first.entry, endpoint: first.endpoint, message: first.message})
			}
		}
		w.items[0] = fileWaiting{}
		w.items = w.items[1:]
	}
	return tenant, items
}

// pause stops the clock of what waits for files: intake waits for room, or there is no stream.
func (l *ledger) pause(now time.Time) { l.waiting.clock.stop(now) }

// resume starts it again. With anew, everything has its whole time once more: the stream
// begins again with what was not confirmed.
func (l *ledger) resume(now time.Time, anew bool) {
	w := &l.waiting
	w.clock.start(now)
	if anew {
		l.connected = now.Sub(l.began)
		for i := range w.items {
			w.items[i].since = w.clock.now(now)
		}
	}
}

// families knows which payloads came in several messages: they have their receiver and the
// sender's context ID in common. It remembers about familySets*familyWays of them, and tells
// them apart by hashes: to take a message for a chunk only delays its confirmation.
type families struct{ sets [][familyWays]familySeen }

const familySets, familyWays = 1 << 12, 8

type familySeen struct {
	family  family
	message uint64
	several bool
}

// family is the hash of what the chunks of a payload have in common.
type family uint64

func newFamily(k messageKey, contextID string) family {
	return family(xxh3.HashStringSeed(familyContext(contextID), binary.LittleEndian.Uint64(k[8:16])))
}

// numberedContext is the context ID of a payload with the number of a chunk.
var numberedContext = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}-[0-9]{1,9}$`)

// familyContext returns what the context IDs of the chunks of a payload have in common: all of
// it, except that some senders append a number to their UUID.
func familyContext(id string) string {
	const uuidLen = 36
	if len(id) > uuidLen && numberedContext.MatchString(id) {
		return id[:uuidLen]
	}
	return id
}

// add records that message k of family f has arrived.
func (s *families) add(f family, k messageKey) {
	if s.sets == nil {
		s.sets = make([][familyWays]familySeen, familySets)
	}
	set := &s.sets[f%familySets]
	message := binary.LittleEndian.Uint64(k[16:24]) ^ binary.LittleEndian.Uint64(k[24:32])
	seen := familySeen{family: f, message: message}
	at := familyWays - 1
	for i := range set {
		if set[i].family == f {
			seen.several = set[i].several || set[i].message != message
			at = i
			break
		}
	}
	copy(set[1:at+1], set[:at])
	set[0] = seen
}

// several reports whether more than one message of the family has arrived.
func (s *families) several(f family) bool {
	if s.sets == nil {
		return false
	}
	for _, seen := range s.sets[f%familySets] {
		if seen.family == f {
			return seen.several
		}
	}
	return false
}
