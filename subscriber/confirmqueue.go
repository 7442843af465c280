package subscriber

import (
	"math"
	"slices"
	"time"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/duequeue"
	"github.com/agrimill/agrimill/internal/reminders"
)

const (
	// lateAfter is how long a request may go unanswered before it no longer takes the slot of a
	// tenant that is served.
	lateAfter = 250 * time.Millisecond
	// closingFlights is how many requests of one tenant are under way on close. Before, it is one.
	closingFlights = 4
	// A request is abandoned after a multiple of the latency that was seen last, within
	// these bounds, and after firstPatience where none was seen yet. Confirmations are
	// idempotent, so a request that was answered too late is merely repeated.
	minPatience    = 500 * time.Millisecond
	firstPatience  = 2 * time.Second
	maxPatience    = 30 * time.Second
	patienceFactor = 8
	// outageAfter is how many failures in a row are the tenant's rather than those of
	// the confirmations in the request.
	outageAfter = 3
	// quickRetries is how many failures in a row do not slow a tenant down yet: a service
	// that fails most requests still takes the others.
	quickRetries = 4
	// okWeight is the weight of one answer in a tenant's success ratio.
	okWeight = 0.2
	// chance is how improbable it has to be that a batch failed as often as it did by
	// chance alone before it is split.
	chance = 0.05
	// splitAfter is how often it has to fail in any case: the tenant may have nothing else that
	// could tell whether others pass. What is split in vain is joined again by the next success.
	splitAfter = 3
	// waitReported is after how long a tenant's wait is logged.
	waitReported = 10 * time.Second
)

// confirmQueue decides which confirmations go into which request, and when. It is a
// state machine: no goroutine, no clock, no lock, and nothing in it waits. The confirmer
// owns it.
//
// What a tenant's confirmations wait for never keeps those of another waiting: a tenant
// has one request under way; tenants that fail, or
// whose requests are late, share half of the slots; and a tenant that waits is in a queue,
// not in a slot.
type confirmQueue struct {
	cfg     ConfirmConfig
	tenants map[string]*tenantConfirmations
	// healthy and failing hold the tenants that have something to send, by the time at
	// which they may.
	healthy, failing duequeue.Queue[*tenantConfirmations]
	flights          []*confirmFlight // under way, oldest first
	closing          bool
	spare            [][]confirmation // room for a batch each, to be used again

	patience time.Duration // of tenants that were not seen yet
	// inARow counts the failures since the service last took a confirmation, of whichever tenant. After many
	// of them only one request at a time probes.
	inARow int
	probe  time.Time // when the next one may
}

// tenantConfirmations are the confirmations of one tenant.
type tenantConfirmations struct {
	key, tenant string
	fresh       batches // not sent yet
	freshSince  time.Time
	groups      []*confirmGroup // sent in vain
	flights     int
	lastGroup   bool // the newest was a group
	size        int  // confirmations in all of these

	ok       float64 // moving ratio of requests that succeeded
	patience time.Duration
	lastOK   time.Time
	failures int       // in a row
	since    time.Time // of the first of them
	reported int
	// refusedSince is when the service first refused it; zero after a success.
	refusedSince time.Time
	// notBefore is the tenant's own backoff.
	notBefore time.Time

	place duequeue.Entry[*tenantConfirmations]
}

// confirmGroup is what was sent in one request and failed.
type confirmGroup struct {
	items        []confirmation
	since        time.Time // when the oldest was added
	fails        int       // in a row
	due          time.Time
	refusedSince time.Time // zero while the service did not refuse it
}

// confirmFlight is a request under way.
type confirmFlight struct {
	confirmGroup
	t       *tenantConfirmations
	tenant  string
	started time.Time
	timeout time.Duration
	failing bool // the tenant was failing when it started
}

// confirmAnswer classifies the answer to a request.
type confirmAnswer int

const (
	answerOK        confirmAnswer = iota
	answerFailed                  // none, or one that says nothing about the confirmations
	answerTimeout                 // none in time
	answerInvalid                 // one of the confirmations is to blame, and will always be
	answerTooLarge                // fewer may pass
	answerRefused                 // the service refuses the tenant, or knows no such message
	answerForbidden               // the same, but it may refuse everybody
)

