package poisonqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	_ "gocloud.dev/blob/memblob"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/router/poisonstoretest"
	"github.com/agrimill/agrimill/sinks/claimcheck"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/poisonqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The suite of all poison queues.
func TestStore(t *testing.T) {
	poisonstoretest.Run(t, poisonstoretest.Suite{Counts: true, Outages: true, New: func(t *testing.T) poisonstoretest.Queue {
		server := natstest.Start(t)
		sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}}, nil))(t)
		t.Cleanup(func() { _ = sink.Close() })
		open := func(t *testing.T) router.PoisonStore {
			t.Helper()
			return testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: sink.Conn(), Timeout: 5 * time.Second}))(t)
		}
		return poisonstoretest.Queue{
			Store: open(t), Sink: sink, Topic: router.DefaultPoisonTopic, Peer: open, Break: server.Stop, Repair: func() { server.Restart() },
		}
	}})
}

// What two delete at once is gone for the one that comes second, as for one that comes later: two replays at once
// are then done with it.
func TestTwoDeleteAtOnce(t *testing.T) {
	b := newBench(t, router.Config{})
	for i := range 100 {
		b.send(fmt.Sprint(i))
	}
	for _, p := range b.list() {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				if err := b.queue.Delete(t.Context(), p.ID); err != nil && !errors.Is(err, router.ErrNotInQueue) {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	b.assertQueue()
}

// bench is a router from a channel into NATS, whose handler works when fixed is
// set, and the poison queue beside it.
type bench struct {
	*testing.T
	server *natstest.Server
	in     *gochannel.GoChannel
	sink   *nats.Sink
	router *router.Router
	queue  *poisonqueue.Queue
	fixed  atomic.Bool
	nested func()              // called by the handler, may be nil
	broken message.HandlerFunc // the handler until fixed is set; nil fails
}

func newBench(t *testing.T, config router.Config) *bench {
	t.Helper()
	b := &bench{T: t, server: natstest.Start(t), in: gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)}
	b.sink = testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: b.server.URL()}}, nil))(t)
	config.Poison = b.sink
	b.router = testkit.Must(router.New(config, watermill.NewSlogLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: watermill.LevelTrace})))))(t)
	testkit.NoError(t, b.router.Add(router.Route{Name: "farm", From: b.in, Topic: "in", To: b.sink, Transform: func(msg *message.Message) ([]*message.Message, error) {
		if b.nested != nil {
			b.nested()
		}
		if !b.fixed.Load() {
			if b.broken != nil {
				return b.broken(msg)
			}
			return nil, router.Permanent(errors.New("cannot decode"))
		}
		return []*message.Message{msg}, nil
	}}))
	b.queue = testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: b.sink.Conn()}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.router.Run(ctx) }()
	<-b.router.Running()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return b
}

// send has messages handled, which is over when it returns.
func (b *bench) send(payloads ...string) {
	b.Helper()
	for _, payload := range payloads {
		msg := message.NewMessage("uuid "+payload[:min(len(payload), 8)], []byte(payload))
		msg.Metadata[gateway.KeyEventType] = string(gateway.EventMessageReceived)
		msg.Metadata[gateway.KeyReceivingEndpointID] = "endpoint"
		msg.Metadata[gateway.KeyContextID] = "context"
		msg.Metadata[gateway.KeyMessageType] = "iso:11783:-10:taskdata:zip"
		msg.Metadata[gateway.KeyTenantID] = "tenant"
		testkit.NoError(b, b.in.Publish("in", msg))
	}
}

func (b *bench) list() []router.Poisoned {
	b.Helper()
	var list []router.Poisoned
	for p, err := range b.queue.Messages(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func (b *bench) assertQueue(want ...string) []router.Poisoned {
	b.Helper()
	var got []string
	list := b.list()
	for _, p := range list {
		got = append(got, string(p.Message.Payload))
	}
	if !slices.Equal(got, want) {
		b.Errorf("in the queue: %q, want %q", got, want)
	}
	return list
}

// stored returns what is stored outside of the poison queue.
func (b *bench) stored() []*message.Message {
	b.Helper()
	q := testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: b.sink.Conn(), Topic: "tenant.iso:11783:-10:taskdata:zip"}))(b)
	var out []*message.Message
	for p, err := range q.Messages(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		out = append(out, p.Message)
	}
	return out
}

