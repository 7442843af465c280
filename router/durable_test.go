package router_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/subscriber"
)

// syncingSink is a sink whose broker syncs when sync is called, and loses what it had not when cut is.
type syncingSink struct {
	*memorySink
	mu     sync.Mutex
	synced sinks.Synced
	until  time.Time // what was stored before is on disk
	cuts   []time.Time
}

func newSyncingSink() *syncingSink {
	return &syncingSink{memorySink: newSink(nil), synced: sinks.Synced(time.Millisecond)}
}

func (s *syncingSink) Describe() sinks.Description {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sinks.Description{Name: s.name, Synced: s.synced}
}

func (s *syncingSink) say(synced sinks.Synced) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = synced
}

func (s *syncingSink) Survives(began, acked time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cut := range s.cuts {
		if began.Before(cut) && acked.After(s.until) {
			return false, sinks.ErrPossiblyLost
		}
	}
	return acked.Before(s.until), nil
}

func (s *syncingSink) sync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now()
}

func (s *syncingSink) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts = append(s.cuts, time.Now())
}

// commits counts those of a store.
type commits struct {
	router.DedupStore
	n atomic.Int64
}

func (c *commits) Commit(ctx context.Context, claim router.Claim, token router.Token, ttl time.Duration) error {
	c.n.Add(1)
	return c.DedupStore.Commit(ctx, claim, token, ttl)
}

const typeSynced = "app:test:json"

func newSyncedServer(t *testing.T) *gatewaytest.Server {
	server := gatewaytest.New(t, gatewaytest.Config{})
	server.AddEndpoint(gatewaytest.EndpointConfig{Name: "receiver", Receive: []string{typeSynced}, Subscribe: []string{typeSynced}})
	return server
}

func sendSynced(t *testing.T, server *gatewaytest.Server, n int) {
	t.Helper()
	sender := server.AddEndpoint(gatewaytest.EndpointConfig{Name: "sender", Send: []string{typeSynced}})
	for i := range n {
		testkit.Must(server.Send(gatewaytest.SendRequest{From: sender.ID, MessageType: typeSynced, Payload: []byte{byte(i)}}))(t)
	}
}

// What is acknowledged is confirmed once the broker has synced it; what a cut may have taken away is stored again, and not taken
// for a copy, by the same process and by the next one. What is synced is recorded, to recognize copies.
func TestConfirmedOnceSynced(t *testing.T) {
	t.Parallel()
	const n = 10
	server := newSyncedServer(t)
	to, poison, store := newSyncingSink(), newSyncingSink(), &commits{DedupStore: newStore(t, 0)}
	run := func() *running {
		sub, _ := subscribeTo(t, server, subscriber.Config{})
		return start(t, router.Config{Poison: poison, Retry: fastRetry, Dedup: router.DedupSettings{Store: store}}, router.Route{
			Name: "farm", From: sub, Topic: subscriber.AllData, To: to, Durable: router.DurableSynced,
			Transform: func(msg *message.Message) ([]*message.Message, error) {
				if msg.Payload[0] == 0 {
					return nil, router.Permanent(errors.New("poison"))
				}
				return []*message.Message{msg}, nil
			},
		})
	}
	stored := func(want int) {
		t.Helper()
		testkit.Eventually(t, "all are stored", func() bool { return len(to.all())+len(poison.all()) >= want })
		if got := server.Stats(gatewaytest.OpConfirm).Requests; got != 0 {
			t.Errorf("%d requests confirm what is not synced", got)
		}
	}
	r := run()
	sendSynced(t, server, n)
	stored(n)
	testkit.NoError(t, r.stop())
	stored(n)
	run()
	stored(2 * n)
	to.cut()
	poison.cut()
	stored(3 * n)
	if got := store.n.Load(); got != 0 {
		t.Errorf("%d are recorded before they are synced", got)
	}
	to.sync()
	poison.sync()
	testkit.Eventually(t, "all are confirmed", func() bool { return confirmedAll(server) })
	if got := len(to.all()) + len(poison.all()); got != 3*n {
		t.Errorf("%d were stored, want %d", got, 3*n)
	}
	testkit.Eventually(t, "all are recorded", func() bool { return store.n.Load() >= n-1 })
}

