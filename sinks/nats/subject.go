package nats

import (
	"cmp"
	"errors"
	"fmt"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"

	"github.com/agrimill/agrimill/internal/topicmap"
	"github.com/agrimill/agrimill/sinks"
)

// maxSubjectLength bounds subjects. A server drops the connection, and with it
// everything that is under way, when a protocol line is longer than its
// max_control_line (default 4096); the line holds the subject, the reply
// subject and two numbers.
const maxSubjectLength = 2048

// errBadTopic is the cause of ErrRejected for topics that are no NATS subject.
var errBadTopic = errors.New("not a NATS subject of tokens separated by single dots, none of them a wildcard")

// segments escapes one value into one token of a NATS subject: white space,
// control and non-ASCII bytes, the separator '.', the wildcards '*' and '>',
// and the mark '%' itself.
var segments = sinks.Segments{Mark: '%', Legal: func(b byte) bool {
	return b > ' ' && b < 0x7f && b != '.' && b != '*' && b != '>' && b != '%'
}}

// TopicSegment maps any string to one legal token of a NATS subject, different
// strings to different tokens, by percent-encoding what is not legal:
// `iso:11783:-10:taskdata:zip` stays as it is, `a.b` becomes `a%2Eb`, the empty
// string becomes `%`. [UnescapeTopicSegment] is the way back.
func TopicSegment(value string) string { return segments.Escape(value) }

// UnescapeTopicSegment returns the value that [TopicSegment] maps to segment.
// Anything that TopicSegment never returns is [sinks.ErrBadSegment].
func UnescapeTopicSegment(segment string) (string, error) { return segments.Unescape(segment) }

// NoSubjectPrefix as a prefix of [Subject] is none: topics are whole subjects.
const NoSubjectPrefix = "."

// Subject returns the subject of a topic, for whoever publishes and whoever subscribes: the prefix, a dot, and the
// topic, whose tokens that are not legal are replaced by their [TopicSegment]. The wildcards * and > stay as they are
// if they are a token. prefix "" is [DefaultSubjectPrefix].
func Subject(prefix, topic string) string {
	topic = legalTopic(topic)
	if prefix == NoSubjectPrefix {
		return topic
	}
	return cmp.Or(prefix, DefaultSubjectPrefix) + "." + topic
}

// legalTopic is [Subject] without a prefix.
func legalTopic(topic string) string {
	return topicmap.Name(topic, legalInSubject, func(token string) string {
		if token == "*" || token == ">" {
			return token
		}
		return TopicSegment(token)
	})
}

// legalInSubject reports whether a token may have a byte.
func legalInSubject(b byte) bool { return b > ' ' && b != 0x7f && b != '*' && b != '>' }

// SubjectCalculator returns the function that makes watermill-nats subscribers read the topics that a sink with the
// same prefix writes, see [Subject].
func SubjectCalculator(prefix string) wmnats.SubjectCalculator {
	return func(queueGroupPrefix, topic string) *wmnats.SubjectDetail {
		return &wmnats.SubjectDetail{Primary: Subject(prefix, topic), QueueGroup: queueGroupPrefix}
	}
}

// checkSubject returns an error unless s can be published to.
func checkSubject(s string) error {
	if len(s) > maxSubjectLength {
		return fmt.Errorf("%w: %d bytes long, the limit is %d", errBadTopic, len(s), maxSubjectLength)
	}
	start := true
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !legalInSubject(c) || c == '.' && start {
			return errBadTopic
		}
		start = c == '.'
	}
	if start {
		return errBadTopic
	}
	return nil
}
