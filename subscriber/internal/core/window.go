package core

import (
	"slices"
	"time"
)

// window has the tree of what is open, and decides what is left with the service when there is too much.
// A node is in the tree while something of it is open.
type window struct {
	cfg  Config
	root node
	// moving and waiting count messages; what is acked and not confirmed counts as unconfirmed.
	moving, waiting, unconfirmedNow int
	movingBytes, waitingBytes       int64
	routes                          []*Route
	shut                            shutSet // of nodes that are shut and no longer in the tree
	// excused are how many of those that wait, or are unconfirmed, are of nodes that are shut, at the latest review: they
	// keep nobody else out, but for once more as many as there may be.
	excusedWaiting, excusedUnconfirmed int
	excusedBytes                       int64    // of those that wait
	to, want                           []*Route // the room of recipients and wanted
	tempo                              tempo
}

// node is a route, a tenant of it, or a lane.
type node struct {
	parent  *node
	open    int           // below it: items, and what is not confirmed
	bytes   int64         // of the items
	done    time.Duration // when something below it was last finished; zero for never
	gone    time.Duration // the same, of what was below it and is no longer in the tree
	shut    bool          // nothing is taken for it until the next connection
	share   share         // of a node that is shut: what it may keep
	left    bool          // and whether something was left since
	vacated bool          // it was shut, and everything of it left
	spared  bool          // it was shut, and nothing of it left since
}

func (n *node) add(open int, bytes int64) {
	for ; n != nil; n = n.parent {
		n.open += open
		n.bytes += bytes
	}
}

// share is a part of the window.
type share struct {
	items int
	bytes int64
}

func (n *node) exceeds(s share) bool { return n.open > s.items || n.bytes > s.bytes }

// of returns the part of the i-th of n. When there are more than items, the first ones have one, and the others nothing.
func (s share) of(i, n int) share {
	items := s.items / n
	if items == 0 && i < max(1, s.items) {
		items = 1
	}
	return share{items, s.bytes / int64(n)}
}

func (s share) quarter() share { return share{s.items / 4, s.bytes / 4} }

// finished records that something below n was finished.
func (n *node) finished(now time.Duration) {
	for ; n != nil; n = n.parent {
		n.done = now
	}
}

// goesOn reports whether something below n was finished lately.
func (n *node) goesOn(now time.Duration) bool { return n.done > 0 && now-n.done < stall }

// emptied returns fine if something below n, of which nothing is open, was finished lately.
func (n *node) emptied(now time.Duration) health {
	if n.gone > 0 && now-n.gone < stall {
		return fine
	}
	return unknown
}

func (w *window) addRoute(r *Route) {
	r.parent, r.ordered = &w.root, w.cfg.Ordered
	r.maxAhead = w.cfg.MaxInFlight - max(1, w.cfg.MaxInFlight/8)
	r.lanes, r.tenants = make(map[string]*Lane), make(map[string]*tenant)
	w.routes = append(w.routes, r)
}

// laneKey returns the key of the lane of m. Without an order all messages of a tenant are in one.
func (w *window) laneKey(m *Message) string {
	if w.cfg.Ordered {
		return m.Key
	}
	return m.Tenant
}

// lane returns the lane of m in r, which is made if need be. A lane that several tenants have in common is
// that of the one whose message opened it.
func (w *window) lane(r *Route, m *Message) *Lane {
	key := w.laneKey(m)
	l := r.lanes[key]
	if l != nil {
		return l
	}
	t := r.tenants[m.Tenant]
	if t == nil {
		t = &tenant{name: m.Tenant}
		t.parent, t.shut = &r.node, w.shut.has(r.number, tenantKind, m.Tenant) || w.shut.has(r.number, vacated(tenantKind), m.Tenant)
		r.tenants[m.Tenant] = t
		r.push(t)
	}
	if last := len(r.spare) - 1; last >= 0 {
		l, r.spare = r.spare[last], r.spare[:last]
	} else {
		l = new(Lane)
	}
	l.parent, l.Key, l.Route, l.tenant = &t.node, key, r, t
	l.shut = w.shut.has(r.number, laneKind, key) || w.shut.has(r.number, vacated(laneKind), key)
	r.lanes[key] = l
	t.push(l)
	return l
}

// prune removes l, and its tenant, from the tree if nothing of it is open.
func (w *window) prune(l *Lane) {
	if l.open > 0 || l.Route == nil {
		return
	}
	r, t := l.Route, l.tenant
	w.keepShut(&l.node, r, laneKind, l.Key)
	t.remove(l)
	delete(r.lanes, l.Key)
	t.gone = max(t.gone, l.done)
	*l = Lane{}
	if len(r.spare) < maxSpare {
		r.spare = append(r.spare, l)
	}
	if t.first != nil {
		return
	}
	w.keepShut(&t.node, r, tenantKind, t.name)
	r.remove(t)
	delete(r.tenants, t.name)
	r.gone = max(r.gone, t.gone)
}