// waitReport is what is worth a line in the log about a tenant.
type waitReport struct {
	tenant    string
	recovered bool
	lasted    time.Duration
	count     int
	err       error
}

func newConfirmQueue(cfg ConfirmConfig) *confirmQueue {
	return &confirmQueue{cfg: cfg, tenants: make(map[string]*tenantConfirmations), patience: firstPatience}
}

// add queues confirmations of a tenant; key is its ID in lower case. It reports whether that may change
// what next and wake return: it does not when others of the tenant wait for a batch that is still not
// full, or for their turn.
func (q *confirmQueue) add(now time.Time, key, tenant string, items ...confirmation) (changed bool) {
	if len(items) == 0 {
		return false
	}
	t := q.tenants[key]
	if t == nil {
		t = &tenantConfirmations{key: key, tenant: tenant, ok: 1, patience: q.patience}
		t.place.Item = t
		q.tenants[key] = t
	}
	before := t.fresh.size
	if before == 0 {
		t.freshSince = now
	}
	t.fresh.add(q.cfg.MaxBatch, q.room, items...)
	t.size += len(items)
	if before > 0 && !q.closing && (before >= q.cfg.MaxBatch) == (t.fresh.size >= q.cfg.MaxBatch) {
		return false
	}
	q.reschedule(t)
	return true
}

// room returns an empty batch.
func (q *confirmQueue) room() (batch []confirmation) {
	if last := len(q.spare) - 1; last >= 0 {
		batch, q.spare = q.spare[last], q.spare[:last]
	}
	return batch
}

// reuse takes the room of a batch that was confirmed, once nobody reads it any longer.
func (q *confirmQueue) reuse(items []confirmation) {
	if cap(items) >= q.cfg.MaxBatch && len(q.spare) < q.cfg.MaxRequests {
		clear(items)
		q.spare = append(q.spare, items[:0])
	}
}

// next returns a request that is to be sent now, or nil. The caller reports its outcome
// by answered.
func (q *confirmQueue) next(now time.Time) *confirmFlight {
	busy, troubled, inTime := q.occupied(now)
	if q.probing() && (inTime > 0 || now.Before(q.probe)) || len(q.flights) >= 4*q.cfg.MaxRequests {
		return nil
	}
	var place *duequeue.Entry[*tenantConfirmations]
	if busy < q.cfg.MaxRequests {
		place = q.healthy.Due(now)
	}
	if place == nil && troubled < max(1, q.cfg.MaxRequests/2) {
		place = q.failing.Due(now)
	}
	if place == nil {
		return nil
	}
	t := place.Item
	f := q.take(t, now)
	q.flights = append(q.flights, f)
	t.flights++
	q.reschedule(t)
	return f
}

// probing reports whether nothing has succeeded for so long that one request at a time
// is enough to find out when it does again.
func (q *confirmQueue) probing() bool { return q.inARow >= 2*q.cfg.MaxRequests }

// occupied counts the requests under way that are neither late nor of a failing tenant,
// the others, and those that are not late.
func (q *confirmQueue) occupied(now time.Time) (busy, troubled, inTime int) {
	for _, f := range q.flights {
		late := now.Sub(f.started) >= lateAfter
		if !late {
			inTime++
		}
		if f.failing || late {
			troubled++
		} else {
			busy++
		}
	}
	return busy, troubled, inTime
}

// take removes what goes into the next request of t: in turn what failed before and what
// is fresh, so that neither keeps the other waiting.
func (q *confirmQueue) take(t *tenantConfirmations, now time.Time) *confirmFlight {
	f := &confirmFlight{t: t, tenant: t.tenant, started: now, timeout: t.patience, failing: t.failures > 0}
	i := t.firstGroup()
	groupDue := i >= 0 && !t.groups[i].due.After(now)
	freshDue := t.fresh.size > 0 && !q.freshAt(t).After(now)
	if groupDue && (!freshDue || !t.lastGroup) {
		f.confirmGroup = *t.groups[i]
		t.groups = slices.Delete(t.groups, i, i+1)
		t.lastGroup = true
		return f
	}
	f.confirmGroup = confirmGroup{items: t.fresh.take(), since: t.freshSince}
	t.freshSince = now // what is left came later than what goes
	t.lastGroup = false
	return f
}

