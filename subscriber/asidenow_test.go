package subscriber

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
)

// setAside nacks msg as a route does that cannot store it, nor its poison record.
func setAside(msg *message.Message) {
	msgctx.NackOf(msg.Context()).Want(msgctx.SetAside)
	msg.Nack()
	synctest.Wait()
}

// What is set aside counts, each message once, from its arrival until it is confirmed: the gateway still has it.
func TestSetAsideNow(t *testing.T) {
	type ends struct{ a, b func(*message.Message) }
	ack := func(msg *message.Message) { msg.Ack(); synctest.Wait() }
	refuse := func(msg *message.Message) { Refuse(msg); ack(msg) }
	for name, test := range map[string]struct {
		first, second ends
		want          [2]int // after the first connection, after the second
	}{
		"by one route, then stored":      {ends{setAside, ack}, ends{a: ack}, [2]int{1, 0}},
		"by one route, twice":            {ends{setAside, ack}, ends{a: setAside}, [2]int{1, 1}},
		"by two routes":                  {ends{setAside, setAside}, ends{setAside, setAside}, [2]int{1, 1}},
		"by two routes, then by one":     {ends{setAside, setAside}, ends{setAside, ack}, [2]int{1, 1}},
		"by two routes, then stored":     {ends{setAside, setAside}, ends{ack, ack}, [2]int{1, 0}},
		"by one route, refused by other": {ends{setAside, refuse}, ends{setAside, refuse}, [2]int{1, 1}},
		"stored":                         {ends{ack, ack}, ends{}, [2]int{0, 0}},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			w := newUnmatchedWorld(t, Config{})
			a, _ := w.subscribe(AllData)
			b, _ := w.subscribe("type")
			began := time.Now()
			answer := func(e ends) {
				w.arrive(1)
				if e.a != nil {
					e.a(w.next(a))
				}
				if e.b != nil {
					e.b(w.next(b))
				}
				time.Sleep(time.Minute) // what can be confirmed is
			}
			for i, e := range []ends{test.first, test.second} {
				answer(e)
				stats := w.Stats()
				if stats.SetAsideNow != test.want[i] || stats.InFlight != 0 {
					t.Errorf("connection %d: %d are set aside, %d in flight; want %d, 0", i+1, stats.SetAsideNow, stats.InFlight, test.want[i])
				}
				if oldest := stats.OldestUnconfirmed; oldest.Equal(began) != (test.want[i] > 0) {
					t.Errorf("connection %d: the oldest waits since %v, began at %v", i+1, oldest, began)
				}
				w.connect()
			}
			testkit.NoError(t, w.Close())
			if got := w.Stats().SetAsideNow; got != test.want[1] {
				t.Errorf("%d are set aside after Close, want %d", got, test.want[1])
			}
		})
	}
}

// While it is in the hands of a route again it is in flight, not set aside, and as old as before.
func TestSetAsideComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnmatchedWorld(t, Config{MaxInFlight: 1, Order: Unordered})
		a, _ := w.subscribe(AllData)
		began := time.Now()
		w.arrive(1)
		setAside(w.next(a))
		time.Sleep(time.Hour)
		w.connect()
		w.arrive(1)
		again := w.next(a)
		if s := w.Stats(); s.SetAsideNow != 0 || s.InFlight != 1 || !s.OldestUnconfirmed.Equal(began) || s.Abandoned != 0 {
			t.Errorf("%d set aside, %d in flight, %d abandoned, the oldest since %v; want 0, 1, 0, %v", s.SetAsideNow, s.InFlight, s.Abandoned, s.OldestUnconfirmed, began)
		}
		again.Ack()
		time.Sleep(time.Minute)
		if s := w.Stats(); s.SetAsideNow != 0 || !s.OldestUnconfirmed.IsZero() || w.client.confirmed.Load() != 1 {
			t.Errorf("%d set aside, the oldest since %v, %d confirmed", s.SetAsideNow, s.OldestUnconfirmed, w.client.confirmed.Load())
		}
	})
}

// A file is as many messages as it confirms.
func TestFileIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnmatchedWorld(t, Config{Files: []string{"type"}})
		a, _ := w.subscribe(AllData)
		for _, end := range []func(*message.Message){setAside, func(msg *message.Message) { msg.Ack() }} {
			w.come(filePart(1), filePart(2), fileOf(1, 2))
			end(w.next(a))
			time.Sleep(time.Minute)
			if s := w.Stats(); s.SetAsideNow+int(w.client.confirmed.Load()) != 2 || s.HeldNow != 0 {
				t.Errorf("%d are set aside, %d confirmed, %d held", s.SetAsideNow, w.client.confirmed.Load(), s.HeldNow)
			}
			w.connect()
		}
	})
}

// What cannot be made a message is set aside as well, by each kind of subscription, also if nothing says why.
func TestUndeliverableIsSetAside(t *testing.T) {
	for what, err := range map[string]error{"refused": errors.New("not a message"), "nil": nil} {
		for name, pipelined := range map[string]bool{"plain": false, "pipelined": true} {
			testkit.RunBubble(t, what+", "+name, func(t *testing.T) {
				w := newUnmatchedWorld(t, Config{Unmarshaler: unmarshaler(func(*message.Message) (*message.Message, error) { return nil, err })})
				ctx := msgctx.WithSubscription(t.Context(), &msgctx.Subscription{Pipelines: pipelined})
				testkit.Must(w.Subscribe(ctx, AllData))(t)
				synctest.Wait()
				w.connect()
				w.arrive(1)
				if s := w.Stats(); s.SetAsideNow != 1 || s.SetAside != 1 || s.InFlight != 0 {
					t.Errorf("%d are set aside now, %d in all, %d in flight; want 1, 1, 0", s.SetAsideNow, s.SetAside, s.InFlight)
				}
			})
		}
	}
}

// Messages that an Unmarshaler makes without message.NewMessage have metadata, and are acked and nacked as any other.
func TestMessageMadeByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnmatchedWorld(t, Config{Unmarshaler: unmarshaler(func(msg *message.Message) (*message.Message, error) {
			return &message.Message{UUID: msg.UUID, Payload: msg.Payload}, nil
		})})
		a, _ := w.subscribe(AllData)
		w.arrive(1, 2)
		for range 2 {
			failed := w.next(a)
			synctest.Wait() // the subscriber waits for its answer
			failed.Nack()
			time.Sleep(time.Minute)
			again := w.next(a)
			again.Metadata.Set("key", "value")
			synctest.Wait()
			again.Ack()
		}
		w.want(2, 0)
	})
}

// What follows is only what there is a message of.
func TestNothingFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		w := newUnmatchedWorld(t, Config{Unmarshaler: unmarshaler(func(msg *message.Message) (*message.Message, error) {
			if made++; made > 1 {
				return nil, nil
			}
			return msg, nil
		})})
		a, _ := w.subscribe(AllData)
		w.arrive(1, 2)
		if got := msgctx.NackOf(w.next(a).Context()).Follows.Following("type"); len(got) > 0 {
			t.Errorf("%v follows", got)
		}
	})
}

// unmarshaler is an Unmarshaler.
type unmarshaler func(*message.Message) (*message.Message, error)

func (u unmarshaler) Unmarshal(msg *message.Message) (*message.Message, error) { return u(msg) }
