package kafka_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.SaramaLeaks()...) }

// backend is a broker behind a proxy.
type backend struct {
	sinktest.NoFaults // where there is no server to be stopped
	addr              string
	config            kafka.Config
}

// suiteConfig is what the suite needs: errors some seconds after a fault, and one partition, since it has no keys.
func suiteConfig(addr string, settings sinktest.Settings) kafka.Config {
	config := kafka.Config{
		Connection: kafka.Connection{Brokers: []string{addr}}, Partitions: 1, MaxMessageSize: int(settings.MaxMessageSize),
	}
	if settings.Faults {
		config.ConnectTimeout, config.PublishTimeout, config.CloseTimeout = 2*time.Second, 5*time.Second, time.Second
	}
	return config
}

func (b *backend) NewSink(t *testing.T) sinks.Sink {
	t.Helper()
	sink := testkit.Must(kafka.New(b.config, nil))(t)
	t.Cleanup(func() { _ = sink.Close() })
	return sink
}

func (b *backend) Read(t *testing.T, topic string) []*message.Message {
	t.Helper()
	addr, name := b.place(topic)
	var messages []*message.Message
	for _, record := range kafkatest.Read(t, addr, name) {
		messages = append(messages, unmarshal(t, kafka.Marshaler{}, record))
	}
	return messages
}

// place is where a topic of the sink is.
func (b *backend) place(topic string) (addr, name string) {
	return b.addr, cmp.Or(b.config.TopicPrefix, kafka.DefaultTopicPrefix) + "." + topic
}

// unmarshal hands a record read by franz-go to a marshaler, which takes those
// of sarama.
func unmarshal(t *testing.T, marshaler kafka.Marshaler, record *kgo.Record) *message.Message {
	t.Helper()
	same := &sarama.ConsumerMessage{Topic: record.Topic, Key: record.Key, Value: record.Value}
	for _, header := range record.Headers {
		same.Headers = append(same.Headers, &sarama.RecordHeader{Key: []byte(header.Key), Value: header.Value})
	}
	msg := testkit.Must(marshaler.Unmarshal(same))(t)
	return msg
}

// fakeBackend is a cluster in the process.
type fakeBackend struct {
	backend
	cluster *kafkatest.Cluster
}

func newFakeBackend(t *testing.T, settings sinktest.Settings) *fakeBackend {
	t.Helper()
	cluster := kafkatest.Start(t)
	return &fakeBackend{cluster: cluster, backend: backend{addr: cluster.Addr(), config: suiteConfig(cluster.Addr(), settings)}}
}

func (b *fakeBackend) Break(*testing.T)    { b.cluster.Stop() }
func (b *fakeBackend) Repair(t *testing.T) { t.Helper(); b.cluster.Restart() }
func (b *fakeBackend) Hang(*testing.T)     { b.cluster.Proxy.Hang() }
func (b *fakeBackend) Resume(*testing.T)   { b.cluster.Proxy.Resume() }

var rejectedTopics = []string{
	"", ".", "a.", ".a", "a..b", "a,b", ",", "a:b,c",
	strings.Repeat("a", 250), strings.Repeat("a.", 200) + "a",
}

func features() sinktest.Features {
	return sinktest.Features{
		UUID:     true,
		Metadata: true,
		ReservedNames: []string{
			"_watermill_message_uuid", "agrimill-key-", "agrimill-key-a", "agrimill-key-%FF", "agrimill-key-_watermill_message_uuid",
			"\xff", "ce_id", "",
		},
		AtReceipt:            atReceipt,
		MaxMessageSize:       true,
		Outage:               true,
		Hang:                 true,
		RejectedTopics:       rejectedTopics,
		UnescapeTopicSegment: kafka.UnescapeTopicSegment,
		LegalSegment: func(s string) bool {
			return s != "" && len(s) <= 249 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
		},
	}
}

// atReceipt looks for the record of an offset.
func atReceipt(t *testing.T, b sinktest.Backend, topic string, receipt sinks.Receipt) *message.Message {
	t.Helper()
	addr, name := b.(interface {
		place(topic string) (addr, name string)
	}).place(topic)
	if receipt.Topic != name || receipt.Partition != 0 {
		return nil
	}
	for _, record := range kafkatest.Read(t, addr, name) {
		if record.Offset == receipt.Offset {
			return unmarshal(t, kafka.Marshaler{}, record)
		}
	}
	return nil
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Suite{
		New: func(t *testing.T, settings sinktest.Settings) sinktest.Backend {
			t.Helper()
			t.Parallel() // outages are waited for
			return newFakeBackend(t, settings)
		},
		Features: features(),
	})
}
