package sinktest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/internal/wakeup"
	"github.com/agrimill/agrimill/sinks"
)

func testCloseRepeated(t *testing.T, h Suite) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	publish(t, sink, "close.repeated", newMessage("before"))
	testkit.Ends(t, "Close", func() {
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() { closeSink(t, sink) })
		}
		group.Wait()
		closeSink(t, sink)
	})
	wantPayloads(t, b, "close.repeated", "before")

	// Never used.
	testkit.Ends(t, "Close of an unused sink", func() { closeSink(t, b.NewSink(t)) })
}

func testClosedErrors(t *testing.T, h Suite) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	closeSink(t, sink)
	wantKind(t, "Publish", sink.Publish("closed.topic", newMessage("late")), sinks.ErrClosed)
	wantKind(t, "Publish of nothing", sink.Publish("closed.topic"), sinks.ErrClosed)
	_, err := sink.PublishAsync("closed.topic", newMessage("late"))
	wantKind(t, "PublishAsync", err, sinks.ErrClosed)
	wantKind(t, "Health", sink.Health(t.Context()), sinks.ErrClosed)
	_ = sink.Describe()
	if got := sink.TopicSegment("x"); got != "x" {
		t.Errorf("TopicSegment(x) is %q", got)
	}
	wantPayloads(t, b, "closed.topic")
}

func testCloseWhilePublishing(t *testing.T, h Suite) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	var acked sync.Map
	closed := make(chan struct{})
	started := make(chan struct{}, 8)
	var group sync.WaitGroup
	for p := range 8 {
		group.Go(func() {
			for i := 0; ; i++ {
				payload := fmt.Sprint(p, " ", i)
				late := wakeup.Raised(closed)
				err := sink.Publish("close.publishing", newMessage(payload))
				if err != nil {
					if !errors.Is(err, sinks.ErrClosed) {
						t.Errorf("Publish: got %v, want ErrClosed", err)
					}
					return
				}
				if late {
					t.Error("Publish after Close: got nil, want ErrClosed")
					return
				}
				acked.Store(payload, true)
				if i == 5 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	testkit.Ends(t, "Close", func() { closeSink(t, sink) })
	close(closed)
	testkit.Ends(t, "Publish after Close", group.Wait)
	wantAcked(t, b, "close.publishing", &acked)
}
