package subscriber

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// unmatchedWorld is a subscriber whose messages are refused.
type unmatchedWorld struct {
	*resyncWorld
	once *sync.Once
}

func newUnmatchedWorld(t *testing.T, cfg Config) unmatchedWorld {
	return unmatchedWorld{newResyncWorld(t, cfg), &sync.Once{}}
}

// subscribe returns a subscription, and what ends it.
func (w unmatchedWorld) subscribe(topic string) (<-chan *message.Message, func()) {
	w.Helper()
	ctx, end := context.WithCancel(w.Context())
	messages, err := w.Subscribe(ctx, topic)
	if err != nil {
		w.Fatal(err)
	}
	synctest.Wait()
	w.once.Do(w.connect) // the first subscription opens the stream
	return messages, end
}

// refuse refuses the next message.
func (w unmatchedWorld) refuse(messages <-chan *message.Message) {
	w.Helper()
	msg := w.next(messages)
	if !Refuse(msg) {
		w.Fatal("the message cannot be refused")
	}
	msg.Ack()
	synctest.Wait()
}

// want checks after a minute what is confirmed and what the statistics say.
func (w unmatchedWorld) want(confirmed, unmatched int) {
	w.Helper()
	time.Sleep(time.Minute)
	if got, stats := int(w.client.confirmed.Load()), w.Stats(); got != confirmed || int(stats.Unmatched) != unmatched {
		w.Errorf("%d are confirmed and %d unmatched, want %d and %d", got, stats.Unmatched, confirmed, unmatched)
	}
}

func TestRefusedByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnmatchedWorld(t, Config{})
		a, _ := w.subscribe(AllData)
		b, _ := w.subscribe("type")
		w.arrive(1)
		w.refuse(a)
		w.want(0, 0) // b has not answered
		w.refuse(b)
		w.want(1, 1)
	})
}

// Types that nobody subscribes to, and events that are no messages, are no matter of this.
func TestUnmatchedIsNotUntaken(t *testing.T) {
	for _, policy := range []Unmatched{UnmatchedConfirm, UnmatchedQuarantine} {
		testkit.RunBubble(t, policy.String(), func(t *testing.T) {
			store := &unmatchedStore{}
			w := newUnmatchedWorld(t, Config{Unmatched: policy, Quarantine: QuarantineConfig{Publisher: store}})
			control, _ := w.subscribe(string(gateway.EventEndpointDeleted))
			w.arrive(1)
			w.come(&gateway.EndpointDeleted{ID: fileEndpoint})
			w.refuse(control)
			w.want(0, 0)
			if got := w.Stats(); got.Untaken != 1 || len(store.all()) > 0 {
				t.Errorf("%d untaken, %d in the quarantine", got.Untaken, len(store.all()))
			}
		})
	}
}

// unmatchedStore stores messages, unless it is told to fail.
type unmatchedStore struct {
	mu     sync.Mutex
	stored []*message.Message
	fail   func(*message.Message) error
}

func (s *unmatchedStore) Publish(_ string, messages ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, msg := range messages {
		if s.fail != nil {
			if err := s.fail(msg); err != nil {
				return err
			}
		}
		s.stored = append(s.stored, msg)
	}
	return nil
}

func (s *unmatchedStore) Close() error { return nil }

func (s *unmatchedStore) failing(fail func(*message.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *unmatchedStore) all() []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.stored)
}

var errUnmatchedStore = errors.New("the store is down")

// Two refuse at the same time: the message is stored once, with all that it had, and confirmed after that.
func TestUnmatchedQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unmatchedStore{}
		store.failing(func(*message.Message) error { return errUnmatchedStore })
		w := newUnmatchedWorld(t, Config{
			Unmatched: UnmatchedQuarantine, Quarantine: QuarantineConfig{Publisher: store, Topic: "unwanted"},
		})
		a, _ := w.subscribe(AllData)
		b, _ := w.subscribe(AllData)
		w.arrive(1)
		first, second := w.next(a), w.next(b)
		second.Metadata[gateway.KeyMessageType] = "spoilt"
		for _, msg := range []*message.Message{first, second} {
			Refuse(msg)
			msg.Ack()
		}
		w.next(drainRefusals(w, a, b))
		if got := w.client.confirmed.Load(); got != 0 || w.Stats().QuarantineFailures == 0 {
			t.Errorf("%d are confirmed, and %d attempts failed", got, w.Stats().QuarantineFailures)
		}
		store.failing(nil)
		w.want(1, 1)
		stored := store.all()
		if len(stored) != 1 {
			t.Fatalf("%d are stored, want 1", len(stored))
		}
		got := testkit.Must(json.Marshal(stored[0].Metadata))(t)
		for _, want := range []string{
			`"x-router-poison-class":"unmatched"`, `"x-router-message-type":"type"`, `"x-router-message-id":"00000001-2222-4333-8444-555555555555"`,
			`"x-router-quarantine-message-ids":"00000001-2222-4333-8444-555555555555"`, `"x-router-quarantine-event-type":"MESSAGE_RECEIVED"`,
			`"x-router-quarantine-endpoint-id":"66666666-7777-4888-8999-aaaaaaaaaaaa"`,
		} {
			testkit.Contains(t, string(got), want)
		}
		if string(stored[0].Payload) != "small" {
			t.Errorf("the payload is %q", stored[0].Payload)
		}
		w.connect()
		w.arrive(1) // the confirmation got lost
		w.want(2, 1)
	})
}

