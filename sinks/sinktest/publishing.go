package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// testUnused: what a sink says of itself before it has stored anything, and a call without messages.
func testUnused(t *testing.T, h Suite) {
	b, sink := start(t, h)
	d := sink.Describe()
	if d.Name == "" {
		t.Error("no Name")
	}
	if d.MaxMessageSize < 0 {
		t.Errorf("MaxMessageSize %d", d.MaxMessageSize)
	}
	if d.Durability != sinks.DurabilityUnknown && d.DurabilityNote == "" {
		t.Errorf("durability %v without a note", d.Durability)
	}
	if err := sink.Health(t.Context()); err != nil {
		t.Errorf("Health: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sink.Health(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Health with an ended context: %v", err)
	}
	publish(t, sink, "empty.call")
	wantPayloads(t, b, "empty.call")
}

func testOrderInOneCall(t *testing.T, h Suite) {
	b, sink := start(t, h)
	var want []string
	for call := range 2 {
		var messages []*message.Message
		for i := range 150 {
			payload := fmt.Sprint(call, " ", i)
			messages = append(messages, newMessage(payload))
			want = append(want, payload)
		}
		publish(t, sink, "order.call", messages...)
	}
	wantPayloads(t, b, "order.call", want...)
}

func testConcurrent(t *testing.T, h Suite) {
	b, sink := start(t, h)
	const publishers, each = 8, 20
	var group sync.WaitGroup
	for p := range publishers {
		group.Go(func() {
			for i := range each {
				// One topic per publisher and one for all of them.
				own, shared := newMessage(fmt.Sprint(i)), newMessage(fmt.Sprint(p, " ", i))
				own.Metadata["publisher"] = fmt.Sprint(p)
				if err := sink.Publish(fmt.Sprintf("concurrent.own%d", p), own); err != nil {
					t.Errorf("Publish: %v", err)
				}
				if err := sink.Publish("concurrent.shared", shared); err != nil {
					t.Errorf("Publish: %v", err)
				}
				_ = sink.Describe()
				_ = sink.TopicSegment("a.b")
			}
			if err := sink.Health(t.Context()); err != nil {
				t.Errorf("Health: %v", err)
			}
		})
	}
	group.Wait()

	var own, shared []string
	for i := range each {
		own = append(own, fmt.Sprint(i))
	}
	for p := range publishers {
		wantPayloads(t, b, fmt.Sprintf("concurrent.own%d", p), own...) // in order
		for i := range each {
			shared = append(shared, fmt.Sprint(p, " ", i))
		}
	}
	got := payloads(b.Read(t, "concurrent.shared"))
	slices.Sort(got)
	slices.Sort(shared)
	if !slices.Equal(got, shared) {
		t.Errorf("the shared topic holds %d messages, want each of %d once", len(got), len(shared))
	}
}

func testMessagesUntouched(t *testing.T, h Suite) {
	_, sink := start(t, h)
	msg := newMessage("payload")
	for i, name := range nastyNames() {
		if h.Features.Metadata {
			msg.Metadata[name] = nastyValues()[i%10]
		}
	}
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "value")
	msg.SetContext(ctx)
	before := msg.Copy()
	before.Metadata = maps.Clone(msg.Metadata)

	publish(t, sink, "untouched.topic", msg)

	if !msg.Equals(before) {
		t.Error("Publish changed the message")
	}
	if msg.Context() != ctx {
		t.Error("Publish changed the message's context")
	}
	select {
	case <-msg.Acked():
		t.Error("Publish acked the message")
	case <-msg.Nacked():
		t.Error("Publish nacked the message")
	default:
	}
}

func testMessagesNotKept(t *testing.T, h Suite) {
	b, sink := start(t, h)
	var want []string
	payload := make([]byte, 1000)
	metadata := message.Metadata{}
	for i := range 30 {
		copy(payload, bytes.Repeat([]byte{byte('a' + i%26)}, len(payload)))
		metadata["i"] = fmt.Sprint(i)
		want = append(want, string(payload))
		msg := message.NewMessage(watermill.NewUUID(), payload)
		msg.Metadata = metadata
		ctx, cancel := context.WithCancel(t.Context())
		msg.SetContext(ctx)
		publish(t, sink, "kept.topic", msg)
		cancel()
		// The race detector tells when the sink still reads what is now
		// written again.
	}
	wantPayloads(t, b, "kept.topic", want...)
	if !h.Features.Metadata {
		return
	}
	for i, msg := range b.Read(t, "kept.topic") {
		if got := msg.Metadata["i"]; got != fmt.Sprint(i) {
			t.Fatalf("message %d has the metadata of message %s", i, got)
		}
	}
}

