package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	always := []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"StoresWhatItAcked", testStoresWhatItAcked},
		{"PayloadIntact", testPayloadIntact},
		{"Describe", testDescribe},
		{"Healthy", testHealthy},
		{"OrderSequential", testOrderSequential},
		{"OrderInOneCall", testOrderInOneCall},
		{"Concurrent", testConcurrent},
		{"EmptyCall", testEmptyCall},
		{"MessagesUntouched", testMessagesUntouched},
		{"MessagesNotKept", testMessagesNotKept},
		{"ContextEndedBefore", testContextEndedBefore},
		{"CopyWithOtherBytes", testCopyWithOtherBytes},
		{"AsyncStores", testAsyncStores},
		{"AsyncAndPublish", testAsyncAndPublish},
		{"AsyncErrors", testAsyncErrors},
		{"AsyncClose", testAsyncClose},
		{"Templates", testTemplates},
		{"CloseRepeated", testCloseRepeated},
		{"ClosedErrors", testClosedErrors},
		{"CloseWhilePublishing", testCloseWhilePublishing},
	}
	for _, c := range always {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
	f := h.Features
	featured := []struct {
		name string
		has  bool
		test func(*testing.T, Harness)
	}{
		{"MetadataIntact", f.Metadata, testMetadataIntact},
		{"ReservedNames", f.Metadata && len(f.ReservedNames) > 0, testReservedNames},
		{"Dedup", f.Dedup, testDedup},
		{"TooLarge", f.MaxMessageSize, testTooLarge},
		{"TooLargeByMetadata", f.MaxMessageSize && f.Metadata, testTooLargeByMetadata},
		{"Rejected", len(f.RejectedTopics) > 0, testRejected},
		{"AsyncReceipts", f.AtReceipt != nil, testAsyncReceipts},
		{"AsyncDuplicate", f.AtReceipt != nil && f.Dedup, testAsyncDuplicate},
		{"AsyncTooLarge", f.MaxMessageSize, testAsyncTooLarge},
		{"AsyncOutage", f.Outage, testAsyncOutage},
		{"AsyncWhileHanging", f.Hang, testAsyncWhileHanging},
		{"Outage", f.Outage, testOutage},
		{"OutageWhilePublishing", f.Outage, testOutageWhilePublishing},
		{"ContextEndsWhileHanging", f.Hang, testContextEndsWhileHanging},
		{"CloseWhileHanging", f.Hang, testCloseWhileHanging},
		{"HangIsAnOutage", f.Hang, testHangIsAnOutage},
		{"SegmentsInjective", !f.TopicIsValue, testSegmentsInjective},
		{"SegmentsAsTopics", !f.TopicIsValue, testSegmentsAsTopics},
		{"SegmentsAreValues", f.TopicIsValue, testSegmentsAreValues},
		{"SegmentsComeBack", f.UnescapeTopicSegment != nil, testSegmentsComeBack},
	}
	for _, c := range featured {
		if c.has {
			t.Run(c.name, func(t *testing.T) { c.test(t, h) })
		}
	}
}

// start returns a backend and a sink on it that is closed when the test ends.
func start(t *testing.T, h Harness) (Backend, sinks.Sink) {
	t.Helper()
	b := h.New(t, Settings{})
	return b, newSink(t, b)
}

func newSink(t *testing.T, b Backend) sinks.Sink {
	t.Helper()
	sink := b.NewSink(t)
	t.Cleanup(func() {
		if err := sink.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return sink
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(payload))
}

func publish(t *testing.T, sink sinks.Sink, topic string, messages ...*message.Message) {
	t.Helper()
	if err := sink.Publish(topic, messages...); err != nil {
		t.Fatalf("Publish: %v", err)
	}
}

// within fails the test unless f returns within patience.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatalf("%s: not done after %v", what, testkit.Patience)
	}
}

