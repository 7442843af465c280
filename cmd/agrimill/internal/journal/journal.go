// Package journal remembers what became of messages: a bounded record of what happened to each,
// in memory and, if wanted, in a file, and the time lines that are made of it.
//
// Of a message it keeps the identities (tenant, endpoint, message and context IDs, UUID), type,
// filename and size, where it was stored, and errors as in the log: no payload, and no other
// metadata.
package journal

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

// Defaults of Config.
const (
	DefaultMaxBytes = 32 << 20
	DefaultMaxAge   = 24 * time.Hour
)

var (
	// ErrConfig is matched by the errors of Config.Validate.
	ErrConfig = errors.New("journal: invalid configuration")
	// ErrInUse is matched by the error of Journal.Err and Look if another process has the file.
	ErrInUse = errors.New("the file is open in another process")
)

// Config bounds a Journal. Whichever bound is reached first, the oldest entries are dropped, up to
// a sixteenth of all at a time.
type Config struct {
	// MaxBytes is how much memory they may take. Default 32 MiB.
	MaxBytes int `yaml:"max_bytes" unit:"bytes"`
	// MaxAge is how long they are kept. Default 24 hours; a negative age keeps nothing, so that
	// New returns nil.
	MaxAge time.Duration `yaml:"max_age" off:"true"`
	// Path is a file (bbolt) that keeps the journal over restarts; its directory must exist. It gets what happened
	// once a second, holds the same bounds, and is always in memory as well. One process can have it. Empty means
	// none.
	Path string `yaml:"path"`
	// Failed is called when the file cannot be written, once until it can, and when it was damaged and replaced. It must not
	// block. Nil means that nobody is told.
	Failed func(error) `yaml:"-"`
	// Routes returns the routes that messages from the gateway may take, so that a trace tells which of them never
	// saw a message. Nil means that nothing is said of them.
	Routes func() []Route `yaml:"-"`
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	return c
}

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	return e.Err(ErrConfig)
}

func (c *Config) setDefaults() {
	c.MaxBytes, c.MaxAge = cmp.Or(c.MaxBytes, DefaultMaxBytes), cmp.Or(c.MaxAge, DefaultMaxAge)
}

// Route is a route from the gateway.
type Route struct {
	Name string
	// Topic is what it takes.
	Topic string
	// Takes reports whether it takes such events.
	Takes func(event gateway.EventType, messageType string) bool
}

// Journal is a record of what happened. Its methods are safe for concurrent use; those that
// record neither block nor fail, and all of them do nothing if it is nil.
type Journal struct {
	cfg   Config
	began time.Time

	mu       sync.Mutex
	segments []*segment // oldest first
	bytes    int
	entries  int
	pruneAt  int64 // when something may be too old, Unix nanoseconds
	file     *file // nil: none
	failure  error // see Err
	added    int64 // entries, since New
	opened   Mark  // behind what the file had
	lost     int64 // when the newest entry was written that was dropped, Unix nanoseconds
}

// segment is a part of the journal. Bytes that were written do not change, so who read under the lock how many there are may
// read them without it.
type segment struct {
	data    []byte
	entries int
	last    int64 // Unix nanoseconds

	saved   int    // bytes that the file has
	first   uint64 // chunk of the file; 0: it has none
	dropped bool
}

