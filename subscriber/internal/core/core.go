package core

import (
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/duequeue"
)

const (
	// stall is how long the oldest message of a lane may be open before the lane counts as behind. See [tempo.patience].
	stall = time.Second
	// reviewEvery is how often the window is reviewed while it is full, or while something waits for a
	// reconnect.
	reviewEvery = 250 * time.Millisecond
	// reconnectEvery is how often the stream is reconnected at most to get again what was left.
	reconnectEvery = 4 * time.Second
	// recallAfter is how long what was left stays with the service although the node that it was left for
	// has not worked off its share: part of what that has may never be finished. It doubles each time up to maxRecall, so that a
	// fault that lasts costs few reconnects, and what was left comes soon after its end.
	recallAfter = 30 * time.Second
	maxRecall   = 16 * recallAfter
)

// Config configures a [Core].
type Config struct {
	// MaxInFlight is how many messages may be moving, and half of how many may be waiting.
	MaxInFlight int
	// MaxBytes is the same for the bytes of the messages. A message that is larger is opened when nothing
	// else is moving.
	MaxBytes int64
	// MaxUnconfirmed is how many messages may be acked and not confirmed yet.
	MaxUnconfirmed int
	// MaxUnsynced is how many confirmations may wait until what was stored survives a power cut, see [Core.Stored].
	MaxUnsynced int
	// Ordered says that the items of a lane are handed out in their order.
	Ordered bool
	// Recent is how many confirmed messages, and how many that were left, are remembered.
	Recent int
	// RecentFor is how long a confirmed message is remembered.
	RecentFor time.Duration
	// Hold is how long a message with Message.Hold waits for its file, and HoldWhole how long one that is
	// probably no part of one. MaxHeld is how many wait at a time, and how many confirmations of what may be a part.
	Hold, HoldWhole time.Duration
	MaxHeld         int
	// FileTaken says that files come beside their parts: the confirmation of what may be a part waits for its file.
	FileTaken bool
	// Quarantines says that what everybody refuses is acked only once it is in a quarantine.
	Quarantines bool
	// Names returns how the service writes one of the IDs of a message, for as long as its confirmation waits; nil if nothing is
	// ever [Core.Stored].
	Names func(m *Message, index int32) *Names
}

// Core is the state machine. Times are those since it was made; they must not go back.
type Core struct {
	cfg    Config
	window window
	ledger ledger
	files  files
	queue  duequeue.Heap[*Item] // items that wait for their time
	made   uint32               // routes
	left   int                  // messages that were left with the service since the stream was opened

	unsynced
	blocked     bool          // something did not fit; see Effects.Room
	short       bool          // it was a payload
	wasFull     bool          // at the latest review
	reviewAt    time.Duration // the next review; zero if none is due
	wants       bool          // a reconnect, for what was left
	reconnected time.Duration // when the stream was opened, or was to be
	recallAt    time.Duration // when it is opened again in any case for what was left; zero if nothing was
	recallIn    time.Duration // how long after something was left first that is

	leftBehind bool // by a route that ended

	effects Effects
}

// unsynced is what waits until what was stored survives a power cut.
type unsynced struct {
	holds    duequeue.Heap[*Hold]     // confirmations
	filling  map[filling]*Hold        // the latest of those
	held     int                      // how many wait, those included that are asked about
	synced   int                      // that have waited so, and are not confirmed yet
	horizons map[[2]*Horizon]*Horizon // of two at a time
}

// Effects is what has to be done. Their order within a list is that in which they came up.
type Effects struct {
	// Start has items that are handed out: somebody has to handle them, and to call [Core.Done].
	Start []*Item
	// Closed has messages that no route has any longer. Those whose Confirm is not empty are to be confirmed;
	// [Core.Confirmed] has to follow.
	Closed []*Message
	// Confirm has messages of which something is to be confirmed that waited for a file.
	Confirm []*Message
	// Due has confirmations about which somebody has to be asked: [Core.Survives], [Core.NotYet] or [Core.MayBeLost] has to
	// follow for each.
	Due []*Hold
	// Unclaimed has messages for which no file has come, and which are open now.
	Unclaimed []*Message
	// Unmatched counts messages that everybody refused, and Released confirmations that waited for a file and
	// are sent early, because too many do.
	Unmatched, Released int64
	// Overtaken counts items that were nacked when others that came after them in their lane may have been stored.
	Overtaken int64
	// Room says that an event that did not fit may be offered again, and that [Core.Fits] may be asked again.
	Room bool
	// Reconnect says that the stream has to be opened again.
	Reconnect bool
}

// New returns a Core without routes.
func New(cfg Config) *Core {
	c := &Core{cfg: cfg, recallIn: recallAfter}
	c.window.cfg, c.window.tempo.patience = cfg, stall
	c.ledger.init(cfg)
	c.files.init(cfg)
	return c
}

// Effects returns what has to be done since they were last reset. The lists are valid until then.
func (c *Core) Effects() *Effects { return &c.effects }

// Reset forgets the effects, which have been carried out.
func (e *Effects) Reset() {
	clear(e.Start)
	clear(e.Closed)
	clear(e.Confirm)
	clear(e.Unclaimed)
	clear(e.Due)
	*e = Effects{Start: e.Start[:0], Closed: e.Closed[:0], Confirm: e.Confirm[:0], Unclaimed: e.Unclaimed[:0], Due: e.Due[:0]}
}

