package router_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/msgctx"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// barn is another process.
var barn = router.Owner{Instance: "barn", Session: "2"}

// patient is a subscriber that delivers a message again when it is told to, and knows how to wait.
type patient struct {
	*source
	deliveries atomic.Int64
}

// deliverUntilAcked delivers a message until it is acked.
func (s *patient) deliverUntilAcked(t *testing.T, newMessage func() *message.Message) {
	for {
		msg := newMessage()
		nack := &msgctx.Nack{}
		msg.SetContext(msgctx.With(msg.Context(), msgctx.Value{Nack: nack}))
		s.messages <- msg
		s.deliveries.Add(1)
		select {
		case <-msg.Acked():
			return
		case <-msg.Nacked():
		}
		delay := nack.Delay()
		if delay <= 0 || delay > time.Second {
			t.Errorf("put off by %v, want at most a second", delay)
			return
		}
		time.Sleep(delay)
	}
}

func reserveFor(t *testing.T, store router.DedupStore, owner router.Owner, msg *message.Message) (router.Claim, router.Token) {
	t.Helper()
	keys := testkit.Must(router.DefaultKeys("farm", msg))(t)
	claim := router.Claim{Keys: keys, Owner: owner}
	got, err := store.Reserve(t.Context(), claim, time.Hour)
	if err != nil || got.State != router.Reserved {
		t.Fatalf("%+v, %v", got, err)
	}
	return claim, got.Token
}

func lines(log *testkit.Log, text string) (found []watermill.CapturedMessage) {
	for _, line := range log.Lines(watermill.InfoLogLevel) {
		if strings.Contains(line.Msg, text) {
			found = append(found, line)
		}
	}
	return found
}

// A message whose copy another process handles is put off: it is not in flight meanwhile,
// nothing has failed, and it comes back soon after the copy was handled.
func TestMessageWaitsForItsCopyElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, sink, log := newStore(t, 0), newSink(nil), testkit.NewLog()
		from := &patient{source: newSource()}
		r := testkit.Must(router.New(router.Config{Poison: newSink(nil), Dedup: router.DedupSettings{Store: store}}, log))(t)
		testkit.NoError(t, r.Add(farmRoute(from, sink)))
		go func() { _ = r.Run(t.Context()) }()
		<-r.Running()
		defer func() { _ = r.Close() }()

		makeIt := func() *message.Message { return farmMessage("1", "e", "c", "p") }
		claim, token := reserveFor(t, store, barn, makeIt())
		acked := make(chan struct{})
		go func() { from.deliverUntilAcked(t, makeIt); close(acked) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		health := r.Health()[0]
		if health.InFlight != 0 || health.WaitingForCopies != 1 || health.Returned != 0 || health.State != router.StateRunning {
			t.Errorf("%+v, want one that waits, and nothing else", health)
		}
		if by := health.CopyWaits; len(by) != 1 || by[0].Instance != "barn" || by[0].Count != 1 || time.Since(by[0].Since) != time.Minute || by[0].Until.Before(by[0].Since) {
			t.Errorf("%+v, want one for the barn, for a minute", by)
		}
		if from.deliveries.Load() > 100 {
			t.Errorf("%d deliveries in a minute", from.deliveries.Load())
		}
		told := lines(log, "message waits for a copy")
		if len(told) != 1 || told[0].Fields["instance"] != "barn" || told[0].Fields["waited"].(time.Duration) > 12*time.Second {
			t.Errorf("logged %v, want one line after 10 s", told)
		}
		testkit.NoError(t, store.Commit(t.Context(), claim, token, time.Hour))
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case <-acked:
		default:
			t.Error("not acked a second after its copy was handled")
		}
		if health := r.Health()[0]; health.Duplicates != 1 || health.WaitingForCopies != 0 || sink.callCount() != 0 {
			t.Errorf("%+v and %d calls of the sink, want one duplicate", health, sink.callCount())
		}
		if told := lines(log, "no longer wait for copies"); len(told) != 1 {
			t.Errorf("logged %v, want that it is over", told)
		}
	})
}
