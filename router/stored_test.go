package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/router"
	"github.com/agrimill/agrimill/sinks"
)

// EventStored tells how long the sink took in the attempt that succeeded: neither the transformation counts nor an earlier
// attempt.
func TestStoredTellsHowLongTheSinkTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, attempts := newGoChannel(), 0
		to := newSink(func(_ string, msg *message.Message) error {
			if attempts++; attempts == 1 {
				time.Sleep(5 * time.Second)
				return sinks.ErrUnavailable
			}
			time.Sleep(30 * time.Millisecond)
			sinks.ReportStored(msg, sinks.Receipt{})
			return nil
		})
		route := farmRoute(in, to)
		route.Transform = func(msg *message.Message) ([]*message.Message, error) {
			time.Sleep(time.Second)
			return []*message.Message{msg}, nil
		}
		var took []time.Duration
		r := start(t, router.Config{Poison: newSink(nil), Observer: router.ObserverFunc(func(e router.Event) {
			if e.Kind == router.EventStored {
				took = append(took, e.Delay)
			}
		})}, route)
		publish(t, in, farmMessage("1", "endpoint", "context", "payload"))
		time.Sleep(time.Minute)
		synctest.Wait()
		to.wantStored(t, 1)
		r.wantStop(t)
		if len(took) != 1 || took[0] != 30*time.Millisecond {
			t.Errorf("took %v, want 30ms", took)
		}
	})
}

// And neither does an earlier delivery, of a message that waited with its subscriber.
func TestStoredTellsHowLongTheSinkTookOfWhatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, attempts := newSource(), 0
		to := newSink(func(_ string, msg *message.Message) error {
			if string(msg.Payload) != "waits" {
				return nil
			}
			time.Sleep(30 * time.Millisecond)
			if attempts++; attempts <= 2 {
				return sinks.ErrUnavailable
			}
			sinks.ReportStored(msg, sinks.Receipt{})
			return nil
		})
		var stored []router.Event
		r := start(t, router.Config{
			Poison: newSink(nil), Retry: router.RetrySettings{InitialBackoff: 10 * time.Second},
			Observer: router.ObserverFunc(func(e router.Event) {
				if e.Kind == router.EventStored {
					stored = append(stored, e)
				}
			}),
		}, farmRoute(in, to))
		stop := passSomething(in)
		if n := deliverPatiently(t, in, farmMessage("1", "endpoint", "context", "waits")); n != 3 {
			t.Errorf("acked in delivery %d, want 3", n)
		}
		stop()
		r.wantStop(t)
		if len(stored) != 1 || stored[0].Delay != 30*time.Millisecond {
			t.Errorf("stored %+v, want one that took 30ms", stored)
		}
	})
}
