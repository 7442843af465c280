// Package journal remembers what became of messages: a bounded record of what happened to each,
// in memory, and the time lines that are made of it.
//
// Of a message it keeps the identities (tenant, endpoint, message and context IDs, UUID), type,
// filename and size, where it was stored, and errors as in the log: no payload, and no other
// metadata.
package journal

import (
	"errors"
	"sync"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/validate"
	"github.com/agrimill/agrimill/router"
)

// Defaults of Config.
const (
	DefaultMaxEntries = 200_000
	DefaultMaxBytes   = 32 << 20
	DefaultMaxAge     = 24 * time.Hour
)

// ErrConfig is matched by the errors of Config.Validate.
var ErrConfig = errors.New("journal: invalid configuration")

// Config bounds a Journal. Whichever bound is reached first, the oldest entries are dropped, up to
// a sixteenth of all at a time.
type Config struct {
	// MaxEntries is how many entries are kept. A message that is stored and confirmed has
	// five. Default 200,000.
	MaxEntries int `yaml:"max_entries"`
	// MaxBytes is how much memory they may take. Default 32 MiB.
	MaxBytes int `yaml:"max_bytes" unit:"bytes"`
	// MaxAge is how long they are kept. Default 24 hours; a negative age keeps nothing, so that
	// New returns nil.
	MaxAge time.Duration `yaml:"max_age" off:"true"`
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time `yaml:"-"`
}

// WithDefaults returns the configuration with its defaults filled in.
func (c Config) WithDefaults() Config {
	c.setDefaults()
	c.Now = nil
	return c
}

// Validate reports every field whose value is not allowed; the error matches [ErrConfig].
func (c Config) Validate() error {
	var e validate.Errors
	validate.NotNegative(&e, "MaxEntries", c.MaxEntries)
	validate.NotNegative(&e, "MaxBytes", c.MaxBytes)
	return e.Err(ErrConfig)
}

func (c *Config) setDefaults() {
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMaxEntries
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.Now == nil {
		c.Now = time.Now
	}
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
	lost     time.Time // the newest entry that was dropped
}

// segment is a part of the journal. Bytes that were written do not change, so who read under
// the lock how many there are may read them without it.
type segment struct {
	data    []byte
	entries int
	last    time.Time
}

// New returns an empty Journal, nil if Config.MaxAge is negative. The error matches [ErrConfig].
func New(cfg Config) (*Journal, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.setDefaults(); cfg.MaxAge < 0 {
		return nil, nil
	}
	return &Journal{cfg: cfg, began: cfg.Now()}, nil
}

// Event records that the event stream delivered an event, perhaps again. It fits
// [subscriber.Hooks].
func (j *Journal) Event(event gateway.Event) {
	if j == nil {
		return
	}
	if e, ok := received(event); ok {
		j.add(&e)
	}
}

// Undeliverable records that a message cannot be delivered for now.
func (j *Journal) Undeliverable(event gateway.Event, err error) {
	if j == nil {
		return
	}
	if e, ok := received(event); ok {
		e.step, e.text = StepUndeliverable, router.RedactError(err, nil)
		j.add(&e)
	}
}

// Confirmed records that the service accepted confirmations.
func (j *Journal) Confirmed(tenantID string, confirmations []gateway.MessageConfirmation) {
	if j == nil {
		return
	}
	for _, c := range confirmations {
		j.add(&entry{step: StepConfirmed, tenant: tenantID, endpoint: c.EndpointID, messageIDs: c.MessageID})
	}
}

// Rejected records that the service will never accept a confirmation.
func (j *Journal) Rejected(tenantID string, c gateway.MessageConfirmation, err error) {
	if j == nil {
		return
	}
	j.add(&entry{
		step: StepRejected, tenant: tenantID, endpoint: c.EndpointID, messageIDs: c.MessageID, text: router.RedactError(err, nil),
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
	var e entry
	if e.routed(&event) {
		o.journal.add(&e)
	}
	if o.next != nil {
		o.next.Observe(event)
	}
}

// add appends an entry.
func (j *Journal) add(e *entry) {
	now := j.cfg.Now()
	e.at = now.UnixNano()
	size, present := e.size()
	j.mu.Lock()
	defer j.mu.Unlock()
	current := j.current(size)
	current.data = e.append(current.data, present)
	current.entries++
	current.last = now
	j.entries++
	j.prune(now)
}

// current returns the segment that has room for so many bytes. The caller holds mu.
func (j *Journal) current(n int) *segment {
	if last := len(j.segments) - 1; last >= 0 {
		s := j.segments[last]
		if len(s.data)+n <= cap(s.data) && s.entries < max(j.cfg.MaxEntries/16, 1) {
			return s
		}
	}
	s := &segment{data: make([]byte, 0, max(min(j.cfg.MaxBytes/16, 256<<10), n))}
	j.segments = append(j.segments, s)
	j.bytes += cap(s.data)
	return s
}

// prune drops what is too much or too old. The caller holds mu.
func (j *Journal) prune(now time.Time) {
	n := 0
	for n < len(j.segments) {
		s := j.segments[n]
		tooMuch := n < len(j.segments)-1 && (j.bytes > j.cfg.MaxBytes || j.entries > j.cfg.MaxEntries)
		if !tooMuch && now.Sub(s.last) <= j.cfg.MaxAge {
			break
		}
		j.bytes -= cap(s.data)
		j.entries -= s.entries
		j.lost = s.last
		n++
	}
	if n > 0 {
		j.segments = append(make([]*segment, 0, len(j.segments)), j.segments[n:]...)
	}
}

// Prune drops what is older than Config.MaxAge. Entries that are added do so too.
func (j *Journal) Prune() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.prune(j.cfg.Now())
}

// Stats tells how full a Journal is.
type Stats struct {
	Entries int `json:"entries"`
	Bytes   int `json:"bytes"`
	// Since is from when on it is complete.
	Since time.Time `json:"since"`
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

// since returns from when on the journal is complete. The caller holds mu.
func (j *Journal) since() time.Time {
	if j.lost.After(j.began) {
		return j.lost
	}
	return j.began
}

// state is the journal at one moment.
type state struct {
	parts  [][]byte
	since  time.Time
	oldest int64 // what is older does not count
}

func (j *Journal) state() state {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.cfg.Now()
	j.prune(now)
	s := state{parts: make([][]byte, len(j.segments)), since: j.since(), oldest: now.Add(-j.cfg.MaxAge).UnixNano()}
	for i, segment := range j.segments {
		s.parts[i] = segment.data
	}
	return s
}

// entries calls f with each entry, oldest first. The entry is valid during the call only.
func (s state) entries(f func(*entry)) {
	for _, data := range s.parts {
		for len(data) > 0 {
			var e entry
			if data = e.read(data); e.at >= s.oldest {
				f(&e)
			}
		}
	}
}
