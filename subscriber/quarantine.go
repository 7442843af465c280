package subscriber

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
	"github.com/agrimill/agrimill/internal/wakeup"
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
// wait in memory. When that queue is full, the stream is not read for up to five seconds;
// while there is no room for longer than that, or the Publisher fails, further events are
// left with the service, and requested again once the queue is empty.
//
// A MESSAGE_RECEIVED whose IDs could be read is confirmed once it is stored, unless
// an intact copy of it is open. It is not confirmed, and stays with the service, if
// the record is incomplete: the payload is elsewhere (payload_uri), or
// the event is too large. The messages of a FILE_RECEIVED are delivered and confirmed
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
	// MaxWaiting is how many records may wait to be stored, beside up to 1,000 notices of
	// payloads that are gone. Default 100.
	MaxWaiting int
	// MaxWaitingBytes bounds the bytes that may wait to be stored. A single larger
	// event may wait alone. Default 16 MiB.
	MaxWaitingBytes int64
	// Remember is how many stored records are recognized when their events are
	// redelivered. Default 10,000, about 1 MB when full.
	Remember int
}

func (c *QuarantineConfig) setDefaults() {
	setDefault(&c.Topic, DefaultQuarantineTopic)
	setDefault(&c.Timeout, 30*time.Second)
	setDefault(&c.Retry.Initial, time.Second)
	setDefault(&c.Retry.Max, max(30*time.Second, c.Retry.Initial))
	setDefault(&c.MaxWaiting, 100)
	setDefault(&c.MaxWaitingBytes, 16<<20)
	setDefault(&c.Remember, 10_000)
}

// quarantinePatience is how long the stream waits for room in the quarantine. A store that takes
// longer holds up everybody, and what it is for can as well come again later.
const quarantinePatience = 5 * time.Second

// quarantine stores records one at a time.
type quarantine struct {
	cfg    QuarantineConfig
	logger watermill.LoggerAdapter
	stats  *counters
	// stored is called for stored events, also again when they are redelivered.
	stored func(r *quarantined, again bool)
	// again requests what was left with the service.
	again func()

	// ctx ends when close gives up, or with a term; publishing and waiting end with it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// reading has room for one who reads a payload to be stored.
	reading chan struct{}

	mu      sync.Mutex
	records []*quarantined // to be stored, in order; the worker runs while there are some
	notices int            // of them: of payloads that are gone
	bytes   int64
	failing bool                         // the latest publish failed
	behind  bool                         // there was no room for too long, and still is not much
	left    bool                         // something was left with the service since it was last asked for
	known   *simplelru.LRU[digest, bool] // what is done; false if the store has a notice, and does not accept the body
	changed wakeup.Signal
}

func newQuarantine(within context.Context, cfg QuarantineConfig, logger watermill.LoggerAdapter, stats *counters, stored func(r *quarantined, again bool), again func()) *quarantine {
	ctx, cancel := context.WithCancel(within)
	known, _ := simplelru.NewLRU[digest, bool](cfg.Remember, nil) // it fails without a size
	return &quarantine{
		cfg: cfg, logger: logger, stats: stats, stored: stored, again: again, ctx: lease.Guard(ctx), cancel: cancel,
		reading: make(chan struct{}, 1), known: known,
	}
}

// take accepts an event and reports whether it is new. It waits while there is no room, until ctx ends, the store fails, or
// that has taken too long. Then it is left with the service, and so are those after it until half of the room is free.
func (q *quarantine) take(ctx context.Context, r *quarantined) (isNew bool) {
	patience, cancel := context.WithTimeout(ctx, quarantinePatience)
	defer cancel()
	q.mu.Lock()
	for ctx.Err() == nil && q.ctx.Err() == nil {
		if whole, known := q.known.Get(r.digest); known || q.waits(r) {
			q.mu.Unlock()
			if whole {
				q.stored(r, true)
			}
			return false
		}
		if q.hasRoom(r) {
			q.put(r)
			break
		}
		if q.behind = q.behind || patience.Err() != nil; q.behind || q.failing {
			q.left = true
			break
		}
		changed := q.changed.Next()
		q.mu.Unlock()
		select {
		case <-changed:
		case <-patience.Done():
		case <-q.ctx.Done():
		}
		q.mu.Lock()
	}
	q.mu.Unlock()
	return true
}

// waits reports whether a copy of r waits. q.mu is held.
func (q *quarantine) waits(r *quarantined) bool {
	return slices.ContainsFunc(q.records, func(other *quarantined) bool { return other.digest == r.digest })
}

// hasRoom reports whether r may wait. The notice of a payload that is gone has room of its own: its message may be open when
// it is delivered again, and then would not come here once more. q.mu is held.
func (q *quarantine) hasRoom(r *quarantined) bool {
	if r.class == QuarantinePayloadGone {
		return q.notices < maxGone
	}
	events := len(q.records) - q.notices
	return events == 0 || events < q.cfg.MaxWaiting && q.bytes+int64(len(r.body)) <= q.cfg.MaxWaitingBytes
}

