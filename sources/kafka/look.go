package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/agext/levenshtein"

	"github.com/agrimill/agrimill/internal/readstate"
	"github.com/agrimill/agrimill/internal/warnlog"
)

// ErrNoTopic is matched by errors for topics that the cluster does not have. They name those that look alike.
var ErrNoTopic = errors.New("sources/kafka: no such topic")

// Found is what a subscription reads.
type Found struct {
	// Partitions is how many partitions the topics have together.
	Partitions int
	// New says that the group has no offsets in any of them.
	New bool
	// Waiting is how many offsets lie before the ends of the partitions that the group has not committed.
	Waiting int64
}

// Look says what Subscribe of a subscriber with the configuration would read for a topic. It joins no group and changes
// nothing. The warnings are those of the subscription, and so are the errors, but for [ErrNoTopic], which one missing
// topic is enough for. It blocks for as long as Subscribe. A nil logger is silent.
func Look(config Config, topic string, logger watermill.LoggerAdapter) (found Found, err error) {
	s, err := New(config, logger)
	if err != nil {
		return Found{}, err
	}
	config, logger = s.config, s.logger
	topics, err := config.selected(topic)
	if err != nil {
		return Found{}, err
	}
	settings := config.client()
	settings.Metadata.Full = false
	client, err := sarama.NewClient(config.Brokers, settings)
	if err != nil {
		return Found{}, config.unavailable(err)
	}
	defer func() { _ = client.Close() }() // nothing is under way
	ctx := context.Background()           // Subscribe's may end before its time
	partitions, missing, err := partitionsOf(client, topics)
	if len(missing) > 0 {
		err = noTopic(client, missing)
	}
	if err == nil {
		err = checkGroup(ctx, client, config, topics, logger)
	}
	if err == nil {
		found, err = look(ctx, client, config, partitions, logger)
	}
	return found, classified(config, err)
}

// classified makes an outage of an error that is none of the configuration.
func classified(config Config, err error) error {
	if err == nil || errors.Is(err, ErrNoTopic) || errors.Is(err, ErrConfig) {
		return err
	}
	return config.unavailable(err)
}

func (c Config) unavailable(err error) error {
	return readstate.Unavailable("kafka, group "+c.Group, err)
}

// partitionsOf returns the partitions of topics, and which of these are not there.
func partitionsOf(client sarama.Client, topics []string) (partitions map[string][]int32, missing []string, err error) {
	partitions = map[string][]int32{}
	for _, topic := range topics {
		numbers, err := client.Partitions(topic)
		switch {
		case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
			missing = append(missing, topic)
		case err != nil:
			return nil, nil, fmt.Errorf("topic %s: %w", topic, err)
		default:
			partitions[topic] = numbers
		}
	}
	return partitions, missing, nil
}

// maxInstead is how many topics an error names.
const maxInstead = 10

// noTopic is the error of topics that are missing. It names those that there are, the most similar first.
func noTopic(client sarama.Client, missing []string) error {
	err := fmt.Errorf("%w: %s", ErrNoTopic, strings.Join(missing, ", "))
	if client.RefreshMetadata() != nil { // of all topics
		return err
	}
	have, failed := client.Topics()
	have = slices.DeleteFunc(have, func(topic string) bool { return strings.HasPrefix(topic, "__") }) // the brokers' own
	if failed != nil || len(have) == 0 {
		return err
	}
	distances := map[string]int{}
	for _, topic := range have {
		distances[topic] = math.MaxInt
		for _, name := range missing {
			distances[topic] = min(distances[topic], distance(topic, name))
		}
	}
	slices.SortFunc(have, func(a, b string) int { return cmp.Or(cmp.Compare(distances[a], distances[b]), strings.Compare(a, b)) })
	if len(have) > maxInstead {
		have = append(have[:maxInstead], "and others")
	}
	return fmt.Errorf("%w; there are %s", err, strings.Join(have, ", "))
}

