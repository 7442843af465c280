package subscriber

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/duequeue"
)

const (
	// A download is slow if it has run for slowAfter at less than slowRate bytes per
	// second. It goes on, but counts for no slot of the others.
	slowAfter = 250 * time.Millisecond
	slowRate  = 64 << 10
	// A download is abandoned, and retried later, if it has run for hopelessAfter at less
	// than hopelessRate.
	hopelessAfter = time.Minute
	hopelessRate  = 1 << 10
	// maxBadDownloads is how often a payload host may return the wrong bytes before the URI
	// counts as expired.
	maxBadDownloads = 8
	// A payload is gone, and its message is set aside, when maxFreshURIs fresh URIs are refused, or
	// when a fresh one is refused and nothing has helped for goneAfter: the messages behind it wait.
	maxFreshURIs = 3
	goneAfter    = 30 * time.Second
	// probeDownloads is how often one of those that failed is tried while others of them do not
	// end.
	probeDownloads = 2 * time.Second
	// A download that has received nothing is abandoned after stallFactor times what the latest one of its host
	// took, but not before silentAfter, nor before a share of the time for which it has been wanted: its host may
	// need longer for this one.
	stallFactor = 8
	silentAfter = 3 * time.Second
	silentShare = 40
)

// downloadQueue decides which payloads are downloaded when. It is a state machine: no
// goroutine, no clock, no lock, and nothing in it waits. It is guarded by Subscriber.mu.
//
// A download holds a slot only while it makes progress. One that failed is due again after
// its backoff; those that fail or are slow share half as many slots of their own; one whose
// URI has expired needs none until there is a fresh URI. Until then the downloads of a host take
// turns, to find out whether it serves them again.
type downloadQueue struct {
	cfg            PayloadConfig
	ready, failing duequeue.Queue[*download]
	running        []*download // oldest first
	hosts          map[string]*downloadHost
	lastFailing    time.Time // when one of failing was last started
	stale          int       // downloads that need a fresh URI
	arrivals       uint64
}

// download is the download of one payload.
type download struct {
	d     *delivery
	event gateway.Event // of d
	host  *downloadHost
	place duequeue.Entry[*download] // ranked by arrival

	failures   int       // in a row, with whichever URI
	bad        int       // of them with this URI: wrong bytes
	fresh      int       // fresh URIs that were expired
	since      time.Time // it is to be downloaded
	uriAt      time.Time // when the URI came
	goneAt     time.Time // when the payload counts as gone; zero before a fresh URI is refused
	staleSince time.Time
	tried      *string // the URI of the latest attempt
	expired    *string // the latest URI that was found expired
	known      bool    // its message was set aside before

	started time.Time
	bytes   atomic.Int64 // received in this attempt
	blocked atomic.Bool  // waiting for room in the window
	abandon context.CancelFunc
}

// downloadHost is what is known of a payload host.
type downloadHost struct {
	name      string
	took      time.Duration // the latest download that succeeded; zero without any
	downloads int           // of this host that are not finished
	err       error         // of the latest that failed
	served    time.Time     // the latest success
	helped    time.Time     // the latest success with a fresh URI
	notBefore time.Time     // it asked to be left alone until then
	probe     time.Time     // when one whose URI has expired is tried last, of those that wait
}

// downloadResult is the outcome of one attempt.
type downloadResult int

const (
	downloadOK      downloadResult = iota
	downloadFailed                 // worth another attempt with the same URI
	downloadBad                    // wrong bytes
	downloadExpired                // needs a fresh URI
	downloadOver                   // refused permanently, or no longer needed
)

// downloadStep is what follows an attempt.
type downloadStep int

const (
	stepDone     downloadStep = iota // finished, whether it succeeded or not
	stepRetry                        // queued again
	stepRefresh                      // queued again, and needs a fresh URI as of now
	stepGone                         // fresh URIs do not help: set it aside
	stepUnserved                     // no fresh URI came: give it up
)

func newDownloadQueue(cfg PayloadConfig) *downloadQueue {
	return &downloadQueue{cfg: cfg, hosts: make(map[string]*downloadHost)}
}

// giveUpAfter is how long a payload waits for a fresh URI.
func (q *downloadQueue) giveUpAfter() time.Duration { return 2*q.cfg.RefreshEvery + time.Minute }

