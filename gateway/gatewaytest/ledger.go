package gatewaytest

import (
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/agrimill/agrimill/gateway"
)

// LedgerEntry is the record of one message at one receiving endpoint. The numbers in the Seq fields come from one
// server-wide counter, which orders deliveries and confirmations.
type LedgerEntry struct {
	// MessageID and EndpointID are what is confirmed.
	MessageID  string `json:"message_id"`
	EndpointID string `json:"endpoint_id"`
	// TenantID and ApplicationID are those of the receiving endpoint.
	TenantID      string `json:"tenant_id"`
	ApplicationID string `json:"application_id"`
	// SenderID is the endpoint ID of the sender.
	SenderID string `json:"sender_id"`
	// ContextID is the sender's ID of the payload (app_message_id).
	ContextID        string `json:"context_id"`
	MessageType      string `json:"message_type"`
	Filename         string `json:"filename,omitempty"`
	TeamsetContextID string `json:"-"`
	// Size and SHA256 are those of the message or, for a split payload, of the chunk.
	Size   int64             `json:"size"`
	SHA256 [sha256.Size]byte `json:"-"`
	// Chunk counts from 0; Chunks is 1 if the payload was not split.
	Chunk  int `json:"chunk"`
	Chunks int `json:"chunks"`
	// PayloadSize and PayloadSHA256 are those of the whole payload.
	PayloadSize   int64             `json:"payload_size"`
	PayloadSHA256 [sha256.Size]byte `json:"-"`
	// Accepted is when the service accepted the message.
	Accepted time.Time `json:"accepted"`
	// Deliveries are the times when the message itself was handed to an open stream, also if that was interrupted: as
	// MESSAGE_RECEIVED, or as FILE_RECEIVED if its type is in Config.FileTypes. FileDeliveries are those of the FILE_RECEIVED
	// of the split payload, Confirmations those when a confirmation was accepted.
	Deliveries, FileDeliveries, Confirmations []time.Time `json:"-"`
	// DeliverySeqs and so on are the numbers of the same, in the same order.
	DeliverySeqs, FileDeliverySeqs, ConfirmationSeqs []uint64 `json:"-"`
	// Withdrawn is set if the endpoint was deleted before the message was confirmed: it is not delivered again.
	Withdrawn bool `json:"withdrawn"`
}

// Delivered reports whether the message was handed to a stream at least once.
func (e LedgerEntry) Delivered() bool { return len(e.Deliveries) > 0 }

// Confirmed reports whether a confirmation was accepted.
func (e LedgerEntry) Confirmed() bool { return len(e.Confirmations) > 0 }

type entryKey struct{ message, endpoint string }

type entry struct {
	LedgerEntry
	// effective means that the confirmation has taken effect: no more replays.
	effective bool
}

// final reports whether the entry will never be delivered to a new stream.
func (e *entry) final() bool { return e.effective || e.Withdrawn }

// lagged is a confirmation that takes effect later.
type lagged struct {
	due   time.Time
	entry *entry
}

type ledger struct {
	entries   []*entry
	index     map[entryKey]*entry
	confirmed int      // entries with a confirmation
	unknown   int      // confirmations of pairs that do not exist
	pending   []lagged // in order of time
	hooks     []func(LedgerEntry)
	// changed is closed at the next change; nil if nothing is waiting.
	changed chan struct{}
}

// snapshot shares the slices: they only grow beyond what the snapshot sees.
func (e *entry) snapshot() LedgerEntry {
	c := e.LedgerEntry
	c.Deliveries = slices.Clip(c.Deliveries)
	c.DeliverySeqs = slices.Clip(c.DeliverySeqs)
	c.FileDeliveries = slices.Clip(c.FileDeliveries)
	c.FileDeliverySeqs = slices.Clip(c.FileDeliverySeqs)
	c.Confirmations = slices.Clip(c.Confirmations)
	c.ConfirmationSeqs = slices.Clip(c.ConfirmationSeqs)
	return c
}

// Ledger returns a copy of all entries in order of acceptance.
func (s *Server) Ledger() []LedgerEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledgerLocked()
}

func (s *Server) ledgerLocked() []LedgerEntry {
	list := make([]LedgerEntry, len(s.ledger.entries))
	for i, e := range s.ledger.entries {
		list[i] = e.snapshot()
	}
	return list
}

// changedLocked wakes the wait functions.
func (s *Server) changedLocked() {
	if s.ledger.changed != nil {
		close(s.ledger.changed)
		s.ledger.changed = nil
	}
}

// waitLocked returns the channel that the next change closes.
func (s *Server) waitLocked() <-chan struct{} {
	if s.ledger.changed == nil {
		s.ledger.changed = make(chan struct{})
	}
	return s.ledger.changed
}

// Wait blocks until cond holds for the ledger. cond is evaluated immediately and after changes, without any lock held. The
// error is that of ctx, or [ErrClosed].
func (s *Server) Wait(ctx context.Context, cond func([]LedgerEntry) bool) error {
	return s.wait(ctx, func() bool { return cond(s.Ledger()) })
}

