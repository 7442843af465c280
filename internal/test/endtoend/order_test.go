package endtoend

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	sourcekafka "github.com/agrimill/agrimill/sources/kafka"
	sourcenats "github.com/agrimill/agrimill/sources/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// orderSeeds is how many random runs TestOrder makes for each sink and ingest; 0 means a short one,
// pipelined.
var orderSeeds = flag.Int("order", 0, "random runs of TestOrder for each sink and ingest")

// orderRuns returns how many runs there are of a way of ingest.
func orderRuns(ingest sinks.Ingest) int {
	if *orderSeeds == 0 && ingest != sinks.IngestPlain {
		return 1
	}
	return *orderSeeds
}

// orderBroker is a broker whose connections and life can be taken.
type orderBroker struct {
	open func(ingest sinks.Ingest) (sinks.Sink, error)
	// source reads topics, in the order of the keys in a header. Nil: not here.
	source func(keyHeader string) (message.Subscriber, error)
	// faults each begin and end one.
	faults map[string]func()
	// read returns what is stored in a topic, in its order.
	read func(topic string) []placed
}

// orderLimit is the largest message that the brokers take.
const orderLimit = 16 << 10

// placed is a stored message.
type placed struct {
	key       string
	n         int
	overtaken string
}

func shortly() { <-time.After(time.Duration(20+rand.IntN(200)) * time.Millisecond) }

func natsOrderBroker(t *testing.T) orderBroker {
	server := natstest.Start(t)
	proxy := natstest.NewProxy(t, server.URL())
	conn := testkit.Must(natstest.Connect(server.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond)))(t)
	t.Cleanup(conn.Close)
	return orderBroker{
		open: func(ingest sinks.Ingest) (sinks.Sink, error) {
			return nats.New(nats.Config{
				Connection: nats.Connection{URL: proxy.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond), natsgo.ReconnectJitter(0, 0)}}, Ingest: ingest, PublishTimeout: time.Second, MaxMessageSize: orderLimit,
			}, nil)
		},
		source: func(keyHeader string) (message.Subscriber, error) {
			return sourcenats.New(sourcenats.Config{
				Connection: nats.Connection{
					URL: proxy.URL(), Options: []natsgo.Option{natsgo.ReconnectWait(10 * time.Millisecond), natsgo.ReconnectJitter(0, 0)},
				},
				Durable: "out", KeyHeader: keyHeader, AckWait: time.Second, MaxInFlight: 64, CloseTimeout: 2 * time.Second,
			}, nil)
		},
		faults: map[string]func(){
			"cut":     proxy.Cut,
			"hangs":   func() { proxy.Hang(); shortly(); proxy.Resume() },
			"freezes": func() { proxy.Freeze(); shortly(); proxy.Cut() },
			"no answers": func() {
				proxy.LoseReplies()
				shortly()
				proxy.Cut()
			},
			"server restarts": func() { server.Stop(); shortly(); server.Restart() },
			"stream is full":  func() { fillOrderStream(t, conn) },
		},
		read: func(topic string) []placed { return readOrderStream(t, conn, topic) },
	}
}

// readOrderStream returns what the stream holds of a topic.
func readOrderStream(t *testing.T, conn *natsgo.Conn, topic string) (all []placed) {
	t.Helper()
	js := testkit.Must(natstest.JetStream(conn))(t)
	ctx := testkit.Context(t)
	subject := nats.DefaultSubjectPrefix + "." + topic
	var info *jetstream.StreamInfo
	var stream jetstream.Stream
	testkit.EventuallyNil(t, func() (err error) { // it may have no leader yet
		if stream, err = js.Stream(ctx, nats.DefaultStream); err == nil {
			info, err = stream.Info(ctx)
		}
		return err
	})
	for n := info.State.FirstSeq; n <= info.State.LastSeq; n++ {
		var msg *jetstream.RawStreamMsg
		testkit.EventuallyNil(t, func() (err error) {
			if msg, err = stream.GetMsg(ctx, n); errors.Is(err, jetstream.ErrMsgNotFound) {
				msg, err = nil, nil
			}
			return err
		})
		if msg != nil && msg.Subject == subject {
			all = append(all, newPlaced(t, msg.Header.Get, msg.Data))
		}
	}
	return all
}