// maxSpare is how many lanes of a route are kept to be used again: a key comes and goes all the time when
// handlers are as fast as the stream.
const maxSpare = 64

// keepShut remembers that n, which leaves the tree, is shut.
func (w *window) keepShut(n *node, r *Route, kind byte, name string) {
	switch {
	case !n.shut:
	case n.vacated:
		w.shut.add(r.number, vacated(kind), name)
	default:
		w.shut.add(r.number, kind, name)
	}
}

// wanted returns the routes that take m.
func (w *window) wanted(m *Message) []*Route {
	w.want = w.want[:0]
	for _, r := range w.routes {
		if r.takes(m) {
			w.want = append(w.want, r)
		}
	}
	return w.want
}

// recipients returns those of wanted that neither have m nor have acked it, and take it. left reports whether
// one of them takes nothing now.
func (w *window) recipients(m *Message, wanted, acked []*Route) (to []*Route, left bool) {
	to = w.to[:0]
	for _, r := range wanted {
		if slices.Contains(acked, r) || m.has(r) {
			continue
		}
		if w.isShut(r, m) && len(m.IDs) > 0 {
			left = true
			continue
		}
		to = append(to, r)
	}
	w.to = to
	return to, left
}

// isShut reports whether r takes nothing like m now, and notes that something of it is left.
func (w *window) isShut(r *Route, m *Message) bool {
	if r.keepsOut() {
		return true
	}
	key := w.laneKey(m)
	l := r.lanes[key]
	if w.isTenantShut(r, m.Tenant) {
		w.shutKey(r, l, key)
		return true
	}
	if l != nil {
		return l.keepsOut()
	}
	return w.shut.keepsOut(r.number, laneKind, key)
}

// isTenantShut reports whether r takes nothing of a tenant now, and notes that something of it is left.
func (w *window) isTenantShut(r *Route, name string) bool {
	if t := r.tenants[name]; t != nil {
		return t.keepsOut()
	}
	return w.shut.keepsOut(r.number, tenantKind, name)
}

// shutKey shuts a key of a tenant that is shut: others may have it in common, and nothing overtakes what is left.
func (w *window) shutKey(r *Route, l *Lane, key string) {
	switch {
	case !r.ordered:
	case l != nil:
		l.shut, l.spared = true, false
	default:
		w.shut.add(r.number, vacated(laneKind), key)
	}
}

// hasRoom reports whether m fits. One that is larger than the window fits alone.
func (w *window) hasRoom(m *Message) bool {
	waits := w.waiting-w.excusedWaiting < 2*w.cfg.MaxInFlight && w.waitingBytes-w.excusedBytes < w.cfg.MaxBytes &&
		w.unconfirmedNow-w.excusedUnconfirmed < w.cfg.MaxUnconfirmed
	if m.place == amongMoving || w.moving == 0 && waits {
		return true
	}
	return waits && w.moving < w.cfg.MaxInFlight && w.movingBytes+m.Bytes <= w.cfg.MaxBytes
}

// hasRoomFor reports whether n more bytes of m, which is open, fit.
func (w *window) hasRoomFor(m *Message, n int64) bool {
	if m.place == amongWaiting {
		return w.waitingBytes-w.excusedBytes+n <= w.cfg.MaxBytes
	}
	return w.movingBytes+n <= w.cfg.MaxBytes && w.waitingBytes-w.excusedBytes < w.cfg.MaxBytes
}

// crowded reports whether next to nothing fits.
func (w *window) crowded() bool {
	return w.moving >= w.cfg.MaxInFlight-w.cfg.MaxInFlight/16 || w.movingBytes >= w.cfg.MaxBytes-w.cfg.MaxBytes/16
}

// filled reports whether what is open, moving or not, would fill it.
func (w *window) filled() bool {
	return w.moving+w.waiting >= w.cfg.MaxInFlight-w.cfg.MaxInFlight/16 || w.movingBytes+w.waitingBytes >= w.cfg.MaxBytes-w.cfg.MaxBytes/16
}

// tooManyWait reports whether so many wait that some of them have to be left.
func (w *window) tooManyWait() bool {
	return w.waiting > w.cfg.MaxInFlight || 2*w.waitingBytes > w.cfg.MaxBytes || 2*w.unconfirmedNow > w.cfg.MaxUnconfirmed
}