// put has r wait. q.mu is held.
func (q *quarantine) put(r *quarantined) {
	q.records = append(q.records, r)
	q.bytes += int64(len(r.body))
	if r.class == QuarantinePayloadGone {
		q.notices++
	}
	if len(q.records) == 1 {
		// Ends when no record is left, or with q.ctx; close waits for it.
		q.wg.Go(func() { q.work(r) })
	}
}

// work stores r and those after it.
func (q *quarantine) work(r *quarantined) {
	for r != nil {
		whole, ok := q.store(r)
		if !ok {
			return
		}
		if whole {
			q.stats.quarantined.Add(1)
			q.stored(r, false)
		}
		var again bool
		if r, again = q.next(whole); again {
			q.again()
		}
	}
}

// next takes in what became of the first record, and returns the one behind it. Without one, again tells whether something
// was left that there is room for now.
func (q *quarantine) next(whole bool) (r *quarantined, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := q.records[0]
	q.records = slices.Delete(q.records, 0, 1)
	q.bytes -= int64(len(done.body))
	if done.class == QuarantinePayloadGone {
		q.notices--
	}
	if len(q.records)-q.notices <= q.cfg.MaxWaiting/2 && q.bytes <= q.cfg.MaxWaitingBytes/2 {
		q.behind = false
	}
	q.known.Add(done.digest, whole)
	q.changed.Raise()
	if len(q.records) > 0 {
		return q.records[0], false
	}
	again, q.left = q.left, false
	return nil, again
}

// noticeAfter is how often storing a record has to fail before a notice is tried
// in its place.
const noticeAfter = 2

// store publishes r until it is stored, whole or as a notice, and is not ok if q.ctx ends first. A
// store that accepts a notice of an event, but repeatedly not the event itself, will
// never accept the event, for example because it exceeds the store's size limit. Then
// the notice has to suffice.
func (q *quarantine) store(r *quarantined) (whole, ok bool) {
	policy := backoff.Policy{Initial: q.cfg.Retry.Initial, Max: q.cfg.Retry.Max}
	noticed := 0
	for attempt := 0; ; attempt++ {
		err := q.publish(q.ctx, r.message(q.cfg.Topic, true))
		if err == nil {
			q.works()
			return true, true
		}
		if q.ctx.Err() != nil {
			return false, false
		}
		if r.body != nil && attempt >= noticeAfter-1 && q.publish(q.ctx, r.message(q.cfg.Topic, false)) == nil {
			q.works()
			if noticed++; noticed >= noticeAfter {
				q.logger.Error("quarantine accepts a notice of an event but not the event itself; it stays unconfirmed", err, r.fields())
				return false, true
			}
		} else {
			q.fails(err)
		}
		if policy.Wait(q.ctx, attempt) != nil {
			return false, false
		}
	}
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

func (q *quarantine) fails(err error) {
	q.stats.quarantineFailures.Add(1)
	q.mu.Lock()
	first := !q.failing
	q.failing = true
	q.changed.Raise() // nothing waits for a store that is down
	q.mu.Unlock()
	if first {
		q.logger.Error("quarantine unavailable; events wait, and those beyond its queue stay with the service", err,
			watermill.LogFields{"topic": q.cfg.Topic})
	}
}

func (q *quarantine) works() {
	q.mu.Lock()
	failed := q.failing
	q.failing = false
	q.mu.Unlock()
	if failed {
		q.logger.Info("quarantine available again", watermill.LogFields{"topic": q.cfg.Topic})
	}
}

// waiting returns how many records are queued.
func (q *quarantine) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.records)
}

// close waits until the queue is empty, at most until ctx ends, and returns how many
// records were not stored. A Publisher that does not return by then is waited for
// until patience ends.
func (q *quarantine) close(ctx, patience context.Context) int {
	stop := context.AfterFunc(ctx, q.cancel)
	defer stop()
	waitUntil(patience, lifecycle.Ended(&q.wg))
	q.cancel()
	return q.waiting()
}

// confirmQuarantined confirms a message that is stored in the quarantine, unless
// another copy of it is being delivered; then the outcome of that copy decides. One that comes
// again while the backlog of confirmations is full is not confirmed again: it may be in there.
func (s *Subscriber) confirmQuarantined(r *quarantined, again bool) {
	if !r.confirm || again && int(s.confirmer.waiting.Load()) >= s.cfg.Confirm.MaxBacklog {
		return
	}
	s.mu.Lock()
	unheard := s.core.Unheard(newID(r.endpoint, r.messages[0]))
	s.mu.Unlock()
	if !unheard {
		return
	}
	// This does not go through the table: if an intact copy is redelivered, it is
	// delivered to the subscriptions.
	s.confirmer.expect(1)
	s.confirmer.add(r.tenant, confirmation{endpoint: r.endpoint, message: r.messages[0]})
}
