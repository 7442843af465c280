package subscriber_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/subscriber"
)

// subscribeUntil subscribes and returns a function that ends the subscription and waits
// until its channel is closed.
func subscribeUntil(t *testing.T, sub *subscriber.Subscriber, topic string) (messages <-chan *message.Message, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	messages = testkit.Must(sub.Subscribe(ctx, topic))(t)
	return messages, func() {
		cancel()
		for msg := range messages {
			msg.Nack() // it was on its way
		}
	}
}

func ackAll(messages <-chan *message.Message, n *atomic.Int64) {
	for msg := range messages {
		n.Add(1)
		msg.Ack()
	}
}

// A subscription that comes back while what it had left is not confirmed yet gets that, and
// the other one gets no copy of what it has acked.
func TestResubscribingGetsWhatWasLeftAndTheOthersNoCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t}
		g := newOfflineGateway(t, nil)
		sub, other := g.subscribe(subscriber.Config{})
		_, end := subscribeUntil(t, sub, typeJSON)
		var n atomic.Int64
		go ackAll(other, &n)
		for i := range 20 {
			g.message(i, 1, i, typeJSON, []byte("x"))
		}
		testkit.Eventually(t, "the other one has acked", func() bool { return n.Load() == 20 })
		for range 3 {
			end()
			var messages <-chan *message.Message
			messages, end = subscribeUntil(t, sub, typeJSON)
			msg := f.next(messages)
			synctest.Wait() // all of the stream has come: what comes while the other one is alone is confirmed
			msg.Nack()
		}
		end()
		f.ackN(f.subscribe(sub, typeJSON), 20)
		testkit.Eventually(t, "all are confirmed", func() bool { return g.unconfirmed() == 0 })
		if got := n.Load(); got != 20 {
			t.Errorf("the other one got %d copies", got-20)
		}
	})
}

// What is being read when the only subscription ends does not overtake, in the next one, what that has left.
func TestResubscribingWhileAnEventIsRead(t *testing.T) {
	synctest.Test(t, testResubscribingWhileAnEventIsRead)
}

func testResubscribingWhileAnEventIsRead(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	read, goOn := make(chan struct{}), make(chan struct{})
	var events atomic.Int64
	cfg.Hooks.Event = func(gateway.Event) {
		if events.Add(1) == 2 {
			close(read)
			<-goOn
		}
	}
	sub := f.subscriber(cfg)
	messages, end := subscribeUntil(t, sub, typeJSON)
	f.send(typeJSON, []byte("first"))
	f.next(messages).Nack()
	f.send(typeJSON, []byte("second"))
	<-read
	end()
	messages = f.subscribe(sub, typeJSON)
	close(goOn)
	if msg := f.next(messages); string(msg.Payload) != "first" {
		t.Errorf("%q came first, want %q", msg.Payload, "first")
	}
}

// Who unsubscribes while it acks has the others wait no longer than anybody who unsubscribes.
func TestUnsubscribingWithAnAck(t *testing.T) {
	for range 20 { // whether the next message is taken before the end is noticed is a matter of chance
		synctest.Test(t, func(t *testing.T) {
			f := &fixture{T: t}
			g := newOfflineGateway(t, nil)
			sub, other := g.subscribe(subscriber.Config{})
			ctx, end := context.WithCancel(t.Context())
			messages := testkit.Must(sub.Subscribe(ctx, typeJSON))(t)
			var n atomic.Int64
			go ackAll(other, &n)
			for i := range 20 {
				g.message(i, 1, i, typeJSON, []byte("x"))
			}
			msg := f.next(messages)
			testkit.Eventually(t, "the other one has acked", func() bool { return n.Load() == 20 })
			began := time.Now()
			end()
			msg.Ack()
			testkit.Eventually(t, "all are confirmed", func() bool { return g.unconfirmed() == 0 })
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// What ends with the subscriber, or with all subscriptions, is no unsubscribing: what one of
// them has not acked stays unconfirmed.
func TestEndingEverythingConfirmsNothingThatOneHasNotAcked(t *testing.T) {
	for name, closes := range map[string]bool{"Close": true, "contexts": false} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := &fixture{T: t}
			g := newOfflineGateway(t, nil)
			sub := testkit.Must(subscriber.New(subscriber.Config{Client: g.client}, g.log))(t)
			_, end := subscribeUntil(t, sub, typeJSON)
			other, endOther := subscribeUntil(t, sub, typeJSON)
			for i := range 20 {
				g.message(i, 1, i, typeJSON, []byte("x"))
			}
			f.ackN(other, 20)
			if !closes {
				end()
				endOther()
				time.Sleep(time.Minute) // longer than a subscription may take to come back
			}
			testkit.NoError(t, sub.Close())
			if got := g.unconfirmed(); got != 20 {
				t.Errorf("%d are confirmed", 20-got)
			}
			_, messages := g.subscribe(subscriber.Config{})
			f.ackN(messages, 20)
			testkit.Eventually(t, "all are confirmed", func() bool { return g.unconfirmed() == 0 })
		})
	}
}

// A file does not confirm a chunk that its subscription has given up unacked, not even when
// both come again.
func TestFileDoesNotConfirmAChunkThatWasGivenUp(t *testing.T) {
	synctest.Test(t, testFileDoesNotConfirmAChunkThatWasGivenUp)
}

func testFileDoesNotConfirmAChunkThatWasGivenUp(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true, ChunkSize: 100})
	sub, release := f.held(f.config())
	chunks, end := subscribeUntil(t, sub, string(gateway.EventMessageReceived))
	files := f.subscribe(sub, string(gateway.EventFileReceived))
	release()
	f.send(typeFile, random(250), f.receiver)
	f.next(chunks)
	testkit.Eventually(t, "the chunks are taken, and the file has come", func() bool { return sub.Stats().Received == 4 })
	go end()
	f.ackN(files, 1)
	testkit.Eventually(t, "nothing is open", func() bool { return sub.Stats().InFlight == 0 })
	for connects := range 3 {
		received := sub.Stats().Received
		f.server.CutStreams()
		testkit.Eventually(t, "all comes again", func() bool {
			s := sub.Stats()
			return s.Stream.Connects == int64(connects+2) && s.Received == received+4
		})
	}
	f.nothing(files)
	if got := f.confirmed(); got != 0 {
		t.Errorf("%d chunks are confirmed that nobody has acked", got)
	}
	f.ackN(f.subscribe(sub, string(gateway.EventMessageReceived)), 3)
	f.waitConfirmed(3)
}
