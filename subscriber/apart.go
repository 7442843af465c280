package subscriber

import (
	"errors"
	"slices"
	"time"
)

const (
	// reviewEvery is how often at most a full window is searched for what has stalled.
	reviewEvery = stallAfter / 8
	// overtakenBy is how much later something must have begun that is finished already for a
	// message to have stalled beside others, rather than with them.
	overtakenBy = stallAfter / 4
	// hopelessWindow is how long nothing at all may be acked, while the window is full, before
	// whoever is in it counts as stalled beside those that are behind.
	hopelessWindow = 30 * time.Second
	// aloneAfter is how long instead if all that the handlers have is one tenant's, and another's
	// was acked within servedFor: the handlers are known to serve others.
	aloneAfter = 2 * stallAfter
	servedFor  = 10 * time.Minute
	// helpsAfter is how long a tenant has to be shut before those that have little beside it are
	// shut, too, because there is still no room.
	helpsAfter = 5 * time.Second
	// maxShut is how many groups may be shut, in units of Config.MaxInFlight.
	maxShut = 10
)

// stallGroup is what messages that have stalled may have in common.
type stallGroup struct {
	sub    *subscription // whose handlers hang; nil for payloads
	tenant string        // empty: all of sub
}

// shutGroup is what is known of a group that is shut.
type shutGroup struct {
	n     int // messages that had stalled then
	since time.Time
}

// apart are the open messages that gave up their place in the window because they have stalled:
// their payload cannot be downloaded, or nobody acks them. It is a state machine without
// goroutine, clock or lock, guarded by Subscriber.mu.
//
// There are half as many as fit into the window at most, and half of that while nothing tells a
// handler that hangs from an outage: what comes next does. When more has stalled, the groups that
// have more than their share are shut, if others get on: what comes for them is left with the
// service until three quarters of what has stalled of them gets on.
type apart struct {
	ordered  bool
	max      int
	maxShut  int
	maxBytes int64
	items    map[*delivery]struct{}
	bytes    int64
	reviewed time.Time
	over     bool                     // more has stalled than may be set apart
	stalled  map[stallGroup]int       // messages, as of the latest review
	bad      map[stallGroup]struct{}  // of stalled, those that may be shut
	watched  map[stallGroup]time.Time // since when nothing of the group was acked, or downloaded
	shut     map[stallGroup]shutGroup // of what comes for them nothing is taken
	lastOK   time.Time                // when a payload was downloaded
	slow     map[*subscription]struct{}
	reached  time.Time // when the newest arrived of all that any subscription acked
}

func newApart(cfg Config) *apart {
	return &apart{
		ordered: cfg.Order == OrderByKey, max: cfg.MaxInFlight / 2, maxShut: maxShut * cfg.MaxInFlight, maxBytes: cfg.MaxInFlightBytes / 2,
		items: make(map[*delivery]struct{}), shut: make(map[stallGroup]shutGroup),
		slow: make(map[*subscription]struct{}),
	}
}

func (a *apart) add(d *delivery) {
	d.apart = true
	a.items[d] = struct{}{}
	a.bytes += d.bytes
}

func (a *apart) remove(d *delivery) {
	d.apart = false
	delete(a.items, d)
	a.bytes -= d.bytes
}

// fits reports whether d may be added to what is set apart, and to n more. With a window of one
// message there is never a second one in a handler.
func (a *apart) fits(d *delivery, n int, bytes int64) bool {
	most := a.max
	switch {
	case d.downloading():
		most = max(most, 1)
	case !slices.ContainsFunc(d.waits, func(sub *subscription) bool {
		return a.isBad(stallGroup{sub: sub}) || a.isBad(stallGroup{sub: sub, tenant: d.tenantKey()})
	}):
		most /= 2
	}
	return len(a.items)+n < most && (a.bytes+bytes == 0 || a.bytes+bytes+d.bytes <= a.maxBytes)
}

// review looks for what has stalled in the window, which begins with first. It returns what gives
// up its place there, and what is to be left with the service if others need the room: payloads
// that cannot be downloaded, and for which nothing has been done yet.
func (a *apart) review(now time.Time, first *delivery) (move, leave []*delivery) {
	if !a.reviewed.IsZero() && now.Sub(a.reviewed) < reviewEvery {
		return nil, nil
	}
	a.reviewed = now
	a.judge(now, first)
	a.over = len(a.slow) > 0
	n, hung, bytes := 0, 0, int64(0)
	for d := first; d != nil; d = d.next {
		switch {
		case !a.hasStalled(now, d):
		case a.fits(d, n, bytes):
			n++
			bytes += d.bytes
			move = append(move, d)
		default:
			if a.over = true; a.leaves(d) {
				leave = append(leave, d)
			} else if d.handled() {
				hung++
			}
		}
	}
	// Handlers that hang cannot be taken back, but payloads that are set apart can make room.
	for d := range a.items {
		if hung > 0 && a.leaves(d) {
			hung--
			leave = append(leave, d)
		}
	}
	return move, leave
}

