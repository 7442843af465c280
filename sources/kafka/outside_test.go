package kafka_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sources/kafka"
)

// What becomes of records that others have stored. Lost: of several headers with one name all but the last. Kept: everything
// else, as it is; a tombstone has a nil payload. Said: nothing, because Marshaler reads any record.
func TestOutsideRecords(t *testing.T) {
	header := func(pairs ...string) (headers []kgo.RecordHeader) {
		for i := 0; i < len(pairs); i += 2 {
			headers = append(headers, kgo.RecordHeader{Key: pairs[i], Value: []byte(pairs[i+1])})
		}
		return headers
	}
	f := newTopic(t, kafkatest.Start(t).Addr(), 1)
	log := testkit.NewLog()
	messages := f.subscribe(f.subscriber(log, func(c *kafka.Config) { c.MaxInFlight = 1 }))
	for name, c := range map[string]struct {
		record   kgo.Record
		uuid     string // empty: derived from its place
		metadata map[string]string
	}{
		"nothing":                {record: kgo.Record{Value: []byte{}}},
		"tombstone":              {record: kgo.Record{Key: []byte("k")}},
		"an empty key":           {record: kgo.Record{Key: []byte{}, Value: []byte("x")}},
		"a key of bytes":         {record: kgo.Record{Key: []byte{0xff, 0}, Value: []byte("\x00\xff")}},
		"a header without value": {record: kgo.Record{Headers: []kgo.RecordHeader{{Key: "a"}}, Value: []byte("x")}, metadata: map[string]string{"a": ""}},
		"a header without name":  {record: kgo.Record{Headers: header("", "1"), Value: []byte("x")}, metadata: map[string]string{"": "1"}},
		"the same header twice":  {record: kgo.Record{Headers: header("a", "1", "a", "2"), Value: []byte("x")}, metadata: map[string]string{"a": "2"}},
		"bytes":                  {record: kgo.Record{Headers: header("\xff", "\xfe"), Value: []byte("x")}, metadata: map[string]string{"\xff": "\xfe"}},
		"an odd UUID":            {record: kgo.Record{Headers: header("_watermill_message_uuid", "no UUID"), Value: []byte("x")}, uuid: "no UUID"},
		"an empty UUID":          {record: kgo.Record{Headers: header("_watermill_message_uuid", ""), Value: []byte("x")}},
		"odd router metadata": {record: kgo.Record{Headers: header("x-router-sent-timestamp", "yesterday"), Value: []byte("x")},
			metadata: map[string]string{"x-router-sent-timestamp": "yesterday"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.record.Topic = f.name
			testkit.NoError(t, f.client.ProduceSync(t.Context(), &c.record).FirstErr())
			msg := f.next(messages)
			if string(msg.Payload) != string(c.record.Value) || (msg.Payload == nil) != (c.record.Value == nil) ||
				!maps.Equal(msg.Metadata, c.metadata) || msg.UUID == "" || c.uuid != "" && msg.UUID != c.uuid {
				t.Errorf("got %q (nil %v) with %q, UUID %q; want %q with %q", msg.Payload, msg.Payload == nil, msg.Metadata, msg.UUID, c.record.Value, c.metadata)
			}
			msg.Ack()
		})
	}
	f.put(1, 1)
	f.next(messages).Ack()
	f.eventuallyCommitted(12)
	if lines := log.Lines(watermill.ErrorLogLevel); len(lines) > 0 {
		t.Error(log)
	}
}

// The key in a header is that in the metadata: of several the last one, which is not empty.
func TestKeyOfSeveralHeaders(t *testing.T) {
	f := newTopic(t, kafkatest.Start(t).Addr(), 1)
	for i, last := range []string{"a", "b", "a"} {
		record := &kgo.Record{Topic: f.name, Value: fmt.Append(nil, i), Headers: []kgo.RecordHeader{
			{Key: "key", Value: fmt.Append(nil, "first ", i)}, {Key: "key", Value: []byte(last)},
		}}
		testkit.NoError(t, f.client.ProduceSync(t.Context(), record).FirstErr())
	}
	messages := f.subscribe(f.subscriber(nil, func(c *kafka.Config) { c.KeyHeader = "key" }))
	first, second := f.next(messages), f.next(messages)
	if string(first.Payload) != "0" || string(second.Payload) != "1" {
		t.Errorf("got %s and %s, want 0 and 1", first.Payload, second.Payload)
	}
	first.Nack()
	if again := f.next(messages); string(again.Payload) != "0" { // 2 has the same key, and is behind it
		t.Errorf("got %s, want 0", again.Payload)
	}
}