func (b *bench) replay(selection router.PoisonSelection, want router.ReplayReport) {
	b.Helper()
	got, err := b.router.Replay(b.Context(), b.queue, selection)
	if reason := got.Reason; (reason != "") != (got.Poisoned > 0) {
		b.Errorf("%d poisoned again, reason %q", got.Poisoned, reason)
	}
	got.Reason = ""
	if err != nil || got != want {
		b.Errorf("replay: %+v, %v; want %+v", got, err, want)
	}
}

// A sender's repetition that was poisoned, too, is a record of its own, and replayed like one.
func TestEqualRecordsAreBothReplayed(t *testing.T) {
	b := newBench(t, router.Config{})
	for _, id := range []string{"1", "2"} {
		testkit.NoError(t, b.in.Publish("in", farmMessage(id, "the same")))
	}
	b.assertQueue("the same", "the same")
	b.fixed.Store(true)
	b.replay(router.PoisonSelection{All: true}, router.ReplayReport{Sent: 2})
	b.assertQueue()
	if n := len(b.stored()); n != 2 {
		t.Errorf("%d messages stored, want 2", n)
	}
}

// farmMessage is a message with a delivery key.
func farmMessage(id, payload string) *message.Message {
	msg := message.NewMessage(id, []byte(payload))
	msg.Metadata[gateway.KeyEventType] = string(gateway.EventMessageReceived)
	msg.Metadata[gateway.KeyReceivingEndpointID] = "endpoint"
	msg.Metadata[gateway.KeyContextID] = "context"
	msg.Metadata[gateway.KeyMessageType] = "iso:11783:-10:taskdata:zip"
	msg.Metadata[gateway.KeyTenantID] = "tenant"
	msg.Metadata[gateway.KeyMessageID] = id
	return msg
}

// What a repaired handler makes of a record is stored, although the stream has something of the
// same message from before.
func TestReplayAfterARepairedTransform(t *testing.T) {
	b := newBench(t, router.Config{})
	b.broken = func(msg *message.Message) ([]*message.Message, error) {
		header, hopeless := msg.Copy(), msg.Copy()
		header.Payload, hopeless.Payload = []byte("header"), make([]byte, 2<<20) // above the server's limit
		return []*message.Message{header, hopeless}, nil
	}
	testkit.NoError(t, b.in.Publish("in", farmMessage("1", "whole")))
	b.assertQueue("whole")
	b.fixed.Store(true)
	b.replay(router.PoisonSelection{All: true}, router.ReplayReport{Sent: 1})
	b.assertQueue()
	var stored []string
	for _, msg := range b.stored() {
		stored = append(stored, string(msg.Payload))
	}
	if !slices.Equal(stored, []string{"header", "whole"}) {
		t.Errorf("stored %q", stored)
	}
}

// What was dropped and comes again as another message is a record again.
func TestPoisonedAgainAfterItWasDropped(t *testing.T) {
	b := newBench(t, router.Config{})
	for _, msg := range []*message.Message{farmMessage("1", "the same"), farmMessage("2", "the same")} {
		testkit.NoError(t, b.in.Publish("in", msg))
		b.assertQueue("the same")
		if n, err := router.DeletePoisoned(t.Context(), b.queue, router.PoisonSelection{All: true}); n != 1 || err != nil {
			t.Fatalf("deleted %d, %v", n, err)
		}
	}
	b.send("without an ID") // and one without an ID is never a copy
	b.send("without an ID")
	b.assertQueue("without an ID", "without an ID")
}

