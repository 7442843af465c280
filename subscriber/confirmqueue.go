package subscriber

import (
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/duequeue"
	"github.com/agrimill/agrimill/internal/reminders"
)

const (
	// lateAfter is how long a request may go unanswered before it no longer takes the slot of a
	// tenant that is served. There may be so many late ones that all requests are lateFactor times
	// ConfirmConfig.MaxRequests.
	lateAfter  = 250 * time.Millisecond
	lateFactor = 4
	// A request is abandoned after a multiple of the latency that was seen last, within
	// these bounds, and after firstPatience where none was seen yet. Confirmations are
	// idempotent, so a request that was answered too late is merely repeated. Two that are lost in a row are over
	// within the second after which the core counts a tenant as behind.
	minPatience    = 400 * time.Millisecond
	firstPatience  = 2 * time.Second
	maxPatience    = 30 * time.Second
	patienceFactor = 8
	// splitAfter is how often a batch has to fail before it is split: something in it may not pass.
	// What is split in vain is joined again by the next success.
	splitAfter = 3
	// waitReported is after how long a tenant's wait is logged.
	waitReported = 10 * time.Second
)

// confirmQueue decides which confirmations go into which request, and when. It is a
// state machine: no goroutine, no clock, no lock, and nothing in it waits. It is guarded by
// Subscriber.mu.
//
// What a tenant's confirmations wait for never keeps those of another waiting: a tenant
// has one request under way; tenants that fail, and those whose requests are late, have slots of
// their own; and a tenant that waits is in a queue, not in a slot.
type confirmQueue struct {
	cfg     ConfirmConfig
	tenants map[string]*tenantConfirmations
	// served and failing hold the tenants that have something to send and no request under way, by the
	// time at which they may.
	served, failing duequeue.Queue[*tenantConfirmations]
	flights         []*confirmBatch // under way, oldest first
	closing         bool
	patience        time.Duration // of tenants that were not seen yet
	failures        int           // in a row, of whichever tenant
	probe           time.Time     // when the next request may be sent in an outage
}

// tenantConfirmations are the confirmations of one tenant. One without an ID has those whose tenant is not known:
// its requests are lookups.
type tenantConfirmations struct {
	key, tenant string
	batches     []*confirmBatch // those that wait, the newest last
	flight      *confirmBatch   // under way; nil if none is
	size        int             // confirmations in all of these

	patience     time.Duration // how long its requests may take
	failures     int           // in a row
	since        time.Time     // of the first of them
	err          error         // of the latest
	reported     int
	refusedSince time.Time // when the service first did; zero after a success
	notBefore    time.Time // its own backoff

	place duequeue.Entry[*tenantConfirmations]
}

// confirmBatch is what goes into one request.
type confirmBatch struct {
	t            *tenantConfirmations
	items        []confirmation
	since        time.Time // when the oldest was added
	due          time.Time
	started      time.Time // when it was sent last; nothing is added to it any longer
	fails        int       // in a row
	refusedSince time.Time // zero while the service did not refuse it
}

// confirmAnswer classifies the answer to a request.
type confirmAnswer int

const (
	answerOK        confirmAnswer = iota
	answerFailed                  // none, or one that says nothing about the confirmations
	answerTimeout                 // none in time
	answerInvalid                 // one of the confirmations is to blame, and will always be
	answerTooLarge                // fewer may pass
	answerRefused                 // the service refuses the tenant
	answerForbidden               // the same, but it may refuse everybody
)

func newConfirmQueue(cfg ConfirmConfig) *confirmQueue {
	return &confirmQueue{cfg: cfg, tenants: make(map[string]*tenantConfirmations), patience: firstPatience}
}

// add queues confirmations of a tenant; key is its ID in lower case. It reports whether that may change
// what next and wake return: not if they only join a batch that is still not full.
func (q *confirmQueue) add(now time.Time, key, tenant string, items ...confirmation) (changed bool) {
	if len(items) == 0 {
		return false
	}
	t := q.tenants[key]
	if t == nil {
		t = &tenantConfirmations{key: key, tenant: tenant, patience: q.patience}
		t.place.Item = t
		q.tenants[key] = t
	}
	t.size += len(items)
	if changed = q.fill(t, now, items); changed {
		q.reschedule(t)
	}
	return changed
}