// Nobody has said when what the sink acknowledges is synced: messages wait.
func TestUnknownSyncIsAnOutage(t *testing.T) {
	t.Parallel()
	server := newSyncedServer(t)
	to := newSyncingSink()
	to.say(sinks.SyncedUnknown)
	sub, _ := subscribeTo(t, server, subscriber.Config{})
	r := start(t, router.Config{Poison: newSyncingSink(), Retry: fastRetry}, router.Route{
		Name: "farm", From: sub, Topic: subscriber.AllData, To: to, Durable: router.DurableSynced,
	})
	sendSynced(t, server, 1)
	testkit.Eventually(t, "it is an outage", func() bool { return r.Health()[0].State == router.StateOutage })
	to.wantStored(t, 0)
	to.say(sinks.SyncedReplicas)
	poisonKnown := func() bool { return len(to.all()) == 1 }
	testkit.Eventually(t, "it is stored", poisonKnown)
}

// A sink that was given an interval and cannot say more does not say that nobody gave it one.
func TestIntervalAlone(t *testing.T) {
	t.Parallel()
	server, log := newSyncedServer(t), testkit.NewLog()
	sub, _ := subscribeTo(t, server, subscriber.Config{})
	to := sinks.FromPublisher("own", gochannel.NewGoChannel(gochannel.Config{}, nil), sinks.PublisherConfig{Description: sinks.Description{Synced: sinks.Synced(time.Minute)}})
	r := testkit.Must(router.New(router.Config{Poison: newSyncingSink(), Retry: fastRetry}, log))(t)
	testkit.NoError(t, r.Add(router.Route{Name: "farm", From: sub, Topic: subscriber.AllData, To: to, Durable: router.DurableSynced}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	sendSynced(t, server, 1)
	testkit.Eventually(t, "it is an outage", func() bool { return strings.Contains(log.String(), "no way to find out whether that ran on") })
	stop()
	testkit.NoError(t, <-ended)
}

// A source whose ack is final cannot wait: nothing is stored that a power cut might take away.
func TestSourceThatCannotHoldIsAnOutage(t *testing.T) {
	t.Parallel()
	to, source := newSyncingSink(), &patient{source: newSource()}
	r := start(t, router.Config{Poison: newSyncingSink(), Retry: fastRetry}, router.Route{
		Name: "farm", From: source, Topic: "t", To: to, Durable: router.DurableSynced,
	})
	msg := farmMessage("1", "endpoint", "c", "p")
	msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: &msgctx.Nack{}}))
	source.messages <- msg
	testkit.Eventually(t, "it is an outage", func() bool { return r.Health()[0].State == router.StateOutage })
	to.wantStored(t, 0)
}

// The sink says something else after the message is recorded, or left to be recorded, and before it is acked: the message
// waits, and is recorded later, or neither.
func TestSyncIsAskedOnce(t *testing.T) {
	for name, says := range map[string][2]sinks.Synced{
		"no longer at once": {sinks.SyncedReplicas, sinks.Synced(time.Hour)},
		"now at once":       {sinks.Synced(time.Hour), sinks.SyncedReplicas},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				to, poison, source, store := newSyncingSink(), newSyncingSink(), newSource(), &commits{DedupStore: newStore(t, 0)}
				to.say(says[0])
				poison.say(sinks.SyncedReplicas)
				start(t, router.Config{Poison: poison, Dedup: router.DedupSettings{Store: store}, Middleware: []message.HandlerMiddleware{
					func(h message.HandlerFunc) message.HandlerFunc {
						return func(msg *message.Message) ([]*message.Message, error) {
							out, err := h(msg)
							to.say(says[1])
							time.Sleep(time.Second)
							return out, err
						}
					},
				}}, router.Route{Name: "farm", From: source, Topic: "t", To: to, Durable: router.DurableSynced})
				msg, nack := farmMessage("1", "endpoint", "c", "p"), &msgctx.Nack{Holds: true}
				msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: nack}))
				source.messages <- msg
				<-msg.Acked()
				recorded, held := store.n.Load() == 1, nack.Held()
				if recorded == (held != nil) {
					t.Errorf("recorded: %t, waits: %t; want one of the two", recorded, held != nil)
				}
				if held != nil && len(held.Records) != 1 {
					t.Errorf("%d are to be recorded, want 1", len(held.Records))
				}
			})
		})
	}
}

