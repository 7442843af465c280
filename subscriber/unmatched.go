package subscriber

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/enum"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// Unmatched says what happens to messages that everybody who got them has refused.
type Unmatched int

const (
	// UnmatchedConfirm confirms them, so they are gone. It is the default.
	UnmatchedConfirm Unmatched = iota
	// UnmatchedQuarantine stores each in Config.Quarantine, with payload and metadata, and confirms
	// it then. A message and the file that it is part of are refused, and stored, one by one.
	// While the quarantine fails they wait like nacked messages.
	UnmatchedQuarantine
	// UnmatchedKeep confirms nothing and remembers their identity, at most Config.MaxKept: the
	// service delivers them again on each connection, and that is ignored until there is a new
	// subscription, or the process starts again. They then ask everybody anew.
	UnmatchedKeep
)

var unmatchedNames = []string{"confirm", "quarantine", "keep"}

// String returns confirm, quarantine or keep.
func (u Unmatched) String() string { return enum.Text(u, unmatchedNames) }

// UnmarshalText parses the output of String.
func (u *Unmatched) UnmarshalText(text []byte) error { return enum.Parse(u, text, unmatchedNames) }

// Refuse says that the handler of msg does not want it. The ack that has to follow then counts as
// a refusal: a message that everybody refused is treated as [Config.Unmatched] says. A nack is
// not affected. The filters of routes of package router do this themselves. It reports whether the
// message is one of a [Subscriber], or a copy in the context of one.
func Refuse(msg *message.Message) bool {
	nack := msgctx.NackOf(msg.Context())
	if nack == nil {
		return false
	}
	nack.Refuse()
	return true
}

// unmatched is the part of the ledger that settles what everybody refused.
type unmatched struct {
	policy    Unmatched
	count     int64
	items     []keptMessage // oldest first; some may not be kept any longer
	kept, max int           // how many are, and may be
	keptFiles *fileSet
	renewed   time.Duration // when a subscription was made
	// unasked says that something was left because not everybody who takes it was asked.
	unasked bool
}

// keptMessage is a message that is, or was, kept.
type keptMessage struct {
	entry entryRef
	at    time.Duration // that of the entry
}

func newUnmatched(cfg Config) unmatched {
	u := unmatched{policy: cfg.Unmatched, max: cfg.MaxKept}
	u.forgetFiles()
	return u
}

// forever is longer than a process lives.
const forever = 1<<63 - 1

func (u *unmatched) forgetFiles() {
	size := 0
	if u.policy == UnmatchedKeep {
		size = u.max
	}
	u.keptFiles = newFileSet(size, forever)
}

// settle decides about a message that everybody who had it acked, and reports whether it is to be
// confirmed. unasked says that by now others take it, too.
func (l *ledger) settle(now time.Time, ref entryRef, unasked bool) (confirm bool) {
	e := &l.entries[ref.slot]
	switch {
	case e.took:
		return true
	case l.policy == UnmatchedConfirm:
		l.count++
		return true
	case l.policy == UnmatchedKeep && !unasked:
		l.count++
		l.keepEntry(now, ref)
	default:
		// It comes again, and they are asked: by its file, if that alone was delivered. With a
		// quarantine it is one of two deliveries of the message, each of which waited for the other.
		e.given = e.alone
		l.leave(now, ref)
		l.unasked = true
	}
	return false
}

// keepEntry keeps a message, which was not kept before, and forgets the oldest one if there are too many.
func (l *ledger) keepEntry(now time.Time, ref entryRef) {
	u := &l.unmatched
	if len(u.items) >= 2*max(u.max, u.kept) { // many of them are not kept any longer
		u.items = slices.DeleteFunc(u.items, func(item keptMessage) bool { return !l.keeps(item) })
	}
	e := &l.entries[ref.slot]
	e.state, e.at = stateKept, now.Sub(l.began)
	u.items = append(u.items, keptMessage{ref, e.at})
	u.kept++
	for u.kept > u.max {
		l.forgetOldest()
	}
}

func (l *ledger) keeps(item keptMessage) bool {
	e := l.get(item.entry)
	return e != nil && e.state == stateKept && e.at == item.at
}

