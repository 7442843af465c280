package router

import "time"

// What tests outside of the package look at.
const (
	DefaultDedupLease         = defaultDedupLease
	DefaultMemoryStoreEntries = defaultMemoryStoreEntries
	DefaultNeverChunkBelow    = defaultNeverChunkBelow
	DefaultRetryAttempts      = defaultRetryAttempts
	DefaultRetryMaxBackoff    = defaultRetryMaxBackoff
)

// Reasons of messages that were not tried again.
var (
	ErrStopped          = errStopped
	ErrRefusedInBetween = errRefusedInBetween
)

func (s *MemoryStore) Len() int { return s.size() }

func (r *Retry) OutageSince() (time.Time, bool) { return r.outageSince() }

func (r *Retry) Waiting() int { return r.waitingMessages() }
