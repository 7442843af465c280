package identitytest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/kafkatest"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
	"github.com/agrimill/agrimill/subscriber"
)

var (
	jetstreamPrograms = flag.Int("jetstream", 10, "how many random programs are run with the gateway, the subscriber and JetStream")
	kafkaPrograms     = flag.Int("kafka", 10, "how many are run with the gateway, the subscriber and Kafka")
)

// backend is where a program stores; the poison queue is in JetStream.
type backend interface {
	// sink returns a sink of a new process, which closes it.
	sink() sinks.Sink
	// read returns what is stored. A reader tells copies by gateway.KeyDedupID, if the broker
	// does not.
	read() []*stored
}

// real is a world with the gateway's emulator, the subscriber and the sinks.
type real struct {
	*mill
	gateway   *gatewaytest.Server
	sender    string
	endpoints map[string]string // by their names in the program
	files     []string          // the types that come as files
	recentFor time.Duration
	backend   backend
	queueSink func() sinks.Sink
	store     router.DedupStore

	sent    []*sent
	process *process

	mu    sync.Mutex
	raw   map[string]string             // the event of each message
	fresh chan struct{}                 // closed when there is another one
	all   map[string][]*message.Message // what the subscriber has delivered, by endpoint and ID
}

// key names what a message is delivered as.
func key(meta message.Metadata) string {
	if list := meta[gateway.KeyMessageIDs]; list != "" {
		ids := strings.Split(list, ",")
		slices.Sort(ids)
		return meta[gateway.KeyReceivingEndpointID] + " " + strings.Join(ids, ",")
	}
	return meta[gateway.KeyReceivingEndpointID] + " " + meta[gateway.KeyMessageID]
}

func newReal(m *mill, b backend, queueSink func() sinks.Sink, poison router.PoisonStore) *real {
	store := testkit.Must(router.NewMemoryStore(router.MemoryStoreConfig{}))(m.t)
	w := &real{
		mill: m, gateway: gatewaytest.New(m.t, gatewaytest.Config{ChunkSize: partSize}), endpoints: map[string]string{},
		backend: b, queueSink: queueSink, store: store,
		raw: map[string]string{}, fresh: make(chan struct{}), all: map[string][]*message.Message{},
	}
	m.queue = &queue{PoisonStore: poison}
	if m.rand.IntN(3) == 0 {
		w.files = []string{"shp"}
	}
	w.recentFor = []time.Duration{time.Nanosecond, time.Hour}[m.rand.IntN(2)]
	types := []string{"shp", "json"}
	w.sender = w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Send: types}).ID
	for _, name := range []string{"e", "f"} {
		w.endpoints[name] = w.gateway.AddEndpoint(gatewaytest.EndpointConfig{Receive: types, Subscribe: types}).ID
	}
	w.gateway.OnConfirm(w.confirmed)
	w.record()
	return w
}

// record keeps the events of the gateway, to deliver them again.
func (w *real) record() {
	stream := testkit.Must(w.gateway.Client().ReceiveEvents(w.t.Context(), gateway.ReceiveEventsRequest{}))(w.t)
	done := make(chan struct{})
	w.t.Cleanup(func() { _ = stream.Close(); <-done })
	go func() { // ends with the stream
		defer close(done)
		for {
			raw, err := stream.Next()
			if err != nil {
				return
			}
			var k string
			switch event, _ := gateway.DecodeEvent(raw.Type, raw.Data); e := event.(type) {
			case *gateway.MessageReceived:
				k = e.ReceivingEndpointID + " " + e.ID
			case *gateway.FileReceived:
				k = e.ReceivingEndpointID + " " + strings.Join(slices.Sorted(slices.Values(e.MessageIDs)), ",")
			default:
				continue
			}
			w.mu.Lock()
			w.raw[k] = fmt.Sprintf("event: %s\ndata: %s\n\n", raw.Type, raw.Data)
			close(w.fresh)
			w.fresh = make(chan struct{})
			w.mu.Unlock()
		}
	}()
}

