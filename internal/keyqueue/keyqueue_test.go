package keyqueue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/keyqueue"
	"github.com/agrimill/agrimill/internal/msgctx"
)

// fixture is a queue of strings, whose first letter is the key, in a bubble of synctest.
type fixture struct {
	*testing.T
	*keyqueue.Queue[string]
	out     chan *message.Message
	rank    uint64
	failing string // this one has no message

	stop, giveUp context.CancelFunc
	ended        chan struct{}

	mu         sync.Mutex
	done, left []string
}

func run(t *testing.T, maxOpen int, test func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &fixture{T: t, out: make(chan *message.Message), ended: make(chan struct{})}
		note := func(list *[]string) func(string) {
			return func(item string) {
				b.mu.Lock()
				defer b.mu.Unlock()
				*list = append(*list, item)
			}
		}
		b.Queue = keyqueue.New(keyqueue.Config[string]{
			Out: b.out, MaxOpen: maxOpen, Name: func(item string) string { return "item " + item },
			Stored: func(string) time.Time { return time.Time{} }, Done: note(&b.done), Left: note(&b.left),
			Retry: backoff.Policy{Initial: 100 * time.Millisecond, Max: 30 * time.Second},
			Message: func(item string) (*message.Message, error) {
				if item == b.failing {
					return nil, errors.New("no message")
				}
				return message.NewMessage(item, nil), nil
			},
		})
		intake, stop := context.WithCancel(t.Context())
		work, giveUp := context.WithCancel(t.Context())
		b.stop, b.giveUp = stop, giveUp
		go func() { // ends with intake and work
			b.Deliver(intake, work)
			close(b.ended)
		}()
		test(b)
		stop()
		giveUp()
		<-b.ended
	})
}

func (b *fixture) add(items ...string) {
	for _, item := range items {
		b.rank++
		b.addAt(b.rank, item)
	}
}

func (b *fixture) addAt(rank uint64, item string) {
	b.Helper()
	if !b.Add(item[:1], rank, len(item), false, item) {
		b.Errorf("%s was not taken", item)
	}
}

// next is the next message, within d.
func (b *fixture) next(d time.Duration) *message.Message {
	select {
	case msg := <-b.out:
		return msg
	case <-time.After(d):
		return nil
	}
}

// want takes the next message and checks which it is; empty means none within a second.
func (b *fixture) want(item string) *message.Message {
	b.Helper()
	msg := b.next(time.Second)
	switch {
	case msg == nil && item != "":
		b.Fatalf("nothing came, want %s", item)
	case msg != nil && msg.UUID != item:
		b.Fatalf("%s came, want %q", msg.UUID, item)
	}
	return msg
}

func TestOneOfAKeyIsOpen(t *testing.T) {
	run(t, 10, func(b *fixture) {
		b.add("a1", "a2", "b1", "a3", "b2")
		a, other := b.want("a1"), b.want("b1")
		b.want("")
		a.Ack()
		a = b.want("a2")
		other.Ack()
		b.want("b2")
		b.want("")
		a.Ack()
		b.want("a3")
	})
}

func TestMaxOpen(t *testing.T) {
	run(t, 2, func(b *fixture) {
		b.add("a1", "b1", "c1")
		b.want("a1")
		second := b.want("b1")
		b.want("")
		second.Ack()
		b.want("c1")
	})
}

func TestNackedComesBeforeItsFollowers(t *testing.T) {
	run(t, 10, func(b *fixture) {
		b.add("a1", "a2", "b1")
		first := b.want("a1")
		first.Nack()
		b.want("b1")
		b.want("a1").Nack()
		again := b.next(time.Minute)
		if again == nil || again.UUID != "a1" {
			t.Fatalf("got %v, want a1 a third time", again)
		}
		again.Ack()
		b.want("a2")
	})
}

// A message that waits gives its place to others, keeps what its handler knows, and stays
// the first of its key.
func TestWaitingHoldsNoPlace(t *testing.T) {
	run(t, 1, func(b *fixture) {
		b.add("a1", "a2", "b1")
		msg := b.want("a1")
		nack := msgctx.NackOf(msg.Context())
		nack.Keep("known")
		nack.After(time.Hour)
		msg.Nack()
		b.want("b1").Ack()
		b.want("")
		start := time.Now()
		msg = b.next(2 * time.Hour)
		if waited := time.Since(start); msg == nil || msg.UUID != "a1" || waited < 59*time.Minute {
			t.Fatalf("got %v after %v, want a1 after an hour", msg, waited)
		}
		if kept := msgctx.NackOf(msg.Context()).Kept(); kept != "known" {
			t.Errorf("kept %v", kept)
		}
		msg.Ack()
		b.want("a2")
	})
}

func TestLateOneGoesFirst(t *testing.T) {
	run(t, 10, func(b *fixture) {
		b.addAt(5, "a5")
		open := b.want("a5")
		b.addAt(7, "a7")
		b.addAt(3, "a3")
		b.addAt(6, "a6")
		b.addAt(4, "a4")
		open.Nack()
		open = b.want("a3")
		for _, item := range []string{"a4", "a5", "a6", "a7"} {
			open.Ack()
			open = b.want(item)
		}
	})
}