// New returns a Journal, empty or with what Config.Path has, nil if Config.MaxAge is negative. A file that cannot be opened now
// is opened later. The error matches [ErrConfig], or is that of a path that cannot be a file. With a file it has to be closed.
func New(cfg Config) (*Journal, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.setDefaults(); cfg.MaxAge < 0 {
		return nil, nil
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	j := &Journal{cfg: cfg, began: cfg.Now()}
	if cfg.Path != "" {
		if err := j.openFile(); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// Event records that the event stream delivered an event, perhaps again. It fits
// [subscriber.Hooks].
func (j *Journal) Event(event gateway.Event) { j.received(event, StepReceived, "") }

// Undeliverable records that a message cannot be delivered for now.
func (j *Journal) Undeliverable(event gateway.Event, err error) {
	j.received(event, StepUndeliverable, router.RedactError(err, nil))
}

func (j *Journal) received(event gateway.Event, what Step, reason string) {
	var r record
	if r.received(event, what, reason) {
		j.add(&r)
	}
}

// ofSubscriber has what the kinds of Progress are; 0 if they are not recorded.
var ofSubscriber = [...]Step{
	subscriber.ProgressHeld: StepHeld, subscriber.ProgressJoined: StepJoined, subscriber.ProgressFetched: StepFetched,
	subscriber.ProgressUntaken: StepUntaken, subscriber.ProgressUnclaimed: StepUnclaimed,
}

// Progress records what happened to a message before a route got it.
func (j *Journal) Progress(p subscriber.Progress) {
	var r record
	if int(p.Kind) >= len(ofSubscriber) || ofSubscriber[p.Kind] == 0 || !r.received(p.Event, ofSubscriber[p.Kind], "") {
		return
	}
	if p.Kind == subscriber.ProgressFetched {
		r.bytes = p.Bytes
	}
	j.add(&r)
}

// Confirmed records that the service accepted confirmations.
func (j *Journal) Confirmed(tenantID string, confirmations []gateway.MessageConfirmation) {
	for i := range confirmations {
		var r record
		r.confirmation(StepConfirmed, tenantID, &confirmations[i], "")
		j.add(&r)
	}
}

// Rejected records that the service will never accept a confirmation.
func (j *Journal) Rejected(tenantID string, c gateway.MessageConfirmation, err error) {
	var r record
	r.confirmation(StepRejected, tenantID, &c, router.RedactError(err, nil))
	j.add(&r)
}

// Lost records that a broker does not have any longer what it had acknowledged from a place on, up to this sequence of the stream or
// offset of the partition: each message that was stored there last, by a route for which by returns true.
func (j *Journal) Lost(from Location, last uint64, by func(route string, poisoned bool) bool) {
	if j == nil {
		return
	}
	now, first := j.state(), from.Sequence+uint64(from.Offset)
	each := func(f func(at uint64, e *Entry)) {
		now.entries(func(e *Entry) {
			at := e.numbers[numberSequence] + uint64(e.signed(numberOffset))
			if first > at || at > last || string(e.texts[textStream]) != from.Stream || string(e.texts[textTopic]) != from.Topic ||
				int32(e.signed(numberPartition)) != from.Partition {
				return
			}
			poisoned := e.Step == StepPoisoned || e.Step == StepLost && e.text(textClass) != "" // which only that has
			if by(e.text(textRoute), poisoned) {                                                // another broker may have the same place
				f(at, e)
			}
		})
	}
	latest := map[uint64]int64{} // if it was lost before, that
	each(func(at uint64, e *Entry) { latest[at] = e.At })
	each(func(at uint64, e *Entry) {
		if e.Step != StepLost && e.At == latest[at] {
			var r record
			r.lost(e)
			j.add(&r)
		}
	})
}

// Observer returns an observer that records what happens on the routes and passes it on to next,
// which may be nil.
func (j *Journal) Observer(next router.Observer) router.Observer {
	if j == nil {
		return next
	}
	return observer{j, next}
}

type observer struct {
	journal *Journal
	next    router.Observer
}

// Observe implements router.Observer.
func (o observer) Observe(event router.Event) {
	var r record
	if r.routed(&event) {
		o.journal.add(&r)
	}
	if o.next != nil {
		o.next.Observe(event)
	}
}

func (j *Journal) add(r *record) {
	if j == nil {
		return
	}
	room := r.room()
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.cfg.Now().UnixNano()
	current := j.current(room)
	if current == nil {
		if size := j.size(room); j.bytes+size > j.cfg.MaxBytes {
			j.prune(now, size)
		}
		current = j.begin(room)
	}
	current.data = r.append(current.data, now)
	current.entries++
	current.last = now
	j.entries++
	j.added++
	if j.bytes > j.cfg.MaxBytes || now > j.pruneAt {
		j.prune(now, 0)
	}
}

// current returns the segment that has room for so many bytes; nil if there is none. The caller holds mu.
func (j *Journal) current(n int) *segment {
	if last := len(j.segments) - 1; last >= 0 {
		if s := j.segments[last]; len(s.data)+n <= cap(s.data) {
			return s
		}
	}
	return nil
}

// size is that of a new segment for an entry of so many bytes.
func (j *Journal) size(n int) int { return max(min(j.cfg.MaxBytes/16, 256<<10), n) }

// begin begins a segment with room for so many bytes. The caller holds mu.
func (j *Journal) begin(n int) *segment {
	s := &segment{data: make([]byte, 0, j.size(n))}
	j.segments = append(j.segments, s)
	j.bytes += cap(s.data)
	return s
}

// prune drops what is too much, if so many bytes are to be added, or too old. The caller holds mu.
func (j *Journal) prune(now int64, room int) {
	n := 0
	for n < len(j.segments) {
		s := j.segments[n]
		tooMuch := n < len(j.segments)-1 && j.bytes+room > j.cfg.MaxBytes
		if !tooMuch && now-s.last <= int64(j.cfg.MaxAge) {
			break
		}
		j.bytes -= cap(s.data)
		j.entries -= s.entries
		j.lost = max(j.lost, s.last)
		s.dropped = true
		n++
	}
	if n > 0 {
		j.segments = append(make([]*segment, 0, len(j.segments)), j.segments[n:]...)
	}
	j.pruneAt = now + int64(min(j.cfg.MaxAge, time.Second))
}

// Prune drops what is older than Config.MaxAge. Entries that are added do so too.
func (j *Journal) Prune() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.prune(j.cfg.Now().UnixNano(), 0)
}

// since returns from when on the journal is complete. The caller holds mu.
func (j *Journal) since() time.Time {
	if lost := time.Unix(0, j.lost); lost.After(j.began) {
		return lost
	}
	return j.began
}

type state struct {
	parts  [][]byte
	since  time.Time
	oldest int64 // what is older does not count
}

func (j *Journal) state() state {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.cfg.Now().UnixNano()
	j.prune(now, 0)
	s := state{parts: make([][]byte, len(j.segments)), since: j.since(), oldest: now - int64(j.cfg.MaxAge)}
	for i, segment := range j.segments {
		s.parts[i] = segment.data
	}
	return s
}

// entries calls f with each entry, oldest first. It is valid during the call only.
func (s state) entries(f func(*Entry)) {
	each(s.parts, func(e *Entry) {
		if e.At >= s.oldest {
			f(e)
		}
	})
}

func each(parts [][]byte, f func(*Entry)) {
	var e Entry
	for _, data := range parts {
		for len(data) > 0 {
			var ok bool
			if data, ok = e.read(data); ok {
				f(&e)
			}
		}
	}
}
