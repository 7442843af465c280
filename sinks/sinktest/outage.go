package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

func testOutage(t *testing.T, h Suite) {
	b, sink := start(t, h)
	publish(t, sink, "outage.topic", newMessage("before"))
	for round := range 2 {
		b.Break(t)
		testkit.Ends(t, "Publish without broker", func() {
			for range 3 {
				if err := sink.Publish("outage.topic", newMessage("during")); !errors.Is(err, sinks.ErrUnavailable) {
					t.Errorf("Publish: got %v, want ErrUnavailable", err)
				}
			}
		})
		testkit.Ends(t, "Health without broker", func() {
			if err := sink.Health(t.Context()); !errors.Is(err, sinks.ErrUnavailable) {
				t.Errorf("Health: got %v, want ErrUnavailable", err)
			}
		})
		b.Repair(t)
		recovered(t, sink, "outage.topic", fmt.Sprint("after ", round))
		if err := sink.Health(t.Context()); err != nil {
			t.Errorf("Health after the outage: %v", err)
		}
	}
	// A message that failed may be stored all the same; one that was acked must.
	got := payloads(b.Read(t, "outage.topic"))
	for _, want := range []string{"before", "after 0", "after 1"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q was acked and is not stored", want)
		}
	}
}

func testOutageWhilePublishing(t *testing.T, h Suite) {
	b, sink := start(t, h)
	const topic = "outage.publishing"
	var acked sync.Map
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started, failed := make(chan struct{}, 8), make(chan struct{}, 8)
	var group sync.WaitGroup
	for p := range 8 {
		group.Go(func() {
			pause := time.NewTicker(10 * time.Millisecond)
			defer pause.Stop()
			hasFailed := false
			for i := 0; ctx.Err() == nil; i++ {
				payload := fmt.Sprint(p, " ", i)
				err := sink.Publish(topic, newMessage(payload))
				switch {
				case err == nil:
					acked.Store(payload, true)
				case errors.Is(err, sinks.ErrUnavailable):
					if !hasFailed {
						hasFailed = true
						failed <- struct{}{}
					}
					<-pause.C
				default:
					t.Errorf("Publish: %v", err)
					return
				}
				if i == 5 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	b.Break(t)
	testkit.Ends(t, "errors of all publishers", func() {
		for range 8 {
			<-failed
		}
	})
	b.Repair(t)
	recovered(t, sink, topic, "recovered")
	cancel()
	testkit.Ends(t, "the publishers", group.Wait)
	wantAcked(t, b, topic, &acked)
}

func testContextEndsWhileHanging(t *testing.T, h Suite) {
	b, sink := start(t, h)
	publish(t, sink, "hang.context", newMessage("before"))
	b.Hang(t)
	ends := func(what string, ctx context.Context, cancel context.CancelFunc, count int) {
		t.Helper()
		messages := []*message.Message{}
		for range count {
			// More than the buffers between sink and broker hold.
			messages = append(messages, newMessage(strings.Repeat("x", 100_000)))
		}
		noticed := notice(ctx)
		messages[count-1].SetContext(noticed)
		result := make(chan error, 1)
		go func() { result <- sink.Publish("hang.context", messages...) }()
		<-noticed.used
		cancel()
		select {
		case err := <-result:
			if !errors.Is(err, ctx.Err()) {
				t.Errorf("%s: Publish: got %v, want %v", what, err, ctx.Err())
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("%s: Publish does not heed the context", what)
		}
		// They are the caller's again, whatever the sink still sends; the race
		// detector watches.
		for _, msg := range messages {
			clear(msg.Payload)
			msg.Metadata["written"] = "again"
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends("cancel", ctx, cancel, 1)
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	ends("deadline", ctx, func() {}, 1)
	cancel()
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	ends("deadline with full buffers", ctx, func() {}, 200)
	cancel()
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := sink.Health(ctx); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sinks.ErrUnavailable) {
		t.Errorf("Health: %v", err)
	}
	b.Resume(t)
	recovered(t, sink, "hang.context", "after")
}

func testHangIsAnOutage(t *testing.T, h Suite) {
	b, sink := start(t, h)
	publish(t, sink, "hang.outage", newMessage("before"))
	b.Hang(t)
	testkit.Ends(t, "Publish to a broker that does not answer", func() {
		if err := sink.Publish("hang.outage", newMessage("during")); !errors.Is(err, sinks.ErrUnavailable) {
			t.Errorf("Publish: got %v, want ErrUnavailable", err)
		}
	})
	b.Resume(t)
	recovered(t, sink, "hang.outage", "after")
}

func testCloseWhileHanging(t *testing.T, h Suite) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	publish(t, sink, "hang.close", newMessage("before"))
	b.Hang(t)
	msg, ctx := newMessage("during"), notice(t.Context())
	msg.SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- sink.Publish("hang.close", msg) }()
	<-ctx.used
	testkit.Ends(t, "Close", func() { _ = sink.Close() })
	select {
	case err := <-result:
		if !errors.Is(err, sinks.ErrUnavailable) && !errors.Is(err, sinks.ErrClosed) {
			t.Errorf("Publish: %v", err)
		}
	case <-time.After(testkit.Patience):
		t.Error("Publish outlives Close")
	}
	b.Resume(t)
}