func testContextEndedBefore(t *testing.T, h Suite) {
	b, sink := start(t, h)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{canceled, late} {
		msg := newMessage("ended")
		msg.SetContext(ctx)
		if err := sink.Publish("context.before", msg); err != ctx.Err() { //nolint:errorlint // has to be the error itself
			t.Errorf("Publish: got %v, want %v", err, ctx.Err())
		}
		if err := asyncError(t, sink, "context.before", msg); err != ctx.Err() { //nolint:errorlint // has to be the error itself
			t.Errorf("PublishAsync: got %v, want %v", err, ctx.Err())
		}
		if err := sink.Publish("context.before", newMessage("alive"), msg); !errors.Is(err, ctx.Err()) {
			t.Errorf("Publish of two: got %v, want %v", err, ctx.Err())
		}
	}
	publish(t, sink, "context.before", newMessage("after")) // the sink continues
	got := payloads(b.Read(t, "context.before"))
	if slices.Contains(got, "ended") || !slices.Contains(got, "after") {
		t.Errorf("stored: %q", got)
	}
}

func testTooLarge(t *testing.T, h Suite) {
	const limit = 10_000
	b := h.New(t, Settings{MaxMessageSize: limit})
	sink := newSink(t, b)
	if got := sink.Describe().MaxMessageSize; got != limit {
		t.Fatalf("Describe: MaxMessageSize is %d, want %d", got, limit)
	}
	fits, large := strings.Repeat("x", limit-1000), strings.Repeat("x", limit+1)
	publish(t, sink, "large.topic", newMessage(fits))
	wantKind(t, "Publish", sink.Publish("large.topic", newMessage(large)), sinks.ErrTooLarge)
	wantKind(t, "Publish of three", sink.Publish("large.topic", newMessage("a"), newMessage(large), newMessage("b")), sinks.ErrTooLarge)
	wantKind(t, "PublishAsync", asyncError(t, sink, "large.topic", newMessage(large)), sinks.ErrTooLarge)
	if h.Features.Metadata {
		msg := newMessage(strings.Repeat("x", limit/2))
		msg.Metadata["large"] = strings.Repeat("y", limit/2+1)
		wantKind(t, "Publish with much metadata", sink.Publish("large.topic", msg), sinks.ErrTooLarge)
	}
	publish(t, sink, "large.topic", newMessage("after"))
	wantPayloads(t, b, "large.topic", fits, "after") // nothing of the call of three
}

// testNilMessage: a message that is nil, which a handler made by mistake, is refused by its place before anything is sent.
func testNilMessage(t *testing.T, h Suite) {
	b, sink := start(t, h)
	err := sink.Publish("nil.message", newMessage("before"), nil, newMessage("behind"))
	wantKind(t, "Publish", err, sinks.ErrRejected)
	if !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("Publish: %v, which does not say that it is message 2 of 3", err)
	}
	wantKind(t, "Publish of it alone", sink.Publish("nil.message", nil), sinks.ErrRejected)
	wantKind(t, "PublishAsync", asyncError(t, sink, "nil.message", nil), sinks.ErrRejected)
	publish(t, sink, "nil.message", newMessage("after"))
	wantPayloads(t, b, "nil.message", "after")
}

func testRejected(t *testing.T, h Suite) {
	_, sink := start(t, h)
	for _, topic := range h.Features.RejectedTopics {
		wantKind(t, fmt.Sprintf("Publish to %.50q", topic), sink.Publish(topic, newMessage("x")), sinks.ErrRejected)
		wantKind(t, fmt.Sprintf("PublishAsync to %.50q", topic), asyncError(t, sink, topic, newMessage("x")), sinks.ErrRejected)
	}
	publish(t, sink, "rejected.not", newMessage("x")) // the sink continues
}
