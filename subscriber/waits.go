package subscriber

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/subscriber/internal/core"
)

// WaitKind is what waits.
type WaitKind string

// The kinds of what waits, and what for.
const (
	// WaitKey: the messages of an order key wait for a handler, or for the payload of the
	// first one, and nothing of the key has been finished for a second.
	WaitKey WaitKind = "key"
	// WaitSubscription: a subscription, or what it has of a tenant, is slow or hangs: further
	// messages are left with the service, or, with [Unordered], handlers have had some for a second.
	WaitSubscription WaitKind = "subscription"
	// WaitNack: a message waits to be redelivered after a nack, since the first one.
	WaitNack WaitKind = "nack"
	// WaitPayload: payloads of a host wait for another attempt to download them.
	WaitPayload WaitKind = "payload"
	// WaitTenant: confirmations of a tenant wait because the latest requests failed. One without
	// an ID: those of endpoints whose tenant is not known, because listing the tenants fails.
	WaitTenant WaitKind = "tenant"
	// WaitFile: messages wait for their file.
	WaitFile WaitKind = "file"
	// WaitFileConfirmation: confirmations wait for the file that the message may be a chunk of.
	WaitFileConfirmation WaitKind = "file confirmation"
)

// WaitKinds are all kinds.
func WaitKinds() []WaitKind {
	return []WaitKind{WaitKey, WaitSubscription, WaitNack, WaitPayload, WaitTenant, WaitFile, WaitFileConfirmation}
}

// Waits is what waits of one kind.
type Waits struct {
	Kind WaitKind
	// Count is how many wait: keys, subscriptions, messages, hosts, tenants, or confirmations.
	Count int
	// Longest are those that have waited longest, at most 20; of WaitFile and
	// WaitFileConfirmation only the one that is next.
	Longest []Wait
	// Total is the sum of Wait.Count, and Newest the latest Wait.Since, of all that wait.
	Total  int
	Newest time.Time
}

// Wait is one thing that waits.
type Wait struct {
	// What is an order key, the topic of a subscription, perhaps with a tenant's ID, the ID of a
	// message, a host or the ID of a tenant; empty for tenants that are not known.
	What string
	// Count is how many messages, payloads or confirmations wait with it.
	Count int
	// Since is when the wait began. Until is when it ends or something is tried again; zero if
	// that depends on others.
	Since, Until time.Time
	// Err is why the latest download of the host, or confirmation of the tenant, failed; nil for others.
	Err error
}

const (
	// maxWaits is of how many waits of a kind there are details.
	maxWaits = 20
	// watchEvery is how often what waits is looked at for the log.
	watchEvery = 5 * time.Second
)

// waitSet is what waits of a kind, by name.
type waitSet map[string]Wait

// add adds w to what waits under its name.
func (s waitSet) add(w Wait) {
	if known, waits := s[w.What]; waits {
		w.Count += known.Count
		w.Since, w.Until = earlier(w.Since, known.Since), earlier(w.Until, known.Until)
	}
	s[w.What] = w
}

func (s waitSet) all() []Wait { return slices.Collect(maps.Values(s)) }

// appendWaits adds what waits of a kind, if anything does.
func appendWaits(waits []Waits, kind WaitKind, all []Wait) []Waits {
	if len(all) == 0 {
		return waits
	}
	slices.SortFunc(all, func(a, b Wait) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.What, b.What)) })
	w := Waits{Kind: kind, Count: len(all), Longest: slices.Clone(all[:min(len(all), maxWaits)]), Newest: all[len(all)-1].Since}
	for _, wait := range all {
		w.Total += wait.Count
	}
	return append(waits, w)
}

