//go:build faults

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
	"github.com/agrimill/agrimill/subscriber"
)

// refusingSink takes no messages of the sick tenant during a fault. It refuses them at once,
// or when it has not answered for some time.
type refusingSink struct {
	sinks.Sink
	w     *partialWorld
	after time.Duration
	hangs bool // it does not answer before the fault ends
	all   bool // whoever they are of
}

func (s *refusingSink) Publish(topic string, messages ...*message.Message) error {
	fault := s.w.faultNow()
	if len(messages) == 0 || !s.w.hit(fault != nil && (s.all || s.w.isSick(messages[0]))) {
		return s.Sink.Publish(topic, messages...)
	}
	switch {
	case s.hangs:
		<-fault
	case s.after > 0:
		<-time.After(s.after)
	}
	return s.refusal(topic)
}

// PublishAsync gives what it refuses later a place first.
func (s *refusingSink) PublishAsync(topic string, msg *message.Message) (*sinks.Publication, error) {
	fault := s.w.faultNow()
	if !s.w.hit(fault != nil && (s.all || s.w.isSick(msg))) {
		return s.Sink.PublishAsync(topic, msg)
	}
	if !s.hangs && s.after == 0 {
		return nil, s.refusal(topic)
	}
	p := &sinks.Publication{}
	go func() { // ends with the fault
		if s.hangs {
			<-fault
		} else {
			<-time.After(s.after)
		}
		p.Resolve(sinks.Receipt{}, s.refusal(topic))
	}()
	return p, nil
}

func (s *refusingSink) refusal(topic string) error {
	return sinks.NewError("broker", topic, sinks.ErrUnavailable, errors.New("refused by the test"))
}

// topicOfTenant gives each tenant a topic, which the sink refuses that is the sick one's.
func topicOfTenant(after time.Duration) func(*partialWorld, *parts) {
	return func(w *partialWorld, p *parts) {
		p.Route.ToTopic = dataTopic + ".{tenant}"
		watch := p.Sink
		p.Sink = func(s sinks.Sink) sinks.Sink { return watch(&refusingSink{Sink: s, w: w, after: after}) }
	}
}

// hangingTopic gives each tenant a topic, and the sink hangs on the sick one's.
func hangingTopic(w *partialWorld, p *parts) {
	p.Route.ToTopic = dataTopic + ".{tenant}"
	watch := p.Sink
	p.Sink = func(s sinks.Sink) sinks.Sink { return watch(&refusingSink{Sink: s, w: w, hangs: true}) }
}

// twoRoutes gives the sick tenant a route of its own. Both routes get everything and drop
// what is the other one's.
func twoRoutes(w *partialWorld, p *parts) {
	p.Route.Filter = func(msg *message.Message) (bool, error) { return !w.isSick(msg), nil }
	p.More = func(from message.Subscriber, to sinks.Sink) []router.Route {
		second := p.Route
		second.Name = "sick"
		second.Filter = func(msg *message.Message) (bool, error) { return w.isSick(msg), nil }
		second.From, second.To = from, &refusingSink{Sink: to, w: w, all: true}
		return []router.Route{second}
	}
}

// byMessage lets every message be a key.
func byMessage(p *parts) {
	p.Subscriber.Order = subscriber.OrderByKey
	p.Subscriber.OrderKey = func(event gateway.Event) string {
		if e, ok := event.(*gateway.MessageReceived); ok {
			return e.ID
		}
		return ""
	}
}

// manyKeys lets every message be a key, and fails those of the sick tenant: every other one
// as long as the fault lasts, the rest once.
func manyKeys(w *partialWorld, p *parts) {
	byMessage(p)
	var failed sync.Map
	p.Route.Transform = func(msg *message.Message) ([]*message.Message, error) {
		id := msg.Metadata[gateway.KeyMessageID]
		if w.faultNow() != nil && w.isSick(msg) && id != "" {
			if id[len(id)-1]%2 == 0 {
				w.hit(true)
				return nil, router.Outage(errors.New("as long as the fault lasts"))
			}
			if _, again := failed.LoadOrStore(id, true); w.hit(!again) {
				return nil, errors.New("once")
			}
		}
		return []*message.Message{msg}, nil
	}
}

