package bench

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/faultproxy"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// networkDelay is how long each way to the broker takes, and farDelay to one that is far.
const (
	networkDelay = time.Millisecond
	farDelay     = 5 * time.Millisecond
)

// orderWindow is how many messages are in flight.
const orderWindow = 256

// BenchmarkOrder is the whole way from the gateway into a stream behind a network, in the order of
// keys, by how the sink brings messages in.
func BenchmarkOrder(b *testing.B) { inOrder(b, networkDelay) }

// BenchmarkOrderFar is BenchmarkOrder with a broker that is far.
func BenchmarkOrderFar(b *testing.B) { inOrder(b, farDelay) }

func inOrder(b *testing.B, delay time.Duration) {
	base := startSource(b)
	for _, ingest := range []sinks.Ingest{sinks.IngestPlain, sinks.IngestPipelined} {
		for _, keys := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", ingest, keys), func(b *testing.B) {
				twoCores(b)
				b.ReportAllocs()
				server := natstest.Start(b)
				sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: delayed(b, server.URL(), delay)}, Ingest: ingest}, nil))(b)
				count := newCounted(b.N)
				cfg := subscriber.Config{MaxInFlight: orderWindow}
				route(b, base, kib, keys, cfg, &countedPlaces{sink, count}, count.done)
				if got := streamMessages(b, server.URL()); got != uint64(b.N) {
					b.Fatalf("stream holds %d of %d", got, b.N)
				}
			})
		}
	}
}

// BenchmarkOrderKafka is BenchmarkOrder into Kafka.
func BenchmarkOrderKafka(b *testing.B) {
	base := startSource(b)
	for _, ingest := range []sinks.Ingest{sinks.IngestPlain, sinks.IngestPipelined} {
		for _, keys := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", ingest, keys), func(b *testing.B) {
				twoCores(b)
				b.ReportAllocs()
				sink := testkit.Must(kafka.New(kafka.Config{Connection: kafka.Connection{Brokers: brokers(b)}, Ingest: ingest, Configure: behindNetwork(b)}, nil))(b)
				count := newCounted(b.N)
				cfg := subscriber.Config{MaxInFlight: orderWindow}
				route(b, base, kib, keys, cfg, &countedPlaces{sink, count}, count.done)
			})
		}
	}
}

// BenchmarkBareOrderKafka is the peer of BenchmarkOrderKafka: sarama's asynchronous producer
// behind the same network, with as many messages in flight and as many keys.
func BenchmarkBareOrderKafka(b *testing.B) {
	for _, keys := range []int{1, 16} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			twoCores(b)
			b.ReportAllocs()
			bareKafka(b, keys, orderWindow, behindNetwork(b))
		})
	}
}

// behindNetwork puts every broker behind the network.
func behindNetwork(b *testing.B) func(*sarama.Config) {
	return func(config *sarama.Config) {
		config.Net.Proxy.Enable = true
		config.Net.Proxy.Dialer = &networkDialer{b: b, brokers: map[string]string{}}
	}
}

// networkDialer dials through a proxy for each address.
type networkDialer struct {
	b       *testing.B
	mu      sync.Mutex
	brokers map[string]string
}

func (d *networkDialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.brokers[address] == "" {
		d.brokers[address] = faultproxy.Late(d.b, address, networkDelay).Addr()
	}
	return net.Dial(network, d.brokers[address])
}

// delayed returns the address of the server behind a network.
func delayed(b *testing.B, url string, delay time.Duration) string {
	return "nats://" + faultproxy.Late(b, strings.TrimPrefix(url, "nats://"), delay).Addr()
}

// countedPlaces tells when a sink has stored n messages, however they were published.
type countedPlaces struct {
	sinks.Sink
	count *counted
}

func (c *countedPlaces) Publish(topic string, messages ...*message.Message) error {
	if err := c.Sink.Publish(topic, messages...); err != nil {
		return err
	}
	return c.count.Publish(topic, messages...)
}

func (c *countedPlaces) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	p, err := c.Sink.PublishAsync(topic, msg)
	if err == nil {
		p.Then(func(_ sinks.Receipt, err error) {
			if err == nil {
				_ = c.count.Publish(topic, msg)
			}
		})
	}
	return p, err
}

// BenchmarkBareOrder is the peer of BenchmarkOrder: a publisher of nats.go behind the same network
// that has as many messages in flight, and does nothing but publish.
func BenchmarkBareOrder(b *testing.B) { bareOrder(b, networkDelay) }

// BenchmarkBareOrderFar is the peer of BenchmarkOrderFar.
func BenchmarkBareOrderFar(b *testing.B) { bareOrder(b, farDelay) }

func bareOrder(b *testing.B, delay time.Duration) {
	twoCores(b)
	b.ReportAllocs()
	server := natstest.Start(b)
	barePublish(b, server.URL(), delayed(b, server.URL(), delay), orderWindow)
}

// barePublish publishes b.N messages into the default stream, through via.
func barePublish(b *testing.B, url, via string, window int) {
	sink, err := nats.New(nats.Config{Connection: nats.Connection{URL: url}}, nil) // makes the stream
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	conn := testkit.Must(natsgo.Connect(via))(b)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(window)))(b)
	msg := received(kib)
	msg.Metadata[gateway.KeyDedupID] = fmt.Sprintf("%032x", 0)
	template := testkit.Must(nats.Marshaler{}.Marshal(nats.DefaultSubjectPrefix+".bare", msg))(b)
	end := meter(b)
	for i := range b.N {
		// The header is written to the connection's buffer before the call
		// returns, so it can be shared.
		template.Header[natsgo.MsgIdHdr][0] = fmt.Sprintf("%032x", i)
		out := &natsgo.Msg{Subject: template.Subject, Header: template.Header, Data: template.Data}
		testkit.Must(js.PublishMsgAsync(out, jetstream.WithStallWait(time.Minute)))(b)
	}
	testkit.Receive(b, "the last acknowledgment", js.PublishAsyncComplete())
	end()
	if got := streamMessages(b, url); got != uint64(b.N) {
		b.Fatalf("stream holds %d of %d", got, b.N)
	}
}