// add queues the download of d's payload from host. known says that its message was set
// aside before, so that it is worth one attempt.
func (q *downloadQueue) add(now time.Time, d *delivery, host string, known bool) *download {
	h := q.hosts[host]
	if h == nil {
		h = &downloadHost{name: host}
		q.hosts[host] = h
	}
	h.downloads++
	q.arrivals++
	j := &download{d: d, event: d.event, host: h, known: known, since: now, uriAt: now}
	j.place.Item, j.place.Rank = j, q.arrivals
	q.put(j, now)
	return j
}

// next returns a download that is to be started now, or nil. The caller reports its outcome
// by finished, and aborts it if abandon is called.
func (q *downloadQueue) next(now time.Time) *download {
	busy, troubled := 0, 0
	var slowest *download
	for _, j := range q.running {
		switch {
		case j.slow(now):
			troubled++
			if slowest == nil {
				slowest = j
			}
			if j.hopeless(now) {
				j.abandon()
			}
		case j.failures > 0:
			troubled++
		case !j.blocked.Load():
			busy++
		}
	}
	var j *download
	if first := q.ready.Due(now); first != nil && busy < q.cfg.MaxDownloads {
		j = q.firstFair(now, first.Item)
	} else if first := q.failing.Due(now); first != nil && (troubled < max(1, q.cfg.MaxDownloads/2) || now.Sub(q.lastFailing) >= probeDownloads) {
		j = first.Item
	}
	switch {
	case j == nil:
		return nil
	case now.Before(j.host.notBefore):
		q.put(j, j.host.notBefore)
		return q.next(now)
	}
	if len(q.running) >= 4*q.cfg.MaxDownloads {
		// One that is slow makes room, or else one that waits for room in the window behind
		// this one: what is oldest there needs no room.
		for _, other := range q.running {
			if slowest == nil && other.blocked.Load() && other.place.Rank > j.place.Rank {
				slowest = other
			}
		}
		if slowest != nil {
			slowest.abandon()
		}
		return nil
	}
	if j.failures > 0 {
		q.lastFailing = now
	}
	j.place.Remove()
	j.started = now
	j.bytes.Store(0)
	j.tried = j.d.payload.uri.Load()
	q.running = append(q.running, j)
	return j
}

// firstFair returns the download in ready that is next: the first one, unless its tenant or
// its host has its share of the slots already and there is one of another that has not. The
// share is half of the slots: what ails one payload may ail all of its tenant or host.
func (q *downloadQueue) firstFair(now time.Time, first *download) *download {
	tenants, hosts := make(map[string]int), make(map[*downloadHost]int) // slots
	for _, j := range q.running {
		if !j.blocked.Load() && !j.slow(now) {
			tenants[j.d.tenant]++
			hosts[j.host]++
		}
	}
	share := max(1, q.cfg.MaxDownloads/2)
	crowding := func(j *download) (n int) {
		if hosts[j.host] >= share {
			n++
		}
		if tenants[j.d.tenant] >= share {
			n += 2
		}
		return n
	}
	best := crowding(first)
	if best == 0 {
		return first
	}
	for place := range q.ready.All() {
		if j := place.Item; place.DueBy(now) {
			if n := crowding(j); n < best || n == best && place.Sooner(&first.place) {
				first, best = j, n
			}
		}
	}
	return first
}

func (j *download) slow(now time.Time) bool {
	return !j.blocked.Load() && now.Sub(j.started) >= slowAfter && j.below(now, slowRate)
}

func (j *download) hopeless(now time.Time) bool {
	ran := now.Sub(j.started)
	switch {
	case j.blocked.Load():
		return false
	case j.bytes.Load() == 0 && j.host.took > 0: // it answers others
		return ran >= max(silentAfter, stallFactor*j.host.took, min(now.Sub(j.since)/silentShare, hopelessAfter))
	}
	return ran >= hopelessAfter && j.below(now, hopelessRate)
}

func (j *download) below(now time.Time, rate float64) bool {
	return float64(j.bytes.Load()) < rate*now.Sub(j.started).Seconds()
}

