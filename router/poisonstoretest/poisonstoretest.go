// Package poisonstoretest is the conformance suite for implementations of
// router.PoisonStore.
package poisonstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// Suite says how to test a store.
type Suite struct {
	// New returns an empty queue. It is called once per test, and closes what it opens by t.Cleanup.
	New func(t *testing.T) Queue
	// Outages says that each Queue has Break and Repair, Counts that its Store has the methods Depth and Oldest, as
	// those of this module do. What is not declared is not tested.
	Outages, Counts bool
}

// Queue is a poison queue to be tested.
type Queue struct {
	// Store is what is tested.
	Store router.PoisonStore
	// Sink is the sink of the queue, and Topic the topic of the queue in it. A second topic of the sink, the name of
	// which is that of Topic with "2" behind it, must be usable, too.
	Sink  sinks.Sink
	Topic string
	// Peer returns another store of the same queue, as another process would have. Required.
	Peer func(t *testing.T) router.PoisonStore
	// Break makes the server unreachable, and Repair reachable again, with its data. Required with Suite.Outages.
	Break, Repair func()
}

// Run tests a store.
func Run(t *testing.T, s Suite) {
	t.Run("Looking", s.looking)
	t.Run("Get", s.get)
	t.Run("Foreign", s.foreign)
	t.Run("Delete", s.delete)
	t.Run("NotInQueue", s.notInQueue)
	t.Run("IDsAreNotUsedAgain", s.idsAreNotUsedAgain)
	t.Run("BeginningOfIteration", s.beginningOfIteration)
	t.Run("DeleteWhileIterating", s.deleteWhileIterating)
	t.Run("Peer", s.peer)
	t.Run("Concurrent", s.concurrent)
	t.Run("Large", s.large)
	t.Run("Many", s.many)
	t.Run("Replay", s.replay)
	t.Run("FailsAgain", s.failsAgain)
	t.Run("Partial", s.partial)
	t.Run("Killed", s.killed)
	t.Run("Context", s.context)
	if s.Outages {
		t.Run("Outage", s.outage)
	}
	if s.Counts {
		t.Run("Counts", s.counts)
	}
}

// bench is a queue with what the tests do to it.
type bench struct {
	*testing.T
	Queue
}

func (s Suite) bench(t *testing.T) *bench {
	t.Helper()
	return &bench{T: t, Queue: s.New(t)}
}

// record is a message as router.PoisonQueue writes it.
func record(payload string) *message.Message {
	msg := message.NewMessage("uuid "+payload[:min(len(payload), 20)], []byte(payload))
	now := time.Now().UTC().Format(time.RFC3339Nano)
	for key, value := range map[string]string{
		gateway.KeyEventType: string(gateway.EventMessageReceived), gateway.KeyReceivingEndpointID: "endpoint",
		gateway.KeyMessageType: "iso:11783:-10:taskdata:zip", gateway.KeyTenantID: "tenant", gateway.KeyContextID: msg.UUID,
		gateway.KeyMessageID: msg.UUID, router.KeyPoisonReason: "cannot decode", router.KeyPoisonClass: "permanent",
		router.KeyPoisonRoute: "farm", router.KeyPoisonTopic: "in", router.KeyPoisonAttempts: "1", router.KeyPoisonCount: "1",
		router.KeyPoisonFirst: now, router.KeyPoisonLast: now,
	} {
		msg.Metadata[key] = value
	}
	return msg
}

// foreign is a message that no router has written. It has the key of the records, so that a broker with partitions keeps
// their order.
func foreign() *message.Message {
	msg := message.NewMessage("foreign", []byte("foreign"))
	msg.Metadata[gateway.KeyReceivingEndpointID] = "endpoint"
	return msg
}

// poison puts records into the queue.
func (b *bench) poison(payloads ...string) {
	b.Helper()
	for _, payload := range payloads {
		b.publish(b.Topic, record(payload))
	}
}

func (b *bench) publish(topic string, msg *message.Message) {
	b.Helper()
	testkit.NoError(b, b.Sink.Publish(topic, msg))
}

