package sinks

import (
	"errors"
	"fmt"
	"time"

	"github.com/agrimill/agrimill/internal/enum"
)

// Synced is when what a broker has acknowledged survives a power cut: how often it syncs, if that is more than 0. Only who
// operates it knows, as a rule. The zero value says that it is not known.
type Synced time.Duration

// The other values of [Synced].
const (
	// SyncedUnknown: nobody has said.
	SyncedUnknown Synced = 0
	// SyncedAlways: what is acknowledged is on disk.
	SyncedAlways Synced = -1
	// SyncedReplicas: what is acknowledged has copies in several places, which do not lose their power at the same time.
	SyncedReplicas Synced = -2
)

// Known reports whether somebody has said.
func (s Synced) Known() bool { return s != SyncedUnknown }

// After returns how long after its acknowledgment a message survives a power cut: 0 for at once. A sync begins an
// interval after the one before it has ended, so it is twice the interval.
func (s Synced) After() time.Duration { return 2 * max(0, time.Duration(s)) }

// synceds are the texts of the values that are no interval: that of -1 is behind that of 0.
var synceds = []string{"unknown", "always", "replicas"}

// String returns unknown, always, replicas, or the interval.
func (s Synced) String() string {
	if s > 0 {
		return time.Duration(s).String()
	}
	return enum.Text(-s, synceds)
}

// MarshalText returns String.
func (s Synced) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (s *Synced) UnmarshalText(text []byte) error {
	if enum.Parse(s, text, synceds) == nil {
		*s = -*s
		return nil
	}
	interval, err := time.ParseDuration(string(text))
	if err != nil || interval <= 0 {
		return fmt.Errorf("must be always, replicas, or how often the server syncs, such as 2m, not %q", text)
	}
	*s = Synced(interval)
	return nil
}

// Validate reports a value that is none.
func (s Synced) Validate() error {
	if s < SyncedReplicas {
		return errors.New("must be one of the named constants, or an interval")
	}
	return nil
}

// ErrPossiblyLost says that a broker was restarted before it had synced, or has lost, what it had acknowledged.
var ErrPossiblyLost = errors.New("the broker was restarted, or has lost messages, before it had synced what it acknowledged")

// Syncing is a [Sink] whose broker syncs at intervals, so that Description.Synced is one.
type Syncing interface {
	// Survives reports whether what was acknowledged between began and acked survives a power cut by now: for the
	// time that Synced.After returns, the broker has run on. false means not yet, or that the broker does not answer, and
	// [ErrPossiblyLost] that it did not run on, or [ErrClosed] that nobody can tell any longer: then the message has to be published again. It does not block.
	Survives(began, acked time.Time) (bool, error)
}
