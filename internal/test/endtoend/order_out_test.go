package endtoend

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// TestOrderOut is TestOrder for the way back: whatever breaks between the broker and the program, and
// whatever is nacked, the messages of a key reach the gateway for the first time in their order. It is
// part of `make torture PART=order` only.
func TestOrderOut(t *testing.T) {
	for name, start := range map[string]func(*testing.T) orderBroker{"NATS": natsOrderBroker, "Kafka": standInOrderBroker} {
		for seed := range *orderSeeds {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				t.Parallel()
				testOrderOut(t, start(t), rand.New(rand.NewPCG(uint64(seed), 19)))
			})
		}
	}
}

func testOrderOut(t *testing.T, broker orderBroker, random *rand.Rand) {
	const (
		messageType = "app:test:json"
		keys        = 3
		n           = 200
	)
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	var receivers []string
	for i := range keys {
		receivers = append(receivers, server.AddEndpoint(gatewaytest.EndpointConfig{Name: fmt.Sprint(i), Receive: []string{messageType}}).ID)
	}
	client := testkit.Must(gateway.New(server.ClientConfig()))(t)
	defer func() { _ = client.Close() }()
	to := testkit.Must(publisher.New(publisher.Config{Client: client, TenantID: server.Tenant(), EndpointID: sender.ID}, nil))(t)
	before := testkit.Must(broker.open(sinks.IngestPlain))(t)
	defer func() { _ = before.Close() }()
	number := map[string]int{} // by context ID
	put := func(i int) {
		t.Helper()
		for _, receiver := range receivers {
			msg := message.NewMessage(uuid.NewString(), []byte(strconv.Itoa(i)))
			msg.Metadata = message.Metadata{
				gateway.KeyMessageType: messageType, gateway.KeyContextID: uuid.NewString(), gateway.KeyDirectRecipients: receiver,
				gateway.KeyReceivingEndpointID: receiver, gateway.KeyDedupID: msg.UUID,
			}
			number[msg.Metadata[gateway.KeyContextID]] = i
			testkit.EventuallyNil(t, func() error { return before.Publish("out", msg) })
		}
	}
	put(0)
	from := testkit.Must(broker.source(gateway.KeyReceivingEndpointID))(t)
	poison := testkit.Must(broker.open(sinks.IngestPlain))(t)
	r := testkit.Must(router.New(router.Config{
		Poison: poison, Retry: router.RetrySettings{InitialBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond},
	}, nil))(t)
	fails := strconv.Itoa(random.IntN(n))
	var failures atomic.Int64
	testkit.NoError(t, r.Add(router.Route{
		Name: "out", From: from, Topic: "out", To: to, ToTopic: "{type}",
		Transform: func(msg *message.Message) ([]*message.Message, error) {
			if string(msg.Payload) == fails && failures.Add(1) < 3 {
				return nil, errors.New("not now")
			}
			<-time.After(3 * time.Millisecond) // so that faults find messages on their way
			return []*message.Message{msg}, nil
		},
	}))
	result := make(chan error, 1)
	go func() { result <- r.Run(t.Context()) }()

	arrived := func(contexts int) func() bool {
		return func() bool {
			seen := map[string]bool{}
			for _, e := range server.Ledger() {
				seen[e.ContextID] = true
			}
			return len(seen) >= contexts
		}
	}
	names := slices.Sorted(maps.Keys(broker.faults))
	for i := 1; i < n; i++ {
		put(i)
		if i%50 == 25 {
			testkit.Eventually(t, "messages arrive", arrived((i-20)*keys))
		}
		if i%50 == 40 {
			name := names[random.IntN(len(names))]
			t.Log(name)
			broker.faults[name]()
		}
	}
	testkit.Eventually(t, "everything arrives", arrived(n*keys))
	testkit.NoError(t, r.Close())
	testkit.NoError(t, <-result)
	next, seen := map[string]int{}, map[string]bool{}
	for _, e := range server.Ledger() {
		i, known := number[e.ContextID]
		if !known {
			t.Errorf("a message arrived that was never sent")
		}
		if !seen[e.ContextID] && i != next[e.EndpointID] {
			t.Errorf("message %d of a key arrived in place of %d", i, next[e.EndpointID])
		}
		if !seen[e.ContextID] {
			next[e.EndpointID] = i + 1
		}
		seen[e.ContextID] = true
	}
	t.Logf("%d arrived, %d of them again", len(server.Ledger()), len(server.Ledger())-n*keys)
}