// leave records that d, whose payload is missing, is left, and reports whether it is: its tenant
// has to be shut.
func (a *apart) leave(d *delivery) bool {
	g := stallGroup{tenant: d.tenantKey()}
	of, shut := a.shut[g]
	if shut {
		a.stalled[g]--
		of.n = max(of.n-1, 0)
		a.shut[g] = of
	}
	return shut
}

// leaves reports whether d, which has stalled, may be left with the service: there is no payload
// yet, and it is the first of its key.
func (a *apart) leaves(d *delivery) bool {
	return d.downloading() && len(d.keys) > 0 && !d.payload.left &&
		!slices.ContainsFunc(d.waits, func(sub *subscription) bool {
			q := sub.queues[d.order]
			return a.ordered && (q == nil || q.items[0] != d)
		})
}

// judge finds out which groups have stalled.
func (a *apart) judge(now time.Time, first *delivery) {
	a.stalled, a.bad = make(map[stallGroup]int), make(map[stallGroup]struct{})
	watched := make(map[stallGroup]time.Time)
	watch := func(g stallGroup) {
		if watched[g] = now; !a.watched[g].IsZero() {
			watched[g] = a.watched[g]
		}
	}
	troubled := make(map[stallGroup]int)
	payloads := func(d *delivery) {
		if !d.payload.download.troubled(now) {
			return
		}
		of := stallGroup{tenant: d.tenantKey()}
		watch(of)
		troubled[of]++
		switch lasted := now.Sub(watched[of]); {
		case troubled[of] >= max(1, a.max), lasted >= stallAfter, lasted >= overtakenBy && a.lastOK.After(watched[of]):
			a.bad[of] = struct{}{}
		}
	}
	handlers := func(d *delivery) {
		for _, sub := range d.waits {
			began, stalled := a.stalledIn(now, sub, d)
			if !stalled {
				continue
			}
			whole, of := stallGroup{sub: sub}, stallGroup{sub: sub, tenant: d.tenantKey()}
			a.stalled[whole]++
			a.stalled[of]++
			watch(of)
			others := d.answered()
			if others && now.Sub(sub.acked) >= stallAfter {
				a.bad[whole] = struct{}{}
			}
			overtaken := others || sub.newest.Sub(began) >= overtakenBy
			if overtaken && now.Sub(watched[of]) >= overtakenBy || now.Sub(later(began, sub.acked)) >= hopelessWindow {
				a.bad[of] = struct{}{}
			}
		}
	}
	a.each(first, func(d *delivery) {
		if d.downloading() {
			payloads(d)
		} else {
			handlers(d)
		}
	})
	a.watched = watched
	a.judgeAlone(now, first)
	a.judgeSlow(first)
	a.each(first, func(d *delivery) {
		if d.downloading() && a.hasStalled(now, d) {
			a.stalled[stallGroup{tenant: d.tenantKey()}]++
		}
	})
}

// judgeAlone finds out whose messages are all that the handlers of a subscription have, if nothing
// was acked for longer than they take, and others' were before: the next ones may be others', too.
// When a second tenant's stall as well, it may be an outage.
func (a *apart) judgeAlone(now time.Time, first *delivery) {
	if a.max == 0 {
		return // nothing can make room
	}
	type load struct {
		tenant string
		others bool
		oldest time.Time // of what has stalled
	}
	loads := make(map[*subscription]load)
	a.each(first, func(d *delivery) {
		if d.downloading() {
			return
		}
		for _, sub := range d.waits {
			l, some := loads[sub]
			if tenant := d.tenantKey(); !some {
				l.tenant = tenant
			} else {
				l.others = l.others || tenant != l.tenant
			}
			if began, stalled := a.stalledIn(now, sub, d); stalled && (l.oldest.IsZero() || began.Before(l.oldest)) {
				l.oldest = began
			}
			loads[sub] = l
		}
	})
	for sub, l := range loads {
		if l.others || l.oldest.IsZero() || now.Sub(later(l.oldest, sub.acked)) < max(aloneAfter, 2*sub.took) {
			continue
		}
		if at, some := sub.served.otherThan(l.tenant); some && now.Sub(at) <= servedFor {
			a.bad[stallGroup{sub: sub, tenant: l.tenant}] = struct{}{}
		}
	}
}

// served are the latest two tenants of which a subscription has acked something.
type served [2]struct {
	tenant string
	at     time.Time
}

