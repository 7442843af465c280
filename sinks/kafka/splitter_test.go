package kafka

import (
	"testing"

	"github.com/IBM/sarama"
)

// The partitioner chooses among all partitions. What it leaves open goes by the ID, to the same partition each time.
func TestSplitter(t *testing.T) {
	partitions := []int32{3, 5, 7}
	manual := &splitter{partitions: partitions, choose: sarama.NewManualPartitioner("t")}
	for choice, want := range partitions {
		d := &delivery{id: "some", record: sarama.ProducerMessage{Topic: "t", Partition: int32(choice)}}
		if got, err := manual.partition(d); got != want || err != nil {
			t.Errorf("choice %d: %d, %v; want %d", choice, got, err, want)
		}
	}
	if got, err := manual.partition(&delivery{record: sarama.ProducerMessage{Partition: 3}}); err == nil {
		t.Errorf("a partition that does not exist: %d", got)
	}
	hashed := &splitter{partitions: partitions, choose: sarama.NewMurmur2Partitioner("t")}
	again := &splitter{partitions: partitions, choose: sarama.NewMurmur2Partitioner("t")}
	used := map[int32]bool{}
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		first, err1 := hashed.partition(&delivery{id: id})
		second, err2 := again.partition(&delivery{id: id})
		if first != second || err1 != nil || err2 != nil {
			t.Errorf("%s: %d, %v and %d, %v", id, first, err1, second, err2)
		}
		used[first] = true
		key := encoded(id)
		keyed, err1 := hashed.partition(&delivery{id: "one", record: sarama.ProducerMessage{Key: &key}})
		same, err2 := again.partition(&delivery{id: "another", record: sarama.ProducerMessage{Key: &key}})
		if keyed != same || err1 != nil || err2 != nil {
			t.Errorf("key %s: %d, %v and %d, %v", id, keyed, err1, same, err2)
		}
	}
	if len(used) != len(partitions) {
		t.Errorf("the IDs use %v", used)
	}
	if got, err := (&splitter{choose: sarama.NewMurmur2Partitioner("t")}).partition(&delivery{}); err == nil {
		t.Errorf("without partitions: %d", got)
	}
}