// A record whose payload is in the claim check is whole again when it arrives.
func TestLargeMessage(t *testing.T) {
	store := testkit.Must(claimcheck.New(t.Context(), claimcheck.Config{URL: "mem://"}))(t)
	t.Cleanup(func() { _ = store.Close() })
	b := newBench(t, router.Config{ClaimCheck: store})
	payload := string(bytes.Repeat([]byte("large "), 1<<18))
	b.send(payload)
	record := b.list()[0]
	if len(record.Message.Payload) != 0 || record.Message.Metadata[gateway.KeyPayloadReference] == "" {
		t.Errorf("record: %d bytes, %v", len(record.Message.Payload), record.Message.Metadata)
	}
	var handled atomic.Int64
	b.nested = func() { handled.Add(1) }
	b.replay(router.PoisonSelection{All: true}, router.ReplayReport{Poisoned: 1})
	b.fixed.Store(true)
	b.replay(router.PoisonSelection{All: true}, router.ReplayReport{Sent: 1})
	b.send(payload) // the same message again
	if handled.Load() != 2 {
		t.Errorf("handled %d times: the copy was not recognised", handled.Load())
	}
	stored := b.stored()
	if len(stored) != 1 || stored[0].Metadata[gateway.KeyPayloadMode] != gateway.PayloadModeClaimCheck {
		t.Fatalf("stored %d messages", len(stored))
	}
	r, size, err := store.OpenMessage(stored[0])
	if err != nil || size != int64(len(payload)) {
		t.Errorf("%d bytes, %v", size, err)
	}
	_ = r.Close()
}

// A work queue knows one consumer per subject; looking needs none.
func TestWorkQueueStream(t *testing.T) {
	server := natstest.Start(t)
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}, Retention: jetstream.WorkQueuePolicy}, nil))(t)
	defer func() { _ = sink.Close() }()
	testkit.NoError(t, sink.Publish(router.DefaultPoisonTopic, message.NewMessage("1", []byte("p"))))
	queue := testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: sink.Conn()}))(t)
	for range 2 {
		n := 0
		for _, err := range queue.Messages(t.Context()) {
			if n++; err != nil {
				t.Fatal(err)
			}
		}
		if n != 1 {
			t.Errorf("%d messages, want 1", n)
		}
	}
}

// byHand makes messages without message.NewMessage, and none of "nothing", without saying why.
type byHand struct{}

func (byHand) Unmarshal(raw *natsgo.Msg) (*message.Message, error) {
	if string(raw.Data) == "nothing" {
		return nil, nil
	}
	return &message.Message{UUID: "1", Payload: raw.Data}, nil
}

// An Unmarshaler may make messages by hand, and none without saying why.
func TestMessagesMadeByHand(t *testing.T) {
	server := natstest.Start(t)
	sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{URL: server.URL()}}, nil))(t)
	defer func() { _ = sink.Close() }()
	testkit.NoError(t, sink.Publish(router.DefaultPoisonTopic, message.NewMessage("1", []byte("something")), message.NewMessage("2", []byte("nothing"))))
	queue := testkit.Must(poisonqueue.New(poisonqueue.Config{Conn: sink.Conn(), Unmarshaler: byHand{}}))(t)
	if p := testkit.Must(queue.Get(t.Context(), "1"))(t); string(p.Message.Payload) != "something" || p.Message.Metadata == nil || p.Message.Acked() == nil {
		t.Errorf("got %+v", p.Message)
	}
	if p, err := queue.Get(t.Context(), "2"); err == nil || errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestConfig(t *testing.T) {
	for _, config := range []poisonqueue.Config{{}, {Conn: &natsgo.Conn{}, Timeout: -1}} {
		if _, err := poisonqueue.New(config); !errors.Is(err, poisonqueue.ErrConfig) {
			t.Errorf("%+v: %v", config.Timeout, err)
		}
	}
}

// How a program lists the queue, replays what an update has repaired, and deletes
// the rest.
func Example() {
	repair := func(ctx context.Context, r *router.Router, sink *nats.Sink) error {
		queue, err := poisonqueue.New(poisonqueue.Config{Conn: sink.Conn()})
		if err != nil {
			return err
		}
		for p, err := range queue.Messages(ctx) {
			if err != nil {
				return err
			}
			fmt.Println(p.ID, p.Route, p.Class, p.Attempts, p.First, p.Reason)
		}
		report, err := r.Replay(ctx, queue, router.PoisonSelection{
			Filter: func(p router.Poisoned) bool { return p.Route == "farm data" },
		})
		if err != nil {
			return err
		}
		fmt.Printf("%d sent, %d failed again\n", report.Sent, report.Poisoned)
		_, err = router.DeletePoisoned(ctx, queue, router.PoisonSelection{IDs: []string{"17"}})
		return err
	}
	_ = repair
}