func (l *ledger) forgetOldest() {
	u := &l.unmatched
	first := u.items[0]
	u.items = u.items[1:]
	if l.keeps(first) {
		u.kept--
		l.forget(first.entry.slot)
	}
}

// unkeep is called when e, which may be kept, is no longer.
func (l *ledger) unkeep(e *messageEntry) {
	if e.state == stateKept {
		l.kept--
	}
}

// forgetKept forgets everything that is kept.
func (l *ledger) forgetKept() {
	for len(l.items) > 0 {
		l.forgetOldest()
	}
	l.items = nil
	l.forgetFiles()
}

// isKept reports whether a file that comes again is kept, with all of its messages.
func (l *ledger) isKept(file fileKey, keys []messageKey) bool {
	if _, kept := l.keptFiles.at[file]; !kept {
		return false
	}
	return !slices.ContainsFunc(keys, func(k messageKey) bool {
		slot, known := l.find(k)
		return !known || l.entries[slot].state != stateKept
	})
}

// keptNow returns how many messages are kept, may be, and since when the oldest is.
func (l *ledger) keptNow() (n, most int, oldest time.Time) {
	if l.policy != UnmatchedKeep {
		return 0, 0, time.Time{}
	}
	for len(l.items) > 0 && !l.keeps(l.items[0]) {
		l.items = l.items[1:]
	}
	if len(l.items) > 0 {
		oldest = l.began.Add(l.items[0].at)
	}
	return l.kept, l.max, oldest
}

// answered reports whether somebody has handled d or refused it.
func (d *delivery) answered() bool { return len(d.acked)+len(d.refused) > 0 }

// recallKept has the service deliver again what is kept: a subscription was made that may want
// it. s.mu is held.
func (s *Subscriber) recallKept() {
	s.ledger.renewed = time.Since(s.ledger.began)
	if s.ledger.kept > 0 {
		s.ledger.forgetKept()
		s.recallLocked()
	}
}

// requestUnasked requests what the ledger left because not everybody was asked. s.mu is held.
func (s *Subscriber) requestUnasked(now time.Time) {
	if s.ledger.unasked && !s.closed {
		s.requestLeft(now, false)
	}
	s.ledger.unasked = false
}

// unaskedOf reports whether a subscription that takes d, which everybody refused, was not asked:
// it was made after d arrived. It matters only when the message is to be kept for good. s.mu is held.
func (s *Subscriber) unaskedOf(d *delivery) bool {
	if s.cfg.Unmatched != UnmatchedKeep || len(d.acked) > 0 || len(d.keys) == 0 {
		return false
	}
	event, messageType := d.event.Type(), messageTypeOf(d.event)
	return slices.ContainsFunc(s.subscriptions, func(sub *subscription) bool {
		return !sub.stopped && Takes(sub.topic, event, messageType) && !slices.Contains(d.refused, sub)
	})
}

// answered records what an ack by sub means, and returns the outcome: that of a message which nobody
// wants depends on the quarantine. nacks is how often sub has failed before.
func (s *Subscriber) answered(sub *subscription, d *delivery, refused bool, nacks int) msgctx.Outcome {
	if len(d.keys) == 0 || !refused && s.cfg.Unmatched != UnmatchedQuarantine {
		return msgctx.Acked
	}
	s.mu.Lock()
	if i := slices.Index(d.refused, sub); i >= 0 { // it was asked again
		d.refused = slices.Delete(d.refused, i, i+1)
	}
	if refused {
		if d.refused == nil {
			d.refused = d.refused1[:0]
		}
		d.refused = append(d.refused, sub)
	}
	last := refused && s.cfg.Unmatched == UnmatchedQuarantine && s.refusedByAll(d)
	s.mu.Unlock()
	if !last {
		return msgctx.Acked
	}
	outcome := s.quarantineUnmatched(sub, d, nacks)
	if outcome == msgctx.Acked { // the quarantine has it, so somebody does
		s.mu.Lock()
		s.ledger.count++
		d.refused = slices.DeleteFunc(d.refused, func(other *subscription) bool { return other == sub })
		s.mu.Unlock()
	}
	return outcome
}

