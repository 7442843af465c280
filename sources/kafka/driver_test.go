package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
	sinkkafka "github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sources/kafka"
)

// stock opens the subscriber of watermill-kafka for topics.
func (f *topic) stock(topics ...string) message.Subscriber {
	f.Helper()
	s := testkit.Must(kafka.Open(kafka.Config{
		Connection: sinkkafka.Connection{Brokers: []string{f.addr}}, TopicPrefix: sinkkafka.NoTopicPrefix, Topics: topics, Group: f.name,
		Driver: kafka.DriverWatermill, Client: quick,
	}, nil))(f)
	f.Cleanup(func() { _ = s.Close() })
	return s
}

// testWatermillDriver: all records of all topics come in the order of their partition, also
// those that are nacked, one at a time; the next member goes on behind what is acked.
func testWatermillDriver(t *testing.T, addr string) {
	f, other := newTopic(t, addr, 1), newTopic(t, addr, 1)
	f.put(1, 20)
	other.put(1, 5)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := f.stock(f.name, other.name)
	messages := testkit.Must(s.Subscribe(ctx, ""))(t)
	next := map[string]int{}
	for i := range 15 + 1 {
		msg := f.next(messages)
		if i == 3 {
			msg.Nack()
			continue
		}
		next[string(msg.Payload)]++
		if msg.UUID == "" {
			t.Errorf("%s has no UUID", msg.Payload)
		}
		msg.Ack()
	}
	cancel()
	for msg := range messages { // one may be on its way
		msg.Nack()
	}
	testkit.NoError(t, s.Close())
	if _, err := s.Subscribe(t.Context(), ""); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	rest := testkit.Must(f.stock(f.name, other.name).Subscribe(t.Context(), ""))(t)
	// The last ack before the end may have had no effect.
	for i := 15; missing(next) > 0; i++ {
		msg := f.next(rest)
		next[string(msg.Payload)]++
		msg.Ack()
		if i > 25+2 {
			t.Fatalf("what was acked came again: %v", next)
		}
	}
}

// missing is how many of 20 messages of one topic and 5 of another have not come.
func missing(came map[string]int) (n int) {
	for i := range 20 {
		want := 1
		if i < 5 {
			want = 2 // both topics have it
		}
		n += max(0, want-came[fmt.Sprintf("k0 %d", i)])
	}
	return n
}

func TestDriverSettings(t *testing.T) {
	t.Parallel()
	connection := sinkkafka.Connection{Brokers: []string{"127.0.0.1:1"}, ConnectTimeout: 1}
	for name, config := range map[string]kafka.Config{
		"key header": {Connection: connection, Topics: []string{"a"}, Group: "a", Driver: kafka.DriverWatermill, KeyHeader: "Key"},
		"newest":     {Connection: connection, Topics: []string{"a"}, Group: "a", Driver: kafka.DriverWatermill, Start: kafka.StartNewest},
		"unknown":    {Connection: connection, Topics: []string{"a"}, Group: "a", Driver: 7},
		"no group":   {Connection: connection, Topics: []string{"a"}, Driver: kafka.DriverWatermill},
		"default":    {},
	} {
		if s, err := kafka.Open(config, nil); !errors.Is(err, kafka.ErrConfig) || s != nil {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	config := kafka.Config{Connection: connection, Topics: []string{"a", "b"}, Group: "a", Driver: kafka.DriverWatermill}
	if _, err := kafka.New(config, nil); !errors.Is(err, kafka.ErrConfig) {
		t.Errorf("New with another driver: %v", err)
	}
	down := testkit.Must(kafka.Open(config, nil))(t)
	if _, err := down.Subscribe(t.Context(), ""); !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("without a broker: %v", err)
	}
	testkit.NoError(t, down.Close())
	for _, d := range []kafka.Driver{kafka.DriverAgrimill, kafka.DriverWatermill} {
		var parsed kafka.Driver
		if err := parsed.UnmarshalText([]byte(d.String())); err != nil || parsed != d {
			t.Errorf("%v becomes %v, %v", d, parsed, err)
		}
	}
}
