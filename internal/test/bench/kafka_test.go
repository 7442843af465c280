package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/subscriber"
)

// brokers returns the addresses of Kafka: those of KAFKA_BROKERS, or of a stand-in
// in this process that speaks Kafka's protocol and keeps messages in memory. The
// stand-in says what the sink costs beside its peer, and nothing about Kafka.
func brokers(b *testing.B) []string {
	b.Helper()
	if list := os.Getenv("KAFKA_BROKERS"); list != "" {
		return strings.Split(list, ",")
	}
	cluster := testkit.Must(kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(4)))(b)
	b.Cleanup(cluster.Close)
	return cluster.ListenAddrs()
}

// BenchmarkKafka is the whole way from the gateway into Kafka.
func BenchmarkKafka(b *testing.B) {
	base := startSource(b)
	for _, order := range orders {
		for _, window := range windows {
			b.Run(fmt.Sprintf("%s/%d", order.name, window), func(b *testing.B) {
				twoCores(b)
				b.ReportAllocs()
				sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers(b)}}, nil))(b)
				count := newCounted(b.N)
				cfg := subscriber.Config{MaxInFlight: window, Order: order.order}
				// One endpoint has one partition.
				route(b, base, kib, window, cfg, &countedPlaces{sink, count}, count.done)
			})
		}
	}
}

// BenchmarkBareKafka is the peer of BenchmarkKafka: sarama's asynchronous producer
// with the same promises (acks=all, idempotent) and as many messages in flight,
// sending one message with its headers prepared, under as many keys.
func BenchmarkBareKafka(b *testing.B) {
	for _, window := range windows {
		b.Run(fmt.Sprint(window), func(b *testing.B) {
			twoCores(b)
			b.ReportAllocs()
			bareKafka(b, window, window, func(*sarama.Config) {})
		})
	}
}

// bareKafka produces b.N messages of as many keys in turns, at most window at once.
func bareKafka(b *testing.B, keyCount, window int, change func(*sarama.Config)) {
	addrs := brokers(b)
	const topic = "agrimill.bare"
	sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: addrs}}, nil))(b)
	defer func() { _ = sink.Close() }()
	if err := sink.Publish("bare", received(kib)); err != nil { // makes the topic
		b.Fatal(err)
	}
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewMurmur2Partitioner
	config.Net.MaxOpenRequests = 1
	config.ChannelBufferSize = 1024
	change(config)
	producer := testkit.Must(sarama.NewAsyncProducer(addrs, config))(b)
	template := testkit.Must(kafka.Marshaler{}.Marshal(topic, received(kib)))(b)
	keys := make([]sarama.Encoder, keyCount)
	for i := range keys {
		keys[i] = sarama.StringEncoder(fmt.Sprintf("b1a7c9de-5f1b-4b7e-9c53-3f2e1d0c9%03x", i))
	}
	end := meter(b)
	open := make(chan struct{}, window)
	finished := make(chan error, 1)
	go func() { // ends with the last message, or the first error
		for range b.N {
			select {
			case <-producer.Successes():
				<-open
			case err := <-producer.Errors():
				finished <- err
				return
			}
		}
		finished <- nil
	}()
	for i := range b.N {
		select {
		case open <- struct{}{}:
		case err := <-finished:
			b.Fatal(err)
		}
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Key: keys[i%keyCount], Value: template.Value, Headers: template.Headers,
		}
	}
	testkit.NoError(b, <-finished)
	end()
	_ = producer.Close()
}