// waits returns what waits, without the confirmations of tenants; with logged, what is worth a line when it lasts: messages
// that are nacked are those of their subscription, not each or each key of them. s.mu is held.
func (s *Subscriber) waits(now time.Time, logged bool) []Waits {
	waits := appendWaits(nil, WaitKey, s.keyWaits(now, logged))
	waits = appendWaits(waits, WaitSubscription, s.subscriptionWaits(now))
	waits = appendWaits(waits, WaitNack, s.nackWaits(logged))
	waits = appendWaits(waits, WaitPayload, s.payloads.downloads.waits())
	if logged {
		return waits
	}
	var held, awaiting Wait
	s.core.Waiters(s.now(), func(m *core.Message, isHeld bool, since, until time.Duration) {
		w, what := &awaiting, ""
		if d := ownerOf(m); isHeld {
			w, what = &held, d.family()
		} else {
			what = d.messages[0]
		}
		if w.Count++; w.Count == 1 || s.clock.time(until).Before(w.Until) {
			w.What, w.Since, w.Until = what, s.clock.time(since), s.clock.time(until)
		}
	})
	for kind, w := range map[WaitKind]Wait{WaitFile: held, WaitFileConfirmation: awaiting} {
		if w.Count > 0 {
			waits = append(waits, Waits{Kind: kind, Count: w.Count, Longest: []Wait{w}, Total: w.Count, Newest: w.Since})
		}
	}
	return waits
}

// lanes yields the lanes of subscriptions, other than that for the quarantine. s.mu is held.
func (s *Subscriber) lanes(yield func(*core.Lane) bool) {
	for l := range s.core.Lanes {
		if forSubscribers(l) && !yield(l) {
			return
		}
	}
}

// items yields what is in them. s.mu is held.
func (s *Subscriber) items(yield func(*core.Item) bool) {
	for l := range s.lanes {
		for it := range l.Items {
			if !yield(it) {
				return
			}
		}
	}
}

// forSubscribers reports whether l has messages of a subscription, and not records for the quarantine.
func forSubscribers(l *core.Lane) bool { return l.Route.Owner.(*subscription).topic != "" }

// stallAfter is how long nothing of a key may be finished before it counts as waiting.
const stallAfter = time.Second

// keyWaits returns the keys of which nothing is finished, with logged without those whose first message was nacked.
// s.mu is held.
func (s *Subscriber) keyWaits(now time.Time, logged bool) (keys []Wait) {
	if s.cfg.Order == Unordered {
		return nil
	}
	for l := range s.lanes {
		first, since := l.First(), s.clock.time(l.Since())
		if first == nil || now.Sub(since) < stallAfter || logged && first.FirstNack > 0 {
			continue
		}
		w := Wait{What: l.Key, Since: since}
		for range l.Items {
			w.Count++
		}
		keys = append(keys, w)
	}
	return keys
}

// nackWaits returns the messages that wait after a nack; with logged, the subscriptions whose messages are nacked, each with the
// oldest of them: those that a handler has again count, however short the pauses between the nacks are. s.mu is held.
func (s *Subscriber) nackWaits(logged bool) (nacks []Wait) {
	found := waitSet{}
	for it := range s.items {
		since := s.clock.time(it.FirstNack)
		if until, off := it.PutOff(); off && !logged {
			nacks = append(nacks, Wait{What: nameOf(ownerOf(it.Message)), Count: 1, Since: since, Until: s.clock.time(until)})
		} else if logged && it.FirstNack > 0 {
			found.add(Wait{What: it.Lane.Route.Name, Count: 1, Since: since})
		}
	}
	return append(nacks, found.all()...)
}

// subscriptionWaits returns the subscriptions that hang, or of which something is left with the service. s.mu is held.
func (s *Subscriber) subscriptionWaits(now time.Time) []Wait {
	found := waitSet{}
	for it := range s.items {
		since, has := it.HandedOut()
		if at := s.clock.time(since); s.cfg.Order == Unordered && has && now.Sub(at) >= stallAfter {
			found.add(Wait{What: it.Lane.Route.Owner.(*subscription).topic, Count: 1, Since: at})
		}
	}
	s.core.Shut(s.now(), func(r *core.Route, tenant string, open int, since time.Duration) {
		what := r.Owner.(*subscription).topic
		if what == "" { // the quarantine, which has a line of its own
			return
		}
		if tenant != "" {
			what += ", tenant " + tenant
		}
		found.add(Wait{What: what, Count: max(0, open-found[what].Count), Since: s.clock.time(since)}) // these, too
	})
	return found.all()
}

