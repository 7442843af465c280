package subscriber

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/lifecycle"
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

// quarantined is an event to be stored in the quarantine.
type quarantined struct {
	digest   [sha256.Size]byte
	class    string
	reason   string
	event    string // its type
	body     []byte // nil for a notice
	received time.Time

	endpoint, tenant string
	messages         []string
	metadata         message.Metadata // that the record has as well
	// confirm means that the record contains all of messages[0].
	confirm bool
}

// quarantine stores records one at a time. Which, and what is left with the service, is up to
// quarantineQueue.
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
	queue   *quarantineQueue
	working bool // the worker is running
	changed chan struct{}
}

func newQuarantine(within context.Context, cfg QuarantineConfig, logger watermill.LoggerAdapter, stats *counters, stored func(r *quarantined, again bool), again func()) *quarantine {
	ctx, cancel := context.WithCancel(within)
	return &quarantine{
		cfg: cfg, logger: logger, stats: stats, stored: stored, again: again, ctx: lease.Guard(ctx), cancel: cancel,
		reading: make(chan struct{}, 1), changed: make(chan struct{}), queue: newQuarantineQueue(cfg),
	}
}

// take accepts an event and reports whether it is new. It waits while the queue is
// full, until ctx ends, the store fails, or that has taken too long.
func (q *quarantine) take(ctx context.Context, r *quarantined) (isNew bool) {
	began := time.Now()
	q.mu.Lock()
	for ctx.Err() == nil && q.ctx.Err() == nil {
		waited := time.Since(began)
		switch q.queue.add(r, waited) {
		case quarantineKnown:
			state := q.queue.known[r.digest]
			q.mu.Unlock()
			if state == quarantineStored {
				q.stored(r, true)
			}
			return false
		case quarantineTaken:
			if !q.working {
				q.working = true
				// Ends when the queue is empty, or with q.ctx; close waits for it.
				q.wg.Go(q.work)
			}
			q.mu.Unlock()
			return true
		case quarantineLeft:
			q.mu.Unlock()
			return true
		case quarantineFull:
		}
		changed := q.changed
		q.mu.Unlock()
		late := time.NewTimer(quarantinePatience - waited)
		select {
		case <-changed:
		case <-late.C:
		case <-ctx.Done():
		}
		late.Stop()
		q.mu.Lock()
	}
	known := q.queue.known[r.digest]
	q.mu.Unlock()
	return known == 0
}

// work stores the queued records and ends when none are left.
func (q *quarantine) work() {
	for {
		q.mu.Lock()
		r := q.queue.first()
		if r == nil || q.ctx.Err() != nil {
			q.working = false
			q.signal()
			again := q.queue.takeLeft() && q.ctx.Err() == nil
			q.mu.Unlock()
			if again {
				q.again()
			}
			return
		}
		q.mu.Unlock()

		state, ok := q.store(r)
		if !ok {
			continue
		}
		if state == quarantineStored {
			q.stats.quarantined.Add(1)
			q.stored(r, false)
		}
		q.mu.Lock()
		q.queue.stored(state)
		q.signal()
		q.mu.Unlock()
	}
}

// signal wakes everything that waits for a change. q.mu is held.
func (q *quarantine) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// noticeAfter is how often storing a record has to fail before a notice is tried
// in its place.
const noticeAfter = 2

