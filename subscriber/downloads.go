package subscriber

import (
	"container/heap"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
)

const (
	// A download is slow if it has run for slowAfter at less than slowRate bytes per
	// second. It goes on, but counts for no slot of the others.
	slowAfter = time.Second
	slowRate  = 64 << 10
	// A download is abandoned, and retried later, if it has run for hopelessAfter at less
	// than hopelessRate.
	hopelessAfter = time.Minute
	hopelessRate  = 1 << 10
	// maxBadDownloads is how often a payload host may return the wrong bytes before the URI
	// counts as expired.
	maxBadDownloads = 8
	// maxFreshURIs is how many fresh URIs of a payload may turn out to be expired before its
	// message is set aside.
	maxFreshURIs = 3
	// probeDownloads is how often one of those that failed is tried while others of them do not
	// end.
	probeDownloads = 2 * time.Second
	// A download that has received nothing is abandoned if another one of its host, started
	// later, took less than a stallFactor-th of the time, and after silentAfter if the host
	// has served others.
	stallFactor = 8
	silentAfter = 3 * time.Second
	// hostDownAfter is how many failures in a row are the host's.
	hostDownAfter = 3
)

// downloadQueue decides which payloads are downloaded when. It is a state machine: no
// goroutine, no clock, no lock, and nothing in it waits. It is guarded by Subscriber.mu.
//
// A download holds a slot only while it makes progress. One that failed is due again after
// its backoff; those that fail or are slow share half as many slots of their own; one whose
// URI has expired needs none until there is a fresh URI, and is only tried from time to time.
type downloadQueue struct {
	slots          int
	retry          backoff.Policy
	giveUpAfter    time.Duration // without a fresh URI
	ready, failing downloadHeap
	running        []*download // oldest first
	hosts          map[string]*downloadHost
	lastFailing    time.Time // when one of failing was last started
	stale          int       // downloads that need a fresh URI
	arrivals       uint64
}

// download is the download of one payload.
type download struct {
	d       *delivery
	host    *downloadHost
	arrival uint64

	failures   int // in a row, with whichever URI
	bad        int // of them with this URI: wrong bytes
	fresh      int // fresh URIs that were expired
	staleSince time.Time
	tried      *string // the URI of the latest attempt
	expired    *string // the latest URI that was found expired
	known      bool    // its message was set aside before

	started time.Time
	bytes   atomic.Int64 // received in this attempt
	blocked atomic.Bool  // waiting for room in the window
	abandon context.CancelFunc

	at    time.Time
	heap  *downloadHeap
	index int
}

// downloadHost is what is known of a payload host.
type downloadHost struct {
	name      string
	took      time.Duration // the latest download that succeeded; zero without any
	downloads int           // of this host that are not finished
	failures  int           // in a row
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
	stepGone                         // every fresh URI was expired: set it aside
	stepUnserved                     // no fresh URI came: give it up
)

func newDownloadQueue(cfg PayloadConfig) *downloadQueue {
	return &downloadQueue{
		slots: cfg.MaxDownloads, retry: backoff.Policy{Initial: cfg.Retry.Initial, Max: cfg.Retry.Max},
		giveUpAfter: 2*cfg.RefreshEvery + time.Minute,
		hosts:       make(map[string]*downloadHost),
	}
}

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
	j := &download{d: d, host: h, arrival: q.arrivals, at: now, known: known, index: -1}
	q.push(j)
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
	var from *downloadHeap
	place := 0
	switch {
	case q.ready.due(now) && busy < q.slots:
		from, place = &q.ready, q.firstFair(now)
	case q.failing.due(now) && (troubled < max(1, q.slots/2) || now.Sub(q.lastFailing) >= probeDownloads):
		from = &q.failing
		q.lastFailing = now
	default:
		return nil
	}
	if len(q.running) >= 4*q.slots {
		// One that is slow makes room, or else one that waits for room in the window behind
		// this one: what is oldest there needs no room.
		for _, j := range q.running {
			if slowest == nil && j.blocked.Load() && j.arrival > (*from)[place].arrival {
				slowest = j
			}
		}
		if slowest != nil {
			slowest.abandon()
		}
		return nil
	}
	j := heap.Remove(from, place).(*download)
	j.heap = nil
	j.started = now
	j.bytes.Store(0)
	j.tried = j.d.payload.uri.Load()
	q.running = append(q.running, j)
	return j
}

