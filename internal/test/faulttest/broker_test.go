//go:build faults

package faulttest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
)

// broker is where a pipeline stores, behind a proxy.
type broker interface {
	address() address
	source() (source, error)
	// exact says that the broker itself recognises a repeated message.
	exact() bool

	stop()
	restart()
	// cut closes connections, hang holds their data until resume, loseReplies
	// throws away what the broker says until cut.
	cut()
	hang()
	resume()
	loseReplies()
}

// address is how a pipeline, in whatever process, gets at a broker.
type address struct {
	Kind    string // kindNATS or kindKafka
	Address string
}

const (
	kindNATS  = "nats"
	kindKafka = "kafka"
)

func newBroker(tb testing.TB, kind string, change ...func(*server.Options)) broker {
	tb.Helper()
	if kind == kindKafka {
		return &kafkaBroker{kafkatest.Start(tb, kfake.GroupMinSessionTimeout(time.Second))}
	}
	s := natstest.Start(tb, change...)
	return &natsBroker{Server: s, Proxy: natstest.NewProxy(tb, s.URL())}
}

type natsBroker struct {
	*natstest.Server
	*natstest.Proxy
}

func (b *natsBroker) address() address        { return address{kindNATS, b.Proxy.URL()} }
func (b *natsBroker) source() (source, error) { return newJetStreamSource(b.Server.URL()) }
func (b *natsBroker) exact() bool             { return true }
func (b *natsBroker) stop()                   { b.Server.Stop(); b.Proxy.Cut() }
func (b *natsBroker) restart()                { b.Server.Restart() }
func (b *natsBroker) cut()                    { b.Proxy.Cut() }
func (b *natsBroker) hang()                   { b.Proxy.Hang() }
func (b *natsBroker) resume()                 { b.Proxy.Resume() }
func (b *natsBroker) loseReplies()            { b.Proxy.LoseReplies() }

type kafkaBroker struct{ *kafkatest.Cluster }

func (b *kafkaBroker) address() address        { return address{kindKafka, b.Addr()} }
func (b *kafkaBroker) source() (source, error) { return newKafkaSource(b.Proxy) }
func (b *kafkaBroker) exact() bool             { return false }
func (b *kafkaBroker) stop()                   { b.Stop() }
func (b *kafkaBroker) restart()                { b.Restart() }
func (b *kafkaBroker) cut()                    { b.Proxy.Cut() }
func (b *kafkaBroker) hang()                   { b.Proxy.Hang() }
func (b *kafkaBroker) resume()                 { b.Proxy.Resume() }
func (b *kafkaBroker) loseReplies()            { b.Proxy.LoseReplies() }

// brokerTimeout is how long a pipeline waits for a broker's acknowledgment.
const brokerTimeout = time.Second

func openSink(p *parts, logger watermill.LoggerAdapter) (sinks.Sink, error) {
	if p.broker.Kind == kindKafka {
		p.Kafka.Brokers = []string{p.broker.Address}
		return kafka.New(p.Kafka, logger)
	}
	p.NATS.URL = p.broker.Address
	return nats.New(p.NATS, logger)
}
