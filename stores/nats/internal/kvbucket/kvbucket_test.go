package kvbucket_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/internal/kvbucket"
)

func TestWeaker(t *testing.T) {
	want := jetstream.KeyValueConfig{Bucket: "b", TTL: time.Hour, Replicas: 1}
	for name, c := range map[string]struct {
		have jetstream.StreamConfig
		need jetstream.KeyValueConfig
		want []string
	}{
		"as created":       {jetstream.StreamConfig{MaxAge: time.Hour, Replicas: 1, MaxBytes: -1, MaxMsgs: -1, MaxMsgSize: -1, Discard: jetstream.DiscardNew}, want, nil},
		"keeps longer":     {jetstream.StreamConfig{MaxAge: 2 * time.Hour, Replicas: 3}, want, nil},
		"keeps for ever":   {jetstream.StreamConfig{Replicas: 1}, want, nil},
		"shorter":          {jetstream.StreamConfig{MaxAge: time.Minute, Replicas: 1}, want, []string{"ttl 1m0s (configured: 1h0m0s)"}},
		"not for ever":     {jetstream.StreamConfig{MaxAge: time.Minute}, jetstream.KeyValueConfig{}, []string{"ttl 1m0s (configured: no limit)"}},
		"bounded":          {jetstream.StreamConfig{MaxAge: time.Hour, Replicas: 1, MaxBytes: 10, MaxMsgs: 20, MaxMsgSize: 30}, want, []string{"max bytes 10 (configured: no limit)", "max value size 30 (configured: no limit)", "max messages 20 (configured: no limit)", "discard DiscardOld (configured: DiscardNew)"}},
		"wider bounds":     {jetstream.StreamConfig{MaxBytes: 10, Discard: jetstream.DiscardNew}, jetstream.KeyValueConfig{MaxBytes: 9}, nil},
		"closer bounds":    {jetstream.StreamConfig{MaxBytes: 10, Discard: jetstream.DiscardNew}, jetstream.KeyValueConfig{MaxBytes: 11}, []string{"max bytes 10 (configured: 11)"}},
		"in memory":        {jetstream.StreamConfig{Storage: jetstream.MemoryStorage}, jetstream.KeyValueConfig{}, []string{"storage Memory (configured: File)"}},
		"memory as wanted": {jetstream.StreamConfig{Storage: jetstream.MemoryStorage}, jetstream.KeyValueConfig{Storage: jetstream.MemoryStorage}, nil},
		"one copy":         {jetstream.StreamConfig{Replicas: 1}, jetstream.KeyValueConfig{Replicas: 3}, []string{"replicas 1 (configured: 3)"}},
	} {
		if got := kvbucket.Weaker(c.have, c.need); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// A bucket that acknowledges keys and does not have them is of no use, whoever created it.
func TestCompareWithoutKeys(t *testing.T) {
	for name, c := range map[string]struct {
		have jetstream.StreamConfig
		want string // empty: it is fit for use
	}{
		"limits":    {jetstream.StreamConfig{}, ""},
		"interest":  {jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, "retention interest"},
		"transform": {jetstream.StreamConfig{SubjectTransform: &jetstream.SubjectTransformConfig{Source: "$KV.b.>", Destination: "zzz.>"}}, "subject_transform"},
	} {
		err := kvbucket.Compare(c.have, jetstream.KeyValueConfig{Bucket: "b"}, watermill.NopLogger{})
		if refused := errors.Is(err, nats.ErrStream) && strings.Contains(err.Error(), c.want); refused != (c.want != "") {
			t.Errorf("%s: got %v, want a refusal that names %q", name, err, c.want)
		}
	}
}