// answered takes in the answer to a request and returns the confirmations that need no
// more work: confirmed ones, or rejected ones. The others are queued again.
func (q *confirmQueue) answered(now time.Time, f *confirmFlight, answer confirmAnswer, err error) (confirmed, rejected []confirmation, report *waitReport) {
	t := f.t
	q.flights = slices.DeleteFunc(q.flights, func(other *confirmFlight) bool { return other == f })
	t.flights--
	switch answer {
	case answerOK:
		confirmed = f.items
		report = q.succeeded(now, f)
	case answerInvalid, answerTooLarge:
		// An answer that blames the request says that the tenant is served.
		if len(f.items) == 1 {
			if answer == answerInvalid {
				rejected = f.items
				break
			}
			report = q.failed(now, f, answer, err)
			break
		}
		q.split(now, f)
	case answerRefused:
		if f.refusedSince.IsZero() {
			f.refusedSince = now
		}
		if t.refusedSince.IsZero() {
			t.refusedSince = now
		}
		// On close there is no time to see whether it passes.
		if q.closing || now.Sub(f.refusedSince) >= q.cfg.RefusedFor || now.Sub(t.refusedSince) >= q.cfg.RefusedFor {
			rejected = f.items
			break
		}
		report = q.failed(now, f, answer, err)
	case answerForbidden:
		// It refuses everybody now, or there is nobody else.
		if !t.refusedSince.IsZero() && (q.closing || now.Sub(t.refusedSince) >= q.cfg.RefusedFor) {
			rejected = f.items
			break
		}
		report = q.failed(now, f, answer, err)
	default:
		f.refusedSince = time.Time{}
		report = q.failed(now, f, answer, err)
	}
	t.size -= len(confirmed) + len(rejected)
	if report != nil {
		report.count = t.size
	}
	q.reschedule(t)
	if t.size == 0 {
		delete(q.tenants, t.key)
	}
	return confirmed, rejected, report
}

func (q *confirmQueue) succeeded(now time.Time, f *confirmFlight) *waitReport {
	t := f.t
	q.inARow, q.probe = 0, time.Time{}
	t.patience = min(max(patienceFactor*now.Sub(f.started), minPatience), maxPatience)
	q.patience = max(t.patience, time.Second)
	t.lastOK = now
	t.ok += (1 - t.ok) * okWeight
	if t.failures >= outageAfter {
		// It was the tenant: what failed meanwhile is as good as what did not.
		later := t.fresh
		t.fresh = batches{}
		for _, g := range t.groups {
			t.fresh.add(q.cfg.MaxBatch, q.room, g.items...)
			t.freshSince = now.Add(-q.cfg.MaxAge) // at once
		}
		for _, items := range later.list {
			t.fresh.add(q.cfg.MaxBatch, q.room, items...)
		}
		t.groups = nil
	}
	t.failures, t.notBefore, t.refusedSince = 0, time.Time{}, time.Time{}
	var report *waitReport
	if t.reported > 0 {
		report = &waitReport{tenant: t.tenant, recovered: true, lasted: now.Sub(t.since)}
		t.reported = 0
	}
	t.since = time.Time{}
	return report
}

func (q *confirmQueue) failed(now time.Time, f *confirmFlight, answer confirmAnswer, err error) *waitReport {
	t := f.t
	if q.inARow++; q.probing() && !q.probe.After(now) {
		q.probe = now.Add(q.retry(q.inARow - 2*q.cfg.MaxRequests))
	}
	if t.failures++; t.failures == 1 {
		t.since = f.started
	}
	if answer == answerTimeout && t.failures > 1 && !t.lastOK.After(f.started) { // one alone says nothing about its pace
		t.patience = min(max(2*f.timeout, t.patience), maxPatience)
	}
	ok := t.ok
	t.ok -= t.ok * okWeight
	f.fails++
	if len(f.items) > 1 && f.fails > 1 && (f.fails >= splitAfter || math.Pow(1-ok, float64(f.fails)) < chance) {
		// Others of the tenant pass, or may, if there are none that could tell: something in this
		// batch does not.
		q.split(now, f)
	} else {
		g := f.confirmGroup
		g.due = q.again(now, f, q.retry(f.fails-1))
		t.groups = append(t.groups, &g)
	}
	quick := backoff.Policy{Initial: max(q.cfg.Retry.Initial/16, 1), Max: q.cfg.Retry.Max}
	t.notBefore = q.again(now, f, quick.Delay(t.failures-quickRetries))
	lasted := now.Sub(t.since)
	if lasted < waitReported || t.reported > reminders.Due(lasted) {
		return nil
	}
	t.reported = 1 + reminders.Due(lasted)
	return &waitReport{tenant: t.tenant, lasted: lasted, err: err}
}

