package nats

import "time"

// Started sets when New was called.
func Started(s *Sink, at time.Time) { s.since = at }

// UsualBatchAck reports whether an answer is read without a decoder.
func UsualBatchAck(data []byte) bool {
	_, usual := usualBatchAck(data)
	return usual
}

// HasBatches reports whether a server of a version has batches.
var HasBatches = hasBatches

// ErrHalted is why a message was not sent: one before it has failed.
var ErrHalted = errHalted
