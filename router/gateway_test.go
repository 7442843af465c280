package router_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// From the gateway into a sink, with an outage, messages that cannot be decoded,
// and a restart in the middle: nothing is confirmed before it is held, and in
// the end everything is held once and confirmed.
func TestGatewayToSink(t *testing.T) {
	const (
		n           = 300
		messageType = "app:test:json"
	)
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	server.AddEndpoint(gatewaytest.EndpointConfig{
		Name: "receiver", Receive: []string{messageType}, Subscribe: []string{messageType},
	})

	var calls atomic.Int64
	to := newSink(func(string, *message.Message) error {
		if c := calls.Add(1); c > 100 && c < 120 {
			return down
		}
		return nil
	})
	poison := newSink(nil)
	held := func(id string) bool {
		for _, sink := range []*memorySink{to, poison} {
			for _, m := range sink.all() {
				if m.msg.Metadata[gateway.KeyMessageID] == id {
					return true
				}
			}
		}
		return false
	}
	var early atomic.Int64
	server.OnConfirm(func(e gatewaytest.LedgerEntry) {
		if !held(e.MessageID) {
			early.Add(1)
		}
	})

	store := newStore(t, 0)
	run := func() (*router.Router, func() error) {
		client, err := gateway.New(server.ClientConfig())
		require.NoError(t, err)
		sub, err := subscriber.New(subscriber.Config{
			Client: client, Order: subscriber.Unordered,
			Confirm: subscriber.ConfirmConfig{MaxAge: 5 * time.Millisecond},
		}, nil)
		require.NoError(t, err)
		r := start(t, router.Config{Poison: poison, Retry: fastRetry, Dedup: router.DedupConfig{Store: store}}, router.Route{
			Name: "farm", From: sub, Topic: subscriber.AllData, To: to,
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				if len(msg.Payload) == 0 || msg.Payload[0] != '{' {
					return nil, router.Permanent(errors.New("not an object"))
				}
				return []*message.Message{msg}, nil
			},
		})
		return r.Router, func() error { return errors.Join(r.stop(), client.Close()) }
	}

	send := func(from, to int) {
		for i := from; i < to; i++ {
			payload := fmt.Sprintf(`{"n":%d}`, i)
			if i%100 == 50 {
				payload = "broken"
			}
			_, err := server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: messageType, Payload: []byte(payload)})
			require.NoError(t, err)
		}
	}
	send(0, n/2)
	_, stop := run()
	to.wait(t, 30)
	require.NoError(t, stop())
	send(n/2, n)
	_, stop = run()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, server.WaitConfirmed(ctx, n))
	require.NoError(t, stop())

	assert.Zero(t, early.Load(), "confirmations of messages that nobody held")
	ids := map[string]int{}
	for _, m := range to.all() {
		ids[m.msg.Metadata[gateway.KeyMessageID]]++
	}
	assert.Len(t, ids, n-3)
	for id, times := range ids {
		assert.Equal(t, 1, times, id)
	}
	assert.Len(t, poison.all(), 3)
}

// From somewhere into the gateway: acknowledged after the 200, and a message
// that nobody can receive goes to the poison queue.
func TestSinkToGateway(t *testing.T) {
	const messageType = "app:test:json"
	server := gatewaytest.New(t, gatewaytest.Config{})
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{messageType}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{messageType}})
	outage := server.Inject(gatewaytest.OpSendMessage, gatewaytest.Fault{Status: 503, Times: 5})

	config := server.ClientConfig()
	config.Retry = gateway.RetryConfig{MaxAttempts: 1}
	client, err := gateway.New(config)
	require.NoError(t, err)
	defer func() { assert.NoError(t, client.Close()) }()
	pub, err := publisher.New(publisher.Config{Client: client, TenantID: server.Tenant(), EndpointID: sender.ID}, nil)
	require.NoError(t, err)

	from, poison := newSource(), newSink(nil)
	r := start(t, router.Config{Poison: poison, Retry: fastRetry}, router.Route{
		Name: "to gateway", From: from, Topic: "in", To: sinks.FromPublisher("gateway", pub), ToTopic: "{type}",
	})
	send := func(recipient string) {
		msg := message.NewMessage("a4a2d4a9-52f4-4d6c-9f2a-6e5b6f0f3c11", []byte(`{"n":1}`))
		msg.Metadata[gateway.KeyMessageType] = messageType
		msg.Metadata[gateway.KeyDirectRecipients] = recipient
		from.messages <- msg
		assert.Equal(t, "ack", verdict(t, msg))
	}
	send(receiver.ID)
	assert.Equal(t, 5, outage.Hits())
	require.Len(t, server.Ledger(), 1)
	assert.Equal(t, receiver.ID, server.Ledger()[0].EndpointID)
	assert.Empty(t, poison.all())

	send("11111111-2222-4333-8444-555555555555")
	require.Len(t, poison.all(), 1)
	assert.Equal(t, "permanent", poison.all()[0].msg.Metadata[router.KeyPoisonClass])
	require.NoError(t, r.stop())
}
