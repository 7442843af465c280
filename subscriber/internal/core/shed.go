package core

import (
	"cmp"
	"slices"
	"time"
)

// health is how a node gets on.
type health int

const (
	unknown health = iota // nothing of it is open, or it has come just now
	behind                // its oldest is late, and nothing below it goes on
	fine                  // something below it was finished within stall
)

// shed returns what is to be left with the service. Nodes that are behind beside one that is fine share a
// quarter of the window. When nothing is fine, it is an outage, or nothing else can show because of who fills the
// window: all lanes share half of it, or the tenants if handlers have all that the lanes have.
func (w *window) shed(now time.Duration) (left []*Item) {
	late, best := w.frontier(now)
	total := share{w.cfg.MaxInFlight, w.cfg.MaxBytes}
	if 2*w.unconfirmedNow > w.cfg.MaxUnconfirmed {
		total.items = min(total.items, w.cfg.MaxUnconfirmed)
	}
	switch best {
	case unknown: // all of it has come just now
	case behind:
		half := share{total.items / 2, total.bytes / 2}
		if left = w.cutDown(now, parts(w.all(), half)); len(left) == 0 && w.filled() { // handlers have all of it
			left = w.cutDown(now, parts(w.tenants(), half))
		}
	case fine:
		left = w.cutDown(now, byLanes(late, share{total.items / 4, total.bytes / 4}))
	}
	return left
}

// cutDown returns what nodes have above their parts, and shuts them.
func (w *window) cutDown(now time.Duration, late []part) (left []*Item) {
	for _, p := range late {
		if !p.exceeds(p.keeps) {
			continue
		}
		cut, enough := p.cut(now, p.keeps)
		p.share = p.keeps
		p.spared = len(cut) == 0 && (p.spared || !p.shut)
		p.shut = p.shut || p.first.Route.ordered || !enough // nothing overtakes what is left
		p.vacated = len(cut) == p.open
		for _, it := range cut {
			l := it.Lane
			l.spared = false
			if !l.Route.beside {
				w.tempo.leave(now)
			}
			if l.Route.ordered && !l.shut { // others may have the key in common
				l.shut, l.vacated = true, true
			}
		}
		left = append(left, cut...)
	}
	if len(left) > 0 {
		// When one of them has finished what it keeps, the others may get on as well.
		for _, p := range late {
			p.left, p.share = true, p.keeps
		}
	}
	return left
}

// branch is a lane, or a tenant with its lanes.
type branch struct {
	*node
	first *Lane // and those behind it, of a tenant
}

func (b branch) lanes(yield func(*Lane) bool) {
	for l := b.first; l != nil && yield(l) && b.node != &l.node; l = l.next {
	}
}

// part is what a branch may keep.
type part struct {
	branch
	keeps share
}

// parts has branches share total.
func parts(branches []branch, total share) (all []part) {
	for i, b := range branches {
		all = append(all, part{b, total.of(i, len(branches))})
	}
	return all
}

// byLanes does, too, and has the lanes of a tenant share what it may keep: whatever else may come of it is not to blame. Only a
// tenant with more lanes than that has items keeps it as a whole.
func byLanes(branches []branch, total share) (all []part) {
	for _, p := range parts(branches, total) {
		var lanes []branch
		for l := range p.lanes {
			lanes = append(lanes, branch{&l.node, l})
		}
		if len(lanes) > p.keeps.items {
			all = append(all, p)
		} else {
			all = append(all, parts(lanes, p.keeps)...)
		}
	}
	return all
}

