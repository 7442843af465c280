package sinks_test

import (
	"testing"
	"time"

	"github.com/agrimill/agrimill/sinks"
)

func TestSynced(t *testing.T) {
	for text, want := range map[string]struct {
		is    sinks.Synced
		after time.Duration
	}{
		"unknown": {sinks.SyncedUnknown, 0}, "always": {sinks.SyncedAlways, 0}, "replicas": {sinks.SyncedReplicas, 0},
		"2m0s": {sinks.Synced(2 * time.Minute), 4 * time.Minute},
	} {
		var s sinks.Synced
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want.is || s.String() != text || s.After() != want.after {
			t.Errorf("%s: got %d, which is %s, after %s, %v", text, s, s, s.After(), err)
		}
	}
	for _, text := range []string{"", "0s", "-2m", "never", "2"} {
		var s sinks.Synced
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for %s", text, s)
		}
	}
}
