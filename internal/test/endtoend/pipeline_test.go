package endtoend

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testkit.SaramaLeaks()...) }

const (
	messageType = "app:test:json"
	fileType    = "iso:11783:-10:taskdata:zip"
)

// world is a gateway, a NATS server, and the oracle between them.
type world struct {
	*testing.T
	gateway  *gatewaytest.Server
	sender   gateway.Endpoint
	receiver gateway.Endpoint
	nats     *natstest.Server
	oracle   *oracle
}

func newWorld(t *testing.T, cfg gatewaytest.Config) *world {
	t.Helper()
	server := gatewaytest.New(t, cfg)
	types := []string{messageType, fileType}
	w := &world{
		T: t, gateway: server, nats: natstest.Start(t),
		sender:   server.AddEndpoint(gatewaytest.EndpointConfig{Send: types}),
		receiver: server.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types}),
	}
	w.oracle = newOracle(w)
	return w
}

// send publishes n payloads, each different.
func (w *world) send(n int) {
	w.Helper()
	for range n {
		w.sendPayload(messageType, fmt.Append(nil, "payload ", len(w.gateway.Ledger())))
	}
}

func (w *world) sendPayload(messageType string, payload []byte) {
	w.Helper()
	testkit.Must(w.gateway.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: messageType, Payload: payload}))(w)
}

// pipeline is one process that embeds the library.
type pipeline struct {
	router *router.Router
	sub    *subscriber.Subscriber
	run    chan error
	cancel context.CancelFunc
}

type pipelineConfig struct {
	natsURL      string
	closeTimeout time.Duration
	maxInFlight  int
}

// start starts a pipeline of one route. It ends with the test, if not before.
func (w *world) start(cfg pipelineConfig) *pipeline {
	w.Helper()
	return w.startRoutes(cfg, "")
}

// startRoutes starts a pipeline with a route for each prefix, which comes before
// its topics.
func (w *world) startRoutes(cfg pipelineConfig, prefixes ...string) *pipeline {
	w.Helper()
	if len(prefixes) == 1 {
		// The oracle knows the subjects of one route.
		w.gateway.OnConfirm(w.oracle.onConfirm)
	}
	if cfg.natsURL == "" {
		cfg.natsURL = w.nats.URL()
	}
	logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: watermill.LevelTrace})))
	clientConfig := w.gateway.ClientConfig()
	clientConfig.Retry = gateway.RetryConfig{InitialBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
	clientConfig.Logger = slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	client := testkit.Must(gateway.New(clientConfig))(w)
	w.Cleanup(func() { _ = client.Close() })
	short := subscriber.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	sub := testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Nack: short, Reconnect: short, Order: subscriber.Unordered,
		MaxInFlight: cfg.maxInFlight, DrainTimeout: cfg.closeTimeout / 2, CloseTimeout: cfg.closeTimeout,
		Confirm: subscriber.ConfirmConfig{MaxAge: 10 * time.Millisecond, Retry: short},
	}, logger))(w)
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: cfg.natsURL}, PublishTimeout: time.Second}, logger))(w)
	r := testkit.Must(router.New(router.Config{
		Poison: sink, CloseTimeout: cfg.closeTimeout,
		Retry: router.RetrySettings{InitialBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond},
	}, logger))(w)
	for _, prefix := range prefixes {
		testkit.NoError(w, r.Add(router.Route{Name: "farm data " + prefix, From: sub, Topic: subscriber.AllData, To: sink, ToTopic: prefix + topicTemplate}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &pipeline{router: r, sub: sub, run: make(chan error, 1), cancel: cancel}
	go func() { p.run <- r.Run(ctx) }()
	w.Cleanup(func() { _ = p.stop() })
	return p
}

// stop ends the pipeline as an application would, by its context.
func (p *pipeline) stop() error {
	p.cancel()
	err := <-p.run
	p.run <- err
	return err
}

func (w *world) waitConfirmed(n int) {
	w.Helper()
	if err := w.gateway.WaitConfirmed(testkit.Context(w), n); err != nil {
		w.Fatalf("%d of %d messages were confirmed: %v", w.confirmed(), n, err)
	}
}

func (w *world) confirmed() int {
	n := 0
	for _, e := range w.gateway.Ledger() {
		if e.Confirmed() {
			n++
		}
	}
	return n
}

// topicTemplate gives every message of every endpoint a subject of its own, so
// that the oracle can ask JetStream for it.
const topicTemplate = "{context}.{receiver}.{meta:x-router-message-id|file}"

// subject is what topicTemplate makes of a ledger entry: written again here, so
// that the oracle does not share a mistake with what it judges.
func subject(e gatewaytest.LedgerEntry) string {
	id := e.MessageID
	if e.Chunks > 1 {
		id = "file"
	}
	return "agrimill." + e.ContextID + "." + e.EndpointID + "." + id
}

// oracle watches every confirmation: what is confirmed has to be in JetStream
// already. It asks over a connection of its own.
type oracle struct {
	w    *world
	conn *natsgo.Conn
	js   jetstream.JetStream

	mu     sync.Mutex
	stream jetstream.Stream // once it is there
	early  []string         // confirmed and not stored
}

func newOracle(w *world) *oracle {
	w.Helper()
	conn := testkit.Must(natstest.Connect(w.nats.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond)))(w)
	w.Cleanup(conn.Close)
	js := testkit.Must(natstest.JetStream(conn))(w)
	return &oracle{w: w, conn: conn, js: js}
}

// onConfirm runs before the service answers. While NATS is down it waits: what
// was stored just before is confirmed by right. When the test has ended it does not:
// stopping the service waits for it.
func (o *oracle) onConfirm(e gatewaytest.LedgerEntry) {
	ctx, cancel := context.WithTimeout(o.w.Context(), testkit.Patience)
	defer cancel()
	err := o.lookUp(ctx, subject(e))
	for err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && ctx.Err() == nil {
		<-time.After(5 * time.Millisecond)
		err = o.lookUp(ctx, subject(e))
	}
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.early = append(o.early, fmt.Sprintf("%s: %v", subject(e), err))
	}
}

