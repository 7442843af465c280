package nats_test

import (
	"fmt"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/internal/testkit/sinkbench"
	"github.com/agrimill/agrimill/sinks/nats"
)

// bareAsync publishes b.N messages with nats.go alone, at most window in
// flight, and returns messages/s.
func bareAsync(b *testing.B, url string, window int) float64 {
	b.Helper()
	conn := testkit.Must(natsgo.Connect(url))(b)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(window)))(b)
	testkit.Must(js.CreateOrUpdateStream(b.Context(), jetstream.StreamConfig{Name: "BARE", Subjects: []string{"bare.>"}}))(b)
	marshaler := nats.Marshaler{}
	start := time.Now()
	for i := range b.N {
		msg, _ := marshaler.Marshal("bare.topic", sinkbench.Message(i))
		testkit.Must(js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)))(b)
	}
	<-js.PublishAsyncComplete()
	rate := float64(b.N) / time.Since(start).Seconds()
	testkit.NoError(b, js.DeleteStream(b.Context(), "BARE"))
	return rate
}

// BenchmarkSink publishes into a real server in the process, with file storage,
// and compares with a bare asynchronous publisher that writes the same messages
// with the same window in the same run.
func BenchmarkSink(b *testing.B) {
	for _, window := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			server := natstest.Start(b)
			sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer sink.Close()
			b.SetBytes(sinkbench.Payload)
			b.ReportAllocs()
			b.ResetTimer()
			rate := sinkbench.InWindow(b, window, func(i int) error { return sink.Publish("topic", sinkbench.Message(i)) })
			b.StopTimer()
			bare := bareAsync(b, server.URL(), window)
			b.ReportMetric(rate, "msgs/s")
			b.ReportMetric(bare, "bare-msgs/s")
			b.ReportMetric(rate/bare, "ratio")
		})
	}
}

// BenchmarkWatermillPublisher is the publisher of watermill-nats under the same
// load, for comparison.
func BenchmarkWatermillPublisher(b *testing.B) {
	for _, window := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			server := natstest.Start(b)
			sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}}, nil) // provisions
			if err != nil {
				b.Fatal(err)
			}
			defer sink.Close()
			pub, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: server.URL(), Marshaler: nats.Marshaler{}}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer pub.Close()
			b.SetBytes(sinkbench.Payload)
			b.ReportAllocs()
			b.ResetTimer()
			rate := sinkbench.InWindow(b, window, func(i int) error { return pub.Publish("agrimill.topic", sinkbench.Message(i)) })
			b.ReportMetric(rate, "msgs/s")
		})
	}
}
