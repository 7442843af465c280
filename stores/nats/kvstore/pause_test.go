//go:build faults

package kvstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

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
// waits for reservations that were stored without an answer. It bounds a time, so it runs with the
// fault matrix, and not beside other packages.
func TestPauseOfTheServer(t *testing.T) {
	server := natstest.Start(t)
	proxy := natstest.NewProxy(t, server.URL())
	sink, err := nats.New(nats.Config{URL: proxy.URL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	store := open(t, kvstore.Config{Conn: sink.Conn()})
	uuidKey := func(scope string, msg *message.Message) (router.Keys, error) {
		return router.Keys{Delivery: router.KeyOf(scope, msg.UUID)}, nil
	}
	r, err := router.New(router.Config{Poison: sink, Dedup: router.DedupSettings{Store: store, KeyFunc: uuidKey}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	source := &endless{out: make(chan *message.Message)}
	source.ctx, source.stop = context.WithCancel(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	if err := r.Add(router.Route{Name: "farm data", From: source, Topic: "all", To: sink, ToTopic: "data"}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() {
		proxy.Resume()
		cancel()
		running.Wait()
	})

	var acks sync.WaitGroup
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	flow := func(name string, d time.Duration) {
		for began, i := time.Now(), 0; time.Since(began) < d; i++ {
			acks.Add(1)
			source.send(fmt.Sprint(name, i), acks.Done)
			<-tick.C
		}
	}
	flow("before", time.Second)
	proxy.Hang()
	flow("during", 10*time.Second)
	proxy.Resume()
	resumed := time.Now()
	acks.Wait()
	took := time.Since(resumed)
	t.Logf("everything was handled %v after the pause", took)
	if took > 5*time.Second {
		t.Errorf("everything was handled %v after the pause, want at most 5s", took)
	}
}