// confirmed checks that what is confirmed was acked, by itself or by its file.
func (w *real) confirmed(e gatewaytest.LedgerEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, list := range w.all {
		if ids, ok := strings.CutPrefix(k, e.EndpointID+" "); ok && slices.Contains(strings.Split(ids, ","), e.MessageID) {
			for _, msg := range list {
				select {
				case <-msg.Acked():
					return
				default:
				}
			}
		}
	}
	w.t.Errorf("%s/%s was confirmed and not acked", e.EndpointID, e.MessageID)
}

// process is one run of the program, until it is stopped or killed.
type process struct {
	w      *real
	sub    *subscriber.Subscriber
	router *router.Router
	cancel context.CancelFunc
	done   chan struct{}
	acks   chan string   // what was acked, as long as it lives
	died   chan struct{} // closed when it comes to the place where it is killed
	over   chan struct{} // closed when it is stopped
	closes []func()

	mu        sync.Mutex
	fault     fault
	dead      bool
	committed bool // it was killed after a commit
	nacks     int
	delivered []string        // since arm
	known     map[string]bool // what was acked
}

func (w *real) running() bool          { return w.process != nil }
func (w *real) router() *router.Router { return w.process.router }

func (w *real) arm(f fault) {
	p := w.process
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.delivered = f, nil
}

func (w *real) loseAcks(n int) {
	if p := w.process; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.nacks = n
	}
}

func (w *real) start() (redelivered []string) {
	p := &process{
		w: w, done: make(chan struct{}), acks: make(chan string, 1000), died: make(chan struct{}), over: make(chan struct{}),
		known: map[string]bool{},
	}
	w.process = p
	unconfirmed := w.unconfirmed()
	network := &http.Transport{}
	config := w.gateway.ClientConfig()
	config.Transport = cut{p, network}
	config.Retry = gateway.RetryConfig{InitialBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond}
	client := testkit.Must(gateway.New(config))(w.t)
	short := subscriber.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond}
	p.sub = testkit.Must(subscriber.New(subscriber.Config{
		Client: client, Files: w.files, WholeFileHold: time.Millisecond, ChunkSize: partSize, Nack: short, Reconnect: short, RecentFor: w.recentFor,
		Confirm: subscriber.ConfirmConfig{MaxAge: time.Millisecond, Retry: short}, DrainTimeout: 100 * time.Millisecond, CloseTimeout: 200 * time.Millisecond,
	}, nil))(w.t)
	to, poison := w.backend.sink(), w.queueSink()
	p.router = testkit.Must(router.New(router.Config{
		Poison: faultySink{poison, p}, CloseTimeout: time.Second,
		Retry: router.RetrySettings{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Dedup: router.DedupSettings{Store: faultyStore{p}, NeverChunkBelow: partSize},
	}, watermill.NopLogger{}))(w.t)
	testkit.NoError(w.t, p.router.Add(w.route(tap{p.sub, p}, faultySink{to, p})))
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.closes = []func(){func() { _ = client.Close() }, network.CloseIdleConnections, func() { _ = to.Close() }, func() { _ = poison.Close() }}
	go func() { // ends with ctx
		defer close(p.done)
		_ = p.router.Run(ctx)
	}()
	<-p.router.Running()
	w.waitStreams(2)
	for _, s := range unconfirmed {
		redelivered = append(redelivered, s.endpoint+" "+s.id)
	}
	w.wait(redelivered, func(left []string) bool { // a confirmation of the process before may still have been on its way
		still := w.unconfirmed()
		p.mu.Lock()
		defer p.mu.Unlock()
		return !slices.ContainsFunc(left, func(k string) bool {
			return slices.Contains(p.delivered, k) || slices.ContainsFunc(still, func(s *sent) bool { return s.endpoint+" "+s.id == k })
		})
	})
	return slices.DeleteFunc(redelivered, func(k string) bool { return !p.known[k] })
}

// unconfirmed returns what the gateway delivers again.
func (w *real) unconfirmed() (list []*sent) {
	open := map[string]bool{}
	for _, e := range w.gateway.Ledger() {
		if !e.Confirmed() {
			open[e.EndpointID+" "+e.MessageID] = true
		}
	}
	for _, s := range w.sent {
		for id := range strings.SplitSeq(s.id, ",") {
			if open[s.endpoint+" "+id] {
				list = append(list, s)
				break
			}
		}
	}
	return list
}