// finished takes in the outcome of an attempt. helps reports that fresh URIs are worth asking for soon:
// a fault has ended, or they expire before all of them can be used.
func (q *downloadQueue) finished(now time.Time, j *download, result downloadResult) (step downloadStep, helps bool) {
	q.running = slices.DeleteFunc(q.running, func(other *download) bool { return other == j })
	switch result {
	case downloadOK:
		q.succeeded(now, j)
		q.forget(j)
		return stepDone, q.stale > 0 && (j.failures > 0 || j.expired != nil)
	case downloadOver:
		q.forget(j)
		return stepDone, false
	}
	j.failures++
	if result == downloadBad {
		if j.bad++; j.bad >= maxBadDownloads {
			result = downloadExpired
		}
	}
	if result == downloadExpired && j.tried != j.expired {
		helps = j.host.helped.After(j.uriAt)
		if j.expired != nil && !helps { // else it has only come too late to its turn
			j.fresh++
			if j.goneAt.IsZero() && j.bytes.Load() == 0 { // else the link is slow, or its bytes were wrong
				j.goneAt = now.Add(goneAfter)
			}
		}
		j.expired = j.tried
		switch {
		case j.d.payload.uri.Load() != j.tried:
			q.put(j, now) // a fresh one came in the meantime, and no other comes on this connection
			return stepRetry, false
		case j.known || j.fresh >= maxFreshURIs:
			q.forget(j)
			return stepGone, false
		case j.staleSince.IsZero():
			j.staleSince = now
			q.stale++
		}
		step = stepRefresh
	} else {
		step = stepRetry
	}
	switch {
	case j.staleSince.IsZero():
		// From the start of the attempt: one that hung has waited already.
		q.put(j, later(now, j.started.Add(backoff.Policy(q.cfg.Retry).Delay(j.failures-1))))
	case result == downloadExpired && !j.goneAt.IsZero() && !now.Before(j.goneAt):
		q.forget(j)
		return stepGone, false
	case now.Sub(j.staleSince) >= q.giveUpAfter():
		q.forget(j)
		return stepUnserved, false
	default:
		q.put(j, q.turn(now, j))
	}
	return step, helps
}

// succeeded takes in that the payload of j was downloaded.
func (q *downloadQueue) succeeded(now time.Time, j *download) {
	h := j.host
	if j.failures > 0 { // the URI works again, or the host does: so may others
		q.retryHost(now, h, j.tried == j.expired)
	}
	h.served, h.probe, h.took = now, time.Time{}, max(now.Sub(j.started), 1)
	if j.expired != nil && j.tried != j.expired {
		h.helped = now
	}
}

// turn returns when j, whose URI has expired, is tried again with it: after the others of its host, and in
// time to be found gone, or to be given up.
func (q *downloadQueue) turn(now time.Time, j *download) time.Time {
	at := later(now, j.host.probe).Add(q.cfg.Retry.Max)
	j.host.probe = at
	for _, end := range []time.Time{j.goneAt, j.staleSince.Add(q.giveUpAfter())} {
		if end.After(now) && end.Before(at) {
			at = end
		}
	}
	return at
}

// refreshed makes a download due that has got a fresh URI.
func (q *downloadQueue) refreshed(now time.Time, j *download) {
	j.bad, j.uriAt, j.host.probe = 0, now, time.Time{}
	if !j.staleSince.IsZero() {
		j.staleSince = time.Time{}
		q.stale--
		j.failures = 0 // it did not fail with this one
	}
	if j.place.Queued() {
		q.put(j, now)
	}
}

// retryHost makes the downloads of a host due that wait for their backoff, and, if stale, for fresh URIs.
func (q *downloadQueue) retryHost(now time.Time, h *downloadHost, stale bool) {
	var waiting []*download
	for place := range q.failing.All() {
		if place.Item.host == h && (stale || place.Item.staleSince.IsZero()) {
			waiting = append(waiting, place.Item)
		}
	}
	for _, j := range waiting {
		q.put(j, now)
	}
}

// remove drops a download that is no longer needed.
func (q *downloadQueue) remove(j *download) {
	if j.place.Queued() {
		j.place.Remove()
		q.forget(j)
	}
}

func (q *downloadQueue) forget(j *download) {
	if !j.staleSince.IsZero() {
		j.staleSince = time.Time{}
		q.stale--
	}
	if j.host.downloads--; j.host.downloads == 0 {
		delete(q.hosts, j.host.name)
	}
}

func (q *downloadQueue) put(j *download, at time.Time) {
	if j.failures > 0 {
		q.failing.Put(&j.place, at)
	} else {
		q.ready.Put(&j.place, at)
	}
}

// wake returns when next is to be called again although nothing was added or finished;
// zero for never.
func (q *downloadQueue) wake(now time.Time) (at time.Time) {
	for _, first := range []*duequeue.Entry[*download]{q.ready.First(), q.failing.First()} {
		switch {
		case first == nil:
		case !first.DueBy(now):
			at = earlier(at, first.At())
		default: // until one that runs turns out to be slow
			at = earlier(at, now.Add(slowAfter/2))
		}
	}
	if len(q.running) > 0 { // until one turns out to be hopeless
		at = earlier(at, now.Add(time.Second))
	}
	return at
}
