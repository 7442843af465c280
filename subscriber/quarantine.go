package subscriber

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/subscriber/internal/core"
	"github.com/agrimill/agrimill/subscriber/internal/lease"
)

// Metadata keys of quarantine records. The first two are those of the router's
// poison queue, so that its tools display the records; a record has none of its other
// keys, and is therefore never replayed as a message.
const (
	// KeyQuarantineReason is what is wrong with the event. It quotes none of its data.
	KeyQuarantineReason = "x-router-poison-reason"
	// KeyQuarantineClass is one of the values below, such as [QuarantineMalformed].
	KeyQuarantineClass = "x-router-poison-class"
	// KeyQuarantineReceived is when the event arrived, RFC 3339 in UTC.
	KeyQuarantineReceived = "x-router-quarantine-received"
	// KeyQuarantineEventType is the type of the event; absent if it had none.
	KeyQuarantineEventType = "x-router-quarantine-event-type"
	// KeyQuarantineEndpointID, KeyQuarantineMessageIDs and KeyQuarantineTenantID
	// are the event's IDs as far as they could be read; absent if they could not.
	// Multiple message IDs are separated by commas.
	KeyQuarantineEndpointID = "x-router-quarantine-endpoint-id"
	KeyQuarantineMessageIDs = "x-router-quarantine-message-ids"
	KeyQuarantineTenantID   = "x-router-quarantine-tenant-id"
	// KeyQuarantineBody is "absent" if the payload of the record is empty
	// because the event is too large. Otherwise the payload is the event's data.
	KeyQuarantineBody = "x-router-quarantine-body"
)

// Values of [KeyQuarantineClass].
const (
	QuarantineMalformed = "malformed"
	QuarantineTooLarge  = "too large"
	// QuarantinePayloadGone: a notice of a message whose payload can no longer be downloaded.
	QuarantinePayloadGone = "payload gone"
	// QuarantineUnmatched: a message that everybody who got it refused, as received, with all its
	// metadata; see [UnmatchedQuarantine].
	QuarantineUnmatched = "unmatched"
)

// DefaultQuarantineTopic is the default of [QuarantineConfig.Topic].
const DefaultQuarantineTopic = "quarantine"

// QuarantineConfig configures where events are stored that cannot be delivered
// because they cannot be decoded, or are larger than gateway.Config.MaxEventSize.
//
// Each such event is stored as received, with the KeyQuarantine… metadata; for an
// event that is too large, only a notice is stored. Records are stored one at a time
// in stream order, and retried indefinitely while the Publisher fails. Meanwhile they
// are in flight, like the messages of a subscription of their own: while it stalls and
// the window is full, further messages and files are left with the service for later.
// Other events come only once, and keep their place: a window full of them stops
// everybody.
//
// A MESSAGE_RECEIVED whose IDs could be read is confirmed once it is stored, unless
// an intact copy of it is open. It stays with the service if
// the record is incomplete: it lacks the payload, or the event is too large. The messages of a FILE_RECEIVED are delivered and confirmed
// individually. An unconfirmed event is redelivered on every connection; it is
// recognized by its digest, so that it is stored only once.
type QuarantineConfig struct {
	// Publisher stores the records. It is a sink, or any Watermill publisher whose
	// Publish returns after the message is stored and ends with the message's
	// context. The subscriber does not close it. Nil disables the
	// quarantine: such events are only reported, and stay unconfirmed.
	Publisher message.Publisher
	// Topic is where the records are stored. Empty means
	// [DefaultQuarantineTopic]. It may be the topic of a poison queue.
	Topic string
	// Timeout bounds one call of Publish. Default 30 seconds.
	Timeout time.Duration
	// Retry is the backoff while the Publisher fails. Default 1 s, doubling
	// up to 30 s.
	Retry Backoff
	// Remember is how many stored records are recognized when their events are
	// redelivered. Default 10,000, about 1 MB when full.
	Remember int
}

func (c *QuarantineConfig) setDefaults() {
	setDefault(&c.Topic, DefaultQuarantineTopic)
	setDefault(&c.Timeout, 30*time.Second)
	setDefault(&c.Retry.Initial, time.Second)
	setDefault(&c.Retry.Max, max(30*time.Second, c.Retry.Initial))
	setDefault(&c.Remember, 10_000)
}

// quarantine stores records. A subscription that gets nothing else hands them over, one at a time.
type quarantine struct {
	cfg    QuarantineConfig
	logger watermill.LoggerAdapter
	stats  *counters
	// reading has room for one who reads a payload to be stored.
	reading chan struct{}
	failing atomic.Bool                        // the latest publish failed
	known   *lru.Cache[digest, msgctx.Outcome] // what is done; SetAside if the store has a notice, and does not accept the body

	sub *subscription // nil before the first record. Guarded by Subscriber.mu
}