// split queues both halves of a request.
func (q *confirmQueue) split(now time.Time, f *confirmFlight) {
	half := len(f.items) / 2
	for _, items := range [][]confirmation{f.items[:half:half], f.items[half:]} {
		f.t.groups = append(f.t.groups, &confirmGroup{items: items, since: f.since, due: now, refusedSince: f.refusedSince})
	}
}

// again returns when to try again after a wait that began with the request: one that took long
// to fail has waited already, and the service may have been back for as long. It still pauses
// as long as after a first failure.
func (q *confirmQueue) again(now time.Time, f *confirmFlight, wait time.Duration) time.Time {
	return now.Add(max(wait-now.Sub(f.started), min(wait, q.cfg.Retry.Initial)))
}

func (q *confirmQueue) retry(n int) time.Duration {
	return backoff.Policy{Initial: q.cfg.Retry.Initial, Max: q.cfg.Retry.Max}.Delay(n)
}

// drain makes everything due: there is no time to wait for batches to fill.
func (q *confirmQueue) drain(now time.Time) {
	q.closing = true
	q.probe = time.Time{}
	for _, t := range q.tenants {
		t.notBefore = time.Time{}
		for _, g := range t.groups {
			g.due = now
		}
		q.reschedule(t)
	}
}

// freshAt is when what is fresh is to be sent.
func (q *confirmQueue) freshAt(t *tenantConfirmations) time.Time {
	if q.closing || t.fresh.size >= q.cfg.MaxBatch {
		return t.freshSince
	}
	return t.freshSince.Add(q.cfg.MaxAge)
}

// firstGroup is the index of the group that is due first, -1 without one.
func (t *tenantConfirmations) firstGroup() int {
	first := -1
	for i, g := range t.groups {
		if first < 0 || g.due.Before(t.groups[first].due) {
			first = i
		}
	}
	return first
}

// reschedule brings t's place in the queues up to date.
func (q *confirmQueue) reschedule(t *tenantConfirmations) {
	at, some := time.Time{}, false
	flights := 1
	if q.closing && t.failures == 0 { // there is no time for one after the other
		flights = closingFlights
	}
	if t.flights < flights {
		if t.fresh.size > 0 {
			at, some = q.freshAt(t), true
		}
		if i := t.firstGroup(); i >= 0 && (!some || t.groups[i].due.Before(at)) {
			at, some = t.groups[i].due, true
		}
	}
	if t.notBefore.After(at) {
		at = t.notBefore
	}
	switch {
	case !some:
		t.place.Remove()
	case t.failures > 0:
		q.failing.Put(&t.place, at)
	default:
		q.healthy.Put(&t.place, at)
	}
}

// wake returns when next is to be called again although nothing was added or answered;
// zero for never.
func (q *confirmQueue) wake(now time.Time) time.Time {
	var at time.Time
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, first := range []*duequeue.Entry[*tenantConfirmations]{q.healthy.First(), q.failing.First()} {
		if first != nil && !first.DueBy(now) {
			earliest(first.At())
		}
	}
	// What is due has to wait for a slot. One becomes free by an answer, or when a
	// request turns out to be late.
	for _, f := range q.flights {
		if late := f.started.Add(lateAfter); late.After(now) {
			earliest(late)
			break
		}
	}
	if q.probing() && q.probe.After(now) {
		earliest(q.probe)
	}
	return at
}

// oldest returns since when the oldest confirmation waits; zero without any.
func (q *confirmQueue) oldest() (at time.Time) {
	earliest := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for _, t := range q.tenants {
		if t.fresh.size > 0 {
			earliest(t.freshSince)
		}
		for _, g := range t.groups {
			earliest(g.since)
		}
	}
	for _, f := range q.flights {
		earliest(f.since)
	}
	return at
}
