package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router/metrics"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

// newSink returns a sink that is closed with the test.
func newSink(t testing.TB, name string, pub message.Publisher, config sinks.PublisherConfig) sinks.Sink {
	t.Helper()
	sink := sinks.FromPublisher(name, pub, config)
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	})
	return sink
}

// measured is a broker behind a sink that is measured.
type measured struct {
	sinktest.NoFaults
	broker   *testkit.Publisher
	settings sinktest.Settings
}

func (m measured) NewSink(t *testing.T) sinks.Sink {
	return metrics.NewSinks().Wrap("", newSink(t, "memory", m.broker,
		sinks.PublisherConfig{Description: sinks.Description{MaxMessageSize: m.settings.MaxMessageSize, Durability: sinks.DurabilityMemory, DurabilityNote: "a map"}}))
}

func (m measured) Read(_ *testing.T, topic string) []*message.Message {
	return m.broker.Messages(topic)
}

// TestWrappedSinkKeepsTheContract runs the conformance suite.
func TestWrappedSinkKeepsTheContract(t *testing.T) {
	sinktest.Run(t, sinktest.Suite{
		New: func(_ *testing.T, settings sinktest.Settings) sinktest.Backend {
			return measured{broker: &testkit.Publisher{}, settings: settings}
		},
		Features: sinktest.Features{
			UUID: true, Metadata: true, MaxMessageSize: true,
			ReservedNames:        []string{"Nats-Msg-Id"},
			UnescapeTopicSegment: sinks.DefaultSegments.Unescape,
		},
	})
}

// other is an implementation that breaks the contract with an error of its own.
type other struct{ sinks.Sink }

func (other) Publish(string, ...*message.Message) error { return errors.New("not a label") }

func TestSinksMeasure(t *testing.T) {
	t.Parallel()
	m := metrics.NewSinks()
	broker := &testkit.Publisher{}
	inner := newSink(t, "broker", broker, sinks.PublisherConfig{Description: sinks.Description{MaxMessageSize: 1000}})
	sink := m.Wrap("farm", inner)
	if unwrapped, ok := sink.(interface{ Unwrap() sinks.Sink }); !ok || unwrapped.Unwrap() != inner {
		t.Error("Unwrap does not return the sink")
	}
	publish := func(sink sinks.Sink, want error, messages ...*message.Message) {
		t.Helper()
		testkit.ErrorIs(t, sink.Publish("topic", messages...), want)
	}
	publish(sink, nil)
	publish(sink, nil, message.NewMessage("1", []byte("abc")), message.NewMessage("2", []byte("de")))
	publish(sink, sinks.ErrTooLarge, message.NewMessage("3", make([]byte, 2000)))
	for _, kind := range []error{sinks.ErrRejected, sinks.ErrUnavailable} {
		broker.Fail(kind)
		publish(sink, kind, message.NewMessage("4", []byte("x")))
	}
	ended := message.NewMessage("5", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended.SetContext(ctx)
	publish(sink, context.Canceled, ended)
	testkit.NoError(t, sink.Close())
	publish(sink, sinks.ErrClosed, message.NewMessage("6", nil))
	if err := m.Wrap("farm", other{inner}).Publish("topic", message.NewMessage("7", nil)); err == nil {
		t.Error("want an error")
	}

	compare(t, m, `
# HELP agrimill_sink_messages_total Messages passed to the sink, by outcome of the call.
# TYPE agrimill_sink_messages_total counter
agrimill_sink_messages_total{outcome="closed",sink="farm"} 1
agrimill_sink_messages_total{outcome="failed",sink="farm"} 1
agrimill_sink_messages_total{outcome="interrupted",sink="farm"} 1
agrimill_sink_messages_total{outcome="rejected",sink="farm"} 1
agrimill_sink_messages_total{outcome="stored",sink="farm"} 2
agrimill_sink_messages_total{outcome="too_large",sink="farm"} 1
agrimill_sink_messages_total{outcome="unavailable",sink="farm"} 1
# HELP agrimill_sink_publishing_messages Messages passed to the sink whose outcome is not known yet.
# TYPE agrimill_sink_publishing_messages gauge
agrimill_sink_publishing_messages{sink="farm"} 0
# HELP agrimill_sink_stored_bytes_total Payload bytes of the messages that the sink has stored.
# TYPE agrimill_sink_stored_bytes_total counter
agrimill_sink_stored_bytes_total{sink="farm"} 5
`, "agrimill_sink_messages_total", "agrimill_sink_publishing_messages", "agrimill_sink_stored_bytes_total")
	if n := testutil.CollectAndCount(m, "agrimill_sink_publish_duration_seconds"); n != 7 {
		t.Errorf("%d histograms, want one for each outcome", n)
	}
	lint(t, m)

	m.Wrap("", inner)
	m.Forget("farm")
	if n := testutil.CollectAndCount(m, "agrimill_sink_publish_duration_seconds"); n != 1 {
		t.Errorf("%d histograms after Forget, want that of %q alone", n, "broker")
	}
}

// TestSinksShowWhatIsUnderWay checks that a sink that hangs is seen.
func TestSinksShowWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	m := metrics.NewSinks()
	entered, leave := make(chan struct{}), make(chan struct{})
	sink := m.Wrap("farm", newSink(t, "hanging", hanging{entered, leave}, sinks.PublisherConfig{}))
	var wg sync.WaitGroup
	wg.Go(func() { _ = sink.Publish("topic", message.NewMessage("1", nil), message.NewMessage("2", nil)) })
	<-entered
	compare(t, m, `
# HELP agrimill_sink_publishing_messages Messages passed to the sink whose outcome is not known yet.
# TYPE agrimill_sink_publishing_messages gauge
agrimill_sink_publishing_messages{sink="farm"} 2
`, "agrimill_sink_publishing_messages")
	close(leave)
	wg.Wait()
	testkit.NoError(t, sink.Close())
}