// drainRefusals refuses whatever comes, and returns a channel with the first of it.
func drainRefusals(w unmatchedWorld, channels ...<-chan *message.Message) <-chan *message.Message {
	came := make(chan *message.Message, 1)
	for _, messages := range channels {
		go func() { // ends with the subscription
			for msg := range messages {
				Refuse(msg)
				msg.Ack()
				select {
				case came <- msg:
				default:
				}
			}
		}()
	}
	w.Cleanup(func() { _ = w.Close() })
	return came
}

// A store that takes a notice but not the message gets the notice, and nothing is confirmed.
func TestUnmatchedQuarantineTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &unmatchedStore{}
		store.failing(func(msg *message.Message) error {
			if len(msg.Payload) > 0 {
				return fmt.Errorf("%d bytes are too many", len(msg.Payload))
			}
			return nil
		})
		w := newUnmatchedWorld(t, Config{Unmatched: UnmatchedQuarantine, Quarantine: QuarantineConfig{Publisher: store}})
		a, _ := w.subscribe(AllData)
		w.arrive(1)
		drainRefusals(w, a)
		w.want(0, 0)
		if stored := store.all(); len(stored) != 1 || stored[0].Metadata[KeyQuarantineBody] != "absent" {
			t.Fatalf("%d are stored", len(stored))
		}
		if got := w.Stats(); got.SetAside != 1 || got.InFlight+got.Parked != 0 {
			t.Errorf("%d are set aside, %d in flight and %d parked, want 1, 0 and 0", got.SetAside, got.InFlight, got.Parked)
		}
	})
}

func TestRefuseKnowsItsMessages(t *testing.T) {
	if Refuse(message.NewMessage("1", nil)) {
		t.Error("a message of nobody was refused")
	}
}

// With a pipelined route, a store that hangs holds up the key of the message that it is to take, for
// no longer than its time, and no other key.
func TestUnmatchedQuarantineHoldsUpItsOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		var gaveUp time.Time
		store := publisherFunc(func(messages ...*message.Message) error {
			if !gaveUp.IsZero() {
				return nil
			}
			<-messages[0].Context().Done()
			gaveUp = time.Now()
			return messages[0].Context().Err()
		})
		w := newUnmatchedWorld(t, Config{
			Unmatched: UnmatchedQuarantine, Quarantine: QuarantineConfig{Publisher: store, Timeout: timeout},
			OrderKey: func(event gateway.Event) string {
				n, _ := strconv.Atoi(event.(*gateway.MessageReceived).AppMessageID)
				return strconv.Itoa(n % 2)
			},
		})
		messages := testkit.Must(w.Subscribe(msgctx.WithSubscription(t.Context(), &msgctx.Subscription{Pipelines: true}), AllData))(t)
		synctest.Wait()
		w.connect()
		next := func(want string) *message.Message {
			t.Helper()
			msg := w.next(messages)
			if got := msg.Metadata[gateway.KeyMessageID][:8]; got != want {
				t.Fatalf("message %s came, want %s", got, want)
			}
			return msg
		}
		ack := func(msg *message.Message) {
			msgctx.NackOf(msg.Context()).Pipeline.Placed()
			msg.Ack()
		}
		began := time.Now()
		refuse := func(msg *message.Message) {
			Refuse(msg)
			msg.Ack()
			synctest.Wait()
		}
		w.arrive(1)
		refuse(next("00000001"))
		w.arrive(3, 2, 4)
		ack(next("00000002"))
		ack(next("00000004"))
		time.Sleep(timeout - time.Second)
		if got := w.client.confirmed.Load(); got != 2 {
			t.Errorf("%d are confirmed while the store hangs, want the 2 of the other key", got)
		}
		refuse(next("00000001"))
		if got := gaveUp.Sub(began); got != timeout {
			t.Errorf("the store was given %v, want %v", got, timeout)
		}
		ack(next("00000003"))
		w.want(4, 1)
	})
}

// publisherFunc is a publisher.
type publisherFunc func(messages ...*message.Message) error

func (f publisherFunc) Publish(_ string, messages ...*message.Message) error { return f(messages...) }

func (publisherFunc) Close() error { return nil }
