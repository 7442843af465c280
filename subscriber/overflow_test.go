package subscriber_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/gateway/gatewaytest"
	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/subscriber"
)

// A handler puts off more messages than the subscriber has room for: the others pass
// meanwhile, and when it takes them again, those that were left with the service come, too.
// What the handler keeps for a message is there again when it comes.
func TestMoreIsPutOffThanThereIsRoomFor(t *testing.T) {
	synctest.Test(t, testMoreIsPutOffThanThereIsRoomFor)
}

func testMoreIsPutOffThanThereIsRoomFor(t *testing.T) {
	f := newFixture(t, gatewaytest.Config{InMemory: true})
	cfg := f.config()
	cfg.MaxInFlight, cfg.Order = 10, subscriber.Unordered
	sub, messages := f.receive(cfg)

	over := make(chan struct{})
	var mu sync.Mutex
	kept := 0
	go func() { // ends with the subscription
		for msg := range messages {
			go handlePutOff(msg, over, func(again bool) {
				mu.Lock()
				defer mu.Unlock()
				if again {
					kept++
				}
			})
		}
	}()
	const sick, well = 40, 40
	for range sick {
		f.send(typeOther, random(10), f.receiver)
	}
	for range well {
		f.send(typeJSON, random(10), f.receiver)
	}
	f.waitConfirmed(well) // of the others, as the rest is not acked
	if n := sub.Stats().InFlight; n > 2*cfg.MaxInFlight {
		t.Errorf("%d in flight, want at most %d", n, 2*cfg.MaxInFlight)
	}
	close(over)
	began := time.Now()
	f.waitConfirmed(sick + well)
	t.Logf("all confirmed after %v", time.Since(began))
	mu.Lock()
	defer mu.Unlock()
	if kept == 0 {
		t.Error("nothing that was kept is there")
	}
}

// handlePutOff acks a message, but puts it off until over is closed if it is of typeOther.
func handlePutOff(msg *message.Message, over <-chan struct{}, seen func(again bool)) {
	nack, id := msgctx.NackOf(msg.Context()), msg.Metadata[gateway.KeyMessageID]
	seen(nack.Kept() == id)
	if msg.Metadata[gateway.KeyMessageType] == typeOther {
		select {
		case <-over:
		default:
			nack.Keep(id)
			nack.After(20 * time.Millisecond)
			msg.Nack()
			return
		}
	}
	msg.Ack()
}