// distance is how different the names of two topics are: not at all if only a prefix is.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if strings.HasSuffix("."+a, "."+b) || strings.HasSuffix("."+b, "."+a) {
		return 0
	}
	return levenshtein.Distance(a, b, nil)
}

// look compares what a group has committed with what there is, as a session does when it begins.
func look(ctx context.Context, client sarama.Client, config Config, partitions map[string][]int32, logger watermill.LoggerAdapter) (Found, error) {
	topics := slices.Sorted(maps.Keys(partitions))
	_, notes, err := identify(client, topics)
	if err != nil {
		return Found{}, err
	}
	var ends map[string]map[int32]int64
	if config.Start == StartNewest {
		if ends, err = newestOffsets(ctx, client, config.Group, topics); err != nil {
			return Found{}, err
		}
	}
	known := func(topic string) bounds { return bounds{note: notes[topic], ends: ends[topic]} }
	starts, err := startsOf(ctx, client, config, partitions, known, logger)
	if err != nil {
		return Found{}, err
	}
	found := Found{Partitions: len(starts), New: true}
	for _, p := range starts {
		found.New = found.New && p.committed.Offset < 0
		found.Waiting += p.newest - p.at
	}
	return found, nil
}

// checkGroup refuses a group that others use in another way, and warns of those who take a part of the records.
func checkGroup(ctx context.Context, client sarama.Client, config Config, topics []string, logger watermill.LoggerAdapter) error {
	group, err := describeGroup(ctx, client, config.Group)
	if err != nil {
		return fmt.Errorf("group %s: %w", config.Group, err)
	}
	if len(group.Members) == 0 {
		return nil // whoever comes first decides
	}
	if group.ProtocolType != "" && group.ProtocolType != "consumer" {
		return fmt.Errorf("%w: group %s is in use with the protocol %s, not to consume; use another group", ErrConfig, config.Group, group.ProtocolType)
	}
	strategies := client.Config().Consumer.Group.Rebalance.GroupStrategies
	ours := func(s sarama.BalanceStrategy) bool { return s.Name() == group.Protocol }
	if group.Protocol != "" && len(strategies) > 0 && !slices.ContainsFunc(strategies, ours) {
		warnlog.Warn(logger, fmt.Sprintf("Kafka group %s has members that share partitions by %s; nothing can be read unless they know %s, too: use another group",
			config.Group, group.Protocol, strategies[0].Name()), nil)
	}
	if others := strangers(group, config.ClientID, topics); len(others) > 0 {
		warnlog.Warn(logger, fmt.Sprintf("Kafka group %s has members with another client ID, which get a part of the records: %s", config.Group, strings.Join(others, ", ")), nil)
	}
	return nil
}

// describeGroup asks the coordinator about a group.
func describeGroup(ctx context.Context, client sarama.Client, name string) (group *sarama.GroupDescription, err error) {
	admin, err := sarama.NewClusterAdminFromClient(client) // closing it would close the client
	if err != nil {
		return nil, err
	}
	err = askCoordinator(ctx, client, name, func() error {
		groups, err := admin.DescribeConsumerGroups([]string{name})
		switch {
		case err != nil:
			return err
		case len(groups) != 1:
			return sarama.ErrIncompleteResponse
		}
		if group = groups[0]; group.Err == sarama.ErrNoError || group.Err == sarama.ErrGroupIDNotFound {
			return nil
		}
		return group.Err
	})
	return group, err
}

// strangers returns the client IDs of members that read one of the topics and do not have ours.
func strangers(group *sarama.GroupDescription, ours string, topics []string) (ids []string) {
	for _, member := range group.Members {
		about, err := member.GetMemberMetadata()
		reads := err != nil || about == nil // who does not say may read them
		if !reads {
			reads = slices.ContainsFunc(about.Topics, func(topic string) bool { return slices.Contains(topics, topic) })
		}
		if reads && member.ClientId != ours && !slices.Contains(ids, member.ClientId) {
			ids = append(ids, member.ClientId)
		}
	}
	slices.Sort(ids)
	return ids
}
