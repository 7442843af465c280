// Package kvbucket opens the key-value buckets of stores in NATS, and compares those that exist with what a store needs.
package kvbucket

import (
	"context"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/streamrule"
	"github.com/agrimill/agrimill/internal/warnlog"
	"github.com/agrimill/agrimill/sinks/nats"
)

// Compare logs a warning with the settings by which a bucket keeps less, or for less long, than one that
// is created with want, and refuses one that does not have what it acknowledged with an error that wraps
// nats.ErrStream. It returns the state of the bucket.
func Compare(ctx context.Context, kv jetstream.KeyValue, want jetstream.KeyValueConfig, logger watermill.LoggerAdapter) (jetstream.KeyValueStatus, error) {
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, err
	}
	if found, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		if loses := streamrule.Loses(found.StreamInfo().Config, "$KV."+want.Bucket+".>"); loses != "" {
			return nil, fmt.Errorf("%w: KV_%s %s", nats.ErrStream, want.Bucket, loses)
		}
		if weaker := Weaker(found.StreamInfo().Config, want); len(weaker) > 0 {
			warnlog.Warn(logger, fmt.Sprintf("bucket %s exists with settings that keep less than those configured, and stay: %s; change stream KV_%s, or delete it while nothing runs",
				want.Bucket, strings.Join(weaker, ", "), want.Bucket), nil)
		}
	}
	return status, nil
}

// Weaker lists the settings of a bucket's stream that keep less than those of a bucket that is created with
// want, as "name have (configured: want)".
func Weaker(have jetstream.StreamConfig, want jetstream.KeyValueConfig) (list []string) {
	weaker := func(is bool, name string, have, want any) {
		if is {
			list = append(list, fmt.Sprintf("%s %v (configured: %v)", name, have, want))
		}
	}
	limit := func(name string, have, want int64) {
		if have > 0 && (want <= 0 || have < want) {
			if want <= 0 {
				weaker(true, name, have, "no limit")
			} else {
				weaker(true, name, have, want)
			}
		}
	}
	if have.MaxAge > 0 && want.TTL <= 0 {
		weaker(true, "ttl", have.MaxAge, "no limit")
	} else {
		weaker(have.MaxAge > 0 && have.MaxAge < want.TTL, "ttl", have.MaxAge, want.TTL)
	}
	limit("max bytes", have.MaxBytes, want.MaxBytes)
	limit("max value size", int64(have.MaxMsgSize), int64(want.MaxValueSize))
	limit("max messages", have.MaxMsgs, 0)
	weaker(have.Storage != want.Storage && have.Storage == jetstream.MemoryStorage, "storage", have.Storage, want.Storage)
	weaker(have.Replicas < want.Replicas, "replicas", have.Replicas, want.Replicas)
	weaker(have.Discard == jetstream.DiscardOld && (have.MaxBytes > 0 || have.MaxMsgs > 0), "discard", have.Discard, jetstream.DiscardNew)
	return list
}