// TestSinksMeasurePublications: a publication counts when it is resolved.
func TestSinksMeasurePublications(t *testing.T) {
	t.Parallel()
	m := metrics.NewSinks()
	entered, leave := make(chan struct{}), make(chan struct{})
	sink := m.Wrap("farm", newSink(t, "hanging", hanging{entered, leave}, sinks.PublisherConfig{}))
	p := testkit.Must(sink.PublishAsync("topic", message.NewMessage("1", []byte("abc"))))(t)
	<-entered
	state := func(open, stored, closed, bytes int) {
		t.Helper()
		compare(t, m, fmt.Sprintf(`
# HELP agrimill_sink_messages_total Messages passed to the sink, by outcome of the call.
# TYPE agrimill_sink_messages_total counter
agrimill_sink_messages_total{outcome="closed",sink="farm"} %d
agrimill_sink_messages_total{outcome="failed",sink="farm"} 0
agrimill_sink_messages_total{outcome="interrupted",sink="farm"} 0
agrimill_sink_messages_total{outcome="rejected",sink="farm"} 0
agrimill_sink_messages_total{outcome="stored",sink="farm"} %d
agrimill_sink_messages_total{outcome="too_large",sink="farm"} 0
agrimill_sink_messages_total{outcome="unavailable",sink="farm"} 0
# HELP agrimill_sink_publishing_messages Messages passed to the sink whose outcome is not known yet.
# TYPE agrimill_sink_publishing_messages gauge
agrimill_sink_publishing_messages{sink="farm"} %d
# HELP agrimill_sink_stored_bytes_total Payload bytes of the messages that the sink has stored.
# TYPE agrimill_sink_stored_bytes_total counter
agrimill_sink_stored_bytes_total{sink="farm"} %d
`, closed, stored, open, bytes), "agrimill_sink_messages_total", "agrimill_sink_publishing_messages", "agrimill_sink_stored_bytes_total")
	}
	state(1, 0, 0, 0)
	close(leave)
	testkit.Must(p.Result())(t)
	state(0, 1, 0, 3)
	testkit.NoError(t, sink.Close())
	if _, err := sink.PublishAsync("topic", message.NewMessage("2", nil)); !errors.Is(err, sinks.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	state(0, 1, 1, 3)
}

type hanging struct{ entered, leave chan struct{} }

func (h hanging) Publish(string, ...*message.Message) error {
	close(h.entered)
	<-h.leave
	return nil
}

func (hanging) Close() error { return nil }

func TestUnusedSinkShowsUp(t *testing.T) {
	t.Parallel()
	m := metrics.NewSinks()
	m.Wrap("farm", newSink(t, "broker", &testkit.Publisher{}, sinks.PublisherConfig{}))
	if n := testutil.CollectAndCount(m, "agrimill_sink_publish_duration_seconds"); n != 1 {
		t.Errorf("%d histograms, want 1", n)
	}
}

// instant is a sink that does nothing.
type instant struct{ sinks.Sink }

func (instant) Publish(string, ...*message.Message) error { return nil }

func TestWrappedSinkAllocatesNothing(t *testing.T) {
	sink := metrics.NewSinks().Wrap("farm", instant{})
	messages := []*message.Message{message.NewMessage("1", []byte("abc"))}
	if n := testing.AllocsPerRun(100, func() { _ = sink.Publish("topic", messages...) }); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
}

// BenchmarkSink tells what measuring costs.
func BenchmarkSink(b *testing.B) {
	messages := []*message.Message{message.NewMessage("1", []byte("abc"))}
	for name, sink := range map[string]sinks.Sink{"plain": instant{}, "measured": metrics.NewSinks().Wrap("farm", instant{})} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = sink.Publish("topic", messages...)
			}
		})
	}
}

var _ prometheus.Collector = (*metrics.Sinks)(nil)
