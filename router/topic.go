package router

import (
	"errors"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// DefaultToTopic is the default of [Route.ToTopic]. "none" replaces a missing
// tenant or message type.
const DefaultToTopic = "{tenant|none}.{type|none}"

// topicFunc is [Route.TopicFunc].
type topicFunc = func(msg *message.Message) (string, error)

// templateTopic makes a topicFunc of a template, see [sinks.ParseTopicTemplate].
func templateTopic(template string, to sinks.Sink) (topicFunc, error) {
	parsed, err := sinks.ParseTopicTemplate(template)
	if err != nil {
		return nil, err
	}
	if err := parsed.Check(to); err != nil {
		return nil, err
	}
	return func(msg *message.Message) (string, error) {
		return parsed.Topic(msg.Metadata, to.TopicSegment)
	}, nil
}

// errPoisonTopic is the error of a message whose topic is that of the poison queue,
// when the sink cannot escape it. Its class is [ClassPermanent].
var errPoisonTopic = Permanent(errors.New("the topic is that of the poison queue: choose a topic of the poison queue that no message has"))

// keepOff keeps topics apart from that of the poison queue in the same sink: a sender may name its message type like it, or
// like what the sink makes of it. Such a topic gets the escape of a zero byte appended, and so does one that looks like
// that already, so that different topics stay different.
func keepOff(topicOf topicFunc, poison string, segment func(string) string) topicFunc {
	segments := strings.Split(poison, ".")
	for i, s := range segments {
		segments[i] = segment(s)
	}
	if escaped := strings.Join(segments, "."); escaped != poison {
		topicOf = keepOffName(topicOf, escaped, segment)
	}
	return keepOffName(topicOf, poison, segment)
}

func keepOffName(topicOf topicFunc, poison string, segment func(string) string) topicFunc {
	mark, escapes := strings.CutPrefix(segment("x\x00"), "x")
	escapes = escapes && mark != "" && mark != "\x00"
	return func(msg *message.Message) (string, error) {
		topic, err := topicOf(msg)
		rest, similar := strings.CutPrefix(topic, poison)
		if err != nil || !similar {
			return topic, err
		}
		if !escapes {
			if rest == "" {
				return "", errPoisonTopic
			}
			return topic, nil
		}
		if strings.ReplaceAll(rest, mark, "") != "" {
			return topic, nil
		}
		return topic + mark, nil
	}
}

// sameSink reports whether two publishers are one, whatever is around each.
func sameSink(a, b message.Publisher) bool {
	return same(innermost(a), innermost(b))
}

func innermost(p message.Publisher) message.Publisher {
	for {
		wrapper, ok := p.(interface{ Unwrap() sinks.Sink })
		if !ok {
			return p
		}
		p = wrapper.Unwrap()
	}
}