func list(t testing.TB, store router.PoisonStore) []router.Poisoned {
	t.Helper()
	var all []router.Poisoned
	for p, err := range store.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// want compares the queue with the payloads that it should have, and returns what it has.
func (b *bench) want(store router.PoisonStore, want ...string) []router.Poisoned {
	b.Helper()
	all := list(b, store)
	var got []string
	for _, p := range all {
		got = append(got, string(p.Message.Payload))
	}
	if !slices.Equal(got, want) {
		b.Fatalf("in the queue: %q, want %q", got, want)
	}
	return all
}

func (b *bench) drop(store router.PoisonStore, id string) {
	b.Helper()
	if err := store.Delete(b.Context(), id); err != nil {
		b.Fatalf("Delete(%q): %v", id, err)
	}
}

// A queue that nobody has written to is empty, and that is no error. Looking takes nothing off, and changes no ID, also
// when who has seen enough stops.
func (s Suite) looking(t *testing.T) {
	b := s.bench(t)
	b.want(b.Store)
	b.poison("one", "two", "three")
	first := b.want(b.Store, "one", "two", "three")
	for p, err := range b.Store.Messages(t.Context()) {
		if err != nil || string(p.Message.Payload) != "one" {
			t.Errorf("got %v, %v", p, err)
		}
		break
	}
	for i, p := range b.want(b.Store, "one", "two", "three") {
		if p.ID == "" || p.ID != first[i].ID {
			t.Errorf("ID %q, was %q", p.ID, first[i].ID)
		}
	}
	b.want(b.Peer(t), "one", "two", "three")
}

// What is got is what is listed, byte for byte.
func (s Suite) get(t *testing.T) {
	b := s.bench(t)
	b.poison("one", "\x00\xff two \r\n")
	for _, listed := range list(t, b.Store) {
		got := testkit.Must(b.Store.Get(t.Context(), listed.ID))(t)
		want := record(string(listed.Message.Payload))
		if got.ID != listed.ID || got.Route != "farm" || got.Reason != "cannot decode" || got.Class != "permanent" || got.Topic != "in" ||
			got.Attempts != 1 || got.Count != 1 || !got.First.Equal(listed.First) || got.First.IsZero() || got.Last.IsZero() ||
			got.Message.UUID != want.UUID || !bytes.Equal(got.Message.Payload, want.Payload) ||
			got.Message.Metadata[gateway.KeyTenantID] != "tenant" || !bytes.Equal(listed.Message.Payload, got.Message.Payload) {
			t.Errorf("got %+v", got)
		}
	}
}

// What no router has written is listed, and can be deleted.
func (s Suite) foreign(t *testing.T) {
	b := s.bench(t)
	b.publish(b.Topic, foreign())
	p := b.want(b.Store, "foreign")[0]
	if _, ours := router.ParsePoisoned(p.Message); ours || p.Message.UUID != "foreign" {
		t.Errorf("got %+v", p)
	}
	b.drop(b.Store, p.ID)
	b.want(b.Store)
}

// A message that was deleted is gone for good, and the others are not.
func (s Suite) delete(t *testing.T) {
	b := s.bench(t)
	b.poison("one", "two", "three", "four")
	all := b.want(b.Store, "one", "two", "three", "four")
	b.drop(b.Store, all[1].ID)
	b.want(b.Store, "one", "three", "four")
	for _, err := range []error{b.Store.Delete(t.Context(), all[1].ID), second(b.Store.Get(t.Context(), all[1].ID))} {
		if !errors.Is(err, router.ErrNotInQueue) {
			t.Errorf("a message that was deleted: %v", err)
		}
	}
	n, err := router.DeletePoisoned(t.Context(), b.Store, router.PoisonSelection{Filter: func(p router.Poisoned) bool { return string(p.Message.Payload) != "four" }})
	if n != 2 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
	b.want(b.Store, "four")
	n, err = router.DeletePoisoned(t.Context(), b.Store, router.PoisonSelection{IDs: []string{all[3].ID, all[0].ID}})
	if n != 1 || !errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("deleted %d, %v", n, err)
	}
	b.want(b.Store)
	if _, err := router.DeletePoisoned(t.Context(), b.Store, router.PoisonSelection{}); !errors.Is(err, router.ErrConfig) {
		t.Errorf("an empty selection: %v", err)
	}
	b.poison("five")
	b.want(b.Store, "five")
}

func second[T any](_ T, err error) error { return err }

