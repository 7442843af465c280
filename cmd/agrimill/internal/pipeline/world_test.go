package pipeline_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/cmd/agrimill/internal/admin"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/config"
	"github.com/agrimill/agrimill/cmd/agrimill/internal/pipeline"
	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) {
	// Nearly all of these tests wait, for leases to end and for what is down to be tried again; few of them compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, testkit.SaramaLeaks()...)
}

const (
	taskData = "iso:11783:-10:taskdata:zip"
	shapes   = "shp:shape:zip"
	pictures = "img:png"
	// mark begins every payload: it must not be seen in any log.
	mark     = "PAYLOAD-OF-THE-FARM-"
	password = "not-for-everybody"
)

// world is a gateway with a sender and a receiver, and a NATS server, with a way to
// it that can break.
type world struct {
	*testing.T
	gate             *gatewaytest.Server
	sender, receiver gateway.Endpoint
	server           *natstest.Server
	proxy            *natstest.Proxy
	js               jetstream.JetStream
	grace            time.Duration // of readiness; 0: what fails counts at once
	look             time.Duration // CheckInterval, unless it is shorter than usual
	tenants          time.Duration // TenantsInterval, unless it is shorter than usual

	sick, cert string    // a tenant and a file of TestVerdictOfFaults
	edits      []string  // of its configuration
	stdout     io.Writer // of it; nil: the log
	release    func()    // of stdout

	env map[string]string // what configurations can refer to

	mu   sync.Mutex
	sent int
}

func newWorld(t *testing.T, change ...func(*gatewaytest.Config)) *world {
	t.Helper()
	types := []string{taskData, shapes, pictures}
	gate := gatewaytest.Config{KeepAlive: 200 * time.Millisecond}
	for _, f := range change {
		f(&gate)
	}
	w := &world{T: t, gate: gatewaytest.New(t, gate), server: natstest.Start(t)}
	w.env = map[string]string{"SECRET": w.gate.Application().ClientSecret, "WRONG": "wrong", "PASSWORD": password}
	w.sender = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "terminal", Send: types})
	w.receiver = w.gate.AddEndpoint(gatewaytest.EndpointConfig{Name: "farm software", Receive: types, Send: types, Subscribe: types})
	w.proxy = natstest.NewProxy(t, w.server.URL())
	conn := testkit.Must(natstest.Connect(w.server.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond)))(t)
	t.Cleanup(conn.Close)
	w.js = testkit.Must(natstest.JetStream(conn))(t)
	return w
}

// newRunning is a world with a pipeline that stores everything in NATS, and that is ready.
func newRunning(t *testing.T) (*world, *agrimill) {
	t.Helper()
	w := newWorld(t)
	b := w.start(w.head() + w.natsSink() + allRoute)
	b.waitReady()
	return w, b
}

// restart starts the server again, and returns when the test can ask it.
func (w *world) restart() {
	w.Helper()
	w.server.Restart()
	natstest.AwaitReconnect(w, w.js.Conn())
}

// head is the part of a configuration that all tests share.
func (w *world) head() string {
	c := w.gate.ClientConfig()
	return fmt.Sprintf(`
gateway:
  base_url: %s
  token_url: %s
  client_id: %s
  client_secret: ${SECRET}
  retry: {max_attempts: 2, initial_backoff: 20ms, max_backoff: 100ms}
subscriber:
  max_downloads: 8
retry: {initial_backoff: 20ms, max_backoff: 200ms}
shutdown: {timeout: 2m}
admin: {address: off}
`, c.BaseURL, c.TokenURL, c.ClientID)
}

// unhurried is a configuration that leaves so much time to end that a test does not pass when all
// of it is taken.
func unhurried(text string) string {
	return strings.Replace(text, "shutdown: {timeout: 2m}", fmt.Sprintf("shutdown: {timeout: %v}", 10*testkit.Patience), 1)
}

// natsSink is the section sinks with one sink in NATS.
func (w *world) natsSink() string {
	return fmt.Sprintf("sinks:\n  farm: {nats: {url: %q, publish_timeout: 2s, connect_timeout: 1s}}\npoison: {sink: farm}\n", w.proxy.URL())
}

