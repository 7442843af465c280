package kvbucket

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/streamrule"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks/nats"
)

// What the stores keep. A bucket that a store creates has it as its description.
const (
	Dedup   = "keys of handled messages"
	Lease   = "the lease of several processes, one of which works"
	Devices = "device descriptions of teamsets"
)

// Compare logs a warning with the settings by which a bucket keeps less, or for less long, than one that
// is created with want. It refuses one that another store has created, or that does not have what it acknowledged,
// with an error that wraps nats.ErrStream.
func Compare(have jetstream.StreamConfig, want jetstream.KeyValueConfig, logger watermill.LoggerAdapter) error {
	if loses := streamrule.Loses(have, "$KV."+want.Bucket+".>"); loses != "" {
		return fmt.Errorf("%w: KV_%s %s", nats.ErrStream, want.Bucket, loses)
	}
	if have.Description != want.Description && slices.Contains([]string{Dedup, Lease, Devices}, have.Description) {
		return fmt.Errorf("%w: KV_%s was created for %s: name another bucket for %s", nats.ErrStream, want.Bucket, have.Description, want.Description)
	}
	if weaker := Weaker(have, want); len(weaker) > 0 {
		warnlog.Warn(logger, fmt.Sprintf("bucket %s exists with settings that keep less than those configured, and stay: %s; change stream KV_%s, or delete it while nothing runs",
			want.Bucket, strings.Join(weaker, ", "), want.Bucket), nil)
	}
	return nil
}

// Weaker lists the settings of a bucket's stream that keep less than those of a bucket that is created with
// want, as "name have (configured: want)".
func Weaker(have jetstream.StreamConfig, want jetstream.KeyValueConfig) (list []string) {
	weaker := func(is bool, name string, have, want any) {
		if is {
			list = append(list, fmt.Sprintf("%s %v (configured: %v)", name, have, want))
		}
	}
	limit := func(name string, have, want int64, value func(int64) any) {
		switch {
		case have > 0 && want <= 0:
			weaker(true, name, value(have), "no limit")
		case have > 0:
			weaker(have < want, name, value(have), value(want))
		}
	}
	number := func(n int64) any { return n }
	limit("ttl", int64(have.MaxAge), int64(want.TTL), func(n int64) any { return time.Duration(n) })
	limit("max bytes", have.MaxBytes, want.MaxBytes, number)
	limit("max value size", int64(have.MaxMsgSize), int64(want.MaxValueSize), number)
	limit("max messages", have.MaxMsgs, 0, number)
	weaker(have.Storage != want.Storage && have.Storage == jetstream.MemoryStorage, "storage", have.Storage, want.Storage)
	weaker(have.Replicas < want.Replicas, "replicas", have.Replicas, want.Replicas)
	weaker(have.Discard == jetstream.DiscardOld && (have.MaxBytes > 0 || have.MaxMsgs > 0), "discard", have.Discard, jetstream.DiscardNew)
	return list
}