func TestDurableIsRefused(t *testing.T) {
	for name, change := range map[string]func(*router.Config, *router.Route){
		"poison queue": func(c *router.Config, _ *router.Route) { c.Poison = struct{ message.Publisher }{newSink(nil)} },
		"no sink": func(_ *router.Config, r *router.Route) {
			r.To, r.Transform = nil, func(*message.Message) ([]*message.Message, error) { return nil, nil }
		},
		"no constant": func(_ *router.Config, r *router.Route) { r.Durable = 7 },
	} {
		config := router.Config{Poison: newSyncingSink()}
		route := router.Route{Name: "r", From: newSource(), Topic: "t", To: newSyncingSink(), Durable: router.DurableSynced}
		change(&config, &route)
		r := testkit.Must(router.New(config, nil))(t)
		if err := r.Add(route); !errors.Is(err, router.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func confirmedAll(server *gatewaytest.Server) bool {
	for _, e := range server.Ledger() {
		if !e.Confirmed() {
			return false
		}
	}
	return true
}

// What survives a power cut is recorded then, and not only with the messages after it: a repetition may be the next one.
func TestWhatHasSurvivedIsRecorded(t *testing.T) {
	const n = 100
	synctest.Test(t, func(t *testing.T) {
		to, source := newSyncingSink(), newSource()
		r := start(t, router.Config{Poison: newSyncingSink()}, router.Route{
			Name: "farm", From: source, Topic: "t", To: to, Durable: router.DurableSynced,
		})
		deliver := func(id, contextID string) *msgctx.Hold {
			msg, nack := farmMessage(id, "endpoint", contextID, "p"), &msgctx.Nack{Holds: true}
			msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: nack}))
			source.messages <- msg
			wantAck(t, msg)
			return nack.Held()
		}
		var held [n]*msgctx.Hold
		for i := range n {
			held[i] = deliver(strconv.Itoa(i), strconv.Itoa(i))
		}
		for _, hold := range held {
			for _, record := range hold.Records {
				record.Into.Record(record.Keys)
			}
		}
		synctest.Wait()
		for i := range n {
			if hold := deliver("repeated "+strconv.Itoa(i), strconv.Itoa(i)); hold != nil {
				t.Fatalf("message %d is stored again when its sender repeats it", i)
			}
		}
		if got := r.Health()[0].Duplicates; got != n {
			t.Errorf("%d duplicates, want %d", got, n)
		}
		to.wantStored(t, n)
	})
}

// The subscriber and the store go on when the Router has ended, as after a reload: what is found to have survived only then is recorded,
// too, unless the Router has closed the store.
func TestWhatSurvivesAfterTheEndIsRecorded(t *testing.T) {
	for name, closes := range map[string]bool{"store goes on": false, "store is closed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source, store := newSource(), &commits{DedupStore: newStore(t, 0)}
				settings := router.DedupSettings{Store: store}
				if closes {
					settings.Store = struct {
						router.DedupStore
						io.Closer
					}{store, io.NopCloser(nil)}
				}
				r := start(t, router.Config{Poison: newSyncingSink(), Dedup: settings}, router.Route{
					Name: "farm", From: source, Topic: "t", To: newSyncingSink(), Durable: router.DurableSynced,
				})
				msg, nack := farmMessage("1", "endpoint", "c", "p"), &msgctx.Nack{Holds: true}
				msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: nack}))
				source.deliver(t, msg)
				r.wantStop(t)
				for _, record := range nack.Held().Records {
					record.Into.Record(record.Keys)
				}
				synctest.Wait()
				if recorded := store.n.Load() == 1; recorded == closes {
					t.Errorf("recorded: %t, want %t", recorded, !closes)
				}
			})
		})
	}
}