// wantKind fails the test unless err is a *sinks.Error of this kind alone.
func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	var typed *sinks.Error
	if !errors.As(err, &typed) {
		t.Fatalf("%s: got %v (%T), want a *sinks.Error of kind %q", what, err, err, kind)
	}
	for _, k := range []error{sinks.ErrTooLarge, sinks.ErrRejected, sinks.ErrUnavailable, sinks.ErrClosed} {
		if errors.Is(err, k) != errors.Is(kind, k) {
			t.Fatalf("%s: got %v, want kind %q and no other", what, err, kind)
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%s: %v matches a context error", what, err)
	}
}

func payloads(messages []*message.Message) []string {
	all := make([]string, len(messages))
	for i, msg := range messages {
		all[i] = string(msg.Payload)
	}
	return all
}

func wantPayloads(t *testing.T, b Backend, topic string, want ...string) {
	t.Helper()
	if got := payloads(b.Read(t, topic)); !slices.Equal(got, want) {
		t.Fatalf("topic %q holds %d messages %.200q, want %d %.200q", topic, len(got), got, len(want), want)
	}
}

// wantEqual compares one stored message with the published one.
func wantEqual(t *testing.T, h Harness, got, want *message.Message) {
	t.Helper()
	if !bytes.Equal(got.Payload, want.Payload) {
		t.Errorf("payload: got %d bytes, want %d, or other ones", len(got.Payload), len(want.Payload))
	}
	if h.Features.UUID && got.UUID != want.UUID {
		t.Errorf("UUID: got %q, want %q", got.UUID, want.UUID)
	}
	if !h.Features.Metadata {
		return
	}
	for name, value := range want.Metadata {
		if have, ok := got.Metadata[name]; !ok || have != value {
			t.Errorf("metadata %.100q: got %.100q (present: %v), want %.100q", name, have, ok, value)
		}
	}
	for name, value := range got.Metadata {
		if _, ok := want.Metadata[name]; !ok {
			t.Errorf("metadata %.100q: got %.100q, want none", name, value)
		}
	}
}

func testStoresWhatItAcked(t *testing.T, h Harness) {
	b, sink := start(t, h)
	want := map[string][]string{}
	for i := range 200 {
		topic := fmt.Sprintf("tenant%d.type%d", i%3, i%2)
		payload := fmt.Sprintf("payload %d", i)
		publish(t, sink, topic, newMessage(payload))
		want[topic] = append(want[topic], payload)
	}
	for topic, all := range want {
		wantPayloads(t, b, topic, all...)
	}
	wantPayloads(t, b, "tenant0.never")
}

func testPayloadIntact(t *testing.T, h Harness) {
	b, sink := start(t, h)
	random := make([]byte, 100_000)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(random) // never fails
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	cases := []string{"", "\x00", "\r\n", "\r\nPING\r\n", " outer spaces ", string(every), string(random)}
	for i, payload := range cases {
		msg := newMessage(payload)
		topic := fmt.Sprintf("payload.case%d", i)
		publish(t, sink, topic, msg)
		stored := b.Read(t, topic)
		if len(stored) != 1 {
			t.Fatalf("case %d: %d messages are stored, want 1", i, len(stored))
		}
		wantEqual(t, h, stored[0], msg)
	}

	msg := newMessage("")
	msg.Payload = nil
	publish(t, sink, "payload.none", msg)
	wantPayloads(t, b, "payload.none", "")
}

// nastyValues are metadata values that brokers like to alter.
func nastyValues() []string {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return []string{
		"", "plain", " ", "  outer spaces\t", "\ttab", "inner  spaces",
		"line\r\nNats-Msg-Id: x\r\n\r\n", "\r", "\n", "\n\n", "nul\x00nul", "\x00", "\x7f",
		"Grünfläche 麦 🌾", "\u00a0outer no-break spaces\u00a0", "\u0085\u2028", "\ufeffbom",
		"\xff\xfe not utf-8", "\xc3", string(every),
		"=?utf-8?B?YWJj?=", "=?utf-8?B?DQo=?=", "=?utf-8?q?=0D?=", "=?", "%", "%41", "%0D%0A",
		`"quoted"`, "a, b", "a; b=c", "{}", strings.Repeat("ä", 5000), strings.Repeat("x", 10_000),
		strings.Repeat("\r\n", 5000),
	}
}

