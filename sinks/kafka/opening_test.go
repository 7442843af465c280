package kafka_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// A sink that is made before its brokers says that there are none, and stores as soon as they are there.
func TestBeforeTheBrokers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	cluster.Stop()
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{cluster.Addr()}, RetryOnFailedConnect: true}}, nil))(t)
	t.Cleanup(func() { _ = sink.Close() })
	publish := func() error { return sink.Publish("fields", message.NewMessage("1", []byte("task data"))) }
	for what, err := range map[string]error{"Publish": publish(), "Health": sink.Health(t.Context())} {
		if !errors.Is(err, sinks.ErrUnavailable) || !errors.Is(err, sinks.ErrNotConnected) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if d := sink.Describe(); d.Durability != sinks.DurabilityUnknown || d.MaxMessageSize != 0 {
		t.Errorf("without brokers: %+v", d)
	}
	testkit.ErrorIs(t, sink.Publish("no..topic", message.NewMessage("1", nil)), sinks.ErrRejected)

	recovered := sink.Recovered()
	cluster.Restart()
	<-recovered
	testkit.EventuallyNil(t, publish) // a broker that has just started is not ready for everything at once
	testkit.NoError(t, sink.Health(t.Context()))
	if n := len(kafkatest.Read(t, cluster.Addr(), kafka.DefaultTopicPrefix+".fields")); n == 0 {
		t.Errorf("%d messages, want one", n)
	}
	if d := sink.Describe(); d.Durability != sinks.DurabilityDisk || d.MaxMessageSize == 0 {
		t.Errorf("with brokers: %+v", d)
	}
}

// A sink that never found its brokers closes at once.
func TestCloseBeforeTheBrokers(t *testing.T) {
	t.Parallel()
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{"127.0.0.1:1"}, RetryOnFailedConnect: true}}, nil))(t)
	testkit.Ends(t, "Close", func() { _ = sink.Close() })
	testkit.ErrorIs(t, sink.Publish("fields", message.NewMessage("1", nil)), sinks.ErrClosed)
}
