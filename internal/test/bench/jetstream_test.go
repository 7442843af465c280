package bench

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

// twoCores lets a benchmark have two processors, whatever -cpu says: the server
// is in this process. Package testing sets the number for each sub-benchmark, so
// it is called there.
func twoCores(b *testing.B) {
	before := runtime.GOMAXPROCS(2)
	b.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// windows are how many messages are in flight.
var windows = []int{1, 16, 256}

// BenchmarkJetStream is the whole way from the gateway into a stream with file
// storage, on a server in this process: Subscriber, Router with its chain, sink.
// ByKey has as many receiving endpoints as messages in flight; unordered has one.
func BenchmarkJetStream(b *testing.B) {
	base := startSource(b)
	for _, order := range orders {
		for _, window := range windows {
			b.Run(fmt.Sprintf("%s/%d", order.name, window), func(b *testing.B) {
				endpoints := 1
				if order.order == subscriber.OrderByKey {
					endpoints = window
				}
				cfg := subscriber.Config{MaxInFlight: window, Order: order.order}
				intoJetStream(b, base, endpoints, cfg)
			})
		}
	}
}

// intoJetStream runs BenchmarkJetStream for one configuration.
func intoJetStream(b *testing.B, base string, endpoints int, cfg subscriber.Config) {
	twoCores(b)
	b.ReportAllocs()
	server := natstest.Start(b)
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}}, nil))(b)
	count := newCounted(b.N)
	route(b, base, kib, endpoints, cfg, &countedPlaces{sink, count}, count.done)
	if got := streamMessages(b, server.URL()); got != uint64(b.N) {
		b.Fatalf("stream holds %d of %d", got, b.N)
	}
}

// BenchmarkBareJetStream is the peer of BenchmarkJetStream: a publisher of
// nats.go with the same window that sends the same messages into the same kind
// of stream. The messages are there already and differ only in their IDs, so it
// does nothing but publish.
func BenchmarkBareJetStream(b *testing.B) {
	for _, window := range windows {
		b.Run(fmt.Sprint(window), func(b *testing.B) {
			twoCores(b)
			b.ReportAllocs()
			server := natstest.Start(b)
			barePublish(b, server.URL(), server.URL(), window)
		})
	}
}

// received is a message with the metadata of one that the subscriber delivers.
func received(size int) *message.Message {
	msg := message.NewMessage("6f0e3a0c-3a5e-4a6c-9b57-000000000000", make([]byte, size))
	msg.Metadata = message.Metadata{
		gateway.KeyEventType:           string(gateway.EventMessageReceived),
		gateway.KeyMessageID:           msg.UUID,
		gateway.KeyContextID:           "0d4c1e2f-93a1-4f6e-8a44-000000000000",
		gateway.KeySentTimestamp:       "2026-05-04T03:02:01.123Z",
		gateway.KeyReceivedTimestamp:   "2026-05-04T03:02:01.456Z",
		gateway.KeyReceivingEndpointID: "b1a7c9de-5f1b-4b7e-9c53-3f2e1d0c9000",
		gateway.KeyMessageType:         "iso:11783:-10:taskdata:zip",
		gateway.KeyTenantID:            "7a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d",
		gateway.KeyFilename:            "TASKDATA.ZIP",
		gateway.KeyTeamsetContextID:    "team 1",
		gateway.KeyPayloadSize:         fmt.Sprint(size),
	}
	return msg
}

// streamMessages returns how many messages the default stream holds.
func streamMessages(b *testing.B, url string) uint64 {
	b.Helper()
	conn := testkit.Must(natsgo.Connect(url))(b)
	defer conn.Close()
	js := testkit.Must(jetstream.New(conn))(b)
	stream := testkit.Must(js.Stream(b.Context(), nats.DefaultStream))(b)
	return stream.CachedInfo().State.Msgs
}