// fill puts items, the oldest of which came at that time, into the newest batch of t and into further ones. It
// reports whether one of them is new or has become full.
func (q *confirmQueue) fill(t *tenantConfirmations, since time.Time, items []confirmation) (changed bool) {
	for len(items) > 0 {
		last := len(t.batches) - 1
		if last < 0 || !t.batches[last].started.IsZero() || len(t.batches[last].items) >= q.cfg.MaxBatch {
			t.batches = append(t.batches, &confirmBatch{t: t, since: since, due: since.Add(q.cfg.MaxAge)})
			last++
			changed = true
		}
		b := t.batches[last]
		n := min(len(items), q.cfg.MaxBatch-len(b.items))
		b.items, items = append(b.items, items[:n]...), items[n:]
		if q.closing || len(b.items) >= q.cfg.MaxBatch {
			b.due = b.since // there is nothing to wait for
			changed = true
		}
	}
	return changed
}

// next returns a request that is to be sent now, or nil. The caller reports its outcome
// by answered.
func (q *confirmQueue) next(now time.Time) *confirmBatch {
	served, others, late := 0, 0, 0
	for _, b := range q.flights {
		isLate := now.Sub(b.started) >= lateAfter
		if isLate {
			late++
		}
		if b.t.failures > 0 || isLate {
			others++
		} else {
			served++
		}
	}
	if q.outage() && (len(q.flights) > late || now.Before(q.probe)) {
		return nil
	}
	var place *duequeue.Entry[*tenantConfirmations]
	if served < q.cfg.MaxRequests && served+others < lateFactor*q.cfg.MaxRequests {
		place = q.served.Due(now)
	}
	if place == nil && others < max(1, q.cfg.MaxRequests/2) {
		place = q.failing.Due(now)
	}
	if place == nil {
		return nil
	}
	t := place.Item
	i := t.first()
	b := t.batches[i]
	t.batches = slices.Delete(t.batches, i, i+1)
	b.started, t.flight = now, b
	q.flights = append(q.flights, b)
	q.reschedule(t)
	return b
}

// outage reports whether so many requests in a row have failed that one at a time is enough to find out when that is over.
func (q *confirmQueue) outage() bool { return q.failures >= 2*q.cfg.MaxRequests }

// answered takes in the answer to a request and returns the confirmations that need no
// more work: confirmed ones, or rejected ones. The others are queued again. report is what is worth a line in the log: that
// the tenant fails, or without an error, that it no longer does.
func (q *confirmQueue) answered(now time.Time, b *confirmBatch, answer confirmAnswer, err error) (confirmed, rejected []confirmation, report *Wait) {
	t := b.t
	q.flights = slices.DeleteFunc(q.flights, func(other *confirmBatch) bool { return other == b })
	t.flight = nil
	if answer != answerFailed && answer != answerTimeout && answer != answerForbidden {
		q.failures = 0
	} else if q.failures++; q.outage() {
		q.probe = now.Add(backoff.Policy(q.cfg.Retry).Delay(q.failures - 2*q.cfg.MaxRequests))
	}
	switch {
	case answer == answerOK:
		confirmed = b.items
		report = q.succeeded(now, b)
	case (answer == answerInvalid || answer == answerTooLarge) && len(b.items) > 1:
		q.split(now, b) // an answer that blames the request says that the tenant is served
	case answer == answerInvalid, q.refused(now, b, answer):
		rejected = b.items
	default:
		report = q.failed(now, b, answer, err)
	}
	t.size -= len(confirmed) + len(rejected)
	if report != nil {
		report.Count = t.size
	}
	q.reschedule(t)
	if t.size == 0 {
		delete(q.tenants, t.key)
	}
	return confirmed, rejected, report
}

// refused takes in whether the service refuses b, and reports whether it has done so for long enough.
func (q *confirmQueue) refused(now time.Time, b *confirmBatch, answer confirmAnswer) bool {
	since := b.t.refusedSince // it may refuse everybody now, or there is nobody else
	switch answer {
	case answerForbidden:
	case answerRefused:
		b.refusedSince = earlier(b.refusedSince, now)
		b.t.refusedSince = earlier(since, now)
		since = earlier(since, b.refusedSince)
	default:
		b.refusedSince = time.Time{}
		return false
	}
	// On close there is no time to see whether it passes.
	return !since.IsZero() && (q.closing || now.Sub(since) >= q.cfg.RefusedFor)
}

