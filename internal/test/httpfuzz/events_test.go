package httpfuzz

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// store counts what the quarantine gets.
type store struct{ n atomic.Int64 }

func (s *store) Publish(_ string, messages ...*message.Message) error {
	s.n.Add(int64(len(messages)))
	return nil
}

func (s *store) Close() error { return nil }

// FuzzHTTPEvents puts raw bytes between the events of a real stream. The next event
// arrives, on the same connection, and is confirmed.
func FuzzHTTPEvents(f *testing.F) {
	for _, raw := range []string{
		"", "data: {}\n\n", "event: MESSAGE_RECEIVED\ndata: {\n\n", "event: MESSAGE_RECEIVED\r\ndata: {\"id\":\"x\"}\r\n\r\n", ":\n", "\xef\xbb\xbf", "retry: 999999999999\n\n",
		"event: FILE_RECEIVED\ndata: {\"event_type\":\"FILE_RECEIVED\",\"message_ids\":[],\"size\":-1,\"payload\":\"\"}\n\n", "id: a\x00b\n", "data", "data\r", "event", "event: \x00\n",
		"event: MESSAGE_RECEIVED\ndata: {\"event_type\":\"MESSAGE_RECEIVED\",\"id\":\"11111111-2222-4333-8444-555555555555\"," +
			"\"app_message_id\":\"\",\"message_type\":\"a\\r\\nb\",\"sent_at\":\"2026-01-01T00:00:00Z\",\"receiving_endpoint_id\":\"66666666-7777-4888-8999-aaaaaaaaaaaa\",\"payload\":\"AAAA\"}\n\n",
		"event: AUTHORIZATION_REVOKED\ndata: {\"event_type\":\"AUTHORIZATION_REVOKED\",\"tenant_id\":\"\"}\n\n", "data: " + string(bytes.Repeat([]byte("x"), 70_000)) + "\n\n",
	} {
		f.Add([]byte(raw))
	}
	server := gatewaytest.New(f, gatewaytest.Config{ReleaseConfirmed: true})
	const kind = "app:test:json"
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Send: []string{kind}})
	receiver := server.AddEndpoint(gatewaytest.EndpointConfig{Receive: []string{kind}})
	cfg := server.ClientConfig()
	cfg.MaxEventSize = 1 << 16
	client := testkit.Must(gateway.New(cfg))(f)
	f.Cleanup(func() { _ = client.Close() })
	var quarantine store
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Order: subscriber.Unordered, Confirm: subscriber.ConfirmConfig{MaxAge: time.Millisecond},
		Quarantine: subscriber.QuarantineConfig{Publisher: &quarantine, Remember: 10}, CloseTimeout: time.Second,
	}, nil))(f)
	f.Cleanup(func() { _ = sub.Close() })
	messages := testkit.Must(sub.Subscribe(context.Background(), subscriber.Everything))(f)
	n := 0
	f.Fuzz(func(t *testing.T, raw []byte) {
		if bytes.Contains(raw, []byte("payload_uri")) || bytes.Contains(raw, []byte(`\u`)) {
			return // nothing is to be fetched from anywhere
		}
		ctx := testkit.Context(t)
		testkit.NoError(t, server.WaitStreams(ctx, 1))
		server.EmitRaw(server.Application(), append(bytes.Clone(raw), "\n\n"...))
		n++
		want := fmt.Append(nil, "good ", n)
		ids := testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, Recipients: []string{receiver.ID}, MessageType: kind, Payload: want}))(t)
		for {
			select {
			case msg := <-messages:
				msg.Ack()
				if msg.Metadata[gateway.KeyMessageID] != ids[0] {
					continue // it came out of what is fuzzed
				}
				if !bytes.Equal(msg.Payload, want) {
					t.Errorf("got %q, want %q", msg.Payload, want)
				}
			case <-ctx.Done():
				t.Fatalf("the next event did not come: %+v", sub.Stats())
			}
			break
		}
		s := sub.Stats()
		if s.Stream.Connects != 1 {
			t.Errorf("the stream was opened %d times: %v", s.Stream.Connects, s.Stream.LastError)
		}
	})
}