func TestHold(t *testing.T) {
	run(t, 10, func(b *fixture) {
		b.Add("a", 2, 1, true, "a2")
		b.add("b1")
		b.want("b1")
		b.addAt(1, "a1")
		b.want("a1").Ack()
		b.want("")
		b.Release()
		b.want("a2")
	})
}

func TestSetAside(t *testing.T) {
	run(t, 10, func(b *fixture) {
		b.failing = "b1"
		b.add("a1", "a2", "b1", "b2")
		a := b.want("a1")
		b.want("b2").Ack()
		a.Ack()
		msg := b.want("a2")
		msgctx.NackOf(msg.Context()).Want(msgctx.SetAside)
		msg.Nack()
		b.add("a3")
		b.want("a3").Ack()
		synctest.Wait()
		if n, _ := b.Held(); n != 2 {
			t.Errorf("%d are held, want the two set aside", n)
		}
		if msg := b.next(time.Minute); msg == nil || msg.UUID != "a2" {
			t.Errorf("got %v, want a2 again", msg)
		}
	})
}

// What a stalled key has too much of is sent away, and comes back in order.
func TestSendAway(t *testing.T) {
	run(t, 10, func(b *fixture) {
		for i := range 9 {
			b.addAt(uint64(i+1), fmt.Sprintf("a%d", i+1))
		}
		b.add("b1")
		first := b.want("a1")
		until := time.Now().Add(time.Hour)
		if sent := b.SendAway(3, 10*time.Second, until); sent != nil {
			t.Errorf("%v were sent away before the key is stalled", sent)
		}
		b.want("b1").Ack()
		time.Sleep(11 * time.Second)
		if sent := b.SendAway(3, 10*time.Second, until); !slices.Equal(sent, []string{"a4", "a5", "a6", "a7", "a8", "a9"}) {
			t.Errorf("%v were sent away", sent)
		}
		if n, bytes := b.Held(); n != 3 || bytes != 6 {
			t.Errorf("%d items of %d bytes are held, want 3", n, bytes)
		}
		if n := b.Away(); n != 6 {
			t.Errorf("%d items are away, want 6", n)
		}
		b.addAt(10, "a10")
		first.Ack()
		b.want("a2").Ack()
		b.want("a3").Ack()
		b.want("")
		b.addAt(5, "a5")
		b.want("") // the fourth is away
		b.addAt(4, "a4")
		b.want("a4").Ack()
		b.want("a5").Ack()
		b.want("")
		if n := b.Away(); n != 4 {
			t.Errorf("%d items are away, want 4", n)
		}
		// Somebody else has got the others.
		if msg := b.next(2 * time.Hour); msg == nil || msg.UUID != "a10" {
			t.Errorf("got %v, want a10", msg)
		}
	})
}

func TestEnd(t *testing.T) {
	run(t, 2, func(b *fixture) {
		b.add("a1", "a2", "b1", "c1", "d1")
		acked, nacked := b.want("a1"), b.want("b1")
		b.want("")
		b.stop()
		synctest.Wait()
		acked.Ack()
		nacked.Nack()
		<-b.ended
		if b.Add("e", 9, 1, false, "e1") {
			t.Error("an item was taken after the end")
		}
		slices.Sort(b.left)
		if got := strings.Join(b.left, " "); got != "a2 b1 c1 d1" || !slices.Equal(b.done, []string{"a1"}) {
			t.Errorf("left %s, done %v", got, b.done)
		}
	})
}

func TestGivenUp(t *testing.T) {
	run(t, 2, func(b *fixture) {
		b.add("a1", "b1")
		first, second := b.want("a1"), b.want("b1")
		b.stop()
		synctest.Wait()
		first.Ack()
		synctest.Wait()
		b.giveUp()
		<-b.ended
		<-second.Context().Done()
		if !slices.Equal(b.done, []string{"a1"}) || !slices.Equal(b.left, []string{"b1"}) {
			t.Errorf("done %v, left %v", b.done, b.left)
		}
	})
}

// Whatever is nacked, the acks of each key come in order, each once.
func TestRandomNacks(t *testing.T) {
	run(t, 5, func(b *fixture) {
		rng := rand.New(rand.NewPCG(1, 2))
		const n = 500
		want := map[string][]string{}
		for i := range n {
			key := string(rune('a' + rng.IntN(8)))
			item := fmt.Sprintf("%s%d", key, i)
			want[key] = append(want[key], item)
			b.add(item)
		}
		got := map[string][]string{}
		for range n {
			for {
				msg := b.next(time.Hour)
				if msg == nil {
					t.Fatalf("nothing came")
				}
				if rng.IntN(3) == 0 {
					msg.Nack()
					continue
				}
				got[msg.UUID[:1]] = append(got[msg.UUID[:1]], msg.UUID)
				msg.Ack()
				break
			}
		}
		for key := range want {
			if !slices.Equal(got[key], want[key]) {
				t.Errorf("key %s: got %v, want %v", key, got[key], want[key])
			}
		}
		synctest.Wait()
		if n, bytes := b.Held(); n != 0 || bytes != 0 {
			t.Errorf("%d items of %d bytes are held", n, bytes)
		}
	})
}
