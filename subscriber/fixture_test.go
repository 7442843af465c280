package subscriber_test

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.SuiteLeaks()...) }

const (
	typeJSON  = "app:test:json"
	typeOther = "app:test:other"
	typeFile  = "iso:11783:-10:taskdata:zip"
	quiet     = 150 * time.Millisecond
)

// fixture is a gateway with a sender, two receivers and a client.
type fixture struct {
	*testing.T
	server    *gatewaytest.Server
	client    *gateway.Client
	sender    gateway.Endpoint
	receiver  gateway.Endpoint
	receiver2 gateway.Endpoint
}

func newFixture(t *testing.T, cfg gatewaytest.Config) *fixture {
	t.Helper()
	server := gatewaytest.New(t, cfg)
	types := []string{typeJSON, typeOther, typeFile}
	f := &fixture{
		T: t, server: server,
		sender:    server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: types}),
		receiver:  server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: types, Subscribe: types}),
		receiver2: server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver 2", Receive: types}),
	}
	f.client = f.newClient(server.ClientConfig())
	return f
}

func (f *fixture) newClient(cfg gateway.Config) *gateway.Client {
	f.Helper()
	cfg.Retry = gateway.RetryConfig{MaxAttempts: 1}
	cfg.Logger = slog.New(slog.NewTextHandler(f.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	client := testkit.Must(gateway.New(cfg))(f)
	f.Cleanup(func() { _ = client.Close() })
	return client
}

// config has short waits, so that tests are quick.
func (f *fixture) config() subscriber.Config {
	short := subscriber.Backoff{Initial: 5 * time.Millisecond, Max: 50 * time.Millisecond}
	return subscriber.Config{
		Client: f.client, StartAfter: -1, Nack: short, Reconnect: short,
		Confirm:      subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond, Retry: short},
		Payload:      subscriber.PayloadConfig{Retry: short},
		DrainTimeout: time.Second, // of what a test leaves open
		CloseTimeout: testkit.Patience,
	}
}

func (f *fixture) subscriber(cfg subscriber.Config) *subscriber.Subscriber {
	f.Helper()
	sub := testkit.Must(subscriber.New(cfg, testLogger(f.T)))(f)
	f.Cleanup(func() { _ = sub.CloseWithin(2 * cmp.Or(cfg.DrainTimeout, 20*time.Second)) }) // nothing waits longer for a service that hangs
	return sub
}

// receive returns a subscriber and all messages and files that it receives.
func (f *fixture) receive(cfg subscriber.Config) (*subscriber.Subscriber, <-chan *message.Message) {
	f.Helper()
	sub := f.subscriber(cfg)
	return sub, f.subscribe(sub, subscriber.AllData)
}

// held returns a subscriber that opens no stream before release is called.
func (f *fixture) held(cfg subscriber.Config) (sub *subscriber.Subscriber, release func()) {
	f.Helper()
	ready := make(chan struct{})
	cfg.Ready = ready
	return f.subscriber(cfg), func() { close(ready) }
}

func testLogger(t *testing.T) watermill.LoggerAdapter {
	return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: watermill.LevelTrace})))
}

func (f *fixture) subscribe(sub *subscriber.Subscriber, topic string) <-chan *message.Message {
	f.Helper()
	messages := testkit.Must(sub.Subscribe(f.Context(), topic))(f)
	return messages
}

// send publishes a payload to everyone that subscribes, or to the recipients.
func (f *fixture) send(messageType string, payload []byte, recipients ...gateway.Endpoint) []string {
	f.Helper()
	req := gatewaytest.SendRequest{From: f.sender.ID, MessageType: messageType, Payload: payload}
	for _, r := range recipients {
		req.Recipients = append(req.Recipients, r.ID)
	}
	return f.sendRequest(req)
}

func (f *fixture) sendRequest(req gatewaytest.SendRequest) []string {
	f.Helper()
	ids := testkit.Must(f.server.Send(req))(f)
	return ids
}

// sendN publishes n payloads "0", "1", … to the receivers.
func (f *fixture) sendN(n int, recipients ...gateway.Endpoint) {
	f.Helper()
	for i := range n {
		f.send(typeJSON, fmt.Append(nil, i), recipients...)
	}
}

// next returns the next message, which has to come.
func (f *fixture) next(messages <-chan *message.Message) *message.Message {
	f.Helper()
	msg := testkit.Receive(f, "a message", messages)
	if msg == nil {
		f.Fatal("the channel was closed, want a message")
	}
	return msg
}

// ackN acks the next n messages and returns them.
func (f *fixture) ackN(messages <-chan *message.Message, n int) []*message.Message {
	f.Helper()
	got := make([]*message.Message, 0, n)
	for range n {
		msg := f.next(messages)
		msg.Ack()
		got = append(got, msg)
	}
	return got
}

// nothing asserts that no message comes for a short while.
func (f *fixture) nothing(messages <-chan *message.Message) {
	f.Helper()
	select {
	case msg, ok := <-messages:
		if ok {
			f.Fatalf("message %s came, want none", msg.UUID)
		}
	case <-time.After(quiet):
	}
}

func (f *fixture) waitConfirmed(n int) {
	f.Helper()
	if err := f.server.WaitConfirmed(testkit.Context(f), n); err != nil {
		f.Fatalf("confirmed %d of %d messages: %v", f.confirmed(), n, err)
	}
}

func (f *fixture) confirmed() int {
	n := 0
	for _, e := range f.server.Ledger() {
		if e.Confirmed() {
			n++
		}
	}
	return n
}

func (f *fixture) close(sub *subscriber.Subscriber) {
	f.Helper()
	testkit.NoError(f, sub.Close())
}

// random returns n bytes that are the same on every run.
func random(n int) []byte {
	out := make([]byte, 0, n+sha256.Size)
	sum := sha256.Sum256(fmt.Append(nil, n))
	for len(out) < n {
		out = append(out, sum[:]...)
		sum = sha256.Sum256(sum[:])
	}
	return out[:n]
}

func newDirectory(t *testing.T, client *gateway.Client) subscriber.TenantResolver {
	t.Helper()
	return gateway.NewDirectory(client)
}
