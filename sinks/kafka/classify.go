package kafka

import (
	"errors"
	"net"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/kafkaclient"
	"github.com/agrimill/agrimill/sinks"
)

// classify gives an error its class. What is not known to be the message's
// fault counts as an outage: retried, never thrown away.
func classify(err error) error {
	var encoding sarama.PacketEncodingError
	switch {
	// The topic's name, which comes from the message: not legal, or the cluster
	// has a topic whose name differs in '.' and '_' alone.
	case errors.Is(err, errBadTopic), errors.Is(err, sarama.ErrInvalidTopic),
		errors.Is(err, sarama.ErrInvalidRecord), // the topic's rules: no null key when compacted, for instance
		errors.As(err, &encoding):               // cannot be written as a record
		return sinks.ErrRejected
	case isTooLarge(err):
		return sinks.ErrTooLarge
	}
	// No connection, no leader, too few replicas in sync, no answer in time, no such topic, not authorised, refused by a policy
	// or a quota, disk full: an operator's business, after which the same message goes through.
	return sinks.ErrUnavailable
}

func isTooLarge(err error) bool {
	return errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrMessageSetSizeTooLarge)
}

// unanswered reports whether err tells that no broker answered.
func unanswered(err error) bool {
	var network net.Error
	return kafkaclient.IsLostConnection(err) || errors.Is(err, sarama.ErrOutOfBrokers) || errors.Is(err, errTimeout) || errors.As(err, &network)
}
