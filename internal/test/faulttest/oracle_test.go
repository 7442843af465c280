//go:build faults

package faulttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// newTopic is how old the reader's knowledge of topics may be.
const newTopic = 30 * time.Millisecond

// oracle judges the pipeline. It hears of every confirmation while it happens. It shares
// no code with the router and the subscriber; TestOracleIsIndependent keeps it so.
type oracle struct {
	gateway *gatewaytest.Server
	archive *archive
	ctx     context.Context

	heard atomic.Int64 // confirmations that were looked at

	mu     sync.Mutex
	wrongs []string          // confirmations that were not right, the first hundred
	acked  map[identity]bool // acknowledged by the sink
}

func newOracle(ctx context.Context, g *gatewaytest.Server, a *archive) *oracle {
	o := &oracle{gateway: g, archive: a, ctx: ctx, acked: map[identity]bool{}}
	g.OnConfirm(o.onConfirm)
	return o
}

func (o *oracle) wrong(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.wrongs) < 100 {
		o.wrongs = append(o.wrongs, fmt.Sprintf(format, args...))
	}
}

// onConfirm runs before the gateway answers. While the broker is down it waits:
// what was stored just before is confirmed by right.
func (o *oracle) onConfirm(e gatewaytest.LedgerEntry) {
	defer o.heard.Add(1)
	if len(e.DeliverySeqs)+len(e.FileDeliverySeqs) == 0 {
		o.wrong("%s was confirmed and never delivered", e.MessageID)
	}
	id := identity{e.EndpointID, e.MessageID}
	if len(o.archive.find(id)) > 0 {
		return
	}
	err := o.look()
	if len(o.archive.find(id)) == 0 && err == nil {
		// The reader of Kafka may not know a new topic yet.
		<-time.After(newTopic)
		err = o.look()
	}
	if len(o.archive.find(id)) == 0 {
		o.wrong("%s was confirmed and is not stored (looking: %v)", e.MessageID, err)
	}
}

