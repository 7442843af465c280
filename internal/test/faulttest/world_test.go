//go:build faults

package faulttest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// heapBound is, unless a row says otherwise, how much the heap of the whole test may hold at any time:
// pipeline, gateway, broker and reader together.
const heapBound = 512 << 20

// messages is how many a row sends: MESSAGES, or 2000. What a row divides it by divides 200.
var messages = func() int {
	text := os.Getenv("MESSAGES")
	if text == "" {
		return 2000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 200 || n%200 != 0 {
		panic("MESSAGES is no multiple of 200: " + text)
	}
	return n
}()

// leakOptions are goroutines that outlive a test by design.
var leakOptions = append(testkit.SaramaLeaks(),
	// The toxics of toxiproxy stay behind when a connection is cut while they hold data.
	goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
	goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/stream.(*ChanWriter).Write"),
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	goleak.VerifyTestMain(m, leakOptions...)
}

// world is a gateway, a broker, and the oracle between them.
type world struct {
	*testing.T
	rng       *rand.Rand
	gateway   *gatewaytest.Server
	sender    gateway.Endpoint
	receivers []gateway.Endpoint
	broker    broker
	oracle    *oracle
	logs      *logWatch
	kind      string // of the broker
	http2     bool
	sent      int
	peak      *atomic.Uint64
}

type worldConfig struct {
	gateway gatewaytest.Config
	kind    string // of the broker
	// protocol is the gateway's. Empty: http2 with Kafka, http1 with JetStream, so
	// that a row that runs with both runs over both.
	protocol string
	nats     func(*server.Options)
	seed     uint64 // 0: from the environment, or a new one
	heap     uint64 // the bound; 0: heapBound
}

// The protocols that the gateway speaks.
const (
	http1 = "http1"
	http2 = "http2" // over TLS
)

// newWorld makes a world. At the end of the test nothing of it may be left.
func newWorld(t *testing.T, cfg worldConfig) *world {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(append(leakOptions, before)...); err != nil {
			t.Errorf("goroutines are left: %v", err)
		}
	})
	if cfg.seed == 0 {
		cfg.seed = seedOf(t)
	}
	t.Logf("seed %d (SEED=%d repeats it)", cfg.seed, cfg.seed)
	if cfg.gateway.KeepAlive == 0 {
		cfg.gateway.KeepAlive = 200 * time.Millisecond
	}
	if cfg.protocol == "" && cfg.kind == kindKafka {
		cfg.protocol = http2
	}
	if cfg.protocol == http2 {
		cfg.gateway.TLS, cfg.gateway.HTTP2 = true, true
	}
	types := []string{messageType, fileType}
	g := gatewaytest.New(t, cfg.gateway)
	w := &world{
		T: t, gateway: g, kind: cfg.kind, http2: cfg.gateway.HTTP2, rng: rand.New(rand.NewPCG(cfg.seed, 0)),
		sender: g.AddEndpoint(gatewaytest.EndpointConfig{Send: types}),
		logs:   &logWatch{to: t.Output(), secrets: [][]byte{[]byte(g.Application().ClientSecret), []byte("Bearer ")}},
	}
	w.receivers = append(w.receivers, g.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types}))
	var change []func(*server.Options)
	if cfg.nats != nil {
		change = append(change, cfg.nats)
	}
	w.broker = newBroker(t, cfg.kind, change...)
	source := testkit.Must(w.broker.source())(t)
	t.Cleanup(source.close)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.oracle = newOracle(ctx, g, newArchive(source))
	w.watchHeap(max(cfg.heap, heapBound))
	return w
}

// seedOf is SEED from the environment, or a new seed.
func seedOf(t *testing.T) uint64 {
	text := os.Getenv("SEED")
	if text == "" {
		return rand.Uint64N(1_000_000) + 1
	}
	seed := testkit.Must(strconv.ParseUint(text, 10, 64))(t)
	return seed
}

// watchHeap samples the heap until the test ends, and holds it to its bound.
func (w *world) watchHeap(bound uint64) {
	w.peak = &atomic.Uint64{}
	// What the test before has left behind is not this one's. Pools let go of it in two steps.
	runtime.GC()
	runtime.GC()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				var stats runtime.MemStats
				runtime.ReadMemStats(&stats)
				w.peak.Store(max(w.peak.Load(), stats.HeapAlloc))
			}
		}
	}()
	w.Cleanup(func() {
		close(stop)
		<-done
		if peak := w.peak.Load(); peak > bound {
			w.Errorf("the heap grew to %d MB, the bound is %d MB", peak>>20, bound>>20)
		}
	})
}

// logger hands on what is logged, and finds secrets in it.
func (w *world) logger() watermill.LoggerAdapter {
	return watermill.NewSlogLogger(slog.New(slog.NewTextHandler(w.logs, nil)))
}

type logWatch struct {
	to      io.Writer
	secrets [][]byte

	mu    sync.Mutex
	found string
	text  bytes.Buffer // the first megabyte
}

func (l *logWatch) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, secret := range l.secrets {
		if bytes.Contains(p, secret) && l.found == "" {
			l.found = string(p)
		}
	}
	if l.text.Len() < 1<<20 {
		l.text.Write(p)
	}
	return l.to.Write(p)
}

func (l *logWatch) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// send publishes n payloads, each different, to every receiver.
func (w *world) send(n int) {
	w.Helper()
	for range n {
		w.sent++
		w.sendPayload(messageType, fmt.Append(nil, "payload ", w.sent))
	}
}