// What is no ID of the queue is nothing, and messages of other topics are safe.
func (s Suite) notInQueue(t *testing.T) {
	b := s.bench(t)
	ids := []string{"", "x", "-1", "0", "-", "1-", "-1-1", "0-99999", "7-0", "99999", "1-2-3", "0-0", "0-0-", "0-0-00000000", "+1", " 1", "01", "00-0"}
	for _, poisoned := range []int{0, 1} {
		for range poisoned {
			b.publish(b.Topic+"2", message.NewMessage("elsewhere", []byte("elsewhere")))
			b.poison("one")
		}
		have := map[string]bool{}
		for _, p := range list(t, b.Store) {
			have[p.ID] = true
		}
		for _, id := range ids {
			if have[id] {
				continue
			}
			if err := b.Store.Delete(t.Context(), id); !errors.Is(err, router.ErrNotInQueue) {
				t.Errorf("Delete(%q): %v", id, err)
			}
			if _, err := b.Store.Get(t.Context(), id); !errors.Is(err, router.ErrNotInQueue) {
				t.Errorf("Get(%q): %v", id, err)
			}
		}
	}
	b.want(b.Store, "one")
}

// The ID of a message that was deleted does not come again.
func (s Suite) idsAreNotUsedAgain(t *testing.T) {
	b := s.bench(t)
	seen := map[string]bool{}
	for i := range 3 {
		b.poison(fmt.Sprint(i))
		p := b.want(b.Store, fmt.Sprint(i))[0]
		if seen[p.ID] {
			t.Errorf("ID %q comes again", p.ID)
		}
		seen[p.ID] = true
		b.drop(b.Store, p.ID)
	}
}

// What comes during an iteration is not part of it: one who puts messages back would never end.
func (s Suite) beginningOfIteration(t *testing.T) {
	b := s.bench(t)
	b.poison("one", "two")
	n := 0
	for p, err := range b.Store.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n > 2 {
			t.Fatalf("%q was not there at the beginning", p.Message.Payload)
		}
		b.poison("later")
	}
	if n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
	b.want(b.Store, "one", "two", "later", "later")
}

// One may delete what one gets.
func (s Suite) deleteWhileIterating(t *testing.T) {
	b := s.bench(t)
	b.poison("one", "two", "three")
	var got []string
	for p, err := range b.Store.Messages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(p.Message.Payload))
		b.drop(b.Store, p.ID)
	}
	if !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("got %q", got)
	}
	b.want(b.Store)
}

// What one process deletes, another one does not have anymore, whether it has looked before or not.
func (s Suite) peer(t *testing.T) {
	b := s.bench(t)
	b.poison("one", "two", "three")
	all := b.want(b.Store, "one", "two", "three")
	peer := b.Peer(t)
	for i, p := range b.want(peer, "one", "two", "three") {
		if p.ID != all[i].ID {
			t.Errorf("another process has %q for %q", p.ID, all[i].ID)
		}
	}
	b.drop(b.Store, all[0].ID)
	b.want(peer, "two", "three")
	b.drop(peer, all[1].ID)
	b.want(b.Store, "three")
	b.want(b.Peer(t), "three")
	if err := b.Store.Delete(t.Context(), all[1].ID); !errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("deleted by another process: %v", err)
	}
}

