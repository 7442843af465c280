package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memorySink is a sink in memory. fail decides about each publish.
type memorySink struct {
	name string
	fail func(topic string, msg *message.Message) error

	mu      sync.Mutex
	stored  []storedMessage
	calls   int
	changed chan struct{}
	closes
}

type storedMessage struct {
	topic string
	msg   *message.Message
}

func newSink(fail func(topic string, msg *message.Message) error) *memorySink {
	return &memorySink{name: "memory", fail: fail, changed: make(chan struct{}, 1)}
}

func (s *memorySink) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		if err := msg.Context().Err(); err != nil {
			return err
		}
		s.mu.Lock()
		s.calls++
		s.mu.Unlock()
		if s.fail != nil {
			if err := s.fail(topic, msg); err != nil {
				return err
			}
		}
		s.mu.Lock()
		s.stored = append(s.stored, storedMessage{topic, msg.Copy()})
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	return nil
}

func (s *memorySink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	p := &sinks.Publication{}
	p.Resolve(sinks.Receipt{}, s.Publish(topic, msg))
	return p, nil
}

func (s *memorySink) Describe() sinks.Description {
	return sinks.Description{Name: s.name, ReadOnly: s}
}

func (*memorySink) CheckTopic(string) error { return nil }

func (s *memorySink) TopicSegment(v string) string {
	return sinks.DefaultSegments.Escape(v)
}
func (s *memorySink) Health(context.Context) error { return nil }

func (s *memorySink) all() []storedMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]storedMessage(nil), s.stored...)
}

// wantStored fails the test unless n messages are stored.
func (s *memorySink) wantStored(t *testing.T, n int) {
	t.Helper()
	if all := s.all(); len(all) != n {
		t.Fatalf("%d messages stored, want %d", len(all), n)
	}
}

func (s *memorySink) callCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// closes counts the calls of Close.
type closes struct{ n atomic.Int64 }

func (c *closes) Close() error { c.n.Add(1); return nil }

// wantClosed fails the test unless Close was called once.
func (c *closes) wantClosed(t *testing.T) {
	t.Helper()
	if got := c.n.Load(); got != 1 {
		t.Errorf("closed %d times, want once", got)
	}
}

// wait blocks until n messages are stored.
func (s *memorySink) wait(t *testing.T, n int) []storedMessage {
	t.Helper()
	limit := time.After(testkit.Patience)
	for {
		if all := s.all(); len(all) >= n {
			return all
		}
		select {
		case <-s.changed:
		case <-limit:
			t.Fatalf("%d of %d messages stored", len(s.all()), n)
		}
	}
}

func (s *memorySink) uuids() map[string]int {
	uuids := make(map[string]int)
	for _, m := range s.all() {
		uuids[m.msg.UUID]++
	}
	return uuids
}

// source is a subscriber that delivers what it is given, records the verdicts,
// and redelivers nothing by itself.
type source struct {
	messages chan *message.Message

	mu      sync.Mutex
	subErr  func(n int) error
	subs    int
	closed  chan struct{}
	ended   sync.Once
	onClose func()
	closes
}

func newSource() *source {
	return &source{messages: make(chan *message.Message), closed: make(chan struct{})}
}

func (s *source) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.mu.Lock()
	s.subs++
	n, subErr := s.subs, s.subErr
	s.mu.Unlock()
	if subErr != nil {
		if err := subErr(n); err != nil {
			return nil, err
		}
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case msg, ok := <-s.messages:
				if !ok {
					return
				}
				select {
				case out <- msg:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			case <-s.closed:
				return
			}
		}
	}()
	return out, nil
}

func (s *source) Close() error {
	s.n.Add(1)
	if s.onClose != nil {
		s.onClose()
	}
	s.ended.Do(func() { close(s.closed) })
	return nil
}

// deliver fails the test unless the message is acked.
func (s *source) deliver(t *testing.T, msg *message.Message) {
	t.Helper()
	s.messages <- msg
	wantAck(t, msg)
}

// wantMetadata fails the test unless the message has these metadata, among others.
func wantMetadata(t *testing.T, msg *message.Message, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := msg.Metadata[key]; got != value {
			t.Errorf("message %s has %s = %q, want %q", msg.UUID, key, got, value)
		}
	}
}

// publish sends a message to the topic "in".
func publish(t *testing.T, to message.Publisher, msg *message.Message) {
	t.Helper()
	testkit.NoError(t, to.Publish("in", msg))
}

// verdict is how a message ended.
func verdict(t *testing.T, msg *message.Message) string {
	t.Helper()
	select {
	case <-msg.Acked():
		return "ack"
	case <-msg.Nacked():
		return "nack"
	case <-time.After(testkit.Patience):
		t.Fatal("message is still open")
		return ""
	}
}

// wantAck fails the test unless the message is acked.
func wantAck(t *testing.T, msg *message.Message) {
	t.Helper()
	if got := verdict(t, msg); got != "ack" {
		t.Fatalf("message %s: %s, want ack", msg.UUID, got)
	}
}

// wantNack fails the test unless the message is nacked.
func wantNack(t *testing.T, msg *message.Message) {
	t.Helper()
	if got := verdict(t, msg); got != "nack" {
		t.Fatalf("message %s: %s, want nack", msg.UUID, got)
	}
}

func isOpen(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return false
	case <-msg.Nacked():
		return false
	default:
		return true
	}
}