func (w *real) waitStreams(n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), testkit.Patience)
	defer cancel()
	if err := w.gateway.WaitStreams(ctx, n); err != nil {
		w.t.Fatalf("%d streams, want %d: %v", w.gateway.Streams(), n, err)
	}
}

// wait waits until all of that is acked, or the process died, or enough says so.
func (w *real) wait(keys []string, enough func(left []string) bool) (left []string) {
	w.t.Helper()
	p := w.process
	deadline := time.After(testkit.Patience)
	for left = slices.Clone(keys); len(left) > 0; {
		select {
		case k := <-p.acks:
			p.known[k] = true
			if i := slices.Index(left, k); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
		case <-p.died:
			return left
		case <-time.After(20 * time.Millisecond):
			if enough != nil && enough(left) {
				return left
			}
		case <-deadline:
			w.t.Fatalf("%s\nnot acked: %v", strings.Join(w.log, "\n"), left)
		}
	}
	return nil
}

func (w *real) send(group []*sent, both bool) (all []*sent) {
	endpoint := group[0].endpoint
	if id, ok := w.endpoints[endpoint]; ok {
		endpoint = id
	}
	recipients := []string{endpoint}
	first := group[0]
	kind := first.kind
	var payload []byte
	for _, s := range group {
		payload = append(payload, s.payload...)
	}
	if slices.Contains(w.files, kind) && len(group) == 1 {
		kind = "json" // no file of several parts
	}
	if both {
		recipients = []string{w.endpoints["e"], w.endpoints["f"]}
	}
	ids := testkit.Must(w.gateway.Send(gatewaytest.SendRequest{
		From: w.sender, MessageType: kind, Payload: payload, Recipients: recipients, ContextID: first.context, Filename: first.filename,
	}))(w.t)
	if len(ids) != len(group) {
		w.t.Fatalf("%d messages, want %d", len(ids), len(group))
	}
	for _, recipient := range recipients {
		if len(group) == 1 || !slices.Contains(w.files, kind) {
			for i, s := range group {
				one := *s
				one.id, one.endpoint, one.kind = ids[i], recipient, kind
				all = append(all, &one)
			}
		}
		if len(group) > 1 {
			all = append(all, &sent{
				id: strings.Join(slices.Sorted(slices.Values(ids)), ","), endpoint: recipient, context: first.context, kind: kind,
				filename: first.filename, file: true, payload: payload,
			})
		}
	}
	w.sent = append(w.sent, all...)
	return all
}

func (w *real) again(s *sent) {
	k, deadline := s.endpoint+" "+s.id, time.After(testkit.Patience)
	for {
		w.mu.Lock()
		raw, fresh := w.raw[k], w.fresh
		w.mu.Unlock()
		if raw != "" {
			w.gateway.EmitRaw(w.gateway.Application(), []byte(raw))
			return
		}
		select {
		case <-fresh:
		case <-deadline:
			w.t.Fatalf("no event of %v", s)
		}
	}
}

func (w *real) await(group []*sent) (outcomes []outcome) {
	p := w.process
	var keys []string
	for _, s := range group {
		keys = append(keys, s.endpoint+" "+s.id)
	}
	// What the subscriber has is not delivered again: what was sent after it is.
	known := len(keys) > 1 && p.has(group[0])
	required := keys
	if known {
		required = keys[1:]
	}
	left := w.wait(required, nil)
	p.mu.Lock()
	delivered, committed, kill := p.delivered, p.committed, p.fault.kill != 0
	p.mu.Unlock()
	select {
	case <-p.died:
		// Messages of an endpoint come one after the other.
		left = nil
		for _, k := range keys {
			if i := slices.Index(delivered, k); i < 0 || i == len(delivered)-1 && !committed {
				left = append(left, k)
			}
		}
	default:
	}
	for i, k := range keys {
		switch {
		case slices.Contains(left, k):
			outcomes = append(outcomes, notAcked)
		case i == 0 && known && !slices.Contains(delivered, k):
			outcomes = append(outcomes, absorbed)
		default:
			outcomes = append(outcomes, acked)
		}
	}
	p.mu.Lock()
	p.fault.lose = false
	p.mu.Unlock()
	if kill {
		p.die()
		w.stop()
	}
	return outcomes
}