func (q *confirmQueue) succeeded(now time.Time, b *confirmBatch) *Wait {
	t := b.t
	q.patience = min(max(patienceFactor*now.Sub(b.started), minPatience), maxPatience)
	t.patience = q.patience
	if t.failures >= splitAfter {
		// It was the tenant: what failed meanwhile is as good as what did not.
		batches := t.batches
		t.batches = nil
		for _, other := range batches {
			q.fill(t, other.since, other.items)
		}
	}
	var report *Wait
	if t.reported > 0 {
		report = &Wait{What: t.tenant, Since: t.since}
	}
	t.err = nil
	t.failures, t.since, t.reported, t.notBefore, t.refusedSince = 0, time.Time{}, 0, time.Time{}, time.Time{}
	return report
}

func (q *confirmQueue) failed(now time.Time, b *confirmBatch, answer confirmAnswer, err error) *Wait {
	t := b.t
	t.err = err
	if t.failures++; t.failures == 1 {
		t.since = b.started
	} else if answer == answerTimeout { // one alone says nothing about its pace
		t.patience = min(2*t.patience, maxPatience)
	}
	if b.fails++; b.fails >= splitAfter && len(b.items) > 1 {
		q.split(now, b)
	} else {
		b.due = b.started.Add(backoff.Policy(q.cfg.Retry).Delay(b.fails - 1))
		t.batches = slices.Insert(t.batches, 0, b)
	}
	// The waits began with the request: one that took long to fail has waited already, and the service may have been back
	// for as long. That of the tenant begins with little: a service that fails most requests still takes the others.
	quick := max(q.cfg.Retry.Initial/16, 1)
	t.notBefore = later(now.Add(quick), b.started.Add(backoff.Policy{Initial: quick, Max: q.cfg.Retry.Max}.Delay(t.failures-1)))
	t.notBefore = later(t.notBefore, now.Add(retryAfter(err)))
	lasted := now.Sub(t.since)
	if lasted < waitReported || t.reported > reminders.Due(lasted) {
		return nil
	}
	t.reported = 1 + reminders.Due(lasted)
	return &Wait{What: t.tenant, Since: t.since, Err: err}
}

// split queues both halves of a request.
func (q *confirmQueue) split(now time.Time, b *confirmBatch) {
	half := len(b.items) / 2
	for i, items := range [][]confirmation{b.items[:half:half], b.items[half:]} {
		b.t.batches = slices.Insert(b.t.batches, i, &confirmBatch{
			t: b.t, items: items, since: b.since, due: now, started: b.started, refusedSince: b.refusedSince,
		})
	}
}

// drain makes everything due: there is no time to wait for batches to fill.
func (q *confirmQueue) drain(now time.Time) {
	q.closing = true
	q.probe = time.Time{}
	for _, t := range q.tenants {
		t.notBefore = time.Time{}
		for _, b := range t.batches {
			b.due = now
		}
		q.reschedule(t)
	}
}

// first is the index of the batch that is due first; there has to be one.
func (t *tenantConfirmations) first() (first int) {
	for i, b := range t.batches {
		if b.due.Before(t.batches[first].due) {
			first = i
		}
	}
	return first
}

// reschedule brings t's place in the queues up to date.
func (q *confirmQueue) reschedule(t *tenantConfirmations) {
	if len(t.batches) == 0 || t.flight != nil {
		t.place.Remove()
		return
	}
	at := later(t.batches[t.first()].due, t.notBefore)
	if t.failures > 0 {
		q.failing.Put(&t.place, at)
	} else {
		q.served.Put(&t.place, at)
	}
}

// wake returns when next is to be called again although nothing was added or answered;
// zero for never.
func (q *confirmQueue) wake(now time.Time) (at time.Time) {
	if q.outage() && q.probe.After(now) {
		at = q.probe
	}
	for _, first := range []*duequeue.Entry[*tenantConfirmations]{q.served.First(), q.failing.First()} {
		if first != nil && !first.DueBy(now) {
			at = earlier(at, first.At())
		}
	}
	// What is due waits for a slot. One becomes free by an answer, or when a request turns out to be late.
	for _, b := range q.flights {
		if now.Sub(b.started) < lateAfter {
			return earlier(at, b.started.Add(lateAfter))
		}
	}
	return at
}

// all yields each batch.
func (q *confirmQueue) all(yield func(*confirmBatch) bool) {
	for _, t := range q.tenants {
		for _, b := range t.batches {
			if !yield(b) {
				return
			}
		}
	}
	for _, b := range q.flights {
		if !yield(b) {
			return
		}
	}
}