// parse reads a configuration.
func (w *world) parse(text string) *config.Config {
	w.Helper()
	cfg := testkit.Must(config.Parse("agrimill.yaml", []byte(text), config.Options{Env: func(name string) string { return w.env[name] }}))(w)
	w.hurry(cfg)
	return cfg
}

// hurry shortens waits that a file cannot set. A whole file waits as long as one in chunks.
func (w *world) hurry(cfg *config.Config) {
	s := &cfg.Subscriber
	s.Reconnect = subscriber.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	s.Nack = subscriber.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	s.Confirm.MaxAge = 5 * time.Millisecond
	s.Confirm.Retry = subscriber.Backoff{Initial: 20 * time.Millisecond, Max: 100 * time.Millisecond}
	s.WholeFileHold = max(s.FileHold, 0)
	if cfg.Dedup.BBolt != nil {
		cfg.Dedup.BBolt.OpenTimeout = 50 * time.Millisecond
	}
}

// agrimill is a pipeline that runs.
type agrimill struct {
	*pipeline.Pipeline
	w        *world
	logs     *logs
	registry *prometheus.Registry
	cancel   context.CancelFunc
	result   chan error
	stopOnce sync.Once
	err      error
}

// start runs a configuration. It is stopped when the test ends, if not before.
func (w *world) start(text string) *agrimill {
	w.Helper()
	return w.startWith(w.parse(text))
}

// startWith is start for what a file cannot say.
func (w *world) startWith(cfg *config.Config) *agrimill {
	w.Helper()
	b := &agrimill{w: w, logs: &logs{to: w}, registry: prometheus.NewRegistry(), result: make(chan error, 1)}
	b.Pipeline = testkit.Must(pipeline.New(w.Context(), cfg, b.options()))(w)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	go func() { b.result <- b.Run(ctx) }() // ends with ctx
	w.Cleanup(func() {
		_ = b.stop()
		b.logs.check(w)
	})
	return b
}

func (b *agrimill) options() pipeline.Options {
	stdout := b.w.stdout
	if stdout == nil {
		stdout = b.logs
	}
	return pipeline.Options{
		Name: "test", Version: "v0", Revision: "abc", Registry: b.registry, WatchInterval: 100 * time.Millisecond, CheckInterval: max(b.w.look, 400*time.Millisecond),
		ReadyGrace:      max(b.w.grace, time.Nanosecond),
		TenantsInterval: max(b.w.tenants, 10*time.Millisecond),
		Logger:          slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Stdout: stdout,
	}
}

// stop ends the pipeline as SIGTERM does.
func (b *agrimill) stop() error {
	b.cancel()
	return b.wait()
}

// wait waits for the end of the pipeline.
func (b *agrimill) wait() error {
	b.stopOnce.Do(func() {
		select {
		case b.err = <-b.result:
		case <-time.After(testkit.Patience):
			b.w.Error("the pipeline does not end")
		}
	})
	return b.err
}

// mustStop ends the pipeline and expects that it ends well.
func (b *agrimill) mustStop() {
	b.w.Helper()
	if err := b.stop(); err != nil {
		b.w.Errorf("Run: %v", err)
	}
}

// finish waits until everything that was sent is confirmed, ends the pipeline, and checks that all of it is stored.
func (b *agrimill) finish() {
	b.w.Helper()
	b.w.waitConfirmed()
	b.mustStop()
	b.w.checkStored()
}

// isReady reports whether all checks pass.
func (b *agrimill) isReady() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, c := range b.Ready(ctx) {
		if !c.OK {
			return false
		}
	}
	return true
}

func (b *agrimill) waitReady() {
	b.w.Helper()
	testkit.Eventually(b.w, "agrimill is ready", b.isReady)
}