// firstFair returns the index of the download in ready that is next: the first one, unless
// its host is failing and has half of the slots already, and there is one of another host.
func (q *downloadQueue) firstFair(now time.Time) int {
	h := q.ready[0].host
	if h.failures < hostDownAfter {
		return 0
	}
	running := 0
	for _, j := range q.running {
		if j.host == h && !j.slow(now) {
			running++
		}
	}
	if running < max(1, q.slots/2) {
		return 0
	}
	first := 0
	for i, j := range q.ready {
		if j.host != h && !j.at.After(now) && (first == 0 || q.ready.Less(i, first)) {
			first = i
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
		return ran >= max(silentAfter, stallFactor*j.host.took)
	}
	return ran >= hopelessAfter && j.below(now, hopelessRate)
}

func (j *download) below(now time.Time, rate float64) bool {
	return float64(j.bytes.Load()) < rate*now.Sub(j.started).Seconds()
}

// finished takes in the outcome of an attempt.
func (q *downloadQueue) finished(now time.Time, j *download, result downloadResult) (step downloadStep, recovered bool) {
	q.running = slices.DeleteFunc(q.running, func(other *download) bool { return other == j })
	switch result {
	case downloadOK:
		// A host, or a URI, that failed works again: so may others.
		recovered = j.failures > 0 && q.stale > 0
		if j.failures > 0 || j.host.failures >= hostDownAfter {
			q.retryHost(now, j.host)
		}
		j.host.failures = 0
		took := max(now.Sub(j.started), slowAfter/stallFactor)
		j.host.took = took
		for _, other := range q.running {
			if other.host == j.host && other.bytes.Load() == 0 && !other.blocked.Load() && now.Sub(other.started) > stallFactor*took {
				other.abandon()
			}
		}
		q.forget(j)
		return stepDone, recovered && q.stale > 0
	case downloadOver:
		q.forget(j)
		return stepDone, false
	}
	j.failures++
	j.host.failures++
	if result == downloadBad {
		if j.bad++; j.bad >= maxBadDownloads {
			result = downloadExpired
		}
	}
	j.at = now.Add(q.retry.Delay(j.failures - 1))
	step = stepRetry
	if result == downloadExpired && j.tried != j.expired {
		if j.expired != nil {
			j.fresh++
		}
		j.expired = j.tried
		if j.known || j.fresh >= maxFreshURIs {
			q.forget(j)
			return stepGone, false
		}
		if j.d.payload.uri.Load() != j.tried {
			j.at = now // a fresh one came in the meantime
		} else {
			if j.staleSince.IsZero() {
				j.staleSince = now
				q.stale++
			}
			step = stepRefresh
		}
	}
	if !j.staleSince.IsZero() && now.Sub(j.staleSince) >= q.giveUpAfter {
		q.forget(j)
		return stepUnserved, false
	}
	q.push(j)
	return step, false
}

// refreshed makes a download due that has got a fresh URI.
func (q *downloadQueue) refreshed(now time.Time, j *download) {
	j.bad = 0
	if !j.staleSince.IsZero() {
		j.staleSince = time.Time{}
		q.stale--
	}
	if j.heap != nil {
		j.at = now
		heap.Fix(j.heap, j.index)
	}
}

// retryHost makes the downloads of a host due that wait for their backoff.
func (q *downloadQueue) retryHost(now time.Time, h *downloadHost) {
	for _, j := range slices.Clone(q.failing) {
		if j.host == h {
			j.at = now
			heap.Fix(&q.failing, j.index)
		}
	}
}

// remove drops a download that is no longer needed.
func (q *downloadQueue) remove(j *download) {
	if j.heap != nil {
		heap.Remove(j.heap, j.index)
		j.heap = nil
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

func (q *downloadQueue) push(j *download) {
	j.heap = &q.ready
	if j.failures > 0 {
		j.heap = &q.failing
	}
	heap.Push(j.heap, j)
}

// wake returns when next is to be called again although nothing was added or finished;
// zero for never.
func (q *downloadQueue) wake(now time.Time) (at time.Time) {
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, h := range []downloadHeap{q.ready, q.failing} {
		switch {
		case len(h) == 0:
		case h[0].at.After(now):
			earliest(h[0].at)
		default: // until one that runs turns out to be slow
			earliest(now.Add(slowAfter / 4))
		}
	}
	if len(q.running) > 0 { // until one turns out to be hopeless
		earliest(now.Add(slowAfter))
	}
	return at
}

// downloadHeap is a heap of downloads by the time at which they are due.
type downloadHeap []*download

func (h downloadHeap) due(now time.Time) bool { return len(h) > 0 && !h[0].at.After(now) }

func (h downloadHeap) Len() int { return len(h) }
func (h downloadHeap) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].arrival < h[j].arrival
}
func (h downloadHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *downloadHeap) Push(x any) {
	j := x.(*download)
	j.index = len(*h)
	*h = append(*h, j)
}

// Pop implements heap.Interface.
func (h *downloadHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	last.index = -1
	return last
}