// has reports whether the process has acked a message, or the file of which it is a part.
func (p *process) has(s *sent) bool {
	for k := range p.known {
		if ids, ok := strings.CutPrefix(k, s.endpoint+" "); ok && (ids == s.id || !s.file && slices.Contains(strings.Split(ids, ","), s.id)) {
			return true
		}
	}
	return false
}

func (w *real) stop() {
	p := w.process
	if p == nil {
		return
	}
	p.cancel()
	close(p.over)
	<-p.done
	for _, f := range p.closes {
		f()
	}
	w.process = nil
	w.waitStreams(1)
}

func (w *real) out() []*stored { return w.backend.read() }

// finish starts the program without any fault, and waits until everything is confirmed.
func (o *oracle) finish() {
	w := o.m.world.(*real)
	w.stop()
	o.up()
	for _, h := range o.all {
		if !h.acked {
			o.failf("%v was never acked", h.sent)
		}
	}
	w.stop()
	o.check()
}

// die is the kill: nothing of the process reaches anybody any more.
func (p *process) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dieLocked()
}

func (p *process) dieLocked() {
	if !p.dead {
		p.dead = true
		close(p.died)
	}
}

// reach reports whether the process is killed at that place, or was before.
func (p *process) reach(point int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead && p.fault.kill == point {
		if p.fault.skip > 0 {
			p.fault.skip--
			return false
		}
		p.committed = point == killAck
		p.dieLocked()
	}
	return p.dead
}

// cut is the network, which a dead process cannot reach.
type cut struct {
	*process
	http.RoundTripper
}

var errDead = errors.New("the process is dead")

func (c cut) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	dead := c.dead
	c.mu.Unlock()
	if dead {
		return nil, errDead
	}
	return c.RoundTripper.RoundTrip(r)
}

// tap sees what the subscriber delivers.
type tap struct {
	*subscriber.Subscriber
	p *process
}

func (s tap) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() { // ends with the subscription
		defer close(out)
		for msg := range in {
			if !s.p.deliver(msg) {
				msg.Nack()
				continue
			}
			select {
			case out <- msg:
			case <-s.p.over:
				msg.Nack()
			}
		}
	}()
	return out, nil
}

// deliver takes in that a message is delivered, and reports whether it is: to a process that
// lives.
func (p *process) deliver(msg *message.Message) bool {
	w, k := p.w, key(msg.Metadata)
	w.mu.Lock()
	w.all[k] = append(w.all[k], msg)
	if first := w.all[k][0]; first.UUID != msg.UUID {
		w.t.Errorf("%s had the UUID %s and has %s", k, first.UUID, msg.UUID)
	}
	for other, list := range w.all {
		if other != k && list[0].UUID == msg.UUID {
			w.t.Errorf("%s and %s have one UUID", k, other)
		}
	}
	w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return false
	}
	p.delivered = append(p.delivered, k)
	go func() { // ends at the latest when the process is stopped
		select {
		case <-msg.Acked():
			p.mu.Lock()
			dead := p.dead
			p.mu.Unlock()
			if !dead {
				p.acks <- k
			}
		case <-msg.Nacked():
		case <-p.over:
		}
	}()
	return true
}

// faultyStore is the dedup store, which outlives the process.
type faultyStore struct{ p *process }

func (s faultyStore) Reserve(ctx context.Context, c router.Claim, lease time.Duration) (router.Reservation, error) {
	return s.p.w.store.Reserve(ctx, c, lease)
}

// Release is what becomes of a reservation whose process is dead.
func (s faultyStore) Release(ctx context.Context, c router.Claim, token router.Token) error {
	return s.p.w.store.Release(ctx, c, token)
}

func (s faultyStore) Commit(ctx context.Context, c router.Claim, token router.Token, ttl time.Duration) error {
	s.p.mu.Lock()
	lose := s.p.fault.lose
	s.p.mu.Unlock()
	if s.p.reach(killCommit) || lose {
		_ = s.Release(ctx, c, token)
		return errKilled
	}
	err := s.p.w.store.Commit(ctx, c, token, ttl)
	if err == nil {
		s.p.reach(killAck)
	}
	return err
}