// waitOutage waits until a route is in an outage whose error has this text.
func (b *agrimill) waitOutage(says string) {
	b.w.Helper()
	testkit.Eventually(b.w, "a route is in outage", func() bool {
		return slices.ContainsFunc(b.Snapshot().Routes, func(r admin.Route) bool {
			return r.State == router.StateOutage && strings.Contains(r.LastError, says)
		})
	})
}

func (b *agrimill) received() int64 { return b.Snapshot().Subscriber.Received }

// waitReceived waits until so many messages have been received: what is left open is counted among them.
func (b *agrimill) waitReceived(n int64) {
	b.w.Helper()
	testkit.Eventually(b.w, "they are received", func() bool { return b.received() == n })
}

// waitDisconnected waits until the event stream cannot be opened.
func (b *agrimill) waitDisconnected() {
	b.w.Helper()
	testkit.Eventually(b.w, "the gateway is disconnected", func() bool { return b.Snapshot().Gateway.State == admin.GatewayDisconnected })
}

// send publishes n messages of a type, each different.
func (w *world) send(messageType string, n int) {
	w.Helper()
	for range n {
		w.mu.Lock()
		w.sent++
		payload := fmt.Appendf(nil, "%s%d", mark, w.sent)
		w.mu.Unlock()
		if _, err := w.gate.Send(gatewaytest.SendRequest{From: w.sender.ID, MessageType: messageType, Payload: payload}); err != nil {
			w.Error(err)
			return
		}
	}
}

// keepBusy sends n messages of one of types every few milliseconds until stop is called, but none
// while the pipeline is behind: how much a test sends does not depend on how slow the machine is.
func (w *world) keepBusy(n int, types ...string) (stop func()) {
	turn := 0
	return w.repeat(5*time.Millisecond, func() {
		if !w.behind() {
			w.send(types[turn%len(types)], n)
			turn++
		}
	})
}

// behind reports whether many messages are not confirmed yet.
func (w *world) behind() bool {
	waiting := 0
	for _, e := range w.gate.Ledger() {
		if !e.Confirmed() {
			waiting++
		}
	}
	return waiting > 100
}

// repeat does something again and again until stop is called, which waits for its end; at the latest at the end of the test.
func (w *world) repeat(every time.Duration, do func()) (stop func()) {
	var running sync.WaitGroup
	stopped := make(chan struct{})
	running.Go(func() { // ends with stopped
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-tick.C:
				do()
			}
		}
	})
	stop = sync.OnceFunc(func() { close(stopped); running.Wait() })
	w.Cleanup(stop)
	return stop
}

// waitConfirmed waits until everything that was sent is confirmed.
func (w *world) waitConfirmed() {
	w.Helper()
	ctx := testkit.Context(w)
	n := len(w.gate.Ledger())
	if err := w.gate.WaitConfirmed(ctx, n); err != nil {
		w.Fatalf("%d of %d messages are confirmed: %v", len(w.confirmed()), n, err)
	}
}

// key names a message in the ledger and in JetStream.
type key struct {
	endpoint, context string
	sum               [sha256.Size]byte
}

// confirmed are the messages that the gateway has a confirmation of.
func (w *world) confirmed() map[key]bool {
	keys := map[key]bool{}
	for _, e := range w.gate.Ledger() {
		if e.Confirmed() {
			keys[key{e.EndpointID, e.ContextID, e.SHA256}] = true
		}
	}
	return keys
}

// stored counts the messages in JetStream, and how often each is there, by reading
// the whole stream with a client that shares nothing with the pipeline.
func (w *world) stored() map[key]int {
	w.Helper()
	keys := map[key]int{}
	for _, raw := range w.read("agrimill.>") {
		if raw.Header.Get("x-router-poison-reason") != "" {
			continue
		}
		keys[keyOf(raw)]++
	}
	return keys
}

func keyOf(raw *natsgo.Msg) key {
	return key{raw.Header.Get(gateway.KeyReceivingEndpointID), raw.Header.Get(gateway.KeyContextID), sha256.Sum256(raw.Data)}
}