// nastyNames are metadata names that brokers like to refuse.
func nastyNames() []string {
	return []string{
		"plain", "x-router-tenant-id", "UPPER", "upper", "Mixed-Case", "mixed-case",
		"with space", " outer ", "colon:", ":", "a:b", "line\r\nbreak", "\r\n", "nul\x00", "\x00", "\x7f", "",
		"Grünfläche", "\xff", "%", "%41", "%00", "=", "\"quoted\"", "(parens)", "a/b", "a,b;c", "[x]{y}<z>@?\\",
		"_watermill_message_uuid", "Status", "status", "Description", "Content-Type", "Host",
		strings.Repeat("n", 1000),
	}
}

func testMetadataIntact(t *testing.T, h Harness) {
	b, sink := start(t, h)
	topic := "metadata.values"
	var want []*message.Message
	for i, value := range nastyValues() {
		msg := newMessage(fmt.Sprint("value ", i))
		msg.Metadata["value"] = value
		want = append(want, msg)
	}
	for i, name := range nastyNames() {
		msg := newMessage(fmt.Sprint("name ", i))
		msg.Metadata[name] = "some value"
		want = append(want, msg)
	}
	all := newMessage("all together")
	for i, name := range nastyNames() {
		all.Metadata[name] = nastyValues()[i%20]
	}
	none := newMessage("no metadata")
	none.Metadata = nil
	empty := newMessage("") // brokers treat some headers as control messages then
	empty.Metadata["Status"] = "503"
	want = append(want, all, none, empty)
	for _, msg := range want {
		publish(t, sink, topic, msg)
	}

	stored := b.Read(t, topic)
	if len(stored) != len(want) {
		t.Fatalf("%d messages are stored, want %d", len(stored), len(want))
	}
	for i := range want {
		wantEqual(t, h, stored[i], want[i])
	}
}

func testReservedNames(t *testing.T, h Harness) {
	b, sink := start(t, h)
	var names []string
	for _, name := range h.Features.ReservedNames {
		names = append(names, name, strings.ToLower(name), strings.ToUpper(name))
	}
	var want []*message.Message
	for i, name := range names {
		// Twice the same value: a deduplication ID that got through would drop
		// the second one, an expectation would refuse it.
		for range 2 {
			msg := newMessage(fmt.Sprint(i))
			msg.Metadata[name] = "7"
			publish(t, sink, "reserved.names", msg)
			want = append(want, msg)
		}
	}
	stored := b.Read(t, "reserved.names")
	if len(stored) != len(want) {
		t.Fatalf("%d messages are stored, want %d", len(stored), len(want))
	}
	for i := range want {
		wantEqual(t, h, stored[i], want[i])
	}
}

func testDedup(t *testing.T, h Harness) {
	b, sink := start(t, h)
	with := func(payload, id string) *message.Message {
		msg := newMessage(payload)
		msg.Metadata[gateway.KeyDedupID] = id
		return msg
	}
	for i, id := range []string{"an id", " outer ", "line\r\nbreak", "Grün", strings.Repeat("long", 500)} {
		one, two := fmt.Sprintf("dedup.one%d", i), fmt.Sprintf("dedup.two%d", i)
		publish(t, sink, one, with("first", id))
		publish(t, sink, one, with("copy", id))
		publish(t, sink, one, with("other", id+"x"))
		// Another topic is another message: replayed from a poison topic, say.
		publish(t, sink, two, with("elsewhere", id))
		wantPayloads(t, b, one, "first", "other")
		wantPayloads(t, b, two, "elsewhere")
	}
	// Without an ID nothing is a copy, whatever the UUID.
	msg := newMessage("no id")
	publish(t, sink, "dedup.none", msg)
	publish(t, sink, "dedup.none", msg)
	publish(t, sink, "dedup.none", with("empty id", ""), with("empty id", ""))
	wantPayloads(t, b, "dedup.none", "no id", "no id", "empty id", "empty id")
	// A new sink on the same broker knows the same copies.
	publish(t, newSink(t, b), "dedup.one0", with("copy", "an id"))
	wantPayloads(t, b, "dedup.one0", "first", "other")
}