// farmMessage is a message as the gateway's Subscriber makes them.
func farmMessage(id, endpoint, contextID, payload string) *message.Message {
	msg := message.NewMessage(id, []byte(payload))
	msg.Metadata[gateway.KeyEventType] = string(gateway.EventMessageReceived)
	msg.Metadata[gateway.KeyMessageID] = id
	msg.Metadata[gateway.KeyReceivingEndpointID] = endpoint
	msg.Metadata[gateway.KeyContextID] = contextID
	msg.Metadata[gateway.KeyMessageType] = "iso:11783:-10:taskdata:zip"
	msg.Metadata[gateway.KeyTenantID] = "tenant-1"
	return msg
}

// fastRetry keeps real-time tests quick.
var fastRetry = router.RetrySettings{InitialBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond}

// build returns a Router with the routes.
func build(t testing.TB, config router.Config, routes ...router.Route) *router.Router {
	t.Helper()
	r := testkit.Must(router.New(config, nil))(t)
	for _, route := range routes {
		testkit.NoError(t, r.Add(route))
	}
	return r
}

// running is a Router that runs for the duration of a test.
type running struct {
	*router.Router
	stop func() error
}

func start(t *testing.T, config router.Config, routes ...router.Route) *running {
	t.Helper()
	return startLogged(t, nil, config, routes...)
}

// startLogged starts a Router that logs to logger. The end of the test stops it, and fails when that fails, unless the test
// has stopped it.
func startLogged(t *testing.T, logger watermill.LoggerAdapter, config router.Config, routes ...router.Route) *running {
	t.Helper()
	r := testkit.Must(router.New(config, logger))(t)
	for _, route := range routes {
		testkit.NoError(t, r.Add(route))
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- r.Run(ctx) }()
	<-r.Running()
	seen := false // by the test
	end := sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() {
		if err := end(); err != nil && !seen {
			t.Error(err)
		}
	})
	return &running{r, func() error { seen = true; return end() }}
}

// wantStop stops the Router, and fails the test unless that is a clean end.
func (r *running) wantStop(t *testing.T) {
	t.Helper()
	testkit.NoError(t, r.stop())
}

// handle fails the test unless h handles the message.
func handle(t *testing.T, h message.HandlerFunc, msg *message.Message) {
	t.Helper()
	testkit.Must(h(msg))(t)
}

// wantClass fails the test unless err is of a class.
func wantClass(t *testing.T, err error, want router.Class) {
	t.Helper()
	if got := router.ClassOf(err); got != want {
		t.Errorf("%v is of class %v, want %v", err, got, want)
	}
}

func newGoChannel() *gochannel.GoChannel {
	return gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 16}, nil)
}

var errHandler = errors.New("handler failed")

// failTimes fails the first n calls.
func failTimes(n int, err error) func(string, *message.Message) error {
	var mu sync.Mutex
	return func(string, *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if n > 0 {
			n--
			return err
		}
		return nil
	}
}

// broken is a handler that can do nothing with a message.
func broken(*message.Message) ([]*message.Message, error) { return nil, router.Permanent(errHandler) }

// replayAll replays all of a poison queue.
func replayAll(t *testing.T, r *router.Router, queue router.PoisonStore) router.ReplayReport {
	t.Helper()
	report := testkit.Must(r.Replay(t.Context(), queue, everything))(t)
	return report
}

var everything = router.PoisonSelection{All: true}

// poisonRecord is a message as it is in the poison queue, of a second of a day.
func poisonRecord(id string, second int) *message.Message {
	msg := farmMessage(id, "e", "c", "p")
	for key, value := range map[string]string{
		router.KeyPoisonRoute: "farm", router.KeyPoisonCount: "1", router.KeyPoisonAttempts: "1",
		router.KeyPoisonFirst: "2026-01-01T00:00:00Z", router.KeyPoisonLast: fmt.Sprintf("2026-01-01T00:00:%02dZ", second),
	} {
		msg.Metadata[key] = value
	}
	return msg
}

// wantNoPoison fails the test if a message has metadata of the poison queue.
func wantNoPoison(t *testing.T, msg *message.Message) {
	t.Helper()
	for key := range msg.Metadata {
		if strings.Contains(key, "poison") {
			t.Errorf("message %s has %s", msg.UUID, key)
		}
	}
}

// publishTo returns a publisher to a gateway, which tries each message once, with a client that ends with the test.
func publishTo(t *testing.T, server *gatewaytest.Server, config publisher.Config) *publisher.Publisher {
	t.Helper()
	clientConfig := server.ClientConfig()
	clientConfig.Retry.MaxAttempts = 1
	client := testkit.Must(gateway.New(clientConfig))(t)
	t.Cleanup(func() { _ = client.Close() })
	config.Client, config.TenantID = client, server.Tenant()
	pub := testkit.Must(publisher.New(config, nil))(t)
	return pub
}

// subscribeTo returns a subscriber of a gateway, and its client, which ends with the test.
func subscribeTo(t *testing.T, server *gatewaytest.Server, config subscriber.Config) (*subscriber.Subscriber, *gateway.Client) {
	t.Helper()
	client := testkit.Must(gateway.New(server.ClientConfig()))(t)
	t.Cleanup(func() { _ = client.Close() })
	config.Client, config.Confirm.MaxAge = client, 5*time.Millisecond
	sub := testkit.Must(subscriber.New(config, nil))(t)
	return sub, client
}