func (s *served) add(now time.Time, tenant string) {
	if s[0].tenant != tenant {
		s[1] = s[0]
		s[0].tenant = tenant
	}
	s[0].at = now
}

// otherThan returns when something of another tenant was acked.
func (s *served) otherThan(tenant string) (at time.Time, some bool) {
	for _, of := range s {
		if of.tenant != "" && of.tenant != tenant {
			return of.at, true
		}
	}
	return time.Time{}, false
}

// judgeSlow finds out which subscriptions are slow: more than half of the window waits for one, and
// others have acked what came a second after all that it has acked, and after all that it has.
// Their handlers may well get on.
func (a *apart) judgeSlow(first *delivery) {
	type load struct {
		linked, all int
		oldest      time.Time
	}
	loads := make(map[*subscription]load)
	a.each(first, func(d *delivery) {
		if d.downloading() || d.parked > 0 {
			return
		}
		for _, sub := range d.waits {
			l := loads[sub]
			if l.all++; d.linked {
				l.linked++
			}
			if l.oldest.IsZero() || d.arrived.Before(l.oldest) {
				l.oldest = d.arrived
			}
			loads[sub] = l
		}
	})
	clear(a.slow)
	for sub, l := range loads {
		g := stallGroup{sub: sub}
		_, shut := a.shut[g]
		late := a.reached.Sub(later(sub.reached, l.oldest)) >= stallAfter
		if shut || late && l.linked > a.max {
			a.stalled[g] = max(a.stalled[g], l.all)
		}
		if late && (shut || l.linked > a.max) {
			a.slow[sub] = struct{}{}
			a.bad[g] = struct{}{}
		}
	}
}

// each calls f for everything that is open: the window, which begins with first, and what is set
// apart.
func (a *apart) each(first *delivery, f func(*delivery)) {
	for d := first; d != nil; d = d.next {
		f(d)
	}
	for d := range a.items {
		f(d)
	}
}

// hasStalled reports whether nothing happens to d.
func (a *apart) hasStalled(now time.Time, d *delivery) bool {
	if d.downloading() {
		j := d.payload.download
		return j.troubled(now) || j.place.Queued() && now.Sub(d.since) >= stallAfter && a.isBad(stallGroup{tenant: d.tenantKey()})
	}
	for _, sub := range d.waits {
		if _, slow := a.slow[sub]; slow {
			continue
		}
		if _, stalled := a.stalledIn(now, sub, d); !stalled {
			return false
		}
	}
	return len(d.waits) > 0
}

func (a *apart) isBad(g stallGroup) bool {
	_, bad := a.bad[g]
	return bad
}