// testCopyWithOtherBytes: of messages with one name in a topic that are not equal, the first is stored, or
// all of them are, and each as a whole: with its own payload and its own metadata. None takes the
// place of another, and only what was not stored is reported as a copy.
func testCopyWithOtherBytes(t *testing.T, h Harness) {
	b, sink := start(t, h)
	pair := func() [2]*message.Message {
		short, long := newMessage("short"), newMessage(strings.Repeat("a longer one ", 100))
		for i, msg := range []*message.Message{short, long} {
			msg.Metadata[gateway.KeyDedupID] = "an id"
			msg.Metadata["version"] = fmt.Sprint(i)
		}
		long.Metadata["more"] = "of it"
		return [2]*message.Message{short, long}
	}
	// check returns which of the messages are stored.
	check := func(topic string, sent [2]*message.Message) (indexes []int) {
		t.Helper()
		all := b.Read(t, topic)
		if len(all) < 1 || len(all) > 2 || len(all) == 2 && h.Features.Dedup {
			t.Fatalf("topic %q holds %d messages", topic, len(all))
		}
		for _, got := range all {
			i := slices.IndexFunc(sent[:], func(msg *message.Message) bool { return bytes.Equal(msg.Payload, got.Payload) })
			if i < 0 || slices.Contains(indexes, i) {
				t.Fatalf("topic %q holds %d bytes that are none of the messages, or one of them twice", topic, len(got.Payload))
			}
			wantEqual(t, h, got, sent[i])
			indexes = append(indexes, i)
		}
		return indexes
	}

	sent := pair()
	publish(t, sink, "copy.later", sent[0])
	publish(t, newSink(t, b), "copy.later", sent[1])
	if got := check("copy.later", sent); got[0] != 0 {
		t.Error("the second one is stored, the first one is not, or behind it")
	}

	sent = pair()
	publish(t, sink, "copy.together", sent[0], sent[1])
	if got := check("copy.together", sent); got[0] != 0 && sink.Describe().Ordered {
		t.Error("the second one is stored, the first one is not, or behind it")
	}

	sent = pair()
	var publications [2]*sinks.Publication
	for i, msg := range sent {
		var err error
		if publications[i], err = sink.PublishAsync("copy.async", msg); err != nil {
			t.Fatalf("PublishAsync: %v", err)
		}
	}
	duplicates := map[int]bool{}
	for i, p := range publications {
		receipt, err := result(t, p)
		if err != nil {
			t.Fatal(err)
		}
		duplicates[i] = receipt.Duplicate
	}
	stored := check("copy.async", sent)
	if h.Features.AtReceipt != nil {
		for i, duplicate := range duplicates {
			if duplicate == slices.Contains(stored, i) {
				t.Errorf("message %d: reported as a copy: %v; stored: %v", i, duplicate, stored)
			}
		}
	}
}

func testDescribe(t *testing.T, h Harness) {
	_, sink := start(t, h)
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
}

func testHealthy(t *testing.T, h Harness) {
	_, sink := start(t, h)
	if err := sink.Health(t.Context()); err != nil {
		t.Errorf("Health: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sink.Health(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Health with an ended context: %v", err)
	}
}

func testOrderSequential(t *testing.T, h Harness) {
	b, sink := start(t, h)
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprint(i))
		publish(t, sink, "order.sequential", newMessage(want[i]))
	}
	wantPayloads(t, b, "order.sequential", want...)
}

