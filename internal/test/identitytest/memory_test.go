package identitytest

import (
	"bytes"
	"context"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/publisher"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// broker is a sink that stores each ID once in a topic, for ever.
type broker struct {
	mu     sync.Mutex
	ids    map[string]bool
	stored map[string][]*message.Message // by topic
	next   int
	nacks  int           // so many acks are lost
	hang   chan struct{} // closed when a publish hangs after it has stored the message; nil: none is to hang
	reject string        // payloads with this prefix are refused
}

func (b *broker) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := m.Context().Err(); err != nil {
			return err
		}
		b.mu.Lock()
		id := m.Metadata[gateway.KeyDedupID]
		switch {
		case b.reject != "" && strings.HasPrefix(string(m.Payload), b.reject):
			b.mu.Unlock()
			return sinks.NewError("broker", topic, sinks.ErrRejected, nil)
		case id == "" || !b.ids[topic+" "+id]:
			b.ids[topic+" "+id] = true
			kept := m.Copy()
			b.next++
			kept.Metadata["place"] = strconv.Itoa(b.next)
			b.stored[topic] = append(b.stored[topic], kept)
		}
		hang := b.hang
		b.hang = nil
		lost := b.nacks > 0
		b.nacks -= min(b.nacks, 1)
		b.mu.Unlock()
		if hang != nil {
			close(hang)
			<-m.Context().Done()
			return m.Context().Err()
		}
		if lost {
			return sinks.NewError("broker", topic, sinks.ErrUnavailable, nil)
		}
	}
	return nil
}

func (b *broker) PublishAsync(topic string, m *message.Message) (*sinks.Publication, error) {
	p := &sinks.Publication{}
	p.Resolve(sinks.Receipt{}, b.Publish(topic, m))
	return p, nil
}
func (b *broker) Describe() sinks.Description { return sinks.Description{Name: "broker"} }
func (*broker) CheckTopic(string) error       { return nil }

func (b *broker) TopicSegment(value string) string   { return sinks.DefaultSegments.Escape(value) }
func (b *broker) Health(context.Context) error       { return nil }
func (b *broker) Close() error                       { return nil }
func (b *broker) in(topic string) []*message.Message { return slices.Clone(b.stored[topic]) }

// brokerQueue is the poison queue in the broker.
type brokerQueue struct{ *broker }

func (q brokerQueue) Messages(context.Context) iter.Seq2[router.Poisoned, error] {
	return func(yield func(router.Poisoned, error) bool) {
		for _, m := range q.in("poison") {
			if !yield(q.poisoned(m), nil) {
				return
			}
		}
	}
}

func (q brokerQueue) poisoned(m *message.Message) router.Poisoned {
	p, _ := router.ParsePoisoned(m.Copy())
	p.ID = m.Metadata["place"]
	return p
}

func (q brokerQueue) Get(_ context.Context, id string) (router.Poisoned, error) {
	for _, m := range q.in("poison") {
		if m.Metadata["place"] == id {
			return q.poisoned(m), nil
		}
	}
	return router.Poisoned{}, router.ErrNotInQueue
}

func (q brokerQueue) Delete(_ context.Context, id string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stored["poison"] = slices.DeleteFunc(q.stored["poison"], func(m *message.Message) bool { return m.Metadata["place"] == id })
	return nil
}

// lossyStore is the dedup store, which outlives the process, and may miss a commit.
type lossyStore struct {
	router.DedupStore
	lose bool
}

func (s *lossyStore) Commit(ctx context.Context, c router.Claim, token router.Token, ttl time.Duration) error {
	if s.lose {
		_ = s.Release(ctx, c, token)
		return errKilled
	}
	return s.DedupStore.Commit(ctx, c, token, ttl)
}

// source delivers what it is given.
type source struct{ messages chan *message.Message }