// Add adds a route, which wants what takes returns true for; that depends on the fields of a message above the line
// only. One that pipelines gets the next item of a lane once [Core.Placed] was called for the one before it. What is
// open already, be it for a route that ended, is given to it when it comes again; wants reports whether there is any. Until then it gets nothing, so that
// nothing comes before it.
func (c *Core) Add(now time.Duration, name string, takes func(*Message) bool, pipelines bool) (r *Route, wants bool) {
	c.made++
	r = &Route{Name: name, number: c.made, takes: takes, pipelines: pipelines && c.cfg.Ordered}
	c.ledger.allOpen(func(m *Message) {
		if takes(m) {
			m.left, wants = true, true
		}
	})
	c.window.addRoute(r)
	if wants {
		r.shut = true
		c.Want(now)
	}
	return r, wants
}

// AddBeside adds a route whose messages nobody else wants, and which gets one at a time. The others share the window as if it was
// not there.
func (c *Core) AddBeside(now time.Duration, takes func(*Message) bool) *Route {
	r, _ := c.Add(now, "", takes, false)
	r.ordered, r.beside = true, true
	r.parent = nil // that it goes on shows nothing about the others
	return r
}

// End ends a route: what it has not acked is left with the service. What it has been handed out stays
// open until Done.
func (c *Core) End(now time.Duration, r *Route) {
	r.ended = true
	for _, it := range r.collect() {
		if it.state == queued || it.state == waiting {
			c.leave(now, it)
			c.leftBehind = true
		} else if c.cfg.MaxInFlight > 1 { // as of what hangs
			c.wait(now, it) // for its handler, which may hang
		}
	}
	c.ledger.forget(r)
	clear(c.horizons) // those of the route are of no use any longer
	clear(c.filling)
	c.window.routes = slices.DeleteFunc(c.window.routes, func(other *Route) bool { return other == r })
	c.askForOthers(now)
}

// askForOthers has what a route that ended has left come again, if there are others: they may have acked it.
func (c *Core) askForOthers(now time.Duration) {
	if c.leftBehind && c.window.shared() > 0 {
		c.Want(now)
	}
	c.leftBehind = false
}

// Connected takes in that the stream was opened: everything that is not confirmed comes again, in order.
func (c *Core) Connected(now time.Duration) {
	c.reconnected = now
	c.wants, c.left, c.recallAt = false, 0, 0
	c.room()
	c.window.reopen()
	c.files.resume(now)
	c.files.renew(now)
}

// Disconnected takes in that nothing comes until [Core.Connected].
func (c *Core) Disconnected(now time.Duration) {
	c.room() // for no event
	c.files.pause(now)
}

// leaves takes in that a message is left with the service. A fault that lasts leaves something soon on each connection.
func (c *Core) leaves(now time.Duration) {
	if c.left++; c.left > 1 {
		return
	}
	if now-c.reconnected >= recallAfter {
		c.recallIn = recallAfter
	}
	c.recallAt = now + c.recallIn
}

// Want asks for a reconnect: the service has something that it does not send by itself.
func (c *Core) Want(now time.Duration) {
	c.wants = true
	c.review(now)
}

// review has the window reviewed soon.
func (c *Core) review(now time.Duration) {
	if c.reviewAt == 0 {
		c.reviewAt = now + reviewEvery
	}
}

// NextWake returns when [Core.Wake] has to be called; zero for never.
func (c *Core) NextWake() (at time.Duration) {
	earliest := func(t time.Duration) {
		if t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	earliest(c.reviewAt)
	if len(c.queue) > 0 {
		earliest(c.queue[0].at)
	}
	if len(c.holds) > 0 {
		earliest(c.holds[0].due)
	}
	earliest(c.files.next())
	earliest(c.recallAt)
	return at
}

// Wake does what is due.
func (c *Core) Wake(now time.Duration) {
	for len(c.queue) > 0 && c.queue[0].at <= now {
		it := c.queue.Take(1)
		it.state = queued
		c.offer(now, it)
	}
	c.wakeHolds(now)
	c.wakeFiles(now)
	if c.recallAt != 0 && now >= c.recallAt {
		c.recallIn = min(2*c.recallIn, maxRecall)
		c.recallAt = 0 // until the next connection, which brings everything
		c.wants, c.reviewAt = true, now
	}
	if c.reviewAt != 0 && c.reviewAt <= now {
		c.reviewAt = 0
		c.lookAt(now)
	}
}

// lookAt is the review.
func (c *Core) lookAt(now time.Duration) {
	if c.wants && now-c.reconnected >= reconnectEvery {
		c.wants = false
		c.reconnected = now // when it cannot be opened is up to whoever opens it
		c.effects.Reconnect = true
		return
	}
	full := c.window.crowded() || c.short || c.blocked
	c.short = false // until somebody asks again
	if full {
		for _, it := range c.window.hung(now) {
			c.wait(now, it)
		}
	}
	if c.window.tooManyWait() || full && c.wasFull {
		for _, it := range c.window.shed(now) {
			c.leave(now, it)
		}
	}
	if c.blocked {
		c.window.excuse()
		c.room()
	}
	c.wasFull = full
	if full || c.blocked || c.wants || c.window.tooManyWait() {
		c.review(now)
	}
}
