package kvstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/testkit/natstest"
	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks/nats"
	"github.com/agrimill/agrimill/stores/nats/kvstore"
)

// endless is a subscriber that delivers a message until it is acked.
type endless struct {
	out  chan *message.Message
	ctx  context.Context
	stop context.CancelFunc
	open sync.WaitGroup
}

func (s *endless) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.out, nil
}

func (s *endless) Close() error {
	s.stop()
	s.open.Wait()
	close(s.out)
	return nil
}

// send delivers a message; it is done when it was acked.
func (s *endless) send(uuid string, done func()) {
	s.open.Go(func() {
		for {
			msg := message.NewMessage(uuid, []byte(uuid))
			select {
			case s.out <- msg:
			case <-s.ctx.Done():
				return
			}
			select {
			case <-msg.Acked():
				done()
				return
			case <-msg.Nacked():
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// A server that answers nothing for ten seconds costs hardly more than these: nothing
// waits for reservations that were stored without an answer.
func TestPauseOfTheServer(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, server *natstest.Server) {
		proxy := natstest.NewLine(t, server)
		sink := testkit.Must(nats.New(nats.Config{Connection: nats.Connection{Options: []natsgo.Option{natsgo.InProcessServer(proxy)}}, MaxAge: natstest.Ever}, nil))(t)
		store := open(t, kvstore.Config{Conn: sink.Conn(), TTL: natstest.Ever})
		uuidKey := func(scope string, msg *message.Message) (router.Keys, error) {
			return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
		}
		r := testkit.Must(router.New(router.Config{Poison: sink, Dedup: router.DedupSettings{Store: store, KeyFunc: uuidKey}}, nil))(t)
		source := &endless{out: make(chan *message.Message)}
		source.ctx, source.stop = context.WithCancel(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		testkit.NoError(t, r.Add(router.Route{Name: "farm data", From: source, Topic: "all", To: sink, ToTopic: "data"}))
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		t.Cleanup(func() {
			proxy.Resume()
			cancel()
			running.Wait()
		})

		var acks sync.WaitGroup
		flow := func(name string, n int) {
			for i := range n {
				acks.Add(1)
				source.send(fmt.Sprint(name, i), acks.Done)
				time.Sleep(100 * time.Millisecond)
			}
		}
		flow("before", 10)
		proxy.Hang()
		flow("during", 100)
		proxy.Resume()
		resumed := time.Now()
		acks.Wait()
		if took := time.Since(resumed); took > 5*time.Second {
			t.Errorf("everything was handled %v after the pause, want at most 5s", took)
		}
	})
}