func testOrderInOneCall(t *testing.T, h Harness) {
	b, sink := start(t, h)
	var want []string
	for call := range 4 {
		var messages []*message.Message
		for i := range 200 {
			payload := fmt.Sprint(call, " ", i)
			messages = append(messages, newMessage(payload))
			want = append(want, payload)
		}
		publish(t, sink, "order.call", messages...)
	}
	wantPayloads(t, b, "order.call", want...)
}

func testConcurrent(t *testing.T, h Harness) {
	b, sink := start(t, h)
	const publishers, each = 16, 40
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

func testEmptyCall(t *testing.T, h Harness) {
	b, sink := start(t, h)
	publish(t, sink, "empty.call")
	wantPayloads(t, b, "empty.call")
}

func testMessagesUntouched(t *testing.T, h Harness) {
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

func testMessagesNotKept(t *testing.T, h Harness) {
	b, sink := start(t, h)
	var want []string
	payload := make([]byte, 1000)
	metadata := message.Metadata{}
	for i := range 100 {
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

func testContextEndedBefore(t *testing.T, h Harness) {
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
		if err := sink.Publish("context.before", newMessage("alive"), msg); !errors.Is(err, ctx.Err()) {
			t.Errorf("Publish of two: got %v, want %v", err, ctx.Err())
		}
	}
	for _, payload := range payloads(b.Read(t, "context.before")) {
		if payload == "ended" {
			t.Error("a message whose context had ended is stored")
		}
	}
}

func testCloseRepeated(t *testing.T, h Harness) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	publish(t, sink, "close.repeated", newMessage("before"))
	within(t, "Close", func() {
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				if err := sink.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		group.Wait()
		if err := sink.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
	})
	wantPayloads(t, b, "close.repeated", "before")

	// Never used.
	within(t, "Close of an unused sink", func() {
		if err := b.NewSink(t).Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func testClosedErrors(t *testing.T, h Harness) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	if err := sink.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	wantKind(t, "Publish", sink.Publish("closed.topic", newMessage("late")), sinks.ErrClosed)
	wantKind(t, "Publish of nothing", sink.Publish("closed.topic"), sinks.ErrClosed)
	wantKind(t, "Health", sink.Health(t.Context()), sinks.ErrClosed)
	_ = sink.Describe()
	if got := sink.TopicSegment("x"); got != "x" {
		t.Errorf("TopicSegment(x) is %q", got)
	}
	wantPayloads(t, b, "closed.topic")
}

func testCloseWhilePublishing(t *testing.T, h Harness) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	var acked sync.Map
	started := make(chan struct{}, 8)
	var group sync.WaitGroup
	for p := range 8 {
		group.Go(func() {
			for i := 0; ; i++ {
				payload := fmt.Sprint(p, " ", i)
				err := sink.Publish("close.publishing", newMessage(payload))
				if err != nil {
					wantKindError(t, err, sinks.ErrClosed)
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
	within(t, "Close", func() {
		if err := sink.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	within(t, "Publish after Close", group.Wait)
	wantAcked(t, b, "close.publishing", &acked)
}

// wantKindError is wantKind for goroutines other than the test's.
func wantKindError(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("Publish: got %v, want kind %q", err, kind)
	}
}

// wantAcked fails the test unless everything that was acked is stored.
func wantAcked(t *testing.T, b Backend, topic string, acked *sync.Map) {
	t.Helper()
	stored := map[string]bool{}
	for _, payload := range payloads(b.Read(t, topic)) {
		stored[payload] = true
	}
	acked.Range(func(payload, _ any) bool {
		if !stored[payload.(string)] {
			t.Errorf("%v was acked and is not stored", payload)
		}
		return true
	})
}

func testTooLarge(t *testing.T, h Harness) {
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
	publish(t, sink, "large.topic", newMessage("after"))
	wantPayloads(t, b, "large.topic", fits, "after") // nothing of the call of three
}

func testTooLargeByMetadata(t *testing.T, h Harness) {
	b := h.New(t, Settings{MaxMessageSize: 10_000})
	sink := newSink(t, b)
	msg := newMessage(strings.Repeat("x", 5000))
	msg.Metadata["large"] = strings.Repeat("y", 6000)
	wantKind(t, "Publish", sink.Publish("large.metadata", msg), sinks.ErrTooLarge)
	publish(t, sink, "large.metadata", newMessage("after"))
	wantPayloads(t, b, "large.metadata", "after")
}

func testRejected(t *testing.T, h Harness) {
	_, sink := start(t, h)
	for _, topic := range h.Features.RejectedTopics {
		wantKind(t, fmt.Sprintf("Publish to %.50q", topic), sink.Publish(topic, newMessage("x")), sinks.ErrRejected)
	}
	publish(t, sink, "rejected.not", newMessage("x")) // the sink continues
}

// recovered publishes until it succeeds.
func recovered(t *testing.T, sink sinks.Sink, topic, payload string) {
	t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		err := sink.Publish(topic, newMessage(payload))
		if err == nil {
			return
		}
		wantKind(t, "Publish after the outage", err, sinks.ErrUnavailable)
		if time.Now().After(deadline) {
			t.Fatalf("no recovery within %v: %v", testkit.Patience, err)
		}
		<-pause.C
	}
}

func testOutage(t *testing.T, h Harness) {
	b, sink := start(t, h)
	publish(t, sink, "outage.topic", newMessage("before"))
	for round := range 2 {
		b.Break(t)
		within(t, "Publish without broker", func() {
			for range 3 {
				if err := sink.Publish("outage.topic", newMessage("during")); !errors.Is(err, sinks.ErrUnavailable) {
					t.Errorf("Publish: got %v, want ErrUnavailable", err)
				}
			}
		})
		within(t, "Health without broker", func() {
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

func testOutageWhilePublishing(t *testing.T, h Harness) {
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
	within(t, "errors of all publishers", func() {
		for range 8 {
			<-failed
		}
	})
	b.Repair(t)
	recovered(t, sink, topic, "recovered")
	cancel()
	within(t, "the publishers", group.Wait)
	wantAcked(t, b, topic, &acked)
}

// noticed is a context that tells when it is looked at for the first time, which
// is when Publish has begun.
type noticed struct {
	context.Context
	once sync.Once
	used chan struct{}
}

func notice(ctx context.Context) *noticed {
	return &noticed{Context: ctx, used: make(chan struct{})}
}

func (c *noticed) Done() <-chan struct{} {
	c.once.Do(func() { close(c.used) })
	return c.Context.Done()
}

func (c *noticed) Err() error {
	c.once.Do(func() { close(c.used) })
	return c.Context.Err()
}

func testContextEndsWhileHanging(t *testing.T, h Harness) {
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

func testHangIsAnOutage(t *testing.T, h Harness) {
	b, sink := start(t, h)
	publish(t, sink, "hang.outage", newMessage("before"))
	b.Hang(t)
	within(t, "Publish to a broker that does not answer", func() {
		if err := sink.Publish("hang.outage", newMessage("during")); !errors.Is(err, sinks.ErrUnavailable) {
			t.Errorf("Publish: got %v, want ErrUnavailable", err)
		}
	})
	b.Resume(t)
	recovered(t, sink, "hang.outage", "after")
}

func testCloseWhileHanging(t *testing.T, h Harness) {
	b := h.New(t, Settings{})
	sink := b.NewSink(t)
	publish(t, sink, "hang.close", newMessage("before"))
	b.Hang(t)
	msg, ctx := newMessage("during"), notice(t.Context())
	msg.SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- sink.Publish("hang.close", msg) }()
	<-ctx.used
	within(t, "Close", func() { _ = sink.Close() })
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
