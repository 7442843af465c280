package kafka

import (
	"errors"
	"net"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/sinks"
)

// classify gives an error its class. What is not known to be the message's
// fault counts as an outage: retried, never thrown away.
func classify(err error) error {
	var encoding sarama.PacketEncodingError
	switch {
	// The topic's name, which comes from the message: not legal, or the cluster
	// has a topic whose name differs in '.' and '_' alone.
	case errors.Is(err, errBadTopic), kafkaError(err) == sarama.ErrInvalidTopic,
		kafkaError(err) == sarama.ErrInvalidRecord, // the topic's rules: no null key when compacted, for instance
		errors.As(err, &encoding):                  // cannot be written as a record
		return sinks.ErrRejected
	case isTooLarge(err):
		return sinks.ErrTooLarge
	}
	// No connection, no leader, too few replicas in sync, no answer in time, no
	// such topic, not authorised, refused by a policy or a quota, disk full: an
	// operator's business, after which the same message goes through.
	return sinks.ErrUnavailable
}

func isTooLarge(err error) bool {
	switch kafkaError(err) {
	case sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge:
		return true
	}
	return false
}

// ofTopic reports whether a broker's answer says that a topic cannot be used, or a part of it.
func ofTopic(err error) bool {
	switch kafkaError(err) {
	case sarama.ErrUnknownTopicOrPartition, sarama.ErrLeaderNotAvailable, sarama.ErrTopicAuthorizationFailed:
		return true
	}
	return false
}

// unanswered reports whether err tells that no broker answered.
func unanswered(err error) bool {
	var network net.Error
	return lostConnection(err) || errors.Is(err, sarama.ErrOutOfBrokers) || errors.Is(err, errTimeout) || errors.As(err, &network)
}

// kafkaError returns the error code of a broker in err, ErrNoError when there
// is none.
func kafkaError(err error) sarama.KError {
	var code sarama.KError
	if errors.As(err, &code) {
		return code
	}
	var topic *sarama.TopicError // does not unwrap
	if errors.As(err, &topic) {
		return topic.Err
	}
	return sarama.ErrNoError
}
