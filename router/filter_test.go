package router_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/router"
)

// What Filter does not accept is acknowledged and counted, its errors are those of the handler, and what it
// remembers is computed once, except an error.
func TestFilter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to, poison := newSource(), newSink(nil), newSink(nil)
		failures, computed := 2, map[string]int{}
		to.fail = func(string, *message.Message) error {
			if failures--; failures >= 0 {
				return router.Outage(errors.New("down"))
			}
			return nil
		}
		route := farmRoute(from, to)
		type key struct{}
		var down atomic.Bool
		down.Store(true)
		route.Filter = func(msg *message.Message) (bool, error) {
			if msg.UUID == "hopeless" {
				return false, router.Permanent(errors.New("hopeless"))
			}
			return router.Once(msg, key{}, func() (bool, error) {
				computed[msg.UUID]++
				if down.Swap(false) {
					return false, router.Outage(errors.New("the claim check is down"))
				}
				return msg.UUID == "wanted", nil
			})
		}
		r := build(t, router.Config{Poison: poison}, route)
		result := make(chan error, 1)
		go func() { result <- r.Run(t.Context()) }()
		<-r.Running()
		for _, id := range []string{"wanted", "unwanted", "hopeless"} {
			msg := farmMessage(id, "e", id, "p")
			from.messages <- msg
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
				t.Errorf("%s was given back", id)
			case <-time.After(time.Hour):
				t.Errorf("%s is still open", id)
			}
		}
		testkit.Equal(t, to.uuids(), map[string]int{"wanted": 1})
		testkit.Equal(t, poison.uuids(), map[string]int{"hopeless": 1})
		testkit.Equal(t, computed, map[string]int{"wanted": 2, "unwanted": 1})
		if health := r.Health()[0]; health.Filtered != 1 || health.Delivered != 1 || health.Poisoned != 1 {
			t.Errorf("got %+v, want one delivered, one filtered, one poisoned", health)
		}
		testkit.NoError(t, errors.Join(r.Close(), <-result))
	})
}

// Outside of a Router nothing is remembered.
func TestOnceAlone(t *testing.T) {
	n := 0
	for range 2 {
		testkit.Must(router.Once(message.NewMessage("1", nil), "key", func() (int, error) { n++; return n, nil }))(t)
	}
	if n != 2 {
		t.Errorf("computed %d times, want 2", n)
	}
}