// fillOrderStream has the stream refuse messages for a moment, also some that are on their way.
func fillOrderStream(t *testing.T, conn *natsgo.Conn) {
	js := testkit.Must(natstest.JetStream(conn))(t)
	limit := func(full bool) {
		testkit.EventuallyNil(t, func() error {
			ctx := testkit.Context(t)
			stream, err := js.Stream(ctx, nats.DefaultStream)
			if err != nil {
				return err
			}
			config := stream.CachedInfo().Config
			config.MaxMsgs = -1
			if full {
				config.MaxMsgs = int64(stream.CachedInfo().State.Msgs) + 20
			}
			_, err = js.UpdateStream(ctx, config)
			return err
		})
	}
	limit(true)
	shortly()
	limit(false)
}

func newPlaced(t *testing.T, header func(string) string, payload []byte) placed {
	t.Helper()
	n := testkit.Must(strconv.Atoi(string(payload)))(t)
	return placed{header(gateway.KeyReceivingEndpointID), n, header(sinks.KeyOvertaken)}
}

// kafkaServer is a broker of Kafka, or what stands in for it.
type kafkaServer interface {
	Addr() string
	Stop()
	Restart()
}

// standInOrderBroker starts one in this process.
func standInOrderBroker(t *testing.T) orderBroker {
	cluster := kafkatest.Start(t)
	return kafkaOrderBroker(t, cluster, cluster.Proxy)
}

func kafkaOrderBroker(t *testing.T, cluster kafkaServer, proxy *kafkatest.Proxy) orderBroker {
	return orderBroker{
		open: func(ingest sinks.Ingest) (sinks.Sink, error) {
			return kafka.New(kafka.Config{
				Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Ingest: ingest, PublishTimeout: 2 * time.Second, Partitions: 3, ReplicationFactor: 1,
				MaxMessageSize: orderLimit,
			}, nil)
		},
		source: func(keyHeader string) (message.Subscriber, error) {
			return sourcekafka.New(sourcekafka.Config{
				Connection: kafka.Connection{Brokers: []string{cluster.Addr()}}, Topics: []string{"out"},
				Group: "out", KeyHeader: keyHeader, MaxInFlight: 64, MaxNackDelay: 20 * time.Millisecond, CloseTimeout: 2 * time.Second,
			}, nil)
		},
		faults: map[string]func(){
			"cut":              proxy.Cut,
			"hangs":            func() { proxy.Hang(); shortly(); proxy.Resume() },
			"freezes":          func() { proxy.Freeze(); shortly(); proxy.Cut() },
			"cluster restarts": func() { cluster.Stop(); shortly(); cluster.Restart() },
		},
		read: func(topic string) (all []placed) {
			for _, r := range kafkatest.Read(t, cluster.Addr(), kafka.DefaultTopicPrefix+"."+topic) {
				all = append(all, newPlaced(t, func(name string) string {
					for _, h := range r.Headers {
						if h.Key == name {
							return string(h.Value)
						}
					}
					return ""
				}, r.Value))
			}
			return all
		},
	}
}

// Whatever breaks on the way to the broker, every message is stored before it is confirmed, and the
// messages of a key for the first time in their order: always, if one of them is on its way at a
// time; and if there are several, those that are not say so. One that fails is tried again in its
// place, and what the broker will never take, or a transform refuses for good, is poisoned.
func TestOrder(t *testing.T) {
	for name, start := range map[string]func(*testing.T) orderBroker{
		"NATS": natsOrderBroker, "Kafka": standInOrderBroker,
	} {
		for _, ingest := range []sinks.Ingest{sinks.IngestPlain, sinks.IngestPipelined} {
			for seed := range orderRuns(ingest) {
				t.Run(fmt.Sprintf("%s/%s/%d", name, ingest, seed), func(t *testing.T) {
					t.Parallel()
					testOrder(t, start(t), ingest, rand.New(rand.NewPCG(uint64(seed), 16)))
				})
			}
		}
	}
}