// peer is another process that has the store in common with the pipeline. During a fault it has
// reserved what is the sick tenant's, and when the fault ends, it is dead.
type peer struct {
	w     *partialWorld
	store *kvstore.Store
	conn  *natsgo.Conn
	owner router.Owner

	mu   sync.Mutex
	dead bool
	held map[router.Key]bool
}

// startPeer connects a peer.
func startPeer(w *partialWorld, name string) *peer {
	w.Helper()
	p := &peer{w: w, owner: router.Owner{Instance: name, Session: name}, held: map[router.Key]bool{}}
	var err error
	if p.store, p.conn, err = w.kvStore(); err != nil {
		w.Fatal(err)
	}
	return p
}

// kvStore returns a store in the world's broker, with a connection of its own.
func (w *partialWorld) kvStore() (*kvstore.Store, *natsgo.Conn, error) {
	conn, err := natsgo.Connect(w.broker.(*natsBroker).Server.URL())
	if err != nil {
		return nil, nil, err
	}
	w.Cleanup(conn.Close)
	store, err := kvstore.New(w.Context(), kvstore.Config{Conn: conn, SessionTTL: 2 * time.Second})
	if err == nil {
		w.Cleanup(func() { _ = store.Close() })
	}
	return store, conn, err
}

// reserve reserves the key, unless the peer is dead or somebody else has it.
func (p *peer) reserve(ctx context.Context, key router.Key) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead || p.w.hit(p.held[key]) {
		return nil
	}
	claim := router.Claim{Keys: router.Keys{Delivery: key}, Owner: p.owner}
	got, err := p.store.Reserve(ctx, claim, time.Hour)
	if err == nil {
		p.held[key] = got.State == router.Reserved
	}
	return err
}

// die ends the peer's connection first, so that its session is not ended but expires.
func (p *peer) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	p.conn.Close()
}

// sharedStore gives the pipeline a store in NATS, and a fault a peer that has reserved what comes
// for the sick tenant.
func sharedStore(w *partialWorld, p *parts) {
	store, _, err := w.kvStore()
	if err != nil {
		w.Fatal(err)
	}
	keyFunc := testkit.Must(router.NewKeyFunc(router.KeysConfig{}))(w)
	p.Router.Dedup.Store, p.Router.Dedup.Owner = store, router.Owner{Instance: "field"}
	p.Router.Dedup.KeyFunc = func(scope string, msg *message.Message) (router.Keys, error) {
		keys, err := keyFunc(scope, msg)
		if other := w.peer.Load(); other != nil && err == nil && w.isSick(msg) {
			err = other.reserve(msg.Context(), keys.Delivery)
		}
		return keys, err
	}
}

// peerHolds begins a fault of sharedStore: a peer has reserved the messages of the sick tenant.
func peerHolds(w *partialWorld) func() {
	other := startPeer(w, fmt.Sprint("barn ", w.peers.Add(1)))
	w.peer.Store(other)
	return func() { w.peer.Store(nil); other.die() }
}

// bucketVanishes takes the pipeline's bucket away again and again.
func bucketVanishes(w *partialWorld) func() {
	conn := testkit.Must(natsgo.Connect(w.broker.(*natsBroker).Server.URL()))(w)
	js := testkit.Must(jetstream.New(conn))(w)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with the fault
		defer close(done)
		defer conn.Close()
		for {
			w.hit(js.DeleteKeyValue(w.Context(), kvstore.DefaultBucket) == nil)
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return func() { close(stop); <-done }
}

// routerRows are the partial faults of routes and their sinks.
func routerRows() []partialRow {
	return []partialRow{
		{name: "P16 the sink refuses one tenant's topic", change: topicOfTenant(0)},
		{name: "P17 the sink does not answer for one tenant's topic", change: topicOfTenant(brokerTimeout)},
		{name: "P18 the sink of one of two routes is down", change: twoRoutes},
		{name: "P19 1,000 keys have one failing message each", change: manyKeys, sick: 4, atLeast: 1000},
		{name: "P20 a process that dies has reserved one tenant's messages", change: sharedStore, strike: peerHolds},
	}
}
