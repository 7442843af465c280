// Package readstate says whether a source can read.
package readstate

import (
	"sync"
	"time"
)

// State is why a source cannot read at the moment, and since when. The zero value can. It is safe for concurrent use.
type State struct {
	mu    sync.Mutex
	since time.Time
	err   error
}

// Fails records why nothing can be read. It began with the first call since the last one of Reads.
func (s *State) Fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.since = time.Now()
	}
	s.err = err
}

// Reads records that something can be read.
func (s *State) Reads() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.err = time.Time{}, nil
}

// ReadError returns why nothing can be read, and since when; nil and zero if something can be.
func (s *State) ReadError() (since time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.err
}