func testOrder(t *testing.T, broker orderBroker, ingest sinks.Ingest, random *rand.Rand) {
	const (
		messageType = "app:test:json"
		keys        = 3
	)
	n := 400
	if *orderSeeds == 0 {
		n = 200
	}
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	var receivers []string
	for i := range keys {
		receivers = append(receivers, server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint(i), Receive: []string{messageType}}).ID)
	}
	client := testkit.Must(gateway.New(server.ClientConfig()))(t)
	defer func() { _ = client.Close() }()
	sub := testkit.Must(subscriber.New(subscriber.Config{Client: client, MaxInFlight: 64}, nil))(t)
	sink := testkit.Must(broker.open(ingest))(t)
	r := testkit.Must(router.New(router.Config{
		Poison: sink, Retry: router.RetrySettings{InitialBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond},
	}, nil))(t)
	of := random.Perm(n)
	fails, bad, large := of[0], of[1], of[2]
	var failures atomic.Int64
	testkit.NoError(t, r.Add(router.Route{
		Name: "farm", From: sub, Topic: subscriber.AllData, To: sink, ToTopic: "farm",
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			switch number := string(msg.Payload); {
			case number == strconv.Itoa(fails) && failures.Add(1) < 3:
				return nil, errors.New("not now")
			case number == strconv.Itoa(bad):
				return nil, router.Permanent(errors.New("never"))
			case number == strconv.Itoa(large):
				msg = msg.Copy()
				msg.Payload = append(msg.Payload, bytes.Repeat([]byte(" "), 2*orderLimit)...)
			}
			return []*message.Message{msg}, nil
		},
	}))
	result := make(chan error, 1)
	go func() { result <- r.Run(t.Context()) }()

	names := slices.Sorted(maps.Keys(broker.faults))
	for i := range n {
		for _, receiver := range receivers {
			testkit.Must(server.Send(gatewaytest.SendRequest{
				From: sender.ID, MessageType: messageType, Payload: []byte(strconv.Itoa(i)), Recipients: []string{receiver},
			}))(t)
		}
		if i%100 == 50 {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			testkit.NoError(t, server.WaitConfirmed(ctx, (i-40)*keys))
			cancel()
		}
		if i%100 == 70 {
			name := names[random.IntN(len(names))]
			t.Log(name)
			broker.faults[name]()
		}
	}
	defer func() {
		if t.Failed() {
			t.Logf("of %d: %+v; the sink: %+v, %v", keys*n, sub.Stats(), sink.Describe(), sink.Health(context.WithoutCancel(t.Context())))
		}
	}()
	if err := server.WaitConfirmed(testkit.Context(t), keys*n); err != nil { // what came again may be confirmed twice
		t.Fatal(err)
	}
	overtaken := sub.Stats().Overtaken
	testkit.NoError(t, r.Close())
	testkit.NoError(t, <-result)

	next, seen, late := map[string]int{}, map[string]map[int]bool{}, int64(0)
	for _, p := range broker.read("farm") {
		if seen[p.key] == nil {
			seen[p.key] = map[int]bool{}
		}
		if !seen[p.key][p.n] && p.n < next[p.key] {
			late++
			if ingest != sinks.IngestPipelined || p.overtaken == "" {
				t.Errorf("message %d of a key is stored behind %d", p.n, next[p.key]-1)
			}
		}
		seen[p.key][p.n] = true
		next[p.key] = max(next[p.key], p.n+1)
	}
	for _, p := range broker.read(router.DefaultPoisonTopic) {
		if seen[p.key][p.n] || p.n != bad && p.n != large {
			t.Errorf("message %d is poisoned", p.n)
		}
		seen[p.key][p.n] = true
	}
	for _, receiver := range receivers {
		if got := len(seen[receiver]); got != n {
			t.Errorf("%d of %d messages are stored", got, n)
		}
	}
	if ingest != sinks.IngestPipelined && overtaken > 0 || late > overtaken {
		t.Errorf("%d messages are stored late, and %d counted", late, overtaken)
	}
	t.Logf("%d messages are stored late, %d counted", late, overtaken)
}
