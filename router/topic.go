package router

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/agrimill/agrimill/sinks"
)

// DefaultToTopic is the default of [Route.ToTopic]. "none" stands in for a
// tenant or a message type that the message does not have.
const DefaultToTopic = "{tenant|none}.{type|none}"

// TopicFunc gives the topic that a message is published to. It must be safe for
// concurrent use and must not change the message.
type TopicFunc func(msg *message.Message) (string, error)

// templateTopic makes a TopicFunc of a template, see [sinks.ParseTopicTemplate].
func templateTopic(template string, to sinks.Sink) (TopicFunc, error) {
	parsed, err := sinks.ParseTopicTemplate(template)
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) (string, error) {
		return parsed.Topic(msg.Metadata, to.TopicSegment)
	}, nil
}
