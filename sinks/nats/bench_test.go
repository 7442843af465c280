package nats_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/nats"
)

const benchPayload = 1024

// benchMessage is a message as the router hands it on: 1 KiB and the metadata
// of a received message.
func benchMessage(i int) *message.Message {
	msg := message.NewMessage(fmt.Sprintf("1ae0fd9c-8d46-4b8a-9e52-%012d", i), make([]byte, benchPayload))
	msg.Metadata["x-router-event-type"] = "MESSAGE_RECEIVED"
	msg.Metadata["x-router-message-id"] = msg.UUID
	msg.Metadata["x-router-receiving-endpoint-id"] = "f7a8c7d0-2b4e-4c57-8a0a-3f5d3f2b6a11"
	msg.Metadata["x-router-tenant-id"] = "0c2b8f7e-6f7e-44d0-b9a8-6c2a6b1f6a01"
	msg.Metadata["x-router-context-id"] = msg.UUID
	msg.Metadata["x-router-message-type"] = "iso:11783:-10:taskdata:zip"
	msg.Metadata["x-router-sent-timestamp"] = "2024-05-05T10:11:12Z"
	msg.Metadata[sinks.KeyDedupID] = msg.UUID
	return msg
}

// inWindow runs f b.N times, at most window at once, and reports messages/s.
func inWindow(b *testing.B, window int, f func(i int) error) float64 {
	b.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for range window {
		group.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := f(int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(b.N) / time.Since(start).Seconds()
}

// bareAsync publishes b.N messages with nats.go alone, at most window in
// flight, and returns messages/s.
func bareAsync(b *testing.B, url string, window int) float64 {
	b.Helper()
	conn, err := natsgo.Connect(url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(window))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateOrUpdateStream(b.Context(), jetstream.StreamConfig{Name: "BARE", Subjects: []string{"bare.>"}}); err != nil {
		b.Fatal(err)
	}
	marshaler := nats.Marshaler{}
	start := time.Now()
	for i := range b.N {
		msg, _ := marshaler.Marshal("bare.topic", benchMessage(i))
		if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	rate := float64(b.N) / time.Since(start).Seconds()
	if err := js.DeleteStream(b.Context(), "BARE"); err != nil {
		b.Fatal(err)
	}
	return rate
}

// BenchmarkSink publishes into a real server in the process, with file storage,
// and compares with a bare asynchronous publisher that writes the same messages
// with the same window in the same run.
func BenchmarkSink(b *testing.B) {
	for _, window := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			server := natstest.Start(b)
			sink, err := nats.New(nats.Config{URL: server.URL()}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer sink.Close()
			b.SetBytes(benchPayload)
			b.ReportAllocs()
			b.ResetTimer()
			rate := inWindow(b, window, func(i int) error { return sink.Publish("topic", benchMessage(i)) })
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
			sink, err := nats.New(nats.Config{URL: server.URL()}, nil) // provisions
			if err != nil {
				b.Fatal(err)
			}
			defer sink.Close()
			pub, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: server.URL(), Marshaler: nats.Marshaler{}}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer pub.Close()
			b.SetBytes(benchPayload)
			b.ReportAllocs()
			b.ResetTimer()
			rate := inWindow(b, window, func(i int) error { return pub.Publish("agrimill.topic", benchMessage(i)) })
			b.ReportMetric(rate, "msgs/s")
		})
	}
}
