package nats

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agrimill/agrimill/internal/testkit"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// scriptedMsg is one delivery of a message, whose subject is its key.
type scriptedMsg struct {
	key                        string
	stream, delivery, attempts uint64
}

// delivered is the message as the server sends it.
func (m scriptedMsg) delivered(conn answerer) *received {
	return &received{&natsgo.Msg{
		Subject: m.key, Reply: fmt.Sprintf("$JS.ACK.FIELD.out.%d.%d.%d.0.0", m.attempts, m.stream, m.delivery),
		Data: fmt.Appendf(nil, "%s%d", m.key, m.stream), Sub: &natsgo.Subscription{},
	}, conn}
}

// heard takes every answer, and counts them.
type heard struct{ n atomic.Int64 }

func (h *heard) Publish(string, []byte) error {
	h.n.Add(1)
	return nil
}

func (h *heard) Request(string, []byte, time.Duration) (*natsgo.Msg, error) {
	return nil, h.Publish("", nil)
}

// scriptedBatch is the answer to a request.
type scriptedBatch []scriptedMsg

// scriptedConsumer answers requests in turn, with nothing at the end of the script, and says
// that pending messages are delivered and not acked.
type scriptedConsumer struct {
	jetstream.Consumer
	script   []scriptedBatch
	pending  int
	requests []time.Time
}

func (c *scriptedConsumer) CachedInfo() *jetstream.ConsumerInfo {
	return &jetstream.ConsumerInfo{Config: jetstream.ConsumerConfig{AckWait: 10 * time.Second}}
}

func (c *scriptedConsumer) Info(context.Context) (*jetstream.ConsumerInfo, error) {
	return &jetstream.ConsumerInfo{NumAckPending: c.pending}, nil
}

// fetch is as [subscription.fetch].
func (c *scriptedConsumer) fetch(s *subscription) fetchFunc {
	return func(int) (got int, anew bool, err error) {
		c.requests = append(c.requests, time.Now())
		if len(c.script) == 0 {
			return 0, false, nil
		}
		answer := c.script[0]
		c.script = c.script[1:]
		for _, msg := range answer {
			anew = s.receive(msg.delivered(&heard{})) || anew
		}
		return len(answer), anew, nil
	}
}

// afterLoss is a subscription that has handled a1. Then a2 and b3 were on their way when the
// connection was lost, and after that a4 comes for the first time and a5 again, which the
// server could not deliver.
func afterLoss(t *testing.T) (s *subscription, handled func() []string) {
	t.Helper()
	source := testkit.Must(New(Config{Durable: "out", AckWait: 10 * time.Second}, nil))(t)
	s = newSubscription(t.Context(), source, ">")
	s.conn = &natsgo.Conn{}
	ended := make(chan struct{})
	go func() { // ends with intake
		defer close(ended)
		s.queue.Deliver(s.intake, s.work)
	}()
	var order []string
	go func() { // ends with out
		for msg := range s.out {
			order = append(order, string(msg.Payload))
			msg.Ack()
		}
	}()
	t.Cleanup(func() {
		s.stopIntake()
		<-ended
		s.giveUp()
		close(s.out)
	})
	s.receive(scriptedMsg{key: "a", stream: 1, delivery: 1, attempts: 1}.delivered(&heard{}))
	synctest.Wait()
	s.suspect = true // as when a request fails
	s.receive(scriptedMsg{key: "a", stream: 4, delivery: 4, attempts: 1}.delivered(&heard{}))
	s.receive(scriptedMsg{key: "a", stream: 5, delivery: 5, attempts: 2}.delivered(&heard{}))
	return s, func() []string {
		synctest.Wait()
		return order
	}
}

// lost is what comes again.
var (
	lostA2 = scriptedMsg{key: "a", stream: 2, delivery: 7, attempts: 2}
	lostB3 = scriptedMsg{key: "b", stream: 3, delivery: 6, attempts: 2}
)

// What was lost comes before what is behind it, whether it is delivered for the first time or
// again, although one comes later than the other and the server is late.
func TestLostComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handled := afterLoss(t)
		if have := handled(); !slices.Equal(have, []string{"a1"}) {
			t.Errorf("handled %v before what was lost", have)
		}
		began := time.Now()
		consumer := &scriptedConsumer{script: []scriptedBatch{nil, {lostB3}, {lostA2}}, pending: 4}
		testkit.NoError(t, s.recover(consumer, consumer.fetch(s)))
		have := handled()
		b := slices.Index(have, "b3")
		if b < 0 || !slices.Equal(slices.Delete(slices.Clone(have), b, b+1), []string{"a1", "a2", "a4", "a5"}) {
			t.Errorf("handled %v, want a1 a2 a4 a5 in this order, and b3", have)
		}
		if first := consumer.requests[0].Sub(began); first != 10*time.Second+lostMargin {
			t.Errorf("asked after %v, want AckWait and a margin: nothing new must come before", first)
		}
		if !s.lost.IsZero() || len(consumer.requests) != 3 {
			t.Errorf("%d requests; still lost: %v", len(consumer.requests), s.lost)
		}
	})
}