func newQuarantine(cfg QuarantineConfig, logger watermill.LoggerAdapter, stats *counters) *quarantine {
	known, _ := lru.New[digest, msgctx.Outcome](cfg.Remember) // it fails without a size
	return &quarantine{cfg: cfg, logger: logger, stats: stats, reading: make(chan struct{}, 1), known: known}
}

// quarantineEvent has r stored, and reports whether that was not known. It waits while there is no room, until ctx ends; with
// last, it does not.
func (s *Subscriber) quarantineEvent(ctx context.Context, r *quarantined, last bool) (isNew bool) {
	d := &delivery{event: r, arrived: s.now()}
	d.Owner, d.tenant, d.endpoint, d.messages = d, r.tenant, r.endpoint, r.messages
	d.id1[0] = r.digest
	d.Family, d.Bytes, d.Last = binary.BigEndian.Uint64(r.digest[:]), int64(len(r.body)), last
	if r.comesAgain() {
		d.IDs = d.id1[:]
	}
	known := s.quarantine.known.Contains(r.digest)
	return s.offer(ctx, d) == core.Opened && !known
}

// openQuarantine makes the subscription that records are for, unless the Subscriber closes. s.mu is held.
func (s *Subscriber) openQuarantine() (is bool) {
	q := s.quarantine
	if q.sub == nil && !s.closed {
		ctx := context.Background() // it ends on Close
		q.sub = s.newSubscription(ctx, "", nil, func() {})
		q.sub.route = s.core.AddBeside(s.now(), func(m *core.Message) bool { return ownerOf(m).record() != nil })
		q.sub.route.Owner = q.sub
		// Ends with q.sub.stop, once the deliveries have ended.
		s.wg.Go(func() { s.runSubscription(ctx, q.sub) })
	}
	return q.sub != nil && !wakeup.Raised(q.sub.stop)
}

// handle makes one attempt to have r stored, after so many that failed.
func (q *quarantine) handle(ctx context.Context, r *quarantined, failures int) msgctx.Outcome {
	outcome, known := q.known.Get(r.digest)
	if !known {
		if outcome = q.store(ctx, r, failures); outcome == msgctx.Acked || outcome == msgctx.SetAside {
			q.known.Add(r.digest, outcome)
		}
	}
	return outcome
}

// noticeAfter is how often storing a record has to fail before a notice is tried
// in its place.
const noticeAfter = 2

// store makes one attempt to publish r, after so many that failed. It is set aside if the store accepts only a notice
// of it, repeatedly not the event itself, for example because that exceeds the store's size limit.
func (q *quarantine) store(ctx context.Context, r *quarantined, failures int) msgctx.Outcome {
	err := q.publish(ctx, r.message(q.cfg.Topic, true))
	noticed := err != nil && r.body != nil && failures >= noticeAfter && q.publish(ctx, r.message(q.cfg.Topic, false)) == nil
	if noticed { // perhaps the store has come back just now
		err = q.publish(ctx, r.message(q.cfg.Topic, true))
	}
	switch {
	case err == nil:
		q.works()
		q.stats.quarantined.Add(1)
		return msgctx.Acked
	case ctx.Err() != nil:
		return msgctx.Left
	case noticed:
		q.works()
		q.logger.Error("quarantine accepts a notice of an event but not the event itself; it stays unconfirmed", err, r.fields())
		q.stats.setAside.Add(1)
		return msgctx.SetAside
	}
	q.stats.quarantineFailures.Add(1)
	if !q.failing.Swap(true) {
		q.logger.Error("quarantine unavailable; events wait, and messages and files that find no room stay with the service", err,
			watermill.LogFields{"topic": q.cfg.Topic})
	}
	return msgctx.Nacked
}

func (q *quarantine) publish(ctx context.Context, msg *message.Message) error {
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
	defer cancel()
	ctx = lease.Guard(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	msg.SetContext(ctx)
	return q.cfg.Publisher.Publish(q.cfg.Topic, msg)
}

func (q *quarantine) works() {
	if q.failing.Swap(false) {
		q.logger.Info("quarantine available again", watermill.LogFields{"topic": q.cfg.Topic})
	}
}

// toConfirm returns what is to be confirmed of d, which nobody has any longer: of a record that has all of a message, unless
// an intact copy of it is open. s.mu is held.
func (s *Subscriber) toConfirm(d *delivery) []core.Confirmation {
	if r := d.record(); r != nil && !(r.confirm && s.core.Unheard(newID(r.endpoint, r.messages[0]))) {
		for _, c := range d.Confirm {
			s.core.Confirmed(s.now(), c)
		}
		return nil
	}
	return d.Confirm
}