// read returns everything that the stream holds of a subject. It fails when it cannot read
// all of it: what is missing would look like a loss.
func (w *world) read(subject string) []*natsgo.Msg {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	var stream jetstream.Stream
	var info *jetstream.StreamInfo
	testkit.Eventually(w, "the stream answers", func() bool {
		var err error
		if stream, err = w.js.Stream(ctx, "AGRIMILL"); err == nil {
			info, err = stream.Info(ctx, jetstream.WithSubjectFilter(subject))
		}
		return err == nil
	})
	count := 0
	for _, n := range info.State.Subjects {
		count += int(n)
	}
	if count == 0 {
		return nil
	}
	consumer := testkit.Must(stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}}))(w)
	messages := testkit.Must(consumer.Messages())(w)
	defer messages.Stop()
	list := make([]*natsgo.Msg, 0, count)
	for len(list) < count {
		raw, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			w.Fatalf("read %d of %d messages: %v", len(list), count, err)
		}
		list = append(list, &natsgo.Msg{Subject: raw.Subject(), Header: raw.Headers(), Data: raw.Data()})
	}
	return list
}

// checkStored checks that JetStream has everything that is in the ledger, and nothing
// else, each once.
func (w *world) checkStored() {
	w.Helper()
	stored := w.stored()
	for _, e := range w.gate.Ledger() {
		k := key{e.EndpointID, e.ContextID, e.SHA256}
		if stored[k] != 1 {
			w.Errorf("message %s is in the stream %d times", e.MessageID, stored[k])
		}
		if !e.Confirmed() {
			w.Errorf("message %s is not confirmed", e.MessageID)
		}
		delete(stored, k)
	}
	if len(stored) > 0 {
		w.Errorf("%d messages are in the stream that nobody sent", len(stored))
	}
}

// checkHeld checks that everything that is confirmed by now is in the stream.
func (w *world) checkHeld() {
	w.Helper()
	confirmed := w.confirmed()
	stored := w.stored()
	for k := range confirmed {
		if stored[k] == 0 {
			w.Errorf("message %s is confirmed and not in the stream", k.context)
		}
	}
}

// put stores a message in a stream of someone else, for a route to the gateway.
func (w *world) put(subject, messageType string) string {
	w.Helper()
	id := uuid.NewString()
	msg := natsgo.NewMsg(subject)
	msg.Data = []byte(mark + id)
	msg.Header.Set(gateway.KeyContextID, id)
	msg.Header.Set(gateway.KeyMessageType, messageType)
	// The connection may have to come back first.
	var err error
	testkit.Eventually(w, "the broker takes a message", func() bool {
		_, err = w.js.PublishMsg(w.Context(), msg, jetstream.WithMsgID(id))
		return err == nil
	})
	return id
}

// logs keeps what is logged.
type logs struct {
	to *world
	testkit.Output
}

// check checks that nothing secret was logged, and shows the log of a test that
// failed.
func (l *logs) check(w *world) {
	text := l.String()
	for _, secret := range []string{mark, w.gate.Application().ClientSecret, password, "Bearer "} {
		if strings.Contains(text, secret) {
			w.Errorf("the log holds %q", secret)
		}
	}
	if w.Failed() {
		for line := range strings.Lines(text) {
			if !strings.Contains(line, "level=DEBUG") {
				w.Log(strings.TrimSpace(line))
			}
		}
	}
}

// contains waits for a line with all of these parts.
func (l *logs) contains(parts ...string) {
	l.to.Helper()
	testkit.Eventually(l.to, fmt.Sprintf("a line of the log has %q", parts), func() bool {
	lines:
		for line := range strings.Lines(l.String()) {
			for _, part := range parts {
				if !strings.Contains(line, part) {
					continue lines
				}
			}
			return true
		}
		return false
	})
}

// lacks checks that nothing of the log so far has this text.
func (l *logs) lacks(text string) {
	l.to.Helper()
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			l.to.Errorf("the log has %s", line)
		}
	}
}

// asJSON is a value as the admin pages show it.
func (w *world) asJSON(value any) string {
	w.Helper()
	text := testkit.Must(json.Marshal(value))(w)
	return string(text)
}