// WaitDelivered blocks until n ledger entries have been delivered at least once.
func (s *Server) WaitDelivered(ctx context.Context, n int) error {
	return s.Wait(ctx, func(entries []LedgerEntry) bool {
		delivered := 0
		for i := range entries {
			if entries[i].Delivered() {
				delivered++
			}
		}
		return delivered >= n
	})
}

// WaitConfirmed blocks until n ledger entries have been confirmed, at a cost that does not depend on the ledger.
func (s *Server) WaitConfirmed(ctx context.Context, n int) error {
	return s.wait(ctx, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ledger.confirmed >= n
	})
}

// WaitStreams blocks until exactly n event streams are open.
func (s *Server) WaitStreams(ctx context.Context, n int) error {
	return s.wait(ctx, func() bool { return s.Streams() == n })
}

func (s *Server) wait(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		changed := s.waitLocked()
		s.mu.Unlock()
		began := time.Now()
		if cond() {
			return nil
		}
		took := time.Since(began)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.closed:
			return ErrClosed
		}
		// There may be hundreds of thousands of changes per second, and copying a large ledger takes time:
		// the wait must not use more than half of a CPU. In a bubble of testing/synctest nothing takes time.
		if took > 0 {
			timer := time.NewTimer(max(took, time.Millisecond))
			select {
			case <-timer.C:
			case <-ctx.Done():
			case <-s.closed:
			}
			timer.Stop()
		}
	}
}

// OnConfirm calls hook for every accepted confirmation, before its request is answered, with the entry as it is at that
// time. Hooks may run in parallel, with no lock held; they should be quick.
func (s *Server) OnConfirm(hook func(LedgerEntry)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.hooks = append(s.ledger.hooks, hook)
}

// recordLocked adds the entry of a message at an endpoint.
func (s *Server) recordLocked(p *payload, chunk int, receiver *endpoint) *entry {
	return s.addEntryLocked(LedgerEntry{
		MessageID: p.messageIDs[chunk], EndpointID: receiver.id,
		TenantID: p.tenantID, ApplicationID: receiver.app.ID, SenderID: p.senderID,
		ContextID: p.contextID, MessageType: p.messageType, Filename: p.filename, TeamsetContextID: p.teamsetContextID,
		Size: int64(len(p.part(chunk))), SHA256: p.digests[chunk], Chunk: chunk, Chunks: len(p.messageIDs),
		PayloadSize: int64(len(p.data)), PayloadSHA256: p.digest,
		Accepted: p.received,
	})
}

func (s *Server) addEntryLocked(added LedgerEntry) *entry {
	e := &entry{LedgerEntry: added}
	s.ledger.entries = append(s.ledger.entries, e)
	s.ledger.index[entryKey{e.MessageID, e.EndpointID}] = e
	return e
}

// delivered records that an event with the message was handed to a stream: its own, or that of its file.
func (e *entry) delivered(file bool, at time.Time, sequence uint64) {
	if file {
		e.FileDeliveries, e.FileDeliverySeqs = append(e.FileDeliveries, at), append(e.FileDeliverySeqs, sequence)
	} else {
		e.Deliveries, e.DeliverySeqs = append(e.Deliveries, at), append(e.DeliverySeqs, sequence)
	}
}

// confirmLocked records one confirmation.
func (s *Server) confirmLocked(e *entry, now time.Time) {
	s.sequence++
	if len(e.Confirmations) == 0 {
		s.ledger.confirmed++
	}
	e.Confirmations = append(e.Confirmations, now)
	e.ConfirmationSeqs = append(e.ConfirmationSeqs, s.sequence)
	if s.cfg.ConfirmationLag > 0 {
		s.ledger.pending = append(s.ledger.pending, lagged{now.Add(s.cfg.ConfirmationLag), e})
		return
	}
	s.takeEffectLocked(e)
}

// applyLagLocked applies the confirmations whose lag has passed.
func (s *Server) applyLagLocked(now time.Time) {
	n := 0
	for n < len(s.ledger.pending) && !now.Before(s.ledger.pending[n].due) {
		s.takeEffectLocked(s.ledger.pending[n].entry)
		n++
	}
	s.ledger.pending = slices.Delete(s.ledger.pending, 0, n)
}

func (s *Server) takeEffectLocked(e *entry) {
	if !e.effective {
		e.effective = true
		s.applications[e.ApplicationID].feed.retire(e.Size)
	}
}

// lookupLocked finds the entry of a confirmation, of any tenant if t is nil. With StrictConfirmations, entries of
// deleted endpoints are not found.
func (s *Server) lookupLocked(app *Application, t *tenant, c gateway.MessageConfirmation) *entry {
	e := s.ledger.index[entryKey{c.MessageID, c.EndpointID}]
	if e == nil || e.ApplicationID != app.ID || t != nil && e.TenantID != t.id {
		return nil
	}
	if t != nil && s.cfg.StrictConfirmations && s.endpoints[c.EndpointID] == nil {
		return nil
	}
	return e
}