// Several may look and delete at the same time.
func (s Suite) concurrent(t *testing.T) {
	b := s.bench(t)
	for i := range 12 {
		b.poison(fmt.Sprintf("%02d", i))
	}
	all := list(t, b.Store)
	peer := b.Peer(t)
	var group sync.WaitGroup
	for i, p := range all[:8] {
		store := []router.PoisonStore{b.Store, peer}[i%2]
		group.Go(func() {
			if err := store.Delete(t.Context(), p.ID); err != nil {
				t.Error(err)
			}
			for _, err := range store.Messages(t.Context()) {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	b.want(b.Store, "08", "09", "10", "11")
	b.want(peer, "08", "09", "10", "11")
}

// A large message comes whole, and the next one, too.
func (s Suite) large(t *testing.T) {
	b := s.bench(t)
	large := string(bytes.Repeat([]byte("large "), 80_000))
	b.poison("small", large, "small")
	all := list(t, b.Store)
	if len(all) != 3 || string(all[1].Message.Payload) != large || string(all[2].Message.Payload) != "small" {
		t.Fatalf("%d messages", len(all))
	}
	if p, err := b.Store.Get(t.Context(), all[1].ID); err != nil || string(p.Message.Payload) != large {
		t.Errorf("%d bytes, %v", len(p.Message.Payload), err)
	}
}

// Many messages come in their order, each once, with gaps between them.
func (s Suite) many(t *testing.T) {
	b := s.bench(t)
	var want []string
	messages := make([]*message.Message, 300)
	for i := range messages {
		messages[i] = record(fmt.Sprintf("%03d", i))
		if i%10 == 0 {
			want = append(want, string(messages[i].Payload))
		}
	}
	testkit.NoError(t, b.Sink.Publish(b.Topic, messages...))
	n, err := router.DeletePoisoned(t.Context(), b.Store, router.PoisonSelection{Filter: func(p router.Poisoned) bool { return p.Message.Payload[2] != '0' }})
	if err != nil || n != 270 {
		t.Fatalf("deleted %d, %v", n, err)
	}
	b.want(b.Store, want...)
	b.want(b.Peer(t), want...)
}

// A call ends with its context, and says so.
func (s Suite) context(t *testing.T) {
	b := s.bench(t)
	b.poison("one")
	id := list(t, b.Store)[0].ID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Store.Get(ctx, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Get: %v", err)
	}
	if err := b.Store.Delete(ctx, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Delete: %v", err)
	}
	ended := false
	for _, err := range b.Store.Messages(ctx) {
		ended = errors.Is(err, context.Canceled)
	}
	if !ended {
		t.Error("Messages does not tell that its context has ended")
	}
	b.want(b.Store, "one")
}

// An outage is an error, not an empty queue, nor the end of one that is being read; afterwards everything is as it was.
func (s Suite) outage(t *testing.T) {
	b := s.bench(t)
	b.poison("one", "two", "three")
	all := list(t, b.Store)
	b.drop(b.Store, all[0].ID)
	var read []string
	var cut error
	for p, err := range b.Store.Messages(t.Context()) {
		if cut = err; err != nil {
			break
		}
		if read = append(read, string(p.Message.Payload)); len(read) == 1 {
			b.Break()
		}
	}
	if cut == nil && len(read) != 2 || errors.Is(cut, router.ErrNotInQueue) {
		t.Errorf("an outage while the queue is read: got %q, %v", read, cut)
	}
	if _, err := b.Store.Get(t.Context(), all[1].ID); err == nil || errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("Get: %v", err)
	}
	if err := b.Store.Delete(t.Context(), all[1].ID); err == nil || errors.Is(err, router.ErrNotInQueue) {
		t.Errorf("Delete: %v", err)
	}
	failed := false
	for _, err := range b.Store.Messages(t.Context()) {
		failed = err != nil && !errors.Is(err, router.ErrNotInQueue)
	}
	if !failed {
		t.Error("Messages ends without an error")
	}
	b.Repair()
	testkit.Eventually(t, "the queue can be read again", func() bool {
		var got []string
		for p, err := range b.Store.Messages(t.Context()) {
			if err != nil {
				return false
			}
			got = append(got, string(p.Message.Payload))
		}
		return slices.Equal(got, []string{"two", "three"})
	})
}

// counted are further methods that a store may have.
type counted interface {
	Depth(ctx context.Context) (int64, error)
	Oldest(ctx context.Context) (time.Time, error)
}

// A store that tells its depth and since when its oldest message is there tells what is in the queue.
func (s Suite) counts(t *testing.T) {
	b := s.bench(t)
	store, ok := b.Store.(counted)
	if !ok {
		t.Fatalf("%T has no Depth and Oldest", b.Store)
	}
	want := func(depth int64) time.Time {
		t.Helper()
		if got, err := store.Depth(t.Context()); err != nil || got != depth {
			t.Errorf("depth %d, %v; want %d", got, err, depth)
		}
		oldest, err := store.Oldest(t.Context())
		if err != nil || oldest.IsZero() != (depth == 0) {
			t.Errorf("oldest of %d: %v, %v", depth, oldest, err)
		}
		return oldest
	}
	want(0)
	began := time.Now()
	b.poison("one", "two", "three")
	// The clock of the server may be another one.
	first := want(3)
	if off := first.Sub(began).Abs(); off > time.Hour {
		t.Errorf("oldest: %v from now", off)
	}
	all := list(t, b.Store)
	b.drop(b.Store, all[0].ID)
	if next := want(2); next.Before(first) {
		t.Errorf("oldest: %v, was %v", next, first)
	}
	b.drop(b.Store, all[1].ID)
	b.drop(b.Store, all[2].ID)
	want(0)
	b.poison("four")
	want(1)
}