// A server that knows of more than ever comes is waited for three times AckWait, and one that
// others read, too, is not asked.
func TestLostIsNotWaitedForWithoutEnd(t *testing.T) {
	for name, shared := range map[string]bool{"alone": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, handled := afterLoss(t)
				s.shared = shared
				began := time.Now()
				consumer := &scriptedConsumer{pending: 100}
				testkit.NoError(t, s.recover(consumer, consumer.fetch(s)))
				if have := handled(); !slices.Equal(have, []string{"a1", "a4", "a5"}) {
					t.Errorf("handled %v", have)
				}
				took, wait := time.Since(began), 10*time.Second
				if shared && took != wait+lostMargin || !shared && (took < lostFactor*wait || took > (lostFactor+1)*wait) {
					t.Errorf("released after %v", took)
				}
			})
		})
	}
}

// Until then nothing of any key is handled: nobody knows of which keys messages were lost.
func TestLostIsHeldForEveryKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handled := afterLoss(t)
		s.receive(scriptedMsg{key: "c", stream: 9, delivery: 6, attempts: 1}.delivered(&heard{}))
		time.Sleep(time.Hour)
		if have := handled(); !slices.Equal(have, []string{"a1"}) {
			t.Errorf("handled %v before what was lost", have)
		}
		s.queue.Release()
		if have := handled(); len(have) != 4 {
			t.Errorf("handled %v after that", have)
		}
	})
}

// The server delivers to the connection before until it hears of its end: what is lost so while the rest
// is recovered comes first, too, and nobody else is taken to read the consumer.
func TestMoreIsLostDuringRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handled := afterLoss(t)
		consumer := &scriptedConsumer{pending: 6, script: []scriptedBatch{
			{{key: "a", stream: 7, delivery: 9, attempts: 1}},
			{lostB3, lostA2, {key: "a", stream: 6, delivery: 10, attempts: 2}},
		}}
		testkit.NoError(t, s.recover(consumer, consumer.fetch(s)))
		have := handled()
		b := slices.Index(have, "b3")
		if b < 0 || !slices.Equal(slices.Delete(slices.Clone(have), b, b+1), []string{"a1", "a2", "a4", "a5", "a6", "a7"}) {
			t.Errorf("handled %v, want a1 a2 a4 a5 a6 a7 in this order, and b3", have)
		}
		if s.shared {
			t.Error("somebody else is taken to read the consumer")
		}
	})
}

// Somebody else who reads the consumer leaves a gap before each delivery: that ends the recovery.
func TestSharedConsumerIsRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, handled := afterLoss(t)
		consumer := &scriptedConsumer{pending: 100}
		for n := range uint64(20) {
			consumer.script = append(consumer.script, scriptedBatch{{key: "c", stream: 10 + 2*n, delivery: 10 + 2*n, attempts: 1}})
		}
		began := time.Now()
		testkit.NoError(t, s.recover(consumer, consumer.fetch(s)))
		if took := time.Since(began); took > (lostFactor+1)*(10*time.Second+lostMargin) || !s.shared {
			t.Errorf("released after %v, shared %v", took, s.shared)
		}
		if have := handled(); len(have) < 4 {
			t.Errorf("handled %v", have)
		}
	})
}

// The server hears of what is held three times in the shortest of its waits.
func TestHeldIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		config jetstream.ConsumerConfig
		within time.Duration
	}{
		"AckWait": {jetstream.ConsumerConfig{AckWait: 30 * time.Second}, 30 * time.Second},
		"BackOff": {jetstream.ConsumerConfig{AckWait: 30 * time.Second, BackOff: []time.Duration{2 * time.Second, time.Second, time.Minute}}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := afterLoss(t)
				held := &heard{}
				s.receive(scriptedMsg{key: "b", stream: 9, delivery: 6, attempts: 1}.delivered(held)) // and is not handled, see TestLostIsHeldForEveryKey
				stop := s.keepAlive(c.config)
				time.Sleep(c.within + time.Nanosecond)
				stop()
				if got := held.n.Load(); got != 3 {
					t.Errorf("%d reports in %v, want 3", got, c.within)
				}
			})
		})
	}
}