// nameOf returns the ID of a message, or of the first message of a file.
func nameOf(d *delivery) string {
	if len(d.messages) > 0 {
		return d.messages[0]
	}
	return string(d.event.Type())
}

// waits returns the hosts whose payloads wait for another attempt.
func (q *downloadQueue) waits() []Wait {
	hosts := waitSet{}
	for e := range q.failing.All() {
		hosts.add(Wait{What: e.Item.host.name, Count: 1, Since: e.Item.since, Until: e.At(), Err: e.Item.host.err})
	}
	return hosts.all()
}

// waits returns the tenants whose confirmations fail.
func (q *confirmQueue) waits() (all []Wait) {
	for _, t := range q.tenants {
		if t.failures > 0 {
			all = append(all, Wait{What: t.tenant, Count: t.size, Since: t.since, Until: t.notBefore, Err: t.err})
		}
	}
	return all
}

// waitWatch tells which waits are worth a line in the log: once when they have lasted for
// waitReported, and once when they have been over for as long: what is left with the service and comes again
// waits with pauses. It is a state machine without clock and lock.
type waitWatch struct{ reported map[waitID]longWait }

type waitID struct {
	kind WaitKind
	what string
}

// look takes in what waits now.
func (w *waitWatch) look(now time.Time, all []Waits) (begun, over []longWait) {
	if w.reported == nil {
		w.reported = make(map[waitID]longWait)
	}
	for _, waits := range all {
		for _, wait := range waits.Longest {
			id := waitID{waits.Kind, wait.What}
			known, reported := w.reported[id]
			if !reported {
				if now.Sub(wait.Since) < waitReported {
					continue
				}
				known = longWait{waitID: id, wait: wait}
				begun = append(begun, longWait{id, wait, now})
			}
			known.seen = now
			w.reported[id] = known
		}
	}
	for id, known := range w.reported {
		if now.Sub(known.seen) >= waitReported {
			delete(w.reported, id)
			over = append(over, known)
		}
	}
	return begun, over
}

// longWait is a wait that is worth a line.
type longWait struct {
	waitID
	wait Wait
	seen time.Time // when it was there last
}

// watchWaits logs what has waited for long, until ctx ends.
func (s *Subscriber) watchWaits(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var watch waitWatch
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		s.mu.Lock()
		waits := s.waits(now, true)
		s.mu.Unlock()
		begun, over := watch.look(now, waits)
		for _, w := range begun {
			err := waitLines[w.kind].err
			if w.wait.Err != nil {
				err = fmt.Errorf("%w: %w", err, w.wait.Err)
			}
			s.logger.Error(waitLines[w.kind].begun, err, w.fields())
		}
		for _, w := range over {
			s.logger.Info(waitLines[w.kind].over, w.fields())
		}
	}
}

// waitLine is what is logged when a wait is worth a line, with err, and when it is over.
type waitLine struct {
	begun, over string
	err         error
}

// errWaits is what a long wait is logged with, before its cause.
var errWaits = errors.New("subscriber: nothing has happened for 10 s or more; others are not affected")

var waitLines = map[WaitKind]waitLine{
	WaitKey:     {"messages of a key wait: none of them is finished", "messages of the key no longer wait", errWaits},
	WaitPayload: {"payloads of a host wait: they cannot be downloaded", "payloads of the host no longer wait", errWaits},
	WaitSubscription: {"messages of a subscription wait: it is slow or hangs", "messages of the subscription no longer wait",
		errors.New("subscriber: messages have not been acked for 10 s or more, or are left with the service for as long; others are not affected")},
	WaitNack: {"messages wait to be redelivered after a nack", "messages no longer wait to be redelivered after a nack",
		errors.New("subscriber: a message has been nacked, or put off by its handler, for 10 s or more; others are not affected")},
}

func (w longWait) fields() watermill.LogFields {
	what := string(w.kind)
	if w.kind == WaitNack {
		what = string(WaitSubscription)
	}
	return watermill.LogFields{
		what: limited(w.what), "count": w.wait.Count, "lasted": w.seen.Sub(w.wait.Since).Round(time.Second),
	}
}