// cut returns the newest items below b that no handler has and that come again, as many as it has above its share. What is
// before one that a handler has would come again behind it.
// enough reports whether there are as many, with those that handlers have not had for long.
func (b branch) cut(now time.Duration, keep share) (items []*Item, enough bool) {
	var passing share
	for l := range b.lanes {
		for it := l.last; it != nil && (it.next == nil || it.next.state != handed || !l.Route.ordered); it = it.prev {
			switch {
			case len(it.Message.IDs) == 0, it.Overtaken > 0: // which would come again as if nothing had overtaken it
			case it.state != handed:
				items = append(items, it)
			case now-it.at < stall:
				passing.items++
				passing.bytes += it.Message.Bytes
			}
		}
	}
	slices.SortStableFunc(items, func(a, b *Item) int { return cmp.Compare(b.Opened, a.Opened) })
	open, bytes := b.open, b.bytes
	for i, it := range items {
		if open <= keep.items && bytes <= keep.bytes {
			return items[:i], true
		}
		open--
		bytes -= it.Message.Bytes
	}
	return items, open-passing.items <= keep.items && bytes-passing.bytes <= keep.bytes
}

// overShare reports whether l, or a node above it, has more than what it may keep since something of it was left.
func (w *window) overShare(l *Lane) bool {
	for n := &l.node; n != nil; n = n.parent {
		if n.share.items > 0 && n.exceeds(n.share) {
			return true
		}
	}
	return false
}

// excuse brings what is excused up to date.
func (w *window) excuse() {
	waiting, bytes, unconfirmed := 0, int64(0), 0
	for l := range w.lanes {
		if !l.shut && !l.tenant.shut && !l.Route.shut {
			continue
		}
		for it := range l.Items {
			if !it.moving {
				waiting++
				bytes += it.Message.Bytes
			}
		}
		unconfirmed += l.unconfirmed
	}
	w.excusedWaiting, w.excusedUnconfirmed = min(waiting, 2*w.cfg.MaxInFlight), min(unconfirmed, w.cfg.MaxUnconfirmed)
	w.excusedBytes = min(bytes, w.cfg.MaxBytes)
}

// frontier returns what is behind, and how the best route gets on: tenants all of whose lanes are behind, and lanes beside one of
// their tenant that is fine. A route is not in it: others that are to come may be well, also when nothing of it is that is open.
func (w *window) frontier(now time.Duration) (late []branch, best health) {
	alone := w.shared() == 1
	for _, r := range w.routes {
		h := r.emptied(now)
		for t := r.first; t != nil; t = t.next {
			g := t.emptied(now)
			var lanes []branch
			for l := t.first; l != nil; l = l.next {
				f := l.health(now, w.tempo.patience, alone)
				if f == behind {
					lanes = append(lanes, branch{&l.node, l})
				}
				g = max(g, f)
			}
			switch g {
			case fine:
				late = append(late, lanes...)
			case behind:
				late = append(late, branch{&t.node, t.first})
			case unknown:
			}
			h = max(h, g)
		}
		if !r.beside || h == behind { // that it goes on shows nothing about the others
			best = max(best, h)
		}
	}
	return late, best
}

// shared returns how many routes share the window.
func (w *window) shared() (n int) {
	for _, r := range w.routes {
		if !r.beside {
			n++
		}
	}
	return n
}

// health judges a lane. Without an order it is behind when most of what it has is late, whatever goes on. When there is only one
// route, a lane with an order that goes on is not behind if it will have worked off what it has before that could come again: it
// would only stand still meanwhile.
func (l *Lane) health(now, patience time.Duration, alone bool) health {
	waits := l.first != nil && !l.first.moving
	late, goesOn := l.open > 0 && (waits || l.isLate(now, patience)), l.goesOn(now)
	switch {
	case late && goesOn && alone && l.Route.ordered && time.Duration(l.open-l.unconfirmed)*l.pace < reconnectEvery+stall:
		return fine
	case late && (l.Route.ordered || !goesOn || 2*l.late(now, patience) > l.open):
		return behind
	case goesOn:
		return fine
	}
	return unknown
}

func (w *window) tenants() (tenants []branch) {
	for _, r := range w.routes {
		for t := r.first; t != nil; t = t.next {
			tenants = append(tenants, branch{&t.node, t.first})
		}
	}
	return tenants
}

func (w *window) all() (lanes []branch) {
	for l := range w.lanes {
		lanes = append(lanes, branch{&l.node, l})
	}
	return lanes
}