// stalledIn reports whether sub has had d for too long, and since when it has it: what came
// later was faster, or nothing is acked at all. Handlers that take their time do so for all.
func (a *apart) stalledIn(now time.Time, sub *subscription, d *delivery) (began time.Time, stalled bool) {
	began = d.since
	if a.ordered {
		q := sub.queues[d.order]
		if q == nil || q.items[0] != d {
			return time.Time{}, false // it waits for the one before it
		}
		began = later(d.since, q.since)
	}
	return began, now.Sub(began) >= stallAfter &&
		(d.answered() || now.Sub(sub.acked) >= stallAfter || sub.newest.Sub(began) >= overtakenBy)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// downloaded records that the payload of d was downloaded.
func (a *apart) downloaded(now time.Time, d *delivery) {
	a.lastOK = now
	if len(a.watched) > 0 {
		delete(a.watched, stallGroup{tenant: d.tenantKey()})
	}
}

// acked records that sub acked d, which it has had since began.
func (a *apart) acked(now time.Time, sub *subscription, d *delivery, began time.Time) {
	sub.acked, sub.newest, sub.reached = now, later(sub.newest, began), later(sub.reached, d.arrived)
	a.reached = later(a.reached, sub.reached)
	sub.took = max(now.Sub(began), sub.took-sub.took/8)
	if len(d.keys) > 0 { // else it tells of tenants, but is nobody's
		sub.served.add(now, d.tenantKey())
	}
	if len(a.watched) > 0 {
		delete(a.watched, stallGroup{sub: sub, tenant: d.tenantKey()})
	}
}

// shutBad shuts the groups that have more than their share of what has stalled, if that is more
// than may be set apart, and reports whether there are any.
func (a *apart) shutBad() (some bool) {
	if !a.over {
		return false
	}
	// Those that are slow beside a tenant are not shut with it, but once that has helped, or not.
	n, most := 0, 0
	for g := range a.bad {
		if of, shut := a.shut[g]; shut && a.reviewed.Sub(of.since) >= helpsAfter {
			continue
		}
		if n++; g.tenant != "" {
			most = max(most, a.stalled[g])
		}
	}
	share := max(a.max/max(1, n), most/2)
	for g := range a.bad {
		if _, shut := a.shut[g]; !shut && a.stalled[g] >= share && len(a.shut) < a.maxShut {
			a.shut[g] = shutGroup{a.stalled[g], a.reviewed}
			some = true
		}
	}
	return some
}

// shuts reports whether d, which arrives for sub, is left because of a group.
func (a *apart) shuts(sub *subscription, d *delivery) bool {
	is := func(g stallGroup) bool {
		_, shut := a.shut[g]
		return shut
	}
	return is(stallGroup{sub: sub}) || is(stallGroup{sub: sub, tenant: d.tenantKey()}) ||
		d.payload != nil && is(stallGroup{tenant: d.tenantKey()})
}

// reopens reports whether a group that is shut gets on: few of those that had stalled still do.
func (a *apart) reopens() bool {
	for g := range a.shut {
		if a.getsOn(g) {
			return true
		}
	}
	return false
}

func (a *apart) getsOn(g stallGroup) bool { return 4*a.stalled[g] <= a.shut[g].n }

// connected opens the groups that get on. Everything that was left comes now, in order; what is
// for the other groups is left again.
func (a *apart) connected(now time.Time, first *delivery) {
	if len(a.shut) == 0 {
		return
	}
	a.judge(now, first)
	for g := range a.shut {
		if a.getsOn(g) {
			delete(a.shut, g)
		}
	}
}

// downloading reports whether the payload of d is being downloaded, or will be.
func (d *delivery) downloading() bool { return d.payload != nil && d.payload.download != nil }

// handled reports whether handlers have d, or may have it: its payload is there.
func (d *delivery) handled() bool {
	if d.payload == nil {
		return true
	}
	select {
	case <-d.payload.ready:
		return true
	default:
		return false
	}
}

// tenantKey returns the tenant of d, or its endpoint if the event did not name one.
func (d *delivery) tenantKey() string {
	if d.tenant == "" {
		return "endpoint " + lower(d.endpoint)
	}
	return d.tenantID
}

// troubled reports whether j failed, needs a fresh URI, or brings next to nothing.
func (j *download) troubled(now time.Time) bool {
	if j.place.Queued() {
		return j.failures > 0
	}
	return j.failures > 0 && j.bytes.Load() == 0 && !j.blocked.Load() || j.slow(now)
}

// setApart takes from the window what has stalled and reports whether it did. s.mu is held.
func (s *Subscriber) setApart(now time.Time) bool {
	move, leave := s.apart.review(now, s.first)
	for _, d := range move {
		s.unlink(d)
		s.apart.add(d)
	}
	if len(leave) > 0 && s.windowFull(&delivery{}) {
		s.apart.shutBad()
		for _, d := range leave {
			if s.apart.leave(d) {
				s.leaveDownload(d)
			}
		}
	}
	if len(s.apart.shut) > 0 {
		s.checkStalled()
	}
	return len(move) > 0
}

// leaveDownload leaves d, of which there is no payload yet, with the service. s.mu is held.
func (s *Subscriber) leaveDownload(d *delivery) {
	p, j := d.payload, d.payload.download
	p.left = true
	s.left++
	if !j.place.Queued() {
		j.abandon() // fetch does the rest
		return
	}
	s.downloads.remove(j)
	p.download, p.err = nil, errLeft
	if id := d.identity(); s.payloads[id] == d {
		delete(s.payloads, id)
	}
	close(p.ready)
}

// errLeft means that a message was left with the service before its payload was there.
var errLeft = errors.New("subscriber: the message was left with the service")

// rejoin gives d, which gets on, its place in the window back. s.mu is held.
func (s *Subscriber) rejoin(d *delivery) {
	if d.apart {
		s.apart.remove(d)
		s.relink(d)
	}
}

// takes reports whether sub takes d, which arrives. If it does not, it takes nothing of its key
// until the next connection either. s.mu is held.
func (s *Subscriber) takes(sub *subscription, d *delivery) bool {
	switch {
	case len(d.keys) == 0: // it would not come again
		return true
	case !sub.shares.takes(d.order):
		return false
	case len(s.apart.shut) == 0:
		return true
	}
	shut := s.apart.shuts(sub, d)
	if shut && s.cfg.Order == OrderByKey {
		sub.shares.left.add(d.order)
	}
	return !shut
}

// reopen requests what was left because of groups that get on now. s.mu is held.
func (s *Subscriber) reopen(now time.Time) {
	if len(s.apart.shut) == 0 || s.closed {
		return
	}
	s.setApart(now)
	if s.apart.reopens() {
		s.requestLeft(now, false)
	}
	s.checkStalled()
}
