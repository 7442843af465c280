package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/IBM/sarama"

	"github.com/agrimill/agrimill/internal/kafkaclient"
)

// cluster asks the brokers about topics and settings, on connections of its own: on those of a producer it would
// wait behind messages. Its calls end by the time-outs of the configuration, or when the dialer is shut.
type cluster struct {
	client sarama.Client
}

// settings are settings of a topic, or those that the brokers give to topics without their own.
type settings struct {
	known             bool // the sink was allowed to read them
	maxMessageBytes   int
	minInSync         int
	uncleanElection   bool
	compacted         bool // the last message of a key only, also with "delete"
	flushEveryMessage bool

	replicationFactor int  // brokers: default.replication.factor; topics: the least of their partitions
	autoCreate        bool // brokers only
}

// describe reads the settings of a topic or a broker, from the first of the brokers that answers. An answer
// that refuses is no error: settings are not known then.
func (c *cluster) describe(kind sarama.ConfigResourceType, name string, brokers ...*sarama.Broker) (s settings, err error) {
	request := &sarama.DescribeConfigsRequest{Version: 2, Resources: []*sarama.ConfigResource{{Type: kind, Name: name}}}
	var response *sarama.DescribeConfigsResponse
	err = sarama.ErrBrokerNotFound // forgotten since
	for _, broker := range brokers {
		// On a new connection if the last one was lost: sarama has closed that when it found out.
		_ = broker.Open(c.client.Config()) // an error shows below
		if response, err = broker.DescribeConfigs(request); err == nil || errors.As(err, new(sarama.KError)) {
			break
		}
	}
	if err != nil {
		return settings{}, err
	}
	for _, resource := range response.Resources {
		switch code := sarama.KError(resource.ErrorCode); code {
		case sarama.ErrNoError:
		case sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed:
			return settings{}, nil
		default:
			return settings{}, code
		}
		for _, entry := range resource.Configs {
			s.set(entry.Name, entry.Value)
		}
	}
	s.known = s.maxMessageBytes > 0
	return s, nil
}

func (s *settings) set(name, value string) {
	number, _ := strconv.ParseInt(value, 10, 64)
	switch name {
	case "message.max.bytes", "max.message.bytes":
		s.maxMessageBytes = int(number)
	case "min.insync.replicas":
		s.minInSync = int(number)
	case "unclean.leader.election.enable":
		s.uncleanElection = value == "true"
	case "cleanup.policy", "log.cleanup.policy":
		s.compacted = strings.Contains(value, "compact")
	case "flush.messages", "log.flush.interval.messages":
		s.flushEveryMessage = number == 1
	case "default.replication.factor":
		s.replicationFactor = int(number)
	case "auto.create.topics.enable":
		s.autoCreate = value == "true"
	}
}

// anyTopic is also asked for: sarama would ask for all topics if there was none, and nothing is created by asking.
const anyTopic = "agrimill-metadata"

// brokers asks for the metadata of topics, whose errors show when they are used, and returns the settings of one
// broker that can be reached.
func (c *cluster) brokers(topics ...string) (s settings, err error) {
	err = kafkaclient.Again(func() error {
		if err := c.client.RefreshMetadata(append(topics, anyTopic)...); err != nil && !kafkaclient.IsOfTopic(err) {
			return err
		}
		err := error(sarama.ErrBrokerNotFound) // forgotten since
		for _, broker := range c.client.Brokers() {
			// Only the broker itself knows.
			if s, err = c.describe(sarama.BrokerResource, strconv.Itoa(int(broker.ID())), broker); err == nil {
				break
			}
		}
		return err
	})
	return s, err
}

// create creates a topic, and returns its settings when all its partitions have a leader.
func (c *cluster) create(ctx context.Context, topic string, config *Config, brokerLimit int) (s settings, err error) {
	detail := &sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1, ConfigEntries: map[string]*string{}}
	if config.Partitions > 0 {
		detail.NumPartitions = config.Partitions
	}
	if config.ReplicationFactor > 0 {
		detail.ReplicationFactor = config.ReplicationFactor
	}
	if size := config.MaxMessageSize; size > brokerLimit && brokerLimit > 0 {
		value := strconv.Itoa(size)
		detail.ConfigEntries["max.message.bytes"] = &value
	}
	for name, value := range config.TopicConfig {
		detail.ConfigEntries[name] = &value
	}
	err = kafkaclient.Create(ctx, c.client, topic, detail, func() (err error) {
		s, err = c.topic(topic)
		return err
	})
	return s, err
}

// topic asks for the metadata of a topic, and reads its settings.
func (c *cluster) topic(name string) (s settings, err error) {
	err = kafkaclient.Again(func() error {
		err := c.client.RefreshMetadata(name)
		if err == nil {
			s, err = c.describe(sarama.TopicResource, name, c.client.Brokers()...)
		}
		return err
	})
	if err != nil {
		return settings{}, err
	}
	partitions, err := c.client.Partitions(name)
	if err != nil {
		return settings{}, err
	}
	for i, partition := range partitions {
		replicas, err := c.client.Replicas(name, partition)
		if err != nil && !errors.Is(err, sarama.ErrReplicaNotAvailable) { // which has them all the same
			return settings{}, err
		}
		if i == 0 || len(replicas) < s.replicationFactor {
			s.replicationFactor = len(replicas)
		}
	}
	return s, nil
}

// writable returns an error unless every partition of a topic takes messages
// now, as far as the metadata of the last refresh tells.
func (c *cluster) writable(name string, minInSync int) error {
	partitions, err := c.client.Partitions(name)
	if err != nil {
		return err
	}
	for _, partition := range partitions {
		if _, err := c.client.Leader(name, partition); err != nil {
			return err
		}
		inSync, err := c.client.InSyncReplicas(name, partition)
		if err != nil && !errors.Is(err, sarama.ErrReplicaNotAvailable) {
			return err
		}
		if len(inSync) < minInSync {
			return fmt.Errorf("topic %s, partition %d: %d replicas in sync, %d needed: %w", name, partition, len(inSync), minInSync, sarama.ErrNotEnoughReplicas)
		}
	}
	return nil
}
