package kafka_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/sinkbench"
	"github.com/agrimill/agrimill/sinks/kafka"
)

// benchConfig is what the sink sets, for sarama alone.
func benchConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.MetricRegistry = kafka.NoMetrics
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewMurmur2Partitioner
	config.Net.MaxOpenRequests = 1
	return config
}

// bareAsync publishes b.N messages with sarama alone, at most window in flight,
// and returns messages/s.
func bareAsync(b *testing.B, addr, topic string, window int) float64 {
	b.Helper()
	producer := testkit.Must(sarama.NewAsyncProducer([]string{addr}, benchConfig()))(b)
	room := make(chan struct{}, window)
	var results sync.WaitGroup
	results.Go(func() {
		for range producer.Successes() {
			<-room
		}
	})
	results.Go(func() {
		for failed := range producer.Errors() {
			b.Error(failed)
			<-room
		}
	})
	start := time.Now()
	for i := range b.N {
		msg := sinkbench.Message(i)
		record, _ := kafka.Marshaler{}.Marshal(topic, msg)
		record.Key = sarama.StringEncoder(msg.Metadata[gateway.KeyReceivingEndpointID])
		room <- struct{}{}
		producer.Input() <- record
	}
	producer.AsyncClose()
	results.Wait()
	return float64(b.N) / time.Since(start).Seconds()
}

// benchSink publishes through the sink, and with sarama alone in the same run.
func benchSink(b *testing.B, addr string) {
	for _, window := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: "bench", Partitions: 3}, nil))(b)
			defer func() { _ = sink.Close() }()
			if err := sink.Publish("topic", sinkbench.Message(0)); err != nil { // creates it
				b.Fatal(err)
			}
			b.SetBytes(sinkbench.Payload)
			b.ReportAllocs()
			b.ResetTimer()
			rate := sinkbench.InWindow(b, window, func(i int) error { return sink.Publish("topic", sinkbench.Message(i)) })
			b.StopTimer()
			bare := bareAsync(b, addr, "bench.topic", window)
			b.ReportMetric(rate, "msgs/s")
			b.ReportMetric(bare, "bare-msgs/s")
			b.ReportMetric(rate/bare, "ratio")
		})
	}
}

// blackhole is a cluster in the process that stores nothing.
func blackhole(b *testing.B) string {
	b.Helper()
	cluster := testkit.Must(kfake.NewCluster(kfake.NumBrokers(1), kfake.BlackholeProduce()))(b)
	b.Cleanup(cluster.Close)
	return cluster.ListenAddrs()[0]
}

// BenchmarkSink publishes into a cluster in the process that stores nothing, so
// that it is the sink that is measured.
func BenchmarkSink(b *testing.B) { benchSink(b, blackhole(b)) }

// BenchmarkWatermillPublisher is the publisher of watermill-kafka under the same
// load, for comparison.
func BenchmarkWatermillPublisher(b *testing.B) {
	addr := blackhole(b)
	for _, window := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			sink, err := kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: []string{addr}}, TopicPrefix: "bench"}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = sink.Close() }()
			if err := sink.Publish("topic", sinkbench.Message(0)); err != nil { // creates it
				b.Fatal(err)
			}
			config := benchConfig()
			publisher, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
				Brokers: []string{addr}, Marshaler: kafka.Marshaler{}, OverwriteSaramaConfig: config,
			}, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = publisher.Close() }()
			b.SetBytes(sinkbench.Payload)
			b.ReportAllocs()
			b.ResetTimer()
			rate := sinkbench.InWindow(b, window, func(i int) error { return publisher.Publish("bench.topic", sinkbench.Message(i)) })
			b.ReportMetric(rate, "msgs/s")
		})
	}
}