// store publishes r until it is stored, and reports false if q.ctx ends first. A
// store that accepts a notice of an event, but repeatedly not the event itself, will
// never accept the event, for example because it exceeds the store's size limit. Then
// the notice has to suffice.
func (q *quarantine) store(r *quarantined) (quarantineState, bool) {
	policy := backoff.Policy{Initial: q.cfg.Retry.Initial, Max: q.cfg.Retry.Max}
	noticed := 0
	for attempt := 0; ; attempt++ {
		err := q.publish(q.ctx, r.message(q.cfg.Topic, true))
		if err == nil {
			q.works()
			return quarantineStored, true
		}
		if q.ctx.Err() != nil {
			return 0, false
		}
		if r.body != nil && attempt >= noticeAfter-1 && q.publish(q.ctx, r.message(q.cfg.Topic, false)) == nil {
			q.works()
			if noticed++; noticed >= noticeAfter {
				q.logger.Error("quarantine accepts a notice of an event but not the event itself; it stays unconfirmed", err, r.fields())
				return quarantineNoticed, true
			}
		} else {
			q.fails(err)
		}
		if policy.Wait(q.ctx, attempt) != nil {
			return 0, false
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
	first := !q.queue.failing
	q.queue.failing = true
	q.signal() // nothing waits for a store that is down
	q.mu.Unlock()
	if first {
		q.logger.Error("quarantine unavailable; events wait, and those beyond its queue stay with the service", err,
			watermill.LogFields{"topic": q.cfg.Topic})
	}
}

func (q *quarantine) works() {
	q.mu.Lock()
	failed := q.queue.failing
	q.queue.failing = false
	q.mu.Unlock()
	if failed {
		q.logger.Info("quarantine available again", watermill.LogFields{"topic": q.cfg.Topic})
	}
}

// waiting returns how many records are queued.
func (q *quarantine) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queue.records)
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

// payloadURI matches the part that differs each time an event is delivered.
var payloadURI = regexp.MustCompile(`"payload_uri"\s*:\s*"[^"]*"?`)

// digestOf returns the same digest for all copies of an event.
func digestOf(class string, eventType gateway.EventType, data []byte) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(class), []byte(eventType), payloadURI.ReplaceAll(data, nil)} {
		_, _ = h.Write(strconv.AppendInt(nil, int64(len(part)), 10)) // a hash never fails
		_, _ = h.Write([]byte{0})
		_, _ = h.Write(part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// newMalformed creates the record of an event that could not be decoded.
func newMalformed(raw gateway.RawEvent, err error) *quarantined {
	r := &quarantined{
		digest: digestOf(QuarantineMalformed, raw.Type, raw.Data), class: QuarantineMalformed, reason: err.Error(),
		event: string(raw.Type), body: append([]byte{}, raw.Data...), received: time.Now(),
	}
	var decode *gateway.DecodeError
	if !errors.As(err, &decode) {
		return r
	}
	r.event = cmp.Or(r.event, string(decode.EventType))
	r.endpoint, r.tenant, r.messages = decode.EndpointID, decode.TenantID, decode.MessageIDs
	if decode.EventType == gateway.EventMessageReceived && r.endpoint != "" && len(r.messages) == 1 {
		r.confirm = isWhole(raw.Data)
	}
	return r
}

// isWhole reports whether the data of a MESSAGE_RECEIVED contains the whole
// message. Confirming it discards a payload stored elsewhere.
func isWhole(data []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) != nil {
		return false
	}
	uri, elsewhere := fields["payload_uri"]
	return !elsewhere || string(uri) == "null"
}

// newTooLarge creates the notice for an event that was skipped.
func newTooLarge(err *gateway.EventTooLargeError) *quarantined {
	r := &quarantined{
		digest: digestOf(QuarantineTooLarge, err.Type, err.Head), class: QuarantineTooLarge, reason: err.Error(),
		event: string(err.Type), received: time.Now(),
	}
	fields := headFields(err.Head)
	r.event = cmp.Or(r.event, fields["event_type"])
	r.endpoint, r.tenant = fields["receiving_endpoint_id"], fields["tenant_id"]
	if id := fields["id"]; id != "" {
		r.messages = []string{id}
	}
	return r
}

// headFields returns the string fields at the beginning of a truncated JSON object.
func headFields(head []byte) map[string]string {
	fields := make(map[string]string)
	d := json.NewDecoder(bytes.NewReader(head))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil
	}
	for {
		key, err1 := d.Token()
		value, err2 := d.Token()
		name, isString := key.(string)
		if _, nested := value.(json.Delim); err1 != nil || err2 != nil || !isString || nested {
			return fields
		}
		if text, ok := value.(string); ok {
			fields[name] = text
		}
	}
}

// maxQuarantineValue bounds a value from an untrusted source, in bytes.
const maxQuarantineValue = 1024

// message returns the record to store.
func (r *quarantined) message(topic string, body bool) *message.Message {
	id := uuid.NewHash(sha256.New(), uuid.NameSpaceOID, r.digest[:], 8).String()
	msg := message.NewMessage(id, nil)
	m := message.Metadata{
		KeyQuarantineReason:   limited(r.reason),
		KeyQuarantineClass:    r.class,
		KeyQuarantineReceived: r.received.UTC().Format(time.RFC3339Nano),
		gateway.KeyDedupID:    topic + "-" + hex.EncodeToString(r.digest[:]),
	}
	for key, value := range r.metadata {
		if _, own := m[key]; !own {
			m[key] = value
		}
	}
	for key, value := range map[string]string{
		KeyQuarantineEventType: r.event, KeyQuarantineEndpointID: r.endpoint, KeyQuarantineTenantID: r.tenant,
		KeyQuarantineMessageIDs: strings.Join(r.messages, ","),
	} {
		if value != "" {
			m[key] = limited(value)
		}
	}
	if body && r.body != nil {
		msg.Payload = r.body
	} else {
		m[KeyQuarantineBody] = "absent"
		m[gateway.KeyDedupID] += "-notice" // the event itself may follow
	}
	msg.Metadata = m
	return msg
}

// limited truncates a value from an untrusted source.
func limited(text string) string {
	if len(text) <= maxQuarantineValue {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuarantineValue], "") + "…"
}

func (r *quarantined) fields() watermill.LogFields {
	fields := watermill.LogFields{"size": len(r.body)}
	if r.endpoint != "" {
		fields["endpoint_id"] = limited(r.endpoint)
	}
	if len(r.messages) == 1 {
		fields["message_id"] = limited(r.messages[0])
	}
	return fields
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
