package kafka

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/agrimill/agrimill/internal/topicmap"
	"github.com/agrimill/agrimill/sinks"
)

// maxTopicLength is Kafka's limit for the name of a topic.
const maxTopicLength = 249

// MaxSegmentLength is how long a segment made by [TopicSegment] is at most. Two
// segments, or several IDs and one long value, fit into a topic.
const MaxSegmentLength = 96

// errBadTopic is the cause of ErrRejected for topics that are no Kafka topic.
var errBadTopic = errors.New("not a Kafka topic of letters, digits, '-', '_' and single dots")

// ErrHashedSegment is returned by [UnescapeTopicSegment] for the segment of a value that was too long to be written in full.
// The value itself travels in the message, e.g. a message type in the header x-router-message-type.
var ErrHashedSegment = errors.New("topic segment is a hash, which cannot be reversed")

const (
	// mark begins an escape. It is two underscores since Kafka creates no topic whose name differs from another one's in '.'
	// and '_' alone: with one, a.3Ab and a:b would collide. One is a separator, two are a mark, three are both.
	mark = "__"
	// hashMark begins a hash. No escape does, with its upper-case digits.
	hashMark   = mark + "h"
	hashLength = len(hashMark) + 32
)

// single escapes with one underscore as mark, and leaves no others, so doubling them is reversible.
var single = sinks.Segments{Mark: '_', Legal: func(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-'
}}

// TopicSegment maps any string to one segment of a Kafka topic, different strings to different segments. Letters, digits and
// '-' stay; every other byte becomes two underscores and two upper-case hexadecimal digits: `iso:11783:-10:taskdata:zip`
// becomes `iso__3A11783__3A-10__3Ataskdata__3Azip`. The empty string becomes `__`.
// [UnescapeTopicSegment] is the way back.
//
// A segment longer than [MaxSegmentLength] is cut to 61 bytes, or a few less, and ends with `__h` and the first 128 bits of the
// value's SHA-256 in lower-case hexadecimal digits. There is no way back from it.
//
// Topics of such segments joined by dots never collide in the names of Kafka's metrics.
func TopicSegment(value string) string {
	segment := single.Escape(value)
	if strings.IndexByte(segment, '_') >= 0 {
		segment = strings.ReplaceAll(segment, "_", mark)
	}
	if len(segment) <= MaxSegmentLength {
		return segment
	}
	cut := MaxSegmentLength - hashLength
	// Not within an escape, which is the mark and two digits.
	if i := strings.LastIndex(segment[:cut], mark); i > cut-len(mark)-2 {
		cut = i
	} else if segment[cut-1] == '_' { // and not within a mark
		cut--
	}
	sum := sha256.Sum256([]byte(value))
	return segment[:cut] + hashMark + hex.EncodeToString(sum[:16])
}

// TopicName returns the Kafka topic of a topic, for whoever publishes and whoever subscribes: the prefix, a dot, and the
// topic, whose segments that are not legal are replaced by their [TopicSegment]. A topic with a comma is rejected. prefix
// "" is [DefaultTopicPrefix], [NoTopicPrefix] none.
func TopicName(prefix, topic string) string {
	topic = legalTopic(topic)
	if prefix == NoTopicPrefix {
		return topic
	}
	return cmp.Or(prefix, DefaultTopicPrefix) + "." + topic
}

// legalTopic is [TopicName] without a prefix.
func legalTopic(topic string) string {
	if strings.Contains(topic, ",") {
		return topic // which no topic is: a comma separates those of a subscription
	}
	return topicmap.Name(topic, legalInTopic, TopicSegment)
}

// legalInTopic reports whether a segment may have a byte.
func legalInTopic(b byte) bool { return b == '_' || single.Legal(b) }

// UnescapeTopicSegment returns the value that [TopicSegment] maps to segment,
// [ErrHashedSegment] when the segment has a hash instead, and
// [sinks.ErrBadSegment] for anything that TopicSegment never returns.
func UnescapeTopicSegment(segment string) (string, error) {
	if cut := hashed.FindStringSubmatch(segment); cut != nil {
		if _, err := UnescapeTopicSegment(cut[1]); err == nil {
			return "", fmt.Errorf("%w: %q", ErrHashedSegment, segment)
		}
	}
	value, err := single.Unescape(strings.ReplaceAll(segment, mark, "_"))
	if err != nil || TopicSegment(value) != segment {
		return "", fmt.Errorf("%w: %q", sinks.ErrBadSegment, segment)
	}
	return value, nil
}

// hashed matches a segment with a hash, which is cut before it.
var hashed = regexp.MustCompile(`^(.{58,61})` + hashMark + `[0-9a-f]{32}$`)

var topicPattern = regexp.MustCompile(`^[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*$`)

// checkTopic returns an error unless name can be a topic that segments joined by dots make up.
func checkTopic(name string) error {
	if len(name) > maxTopicLength {
		return fmt.Errorf("%w: %d bytes long, the limit is %d", errBadTopic, len(name), maxTopicLength)
	}
	if !topicPattern.MatchString(name) {
		return errBadTopic
	}
	switch name {
	case "__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata":
		return fmt.Errorf("%w: %s belongs to the brokers", errBadTopic, name)
	}
	return nil
}