// faultySink loses acknowledgments, and is where the process is killed.
type faultySink struct {
	sinks.Sink
	p *process
}

func (s faultySink) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := s.publish(topic, m); err != nil {
			return err
		}
	}
	return nil
}

func (s faultySink) PublishAsync(topic string, m *message.Message) (*sinks.Publication, error) {
	s.p.mu.Lock()
	quiet := !s.p.dead && s.p.fault.kill == 0 && s.p.nacks == 0 && !strings.HasPrefix(string(m.Payload), refused)
	s.p.mu.Unlock()
	if quiet {
		return s.Sink.PublishAsync(topic, m)
	}
	publication := &sinks.Publication{}
	publication.Resolve(sinks.Receipt{}, s.publish(topic, m))
	return publication, nil
}

func (s faultySink) publish(topic string, m *message.Message) error {
	lost := sinks.NewError(s.Describe().Name, topic, sinks.ErrUnavailable, errKilled)
	if strings.HasPrefix(string(m.Payload), refused) {
		return sinks.NewError(s.Describe().Name, topic, sinks.ErrRejected, nil)
	}
	if s.p.reach(killBefore) {
		<-s.p.over
		return lost
	}
	if err := s.Sink.Publish(topic, m); err != nil {
		return err
	}
	if s.p.reach(killStored) {
		<-s.p.over
		return lost
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.nacks > 0 {
		s.p.nacks--
		return lost
	}
	return nil
}

// servers are the brokers that the programs share.
type servers struct {
	nats  *natstest.Server
	conn  *natsgo.Conn
	js    jetstream.JetStream
	kafka string // the address of a broker; empty without one
	admin *kadm.Client
	run   string // names this run in a broker that others use as well
	// shared is whether there are others.
	shared bool
}

func startServers(t *testing.T) *servers {
	s := &servers{nats: natstest.Start(t), run: strconv.FormatInt(time.Now().UnixNano(), 36)}
	s.conn = testkit.Must(natstest.Connect(s.nats.URL()))(t)
	t.Cleanup(s.conn.Close)
	s.js = testkit.Must(natstest.JetStream(s.conn))(t)
	return s
}

// jetstreamBackend is the stream of a program.
type jetstreamBackend struct {
	t      *testing.T
	s      *servers
	config nats.Config
	list   []*stored
	next   uint64
}

func (s *servers) stream(t *testing.T, name string) *jetstreamBackend {
	config := nats.Config{Connection: nats.Connection{URL: s.nats.URL()}, Stream: name, SubjectPrefix: name, Storage: jetstream.MemoryStorage, CloseTimeout: time.Second}
	t.Cleanup(func() { _ = s.js.DeleteStream(context.WithoutCancel(t.Context()), name) })
	return &jetstreamBackend{t: t, s: s, config: config, next: 1}
}

func (b *jetstreamBackend) sink() sinks.Sink {
	return testkit.Must(nats.New(b.config, nil))(b.t)
}

func (b *jetstreamBackend) queue() router.PoisonStore {
	_ = b.sink().Close() // makes the stream
	return testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: b.s.conn, Stream: b.config.Stream, SubjectPrefix: b.config.SubjectPrefix}))(b.t)
}

func (b *jetstreamBackend) read() []*stored {
	stream := testkit.Must(b.s.js.Stream(b.t.Context(), b.config.Stream))(b.t)
	for last := stream.CachedInfo().State.LastSeq; b.next <= last; b.next++ {
		raw, err := stream.GetMsg(b.t.Context(), b.next)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // a record that was deleted
		}
		if err != nil {
			b.t.Fatal(err)
		}
		topic := strings.TrimPrefix(raw.Subject, b.config.SubjectPrefix+".")
		if topic == router.DefaultPoisonTopic {
			continue
		}
		m := testkit.Must(nats.Marshaler{}.Unmarshal(&natsgo.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data}))(b.t)
		b.list = append(b.list, &stored{topic: topic, Message: m})
	}
	return b.list
}

// kafkaBackend is the topics of a program.
type kafkaBackend struct {
	t      *testing.T
	config kafka.Config
	topics []string
	client *kgo.Client
	list   []*stored
	ends   map[string]int64 // of the topics
	names  map[string]bool  // topic and name of what is stored
}

