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

// Len returns how many keys are known, reserved ones included.
func (s *MemoryStore) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reserved) + s.index.Len()
}

func (r *Retry) OutageSince() (time.Time, bool) {
	since, _ := r.outage()
	return since, !since.IsZero()
}
