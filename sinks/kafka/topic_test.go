package kafka_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/agrimill/agrimill/sinks"
	"github.com/agrimill/agrimill/sinks/kafka"
)

func TestTopicSegment(t *testing.T) {
	for value, want := range map[string]string{
		"":                                     "__",
		"poison":                               "poison",
		"8f0d7a3e-3c1c-4d5b-9a57-0c9d7d2f4a11": "8f0d7a3e-3c1c-4d5b-9a57-0c9d7d2f4a11",
		"iso:11783:-10:taskdata:zip":           "iso__3A11783__3A-10__3Ataskdata__3Azip",
		"a.b":                                  "a__2Eb",
		"a_b":                                  "a__5Fb",
		"__":                                   "__5F__5F",
		"ü":                                    "__C3__BC",
	} {
		if got := kafka.TopicSegment(value); got != want {
			t.Errorf("%q becomes %q, want %q", value, got, want)
		}
		if back, err := kafka.UnescapeTopicSegment(want); err != nil || back != value {
			t.Errorf("%q comes back as %q, %v, want %q", want, back, err, value)
		}
	}
	for _, segment := range []string{"", "_", "a_b", "a___b", "a__", "__3", "__3a", "__41", "a.b", "a:b", "__h", "a__hff", "____", strings.Repeat("a", 97)} {
		if value, err := kafka.UnescapeTopicSegment(segment); !errors.Is(err, sinks.ErrBadSegment) {
			t.Errorf("%q comes back as %q, %v, want ErrBadSegment", segment, value, err)
		}
	}
}

func TestTopicSegmentLong(t *testing.T) {
	seen := map[string]string{}
	for _, unit := range []string{"a", ":", "a:", "ab:", "abc:", "ü"} {
		for n := 1; n < 200; n++ {
			value := strings.Repeat(unit, n)
			segment := kafka.TopicSegment(value)
			if len(segment) > kafka.MaxSegmentLength {
				t.Fatalf("%q becomes %d bytes", value, len(segment))
			}
			if other, ok := seen[segment]; ok && other != value {
				t.Fatalf("%q and %q both become %q", value, other, segment)
			}
			seen[segment] = value
			back, err := kafka.UnescapeTopicSegment(segment)
			switch {
			case strings.Contains(segment, "__h"):
				if !errors.Is(err, kafka.ErrHashedSegment) {
					t.Fatalf("%q comes back as %q, %v, want ErrHashedSegment", segment, back, err)
				}
			case err != nil || back != value:
				t.Fatalf("%q comes back as %q, %v", segment, back, err)
			}
		}
	}
	// Two of the longest, or three IDs and one of them, are still a topic.
	long := kafka.TopicSegment(strings.Repeat(":", 1000))
	if n := len(kafka.DefaultTopicPrefix + "." + long + "." + long); n > 249 {
		t.Errorf("two long segments make a topic of %d bytes", n)
	}
}

// asMetric is what Kafka compares topics by: their names in metrics.
func asMetric(topic string) string { return strings.ReplaceAll(topic, ".", "_") }

// TestTopicsDoNotCollideInMetrics: topics of different segments stay different
// when '.' becomes '_'.
func TestTopicsDoNotCollideInMetrics(t *testing.T) {
	parts := []string{"", "a", "3Ab", "3A", ":", "a:", ":b", "a:b", "_", ".", "::", "a.3Ab", "h", "b"}
	seen := map[string]string{}
	add := func(values ...string) {
		segments := make([]string, len(values))
		for i, value := range values {
			segments[i] = kafka.TopicSegment(value)
		}
		topic := strings.Join(segments, ".")
		if other, ok := seen[asMetric(topic)]; ok && other != topic {
			t.Errorf("%q and %q collide", topic, other)
		}
		seen[asMetric(topic)] = topic
	}
	for _, a := range parts {
		add(a)
		for _, b := range parts {
			add(a, b)
			for _, c := range parts {
				add(a, b, c)
				for _, d := range parts {
					add(a, b, c, d)
				}
			}
		}
	}
}

// FuzzTopicSegment: every value has a legal segment of its own and comes back,
// and topics of two values never collide in metrics.
func FuzzTopicSegment(f *testing.F) {
	for _, seed := range [][2]string{
		{"", ""}, {"iso:11783:-10:taskdata:zip", "iso__3A11783"}, {"a:b", "a.3Ab"}, {"a", "3Ab"}, {"_", "__5F"},
		{strings.Repeat(":", 100), "__h"}, {"\xff\x00", "ü"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		one, two := kafka.TopicSegment(a), kafka.TopicSegment(b)
		for value, segment := range map[string]string{a: one, b: two} {
			if segment == "" || len(segment) > kafka.MaxSegmentLength || strings.Trim(segment, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
				t.Fatalf("%q becomes %q", value, segment)
			}
			back, err := kafka.UnescapeTopicSegment(segment)
			if err != nil && !errors.Is(err, kafka.ErrHashedSegment) || err == nil && back != value {
				t.Fatalf("%q becomes %q and comes back as %q, %v", value, segment, back, err)
			}
		}
		if (a == b) != (one == two) {
			t.Fatalf("%q and %q become %q and %q", a, b, one, two)
		}
		// One segment or two, either way round.
		topics := []string{one, two, one + "." + two, two + "." + one}
		for i, x := range topics {
			for _, y := range topics[:i] {
				if x != y && asMetric(x) == asMetric(y) {
					t.Fatalf("%q and %q collide", x, y)
				}
			}
		}
		// As a segment: an error, or the only way to write its value.
		for _, segment := range []string{a, b} {
			if value, err := kafka.UnescapeTopicSegment(segment); err == nil && kafka.TopicSegment(value) != segment {
				t.Fatalf("%q comes back as %q, which becomes %q", segment, value, kafka.TopicSegment(value))
			}
		}
	})
}
