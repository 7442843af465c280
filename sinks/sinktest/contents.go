package sinktest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/gateway"
	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

func testStoresWhatItAcked(t *testing.T, h Suite) {
	b, sink := start(t, h)
	want := map[string][]string{}
	for i := range 120 {
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

func testPayloadIntact(t *testing.T, h Suite) {
	b, sink := start(t, h)
	random := make([]byte, 100_000)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(random) // never fails
	cases := []string{"", "\x00", "\r\n", "\r\nPING\r\n", " outer spaces ", everyByte(), string(random)}
	for i, payload := range cases {
		msg := newMessage(payload)
		topic := fmt.Sprintf("payload.case%d", i)
		publish(t, sink, topic, msg)
		wantMessages(t, h, b, topic, msg)
	}

	msg := newMessage("")
	msg.Payload = nil
	publish(t, sink, "payload.none", msg)
	wantPayloads(t, b, "payload.none", "")
}

func everyByte() string {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return string(every)
}

// nastyValues are metadata values that brokers like to alter.
func nastyValues() []string {
	return []string{
		"", "plain", " ", "  outer spaces\t", "\ttab", "inner  spaces",
		"line\r\nNats-Msg-Id: x\r\n\r\n", "\r", "\n", "\n\n", "nul\x00nul", "\x00", "\x7f",
		"Grünfläche 麦 🌾", "\u00a0outer no-break spaces\u00a0", "\u0085\u2028", "\ufeffbom",
		"\xff\xfe not utf-8", "\xc3", everyByte(),
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

func testMetadataIntact(t *testing.T, h Suite) {
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
	wantMessages(t, h, b, topic, want...)
}

func testReservedNames(t *testing.T, h Suite) {
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
	wantMessages(t, h, b, "reserved.names", want...)
}

func testDedup(t *testing.T, h Suite) {
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
func testCopyWithOtherBytes(t *testing.T, h Suite) {
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
		receipt := testkit.Must(result(t, p))(t)
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
