package nats

import (
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/sinks"
)

// startBatches makes batches, once the stream is known.
func (s *Sink) startBatches() (err error) {
	// What the server has forgotten is stored again, whoever asks for it. The stream's settings may
	// change, and the Config's may be what they change to.
	window := max(s.stream.Load().Duplicates, s.config.DedupWindow, s.config.BatchAfter)
	s.batches = newBatches(s.conn.NewInbox()+".", s.config.Stream, s.config.MaxPending, window)
	if s.batchReplies, err = s.conn.Subscribe(s.batches.subscription(), s.onBatchAnswer); err != nil {
		return err
	}
	return s.batchReplies.SetPendingLimits(-1, -1) // MaxPending bounds the answers
}

// place decides how a message of PublishAsync goes to the server: in a batch only if it was never
// sent before, by nobody. Any other is published plainly and alone.
func (s *Sink) place(f *flight) {
	now, since := time.Now(), s.since
	if f.route = msgctx.StandingOf(f.ctx); f.route != nil {
		if began := f.route.Since(); began.After(since) {
			since = began
		}
	}
	alone, breaks := s.batches.place(f.id, now)
	f.behind, f.breaks = true, breaks
	f.batched = !alone && now.Sub(since) >= s.config.BatchAfter && s.mayBeBatched(f.draft.msg.Header)
	if !f.batched {
		f.HoldBehind()
	}
}

// mayBeBatched reports whether a message has no header that commands the server. What expects a
// certain message before it, for instance, and is in a batch, is not stored when there is another,
// and acknowledged all the same. Only a marshaler that is not ours lets such headers pass.
func (s *Sink) mayBeBatched(header natsgo.Header) bool {
	if s.own != nil {
		return true
	}
	for name := range header {
		if len(name) >= len("Nats-") && strings.EqualFold(name[:len("Nats-")], "Nats-") && name != natsgo.MsgIdHdr {
			return false
		}
	}
	return true
}

// takeTurn waits until a message of PublishAsync may be sent, and adds it to the batch if it goes
// into one. It returns an error if one before it has failed.
func (s *Sink) takeTurn(f *flight) error {
	for {
		if err := f.ctx.Err(); err != nil {
			return err
		}
		quiet, overdue := s.batches.quiet(f.breaks)
		switch {
		case overdue:
			return errHalted
		case !quiet: // whoever asks the route hears about what has failed only then
		case f.route != nil && f.route.Halted():
			return errHalted
		case !f.batched || s.batches.add(f, time.Now()):
			return nil
		}
		select {
		case <-s.batches.room:
		case <-f.ctx.Done():
		case <-s.background.Done():
			return errClosed
		}
	}
}

// onBatchAnswer is called with what the server answers to messages in batches.
func (s *Sink) onBatchAnswer(answer *natsgo.Msg) {
	stored, gone := s.batches.answered(answer, time.Now(), s.storedRoom[:0])
	for _, f := range stored {
		s.resolve(f, sinks.Receipt{Stream: s.config.Stream, Subject: f.subject}, nil)
	}
	clear(stored)
	s.storedRoom = stored
	s.report(gone)
}

// report resolves what was in a broken batch; nil is none.
func (s *Sink) report(gone *broken) {
	if gone == nil {
		return
	}
	for _, f := range gone.flights {
		if err := gone.cause; gone.refused == nil || f == gone.refused {
			s.resolve(f, sinks.Receipt{}, err)
		} else {
			s.resolve(f, sinks.Receipt{}, errBroken)
		}
	}
	s.batches.told()
}

// remember notes what is known of a message that is about to be resolved.
func (s *Sink) remember(f *flight, err error) {
	switch {
	case f.batched || f.sent.IsZero(): // batches knows, or there is nothing to know
	case err == nil:
		s.batches.stored(f.id)
	default:
		s.batches.sent(f.id, time.Now())
	}
}

// endBatch ends the batch if nothing was sent in it since a time.
func (s *Sink) endBatch(since time.Time) {
	if end := s.batches.end(since); end != nil && s.conn.IsConnected() {
		_ = s.conn.PublishMsg(end) // else the server ends it by itself
	}
}