// look reads what is stored, as soon as the broker can be asked.
func (o *oracle) look() error {
	ctx, cancel := context.WithTimeout(o.ctx, testkit.Patience)
	defer cancel()
	for {
		err := o.archive.catchUp(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
}

// watchSink notes what the sink acknowledges.
func (o *oracle) watchSink(s sinks.Sink) sinks.Sink { return &watchedSink{Sink: s, oracle: o} }

type watchedSink struct {
	sinks.Sink
	oracle *oracle
}

func (s *watchedSink) Publish(topic string, messages ...*message.Message) error {
	err := s.Sink.Publish(topic, messages...)
	if err == nil {
		s.oracle.acknowledged(topic, messages...)
	}
	return err
}

func (s *watchedSink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	p, err := s.Sink.PublishAsync(topic, msg)
	if err == nil {
		p.Then(func(_ sinks.Receipt, err error) {
			if err == nil {
				s.oracle.acknowledged(topic, msg)
			}
		})
	}
	return p, err
}

// acknowledged notes what a sink has acknowledged.
func (o *oracle) acknowledged(topic string, messages ...*message.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, msg := range messages {
		for _, id := range newRecord(topic, msg.Payload, msg.Metadata).identities() {
			o.acked[id] = true
		}
	}
}

// confirming checks a request against that before it is sent.
func (o *oracle) confirming(confirmations []gateway.MessageConfirmation) {
	o.mu.Lock()
	acked := make([]bool, len(confirmations))
	for i, confirmation := range confirmations {
		acked[i] = o.acked[identity{confirmation.EndpointID, confirmation.MessageID}]
	}
	o.mu.Unlock()
	for i, confirmation := range confirmations {
		if !acked[i] {
			o.wrong("%s is being confirmed and was not acknowledged by the sink", confirmation.MessageID)
		}
	}
}

// expectation is what a row expects beyond what is expected always.
type expectation struct {
	// poisoned is how many messages are in the poison queue.
	poisoned int
	// quarantined is how many events are in the quarantine, notices included.
	quarantined int
	// open says which messages may be unconfirmed. Nil: none.
	open func(gatewaytest.LedgerEntry) bool
	// copies says how many records a message makes. 0: one.
	copies int
	// chunksAndFile: what came in several chunks makes a record by itself and another one with its file.
	chunksAndFile bool
	// duplicates allows raw duplicates where the broker does not recognise them,
	// or the window is over.
	duplicates bool
	// earlyFiles: files come before their chunks, which the specification rules out.
	// Then one that comes again may have a second dedup ID, with the context ID of
	// its chunks.
	earlyFiles bool
	// gone allows notices that payloads of messages are gone. Such a notice stands for nothing: the
	// message has to be there all the same before it is confirmed.
	gone bool
	// unknown allows confirmations of messages that the gateway does not know any
	// more.
	unknown bool
}

// verdict is what judge found.
type verdict struct {
	sent, stored, duplicates, poisoned, quarantined int
	problems                                        []string
}

func (v *verdict) problem(format string, args ...any) {
	if len(v.problems) < 30 {
		v.problems = append(v.problems, fmt.Sprintf(format, args...))
	}
}

// judge compares the ledger with what is stored, when all is quiet.
func (o *oracle) judge(want expectation) verdict {
	var v verdict
	o.catchUp()
	if err := o.look(); err != nil {
		v.problem("the reader fails: %v", err)
	}
	o.mu.Lock()
	for _, wrong := range o.wrongs {
		v.problem("%s", wrong)
	}
	o.mu.Unlock()
	if n := o.gateway.UnknownConfirmations(); n > 0 && !want.unknown {
		v.problem("%d confirmations of messages that do not exist", n)
	}
	all := o.archive.all()
	gone, wrongs := o.archive.goneMessages()
	for _, wrong := range wrongs {
		v.problem("%s", wrong)
	}
	if len(gone) > 0 && !want.gone {
		v.problem("%d notices that payloads are gone", len(gone))
	}
	sent := make(map[identity]bool)
	for _, e := range o.gateway.Ledger() {
		sent[identity{e.EndpointID, e.MessageID}] = true
	}
	for _, id := range gone {
		if !sent[id] {
			v.problem("there is a notice that the payload of %s is gone, which was never sent", id.message)
		}
	}
	copies := max(want.copies, 1)
	for _, e := range o.gateway.Ledger() {
		v.sent++
		id := identity{e.EndpointID, e.MessageID}
		records := all[id]
		delete(all, id)
		if !e.Confirmed() {
			if want.open == nil || !want.open(e) {
				v.problem("%s is not confirmed (stored %d times, delivered %d times)", e.MessageID, len(records), len(e.Deliveries))
			}
		} else if len(records) == 0 {
			v.problem("%s is confirmed and lost", e.MessageID)
		}
		if len(records) > 0 {
			v.stored++
		}
		if e.Confirmed() && len(e.ConfirmationSeqs) > 0 && len(e.DeliverySeqs) > 0 && e.ConfirmationSeqs[0] < e.DeliverySeqs[0] {
			v.problem("%s was confirmed before it was delivered", e.MessageID)
		}
		o.judgeRecords(&v, want, e, records, copies)
	}
	for id, records := range all {
		if !slices.ContainsFunc(records, func(r record) bool { return !r.quarantined }) {
			continue // events that the gateway made up
		}
		v.problem("%s is stored and was never sent", id.message)
	}
	events := map[string]bool{}
	for id := range o.archive.quarantined { // a store that was away may get the notice of an event, and then the event
		events[strings.TrimSuffix(id, "-notice")] = true
	}
	v.quarantined = len(events)
	if v.quarantined != want.quarantined {
		v.problem("%d events are in the quarantine, want %d", v.quarantined, want.quarantined)
	}
	for id, records := range o.archive.quarantined {
		if len(records) > 1 && !want.duplicates {
			v.problem("the quarantine has %s %d times", id, len(records))
		}
	}
	if v.sent == 0 {
		v.problem("nothing was sent, so nothing is shown")
	}
	if v.poisoned != want.poisoned {
		v.problem("%d messages are in the poison queue, want %d", v.poisoned, want.poisoned)
	}
	return v
}

// catchUp waits until every confirmation was looked at: an entry counts as
// confirmed a moment before.
func (o *oracle) catchUp() {
	for began := time.Now(); time.Since(began) < testkit.Patience; <-time.After(time.Millisecond) {
		taken := 0
		for _, e := range o.gateway.Ledger() {
			taken += len(e.Confirmations)
		}
		if o.heard.Load() >= int64(taken) {
			return
		}
	}
}

// describe tells the records of one message apart.
func describe(records []record) string {
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "[%s, dedup %.8s, %d bytes, file %t, of %s] ", r.topic, r.dedupID, r.size, r.file(), r.metadata[gateway.KeyMessageIDs])
	}
	return b.String()
}

// judgeRecords judges the records of one message.
func (o *oracle) judgeRecords(v *verdict, want expectation, e gatewaytest.LedgerEntry, records []record, copies int) {
	if sound := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.quarantined }); len(sound) > 0 {
		records = sound // came later than what is in the quarantine, and is what counts
	}
	if want.chunksAndFile && e.Chunks > 1 {
		copies *= 2
		if !slices.ContainsFunc(records, record.file) {
			v.problem("the file of %s has not come", e.MessageID)
		}
	}
	dedup := map[string]bool{}
	poisoned := false
	for _, r := range records {
		sum := e.SHA256
		if r.file() {
			sum = e.PayloadSHA256
		}
		// A payload in the claim check is looked at by the rows that have one.
		if !r.elsewhere && r.sum != sum {
			v.problem("%s is stored with other bytes: %d of them", e.MessageID, r.size)
		}
		dedup[r.topic+" "+r.dedupID] = true
		poisoned = poisoned || r.poisoned()
	}
	if poisoned {
		v.poisoned++
	}
	if len(records) == 0 {
		return
	}
	most := copies
	if want.earlyFiles && !slices.ContainsFunc(records, func(r record) bool { return !r.file() }) {
		most++
	}
	if len(dedup) < copies || len(dedup) > most {
		v.problem("%s is there %d times after deduplication, want %d: %s", e.MessageID, len(dedup), copies, describe(records))
	}
	if extra := len(records) - copies; extra > 0 {
		v.duplicates += extra
		if !want.duplicates {
			v.problem("%s is stored %d times, want %d", e.MessageID, len(records), copies)
		}
		if extra > len(e.Deliveries)+len(e.FileDeliveries) && !want.duplicates {
			v.problem("%s is stored more often than it was delivered", e.MessageID)
		}
	}
}