func (s *servers) topics(t *testing.T, name string) *kafkaBackend {
	b := &kafkaBackend{t: t, ends: map[string]int64{}, names: map[string]bool{}, config: kafka.Config{
		Connection: kafka.Connection{Brokers: []string{s.kafka}}, TopicPrefix: s.run + name, CloseTimeout: time.Second,
	}}
	starts := map[string]map[int32]kgo.Offset{}
	for _, topic := range []string{"out", "other"} {
		b.topics = append(b.topics, b.config.TopicPrefix+"."+topic)
		starts[b.topics[len(b.topics)-1]] = map[int32]kgo.Offset{0: kgo.NewOffset().AtStart()}
	}
	// A client remembers for seconds which topics do not exist.
	created, err := s.admin.CreateTopics(t.Context(), 1, 1, nil, b.topics...)
	if err == nil {
		err = created.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.shared {
			_, _ = s.admin.DeleteTopics(context.WithoutCancel(t.Context()), b.topics...)
		}
	})
	b.client = testkit.Must(kgo.NewClient(kgo.SeedBrokers(s.kafka), kgo.ConsumePartitions(starts)))(t)
	t.Cleanup(b.client.Close)
	return b
}

func (b *kafkaBackend) sink() sinks.Sink {
	return testkit.Must(kafka.New(b.config, nil))(b.t)
}

func (b *kafkaBackend) read() []*stored {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), testkit.Patience)
	defer cancel()
	left := int64(0)
	var listed kadm.ListedOffsets
	testkit.EventuallyNil(b.t, func() (err error) { // topics that were just created
		if listed, err = kadm.NewClient(b.client).ListEndOffsets(ctx, b.topics...); err != nil {
			return err
		}
		return listed.Error()
	})
	listed.Each(func(end kadm.ListedOffset) {
		left += end.Offset - b.ends[end.Topic]
		b.ends[end.Topic] = end.Offset
	})
	for left > 0 {
		fetches := b.client.PollFetches(ctx)
		testkit.NoError(b.t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			topic := strings.TrimPrefix(r.Topic, b.config.TopicPrefix+".")
			m := message.NewMessage("", r.Value)
			for _, h := range r.Headers {
				m.Metadata[h.Key] = string(h.Value)
			}
			name := topic + " " + m.Metadata[gateway.KeyDedupID]
			b.list = append(b.list, &stored{topic: topic, copy: b.names[name], Message: m})
			b.names[name] = true
		})
	}
	return b.list
}

// TestKafkaPrograms runs random programs through the gateway's emulator, the subscriber, the router and
// an in-process Kafka broker; their poison queue is in JetStream.
func TestKafkaPrograms(t *testing.T) {
	t.Parallel()
	runKafka(t, kafkatest.Start(t).Addr(), false)
}

func runKafka(t *testing.T, addr string, shared bool) {
	s := startServers(t)
	client := testkit.Must(kgo.NewClient(kgo.SeedBrokers(addr)))(t)
	t.Cleanup(client.Close)
	s.kafka, s.admin, s.shared = addr, kadm.NewClient(client), shared
	runReal(t, "kafka", *kafkaPrograms, func(m *mill, name string) world {
		b := s.stream(m.t, name)
		return newReal(m, s.topics(m.t, name), b.sink, b.queue())
	})
}

// TestJetStreamPrograms runs random programs through the gateway's emulator, the subscriber,
// the router and a NATS server.
func TestJetStreamPrograms(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	runReal(t, "jetstream", *jetstreamPrograms, func(m *mill, name string) world {
		b := s.stream(m.t, name)
		return newReal(m, b, b.sink, b.queue())
	})
}

// runReal runs programs, several at a time.
func runReal(t *testing.T, flag string, n int, in func(m *mill, name string) world) {
	for i := range n {
		name := strconv.FormatUint(*seed+uint64(i), 10)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("run it alone with -seed %s -%s 1", name, flag)
				}
			})
			run(t, *seed+uint64(i), func(m *mill) world { return in(m, "p"+name) }).finish()
		})
	}
}
