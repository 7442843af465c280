package sinktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/internal/testkit"
	"github.com/agrimill/agrimill/sinks"
)

// plainSegments are values that have to stay as they are, as far as the broker
// allows ':' and '-'.
var plainSegments = []string{"a", "A", "0", "abc-DEF-123", "poison"}

// segmentValues are values that are close to each other or to an escape.
func segmentValues() []string {
	values := []string{
		"", " ", "  ", ".", "..", "a.b", "a_b", "a-b", "a:b", "a/b", "a b", "a%b", "a*b", "a>b", "a=b", "a~b", "a+b",
		"*", ">", "a.*", "a.>", "%", "%%", "%2E", "%2e", "a%2Eb", "_", "__", "_2E", "_2e", "a_2Eb", "a_3Ab", "=2E", "~2E",
		"iso:11783:-10:taskdata:zip", "iso_11783_-10_taskdata_zip", "iso.11783.-10.taskdata.zip", "iso_3A11783_3A-10_3Ataskdata_3Azip",
		"ISO:11783:-10:TASKDATA:ZIP", "shp:shape:zip", "img:bmp", "gps:info", "$SYS", "$JS.API", "_INBOX.x", "__consumer_offsets",
		"../../etc/passwd", "..\\..", "/", "\\", "con", "NUL", "\x00", "\x7f", "\r\n", "\t", "Grünfläche", "Gru\u0308nfla\u0308che",
		"麦", "🌾", "\xff", "\xc3\xbc", "\xc3", "\xbc", "a\x00b", "a", "b", "aa", "ab",
	}
	values = append(values, plainSegments...)
	for b := range 256 {
		values = append(values, string([]byte{byte(b)}), string([]byte{'x', byte(b), 'y'}))
	}
	return values
}

// randomValues makes values of a small alphabet of troublesome bytes, so that
// collisions, if there can be any, are found.
func randomValues(seed uint64, count int) []string {
	const alphabet = "a2E3A%_=~.:-* >\x00\xc3\xbc"
	r := rand.New(rand.NewPCG(seed, 0))
	values := make([]string, count)
	for i := range values {
		b := make([]byte, r.IntN(6))
		for j := range b {
			b[j] = alphabet[r.IntN(len(alphabet))]
		}
		values[i] = string(b)
	}
	return values
}

// testSegments: different values become different segments, which are legal, and come back, and what comes back without an
// error was an escape.
func testSegments(t *testing.T, h Suite) {
	_, sink := start(t, h)
	legal, unescape := h.Features.LegalSegment, h.Features.UnescapeTopicSegment
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	from := map[string]string{}
	if long := strings.Repeat("long-", 80); sink.TopicSegment(long+"a") == sink.TopicSegment(long+"b") {
		t.Errorf("two values of %d bytes become the same", len(long)+1)
	}
	for _, value := range append(segmentValues(), randomValues(seed, 20_000)...) {
		segment := sink.TopicSegment(value)
		if other, ok := from[segment]; ok && other != value {
			t.Fatalf("%q and %q both become %q", value, other, segment)
		}
		from[segment] = value
		if again := sink.TopicSegment(value); again != segment {
			t.Fatalf("%q becomes %q and then %q", value, segment, again)
		}
		if segment == "" {
			t.Fatalf("%q becomes empty", value)
		}
		if strings.Contains(segment, ".") && !strings.Contains(value, ".") {
			t.Fatalf("%q becomes %q: a dot is what joins segments", value, segment)
		}
		if legal != nil && !legal(segment) {
			t.Fatalf("%q becomes %q, which is not legal", value, segment)
		}
		if unescape == nil {
			continue
		}
		if back, err := unescape(segment); err != nil || back != value {
			t.Fatalf("%q becomes %q and comes back as %q, %v", value, segment, back, err)
		}
		if back, err := unescape(value); err == nil && sink.TopicSegment(back) != value {
			t.Fatalf("%q comes back as %q, which becomes %q", value, back, sink.TopicSegment(back))
		}
	}
	for _, value := range plainSegments {
		if got := sink.TopicSegment(value); got != value {
			t.Errorf("%q becomes %q", value, got)
		}
	}
}

