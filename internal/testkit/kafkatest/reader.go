package kafkatest

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// readTimeout is how long Read waits for the records that the broker says it has.
const readTimeout = time.Minute

// Read returns all records of a topic, partition by partition, in the
// order of each. A topic that does not exist has no records. It uses franz-go,
// which shares no code with sarama.
func Read(tb testing.TB, addr, topic string, options ...kgo.Opt) []*kgo.Record {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	options = append([]kgo.Opt{kgo.SeedBrokers(addr)}, options...)
	admin, err := kgo.NewClient(options...)
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	defer admin.Close()
	details, err := kadm.NewClient(admin).ListTopics(ctx, topic)
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	if !details.Has(topic) {
		return nil
	}
	ends, err := kadm.NewClient(admin).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	starts := map[int32]kgo.Offset{}
	var left int64
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			starts[end.Partition] = kgo.NewOffset().AtStart()
			left += end.Offset
		}
	})
	if left == 0 {
		return nil
	}

	reader, err := kgo.NewClient(append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}))...)
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	defer reader.Close()
	var records []*kgo.Record
	for int64(len(records)) < left {
		fetches := reader.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			tb.Fatalf("read %s: %d of %d records: %v", topic, len(records), left, err)
		}
		fetches.EachError(func(_ string, partition int32, err error) {
			tb.Fatalf("read %s, partition %d: %v", topic, partition, err)
		})
		records = append(records, fetches.Records()...)
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return records
}