// sendSize does so with payloads of size bytes.
func (w *world) sendSize(n, size int) {
	w.Helper()
	for range n {
		w.sendPayload(messageType, w.bytes(size))
	}
}

// bytes makes a payload that was not there before.
func (w *world) bytes(size int) []byte {
	w.sent++
	payload := fmt.Append(nil, "payload ", w.sent, " ")
	for len(payload) < size {
		payload = append(payload, byte('a'+w.rng.IntN(26)))
	}
	return payload
}

func (w *world) sendPayload(messageType string, payload []byte) {
	w.Helper()
	w.sendRequest(gatewaytest.SendRequest{MessageType: messageType, Payload: payload})
}

func (w *world) sendRequest(req gatewaytest.SendRequest) {
	w.Helper()
	if req.From == "" {
		req.From = w.sender.ID
	}
	testkit.Must(w.gateway.Send(req))(w)
}

// flow sends n messages in the time d and returns when it is over.
func (w *world) flow(n int, d time.Duration) {
	w.Helper()
	tick := time.NewTicker(d / 20)
	defer tick.Stop()
	for i := range 20 {
		w.send(n*(i+1)/20 - n*i/20)
		<-tick.C
	}
}

// parts are the configurations of a pipeline of this world.
func (w *world) parts(change ...func(*parts)) *parts {
	p := newParts(w.gateway.ClientConfig(), w.broker.address())
	p.Gateway.Logger = slog.New(slog.NewTextHandler(w.logs, nil))
	p.Client, p.Sink = w.watchClient, w.oracle.watchSink
	for _, f := range change {
		f(p)
	}
	return p
}

// watchClient shows the oracle what is going to be confirmed.
func (w *world) watchClient(c subscriber.Client) subscriber.Client {
	return &watchedClient{c, w.oracle}
}

type watchedClient struct {
	subscriber.Client
	oracle *oracle
}

func (c *watchedClient) ConfirmMessages(ctx context.Context, tenant string, confirmations []gateway.MessageConfirmation) error {
	c.oracle.confirming(confirmations)
	return c.Client.ConfirmMessages(ctx, tenant, confirmations)
}

// start starts a pipeline. It ends with the test, if not before.
func (w *world) start(change ...func(*parts)) *pipeline {
	w.Helper()
	p := testkit.Must(build(w.parts(change...), w.logger()))(w)
	w.Cleanup(func() { _ = p.stop() })
	return p
}

// settle waits until all messages are confirmed, and ends with the oracle's verdict.
func (w *world) settle(want expectation) verdict {
	w.Helper()
	w.waitConfirmed()
	return w.judge(want)
}

// waitConfirmed waits until all messages are confirmed.
func (w *world) waitConfirmed() {
	w.Helper()
	w.waitConfirmedSome(len(w.gateway.Ledger()))
}

func (w *world) waitConfirmedSome(n int) {
	w.Helper()
	ctx := testkit.Context(w)
	began := time.Now()
	if err := w.gateway.WaitConfirmed(ctx, n); err != nil {
		w.Fatalf("%d of %d messages are confirmed %v after the last fault: %v", w.confirmed(), n, testkit.Patience, err)
	}
	w.Logf("all %d confirmed after %v", n, time.Since(began).Round(time.Millisecond))
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

// during waits for d and checks that cond is true all the time.
func (w *world) during(d time.Duration, what string, cond func() bool) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(d)
	for {
		if !cond() {
			w.Errorf("not all the time: %s", what)
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			return
		}
	}
}

// pause lets faults have their time. Nothing waits for its end.
func (w *world) pause(d time.Duration) { <-time.After(d) }

// judge ends with the oracle's verdict.
func (w *world) judge(want expectation) verdict {
	w.Helper()
	if !w.broker.exact() {
		want.duplicates = true
	}
	v := w.oracle.judge(want)
	for _, problem := range v.problems {
		w.Error(problem)
	}
	// What does not get as far as a request, and what a fault cuts, is counted, too.
	if s := w.gateway.Stats(gatewaytest.OpAny); w.http2 != (s.HTTP2 > 0) || w.http2 && s.HTTP2 != s.Requests {
		w.Errorf("%d of %d requests came by HTTP/2", s.HTTP2, s.Requests)
	}
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	if w.logs.found != "" {
		w.Errorf("a secret is logged: %s", w.logs.found)
	}
	w.Logf("sent %d, stored %d, raw duplicates %d, poisoned %d, heap up to %d MB",
		v.sent, v.stored, v.duplicates, v.poisoned, w.peak.Load()>>20)
	return v
}

// protocols runs a row over HTTP/1.1 and over HTTP/2.
func protocols(t *testing.T, cfg worldConfig, row func(t *testing.T, w *world)) {
	t.Parallel()
	for _, protocol := range []string{http1, http2} {
		cfg.protocol = protocol
		t.Run(protocol, func(t *testing.T) { inWorld(t, cfg, row) })
	}
}

// both runs a row with JetStream over HTTP/1.1 and with Kafka over HTTP/2.
func both(t *testing.T, cfg worldConfig, row func(t *testing.T, w *world)) {
	t.Parallel()
	for _, kind := range []string{kindNATS, kindKafka} {
		cfg.kind = kind
		t.Run(kind, func(t *testing.T) { inWorld(t, cfg, row) })
	}
}

// inWorld runs a row in a world of its own, apart.
func inWorld(t *testing.T, cfg worldConfig, row func(t *testing.T, w *world)) {
	apart(t, func(t *testing.T) { row(t, newWorld(t, cfg)) })
}
