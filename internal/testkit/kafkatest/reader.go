package kafkatest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/internal/testkit"
)

// Client returns a client that is closed when the test ends. It is of franz-go, which shares no code with sarama.
func Client(tb testing.TB, addr string, options ...kgo.Opt) *kgo.Client {
	tb.Helper()
	client := testkit.Must(newClient(addr, options...))(tb)
	tb.Cleanup(client.Close)
	return client
}

// newClient leaves out what costs more than all the rest in a test: compression, and telling the broker how the client is.
func newClient(addr string, options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(addr), kgo.DisableClientMetrics(), kgo.ProducerBatchCompression(kgo.NoCompression()),
	}, options...)...)
}

// Read returns all records of a topic, partition by partition, in the
// order of each. A topic that does not exist, or is deleted meanwhile, has no records.
func Read(tb testing.TB, addr, topic string, options ...kgo.Opt) []*kgo.Record {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	// Without the errors that it retries, the client waits for a topic that is deleted by now until it is there again.
	client, err := newClient(addr, append(options, kgo.KeepRetryableFetchErrors())...)
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	details, err := admin.ListTopics(ctx, topic)
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	if !details.Has(topic) {
		return nil
	}
	var ends kadm.ListedOffsets
	testkit.Eventually(tb, "the leaders of "+topic+" know where it ends", func() bool { // one that has just been elected does not
		if ends, err = admin.ListEndOffsets(ctx, topic); err == nil {
			err = ends.Error()
		}
		return noSuchTopic(err) || !kerr.IsRetriable(err)
	})
	if noSuchTopic(err) {
		return nil
	}
	if err != nil {
		tb.Fatalf("read %s: %v", topic, err)
	}
	starts, left := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			starts[end.Partition], left[end.Partition] = kgo.NewOffset().AtStart(), end.Offset
		}
	})
	if len(left) == 0 {
		return nil
	}

	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts})
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			tb.Fatalf("read %s: after %d records, the ends that were not reached are %v: %v", topic, len(records), left, err)
		}
		for _, failed := range fetches.Errors() {
			if noSuchTopic(failed.Err) {
				return nil
			}
			if !kerr.IsRetriable(failed.Err) {
				tb.Fatalf("read %s, partition %d: %v", topic, failed.Partition, failed.Err)
			}
		}
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, record)
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		})
	}
	slices.SortStableFunc(records, func(a, b *kgo.Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return records
}

// noSuchTopic reports whether the broker says so.
func noSuchTopic(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}