func (s source) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			select {
			case m := <-s.messages:
				out <- m
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
func (source) Close() error { return nil }

// memory is a world of stand-ins: each delivery is one that the program asks for.
type memory struct {
	*mill
	store  *lossyStore
	broker *broker
	fault  fault
	sent   []*sent
	// outbound is the sink instead of the broker if the route leads to the gateway.
	outbound *outbound

	from source
	r    *router.Router
	end  func()
}

func newMemory(m *mill) *memory {
	store := testkit.Must(router.NewMemoryStore(router.MemoryStoreConfig{}))(m.t)
	b := &broker{ids: map[string]bool{}, stored: map[string][]*message.Message{}, reject: refused}
	m.queue = &queue{PoisonStore: brokerQueue{b}}
	w := &memory{mill: m, store: &lossyStore{DedupStore: store}, broker: b}
	if m.sends = m.rand.IntN(3) == 0; m.sends {
		w.outbound = &outbound{memory: w, payloads: map[string]string{}, times: map[string]time.Time{}}
	}
	return w
}

func (w *memory) running() bool { return w.r != nil }

func (w *memory) start() []string {
	w.from = source{make(chan *message.Message)}
	r := testkit.Must(router.New(router.Config{
		Poison: w.broker, Retry: router.RetrySettings{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Dedup: router.DedupSettings{Store: struct{ router.DedupStore }{w.store}, NeverChunkBelow: partSize, TTL: 1000 * time.Hour},
	}, nil))(w.t)
	to, closeSink := sinks.Sink(w.broker), w.broker.Close
	if w.outbound != nil {
		p := testkit.Must(publisher.New(publisher.Config{Client: w.outbound}, nil))(w.t)
		to, closeSink = p, p.Close
	}
	testkit.NoError(w.t, r.Add(w.route(w.from, to)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		_ = r.Run(ctx)
	}()
	<-r.Running()
	w.r, w.end = r, func() { cancel(); <-done; _ = closeSink() }
	return nil
}

func (w *memory) stop() {
	if w.r != nil {
		w.end()
		w.r = nil
	}
}

func (w *memory) router() *router.Router { return w.r }
func (w *memory) loseAcks(n int)         { w.broker.nacks = n }

func (w *memory) arm(f fault) {
	w.fault = f
	if w.outbound != nil {
		w.outbound.calls++
	}
}

func (w *memory) again(*sent) {}

// send gives the messages their IDs, which are those of an endpoint.
func (w *memory) send(group []*sent, _ bool) []*sent {
	for _, s := range group {
		s.id = strconv.Itoa(len(w.sent) + 1)
		if w.rand.IntN(8) == 0 && len(w.sent) > 0 {
			id := w.sent[len(w.sent)-1].id
			if !slices.ContainsFunc(w.sent, func(other *sent) bool { return other.id == id && other.endpoint == s.endpoint }) {
				s.id = id
			}
		}
		w.sent = append(w.sent, s)
	}
	return group
}

func (w *memory) await(group []*sent) (outcomes []outcome) {
	w.store.lose = w.fault.lose
	for _, s := range group {
		if w.deliver(s, w.fault.kill != 0) {
			outcomes = append(outcomes, acked)
		} else {
			outcomes = append(outcomes, notAcked)
		}
	}
	w.store.lose = false
	if w.fault.kill != 0 {
		w.stop()
	}
	return outcomes
}

func (w *memory) out() (out []*stored) {
	for _, topic := range slices.Sorted(maps.Keys(w.broker.stored)) {
		if topic == router.DefaultPoisonTopic {
			continue
		}
		for _, m := range w.broker.in(topic) {
			out = append(out, &stored{topic: topic, Message: m})
		}
	}
	if w.outbound != nil {
		return w.outbound.receive(out)
	}
	return out
}

// deliver delivers a message once, and reports whether it was acked.
func (w *memory) deliver(s *sent, kill bool) bool {
	if w.outbound != nil {
		w.outbound.calls++
	}
	msg := message.NewMessage(s.endpoint+" "+s.id, bytes.Clone(s.payload))
	for key, value := range map[string]string{
		gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyMessageID: s.id,
		gateway.KeyReceivingEndpointID: s.endpoint, gateway.KeyContextID: s.context,
		gateway.KeyMessageType: s.kind, gateway.KeyFilename: s.filename,
	} {
		msg.Metadata[key] = value
	}
	base := context.Background()
	if s.place != "" {
		base = msgctx.With(base, msgctx.Value{Delivery: s.place})
		msg.SetContext(base)
	}
	if !kill {
		w.from.messages <- msg
		select {
		case <-msg.Acked():
			return true
		case <-msg.Nacked():
			return false
		}
	}
	hang := make(chan struct{})
	w.broker.hang = hang
	ctx, cancel := context.WithCancel(base)
	defer cancel()
	msg.SetContext(ctx)
	w.from.messages <- msg
	defer func() { w.broker.hang = nil }()
	select {
	case <-hang:
		cancel()
		<-msg.Nacked()
		return false
	case <-msg.Acked(): // it did not come to the sink
		return true
	}
}