// add counts it.
func (w *window) add(it *Item) {
	it.Lane.add(1, it.Message.Bytes)
	it.moving = true
	w.count(it.Message)
}

// wait counts it among those that wait.
func (w *window) wait(it *Item) {
	it.moving = false
	w.count(it.Message)
}

// remove counts it, which is finished, no longer in l.
func (w *window) remove(it *Item, l *Lane) {
	l.add(-1, -it.Message.Bytes)
	w.count(it.Message)
}

// count brings the place of m up to date.
func (w *window) count(m *Message) {
	if now := m.where(); now != m.place {
		w.sum(m, -1, -m.Bytes)
		m.place = now
		w.sum(m, 1, m.Bytes)
	}
}

// sum adds n messages and so many bytes where m is.
func (w *window) sum(m *Message, n int, bytes int64) {
	switch m.place {
	case amongMoving:
		w.moving += n
		w.movingBytes += bytes
	case amongWaiting:
		w.waiting += n
		w.waitingBytes += bytes
	case nowhere:
	}
}

// unconfirmed counts n messages, which are acked by all and not confirmed, for l.
func (w *window) unconfirmed(now time.Duration, l *Lane, n int) {
	if l.unconfirmed == 0 {
		l.unconfirmedSince = now
	}
	l.unconfirmed += n
	l.add(n, 0)
	w.unconfirmedNow += n
}

// confirmed counts one less for l, which was acked then. Those that were acked after it are confirmed after it, as a rule.
func (w *window) confirmed(l *Lane, acked time.Duration) {
	l.unconfirmed--
	l.unconfirmedSince = max(l.unconfirmedSince, acked)
	l.add(-1, 0)
	w.unconfirmedNow--
}

// workedOff reports whether l, or a node above it, is shut and has worked off three quarters of what it may keep, so
// that what was left can come again.
func (w *window) workedOff(l *Lane) bool {
	if w.shut.left {
		return true
	}
	for n := &l.node; n != nil; n = n.parent {
		if n.left && !n.vacated && !n.exceeds(n.share.quarter()) {
			return true
		}
	}
	return false
}

// reopen opens every node: all that was left comes again.
func (w *window) reopen() {
	w.tempo.reopen()
	w.shut = shutSet{}
	w.excusedWaiting, w.excusedBytes, w.excusedUnconfirmed = 0, 0, 0
	for _, r := range w.routes {
		r.reopen()
		for t := r.first; t != nil; t = t.next {
			t.reopen()
			for l := t.first; l != nil; l = l.next {
				l.reopen()
			}
		}
	}
}

func (n *node) reopen() {
	n.shut, n.left, n.vacated, n.spared, n.share = false, false, false, false, share{}
}

// keepsOut reports whether n is shut, and notes that something of it is left then.
func (n *node) keepsOut() bool {
	if n.shut {
		n.left, n.spared = true, false
	}
	return n.shut
}

// reopenSpared opens n and the nodes above it again that have worked off three quarters of what they may keep, and of
// which nothing was left.
func (n *node) reopenSpared() {
	for ; n != nil; n = n.parent {
		if n.spared && !n.exceeds(n.share.quarter()) {
			n.reopen()
		}
	}
}

// hung returns the items that handlers have had for too long, if others go on, or if nothing else moves. A window of
// one message has none: there is no second one in a handler, other than beside it.
func (w *window) hung(now time.Duration) (items []*Item) {
	for l := range w.lanes {
		if w.cfg.MaxInFlight == 1 && !l.Route.beside {
			continue
		}
		for it := range l.Items {
			if it.moving && it.state == handed && now-it.at >= w.tempo.patience {
				items = append(items, it)
			}
		}
	}
	if !w.root.goesOn(now) && len(items) < w.moving {
		return nil
	}
	return items
}

// lanes yields each lane, in the order in which they were made.
func (w *window) lanes(yield func(*Lane) bool) {
	for _, r := range w.routes {
		for l := range r.each {
			if !yield(l) {
				return
			}
		}
	}
}

// nextToEnd reports whether m is the message that came first of those whose turn it is, and which neither are put off nor
// hang: in the end, all others wait for it. None is while those, with what is behind them, are all that there may be.
func (w *window) nextToEnd(m *Message) bool {
	var first *Item
	off := int64(0)
	for l := range w.lanes {
		for it := range l.Items {
			head := it == l.first || !l.Route.ordered
			switch {
			case it.stuck(), !head && l.first.stuck():
				off += it.Message.Bytes
			case head && (first == nil || it.Message.item.Opened < first.Message.item.Opened):
				first = it
			}
		}
	}
	return first != nil && first.Message == m && off < 2*w.cfg.MaxBytes
}