// refusedByAll reports whether d is to be stored in the quarantine: everybody has refused it, and
// it has a message that nobody took, and that no other open delivery has. s.mu is held.
func (s *Subscriber) refusedByAll(d *delivery) bool {
	if d.left || d.parted || len(d.acked) > 0 {
		return false
	}
	for _, sub := range d.waits {
		if !slices.Contains(d.refused, sub) {
			return false
		}
	}
	return slices.ContainsFunc(d.entries, func(ref entryRef) bool {
		e := &s.ledger.entries[ref.slot]
		return !e.took && e.open == 1
	})
}

// quarantineUnmatched stores d, which everybody refused, in the quarantine, and returns Acked once it is
// there. If it is not, the message is nacked; if it never will be, because the store takes
// nothing of its size, it is set aside.
func (s *Subscriber) quarantineUnmatched(sub *subscription, d *delivery, nacks int) msgctx.Outcome {
	q := s.quarantine
	if s.cfg.Payload.Mode == PayloadLazy { // one payload in memory at a time
		select {
		case q.reading <- struct{}{}:
			defer func() { <-q.reading }()
		case <-sub.drained.Done():
			return msgctx.Left
		}
	}
	r, err := s.newUnmatchedRecord(sub.drained, d)
	if err == nil {
		err = q.publishIn(sub.drained, r.message(q.cfg.Topic, true))
	}
	switch {
	case err == nil:
		q.works()
		q.count.Add(1)
		return msgctx.Acked
	case sub.drained.Err() != nil:
		return msgctx.Left
	case r != nil && nacks >= noticeAfter && q.publishIn(sub.drained, r.message(q.cfg.Topic, false)) == nil:
		q.works()
		q.logger.Error("Quarantine accepts a notice of a message that every filter refused but not the message itself; it stays unconfirmed", err, r.fields())
		s.stats.setAside.Add(1)
		return msgctx.SetAside
	case r != nil:
		q.fails(err)
	case errors.Is(err, ErrPayloadTooLarge):
		s.undeliverable(d.event, err)
		s.stats.setAside.Add(1)
		return msgctx.SetAside
	default:
		s.logger.Info("A message that every filter refused could not be read for the quarantine; retrying",
			eventFields(d.event).Add(watermill.LogFields{"err": err}))
	}
	return msgctx.Nacked
}

// newUnmatchedRecord returns the record of d, with its payload, which is read if need be.
func (s *Subscriber) newUnmatchedRecord(ctx context.Context, d *delivery) (*quarantined, error) {
	msg, err := s.newMessage(d) // the other one belongs to its handler
	if err != nil {
		return nil, err
	}
	body := []byte(msg.Payload)
	if msg.Metadata[gateway.KeyPayloadMode] == gateway.PayloadModeLazy {
		if body, err = s.readPayload(ctx, d); err != nil {
			return nil, err
		}
		delete(msg.Metadata, gateway.KeyPayloadMode)
		msg.Metadata[gateway.KeyPayloadSize] = strconv.Itoa(len(body))
	}
	if body == nil {
		body = []byte{} // nil is for a notice
	}
	id := d.identity()
	return &quarantined{
		digest: sha256.Sum256(id[:]), class: QuarantineUnmatched, reason: "the filters of all routes refused the message",
		event: string(d.event.Type()), body: body, received: time.Now(), endpoint: d.endpoint, tenant: d.tenant,
		messages: d.messageIDs(), metadata: msg.Metadata,
	}, nil
}

// readPayload reads a payload that nobody has downloaded.
func (s *Subscriber) readPayload(ctx context.Context, d *delivery) ([]byte, error) {
	payload, _, err := s.opener(d)(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = payload.Close() }() // reading has returned every error that matters
	body, err := io.ReadAll(io.LimitReader(payload, s.cfg.Payload.MaxInline+1))
	if err == nil && int64(len(body)) > s.cfg.Payload.MaxInline {
		err = fmt.Errorf("%w (more than %d bytes)", ErrPayloadTooLarge, s.cfg.Payload.MaxInline)
	}
	return body, err
}