func (o *oracle) lookUp(ctx context.Context, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	o.mu.Lock()
	stream := o.stream
	o.mu.Unlock()
	if stream == nil {
		var err error
		if stream, err = o.js.Stream(ctx, "AGRIMILL"); err != nil {
			return err
		}
		o.mu.Lock()
		o.stream = stream
		o.mu.Unlock()
	}
	_, err := stream.GetLastMsgForSubject(ctx, subject)
	return err
}

// stored reads everything back: how often each subject is stored, and the
// SHA-256 of the payloads.
func (o *oracle) stored() (count map[string]int, sums map[string][sha256.Size]byte) {
	o.w.Helper()
	count, sums = map[string]int{}, map[string][sha256.Size]byte{}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	stream := testkit.Must(o.js.Stream(ctx, "AGRIMILL"))(o.w)
	info := testkit.Must(stream.Info(ctx))(o.w)
	consumer := testkit.Must(stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{}))(o.w)
	messages := testkit.Must(consumer.Messages())(o.w)
	defer messages.Stop()
	for range info.State.Msgs {
		msg := testkit.Must(messages.Next(jetstream.NextContext(ctx)))(o.w)
		count[msg.Subject()]++
		sums[msg.Subject()] = sha256.Sum256(msg.Data())
	}
	return count, sums
}

// judge compares the ledger with JetStream. all says that nothing may be left
// unconfirmed.
func (o *oracle) judge(all bool) {
	o.w.Helper()
	o.mu.Lock()
	for _, e := range o.early {
		o.w.Errorf("confirmed before it was stored: %s", e)
	}
	o.mu.Unlock()
	ledger := o.w.gateway.Ledger() // before what is stored, which grows while a process ends
	count, sums := o.stored()
	known := map[string]bool{}
	for _, e := range ledger {
		s := subject(e)
		known[s] = true
		switch {
		case e.Confirmed() && count[s] == 0:
			o.w.Errorf("%s is confirmed and not stored", s)
		case all && !e.Confirmed():
			o.w.Errorf("%s is not confirmed", s)
		case all && count[s] != 1:
			o.w.Errorf("%s is stored %d times", s, count[s])
		case count[s] > 0 && sums[s] != e.PayloadSHA256:
			o.w.Errorf("%s is stored with other bytes", s)
		}
	}
	for s := range count {
		if !known[s] {
			o.w.Errorf("%s is stored and was never sent", s)
		}
	}
	if len(ledger) == 0 {
		o.w.Error("nothing was sent, so nothing is shown")
	}
}