// testSegmentsAsTopics writes to topics of nasty segments and finds each message
// in its own topic alone.
func testSegmentsAsTopics(t *testing.T, h Suite) {
	b, sink := start(t, h)
	values := segmentValues()
	var topics []string
	for i := 0; i < len(values) && len(topics) < 60; i += 7 { // some of them: a topic may be expensive
		for _, topic := range []string{
			"segments." + sink.TopicSegment(values[i]),
			"segments." + sink.TopicSegment(values[i]) + "." + sink.TopicSegment(values[(i*31+1)%len(values)]),
		} {
			if !slices.Contains(topics, topic) {
				topics = append(topics, topic)
			}
		}
	}
	for i, topic := range topics {
		publish(t, sink, topic, newMessage(fmt.Sprint(i)))
	}
	for i, topic := range topics {
		wantPayloads(t, b, topic, fmt.Sprint(i))
	}
}

// testSegmentsAreValues finds each message under its value alone, or nowhere when the
// value was rejected.
func testSegmentsAreValues(t *testing.T, h Suite) {
	b, sink := start(t, h)
	stored := map[string]string{}
	for i, value := range segmentValues() {
		if got := sink.TopicSegment(value); got != value {
			t.Fatalf("%q becomes %q", value, got)
		}
		if _, again := stored[value]; again || i%5 != 0 { // some of them: a topic may be expensive
			continue
		}
		switch err := sink.Publish(value, newMessage(fmt.Sprint(i))); {
		case err == nil:
			stored[value] = fmt.Sprint(i)
		case slices.Contains(plainSegments, value):
			t.Errorf("Publish to %q: %v", value, err)
		default:
			wantKind(t, fmt.Sprintf("Publish to %q", value), err, sinks.ErrRejected)
		}
	}
	for value, payload := range stored {
		wantPayloads(t, b, value, payload)
	}
}

// testTemplates holds that CheckTopic, with which templates are checked where they are configured, says
// what Publish says.
func testTemplates(t *testing.T, h Suite) {
	_, sink := start(t, h)
	long := strings.Repeat("l", 245)
	for _, text := range append([]string{
		"plain", "two.parts", "{tenant}.{type}", "{tenant|none}.{type|none}", "{type|a b/c*.d}", "{meta:x|" + strings.Repeat("ü", 2000) + "}",
		"{type}.{type|..}", "t{type}", "t-{type|n}", "t/{type|none}", "a//b", "/{type}", "t*", "*", "{type}.*", "{type}.>", ">", "a b", "a\t{type}",
		".{type}", "{type}.", "{tenant}..{type}", ".", "..", "$SYS.{type}", "%{type}", "ü.{type}", "a\x00b", "a\r\nb", "dead/letters",
		long, long + "{tenant}", strings.Repeat("p.", 500) + "{type}", strings.Repeat("l", 3000),
	}, h.Features.RejectedTopics...) {
		if text == "" {
			continue // no template
		}
		t.Run(fmt.Sprintf("%.40q", text), func(t *testing.T) {
			template := testkit.Must(sinks.ParseTopicTemplate(text))(t)
			var failed error
			for _, values := range template.Samples() {
				topic := testkit.Must(template.Topic(values, sink.TopicSegment))(t)
				checked, published := sink.CheckTopic(topic), sink.Publish(topic, newMessage("x"))
				if (checked == nil) != (published == nil) {
					short := func(err error) string { return strings.ReplaceAll(fmt.Sprint(err), topic, "…") } // it may have kilobytes
					t.Errorf("topic %.80q: CheckTopic returns %s, Publish %s", topic, short(checked), short(published))
				}
				if checked != nil {
					wantKind(t, "CheckTopic", checked, sinks.ErrRejected)
					wantKind(t, "Publish", published, sinks.ErrRejected)
				}
				failed = errors.Join(failed, checked)
			}
			if err := template.Check(sink); (err == nil) != (failed == nil) {
				t.Errorf("Check of the template returns %v, CheckTopic of its topics %v", err, failed)
			}
		})
	}
}
