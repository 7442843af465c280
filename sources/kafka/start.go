package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/sync/errgroup"

	"github.com/agrimill/agrimill/internal/warnlog"
)

// newestOffsets returns the ends of the partitions of topics, for a group that has no offsets in any of them; nil for any
// other. Topics that do not exist yet are not in it: they are read from their beginning.
func newestOffsets(ctx context.Context, client sarama.Client, group string, topics []string) (map[string]map[int32]int64, error) {
	partitions, _, err := partitionsOf(client, topics)
	if err != nil {
		return nil, err
	}
	committed, err := committedOffsets(ctx, client, group, partitions)
	if err != nil {
		return nil, err
	}
	for topic, numbers := range partitions {
		for _, number := range numbers {
			if committed.GetBlock(topic, number).Offset >= 0 {
				return nil, nil // before any leader is asked: some may be away
			}
		}
	}
	ends := map[string]map[int32]int64{}
	for topic, numbers := range partitions {
		ends[topic] = map[int32]int64{}
		for _, number := range numbers {
			if ends[topic][number], err = client.GetOffset(topic, number, sarama.OffsetNewest); err != nil {
				return nil, err
			}
		}
	}
	return ends, nil
}

// committedOffsets returns what a group has committed, with a block for each of the partitions.
func committedOffsets(ctx context.Context, client sarama.Client, group string, partitions map[string][]int32) (committed *sarama.OffsetFetchResponse, err error) {
	admin, err := sarama.NewClusterAdminFromClient(client) // closing it would close the client
	if err != nil {
		return nil, err
	}
	err = askCoordinator(ctx, client, group, func() error {
		committed, err = admin.ListConsumerGroupOffsets(group, partitions)
		none := errors.Is(err, sarama.ErrGroupIDNotFound)
		if none {
			committed, err = &sarama.OffsetFetchResponse{}, nil
		}
		if err != nil {
			return err
		}
		for topic, numbers := range partitions {
			for _, number := range numbers {
				switch block := committed.GetBlock(topic, number); {
				case none:
					committed.AddBlock(topic, number, &sarama.OffsetFetchResponseBlock{Offset: -1})
				case block == nil:
					return sarama.ErrIncompleteResponse
				case block.Err != sarama.ErrNoError:
					return block.Err
				}
			}
		}
		return nil
	})
	return committed, err
}

// topicNotes returns the metadata of committed offsets by topic, which tells a topic that was created again: its ID, which
// brokers before Kafka 2.8 do not give.
func topicNotes(answer *sarama.MetadataResponse) map[string]string {
	notes := map[string]string{}
	for _, topic := range answer.Topics {
		if topic.Uuid != (sarama.Uuid{}) {
			notes[topic.Name] = topicNotePrefix + topic.Uuid.String()
		}
	}
	return notes
}

const topicNotePrefix = "topic "

// checkTopics ends the session if one of the topics is another one by now, or is there again, or more of it can be read. It
// reports a topic that is gone, and partitions without a leader.
func (h *handler) checkTopics(broker *sarama.Broker, session sarama.ConsumerGroupSession) {
	answer, err := broker.GetMetadata(sarama.NewMetadataRequest(h.client.Config().Version, h.topics))
	if err != nil {
		return // the next heartbeat fails as well
	}
	for topic, note := range topicNotes(answer) {
		if h.notes[topic] != note {
			h.endSession() // the next one says it
		}
	}
	for _, topic := range answer.Topics {
		switch {
		case topic.Err == sarama.ErrUnknownTopicOrPartition && h.missing != nil:
			h.fails(h.missing) // which says more
		case topic.Err != sarama.ErrNoError:
			h.fails(fmt.Errorf("topic %s: %w", topic.Name, topic.Err))
		}
		plan, leads := h.groupClient.planned.Load(topic.Name)
		planned, _ := plan.([]int32)
		for _, p := range topic.Partitions {
			switch led := p.Err != sarama.ErrLeaderNotAvailable; {
			case led && leads && !slices.Contains(planned, p.ID):
				h.endSession()
			case !led && (leads || slices.Contains(session.Claims()[topic.Name], p.ID)):
				h.fails(fmt.Errorf("topic %s, partition %d: %w", topic.Name, p.ID, p.Err))
			}
		}
	}
}

// begin has each partition of a session read from where the group goes on in the topic that is there now, and says what was
// deleted unread.
func (h *handler) begin(session sarama.ConsumerGroupSession) error {
	var starts []*bounds
	for same := false; !same; {
		var err error
		if h.cluster, h.notes, err = identify(h.client, h.topics); err != nil {
			return err
		}
		if starts, err = h.starts(session); err != nil {
			return err
		}
		_, notes, err := identify(h.client, h.topics)
		if err != nil {
			return err
		}
		same = maps.Equal(notes, h.notes) // otherwise the offsets may be those of a topic that was created meanwhile
	}
	maps.Copy(h.noted, h.notes)
	for _, s := range starts {
		// Together they set it, whatever the session has read: brokers forget what was committed a while after they have
		// deleted the topic, and may do so just now.
		session.ResetOffset(s.topic, s.number, s.at, h.notes[s.topic])
		session.MarkOffset(s.topic, s.number, s.at, h.notes[s.topic])
		delete(h.ends[s.topic], s.number) // from now on the group has an offset
	}
	if len(h.notes) == len(h.topics) {
		h.missing, h.subscription.missing = nil, nil
	}
	session.Commit()
	return nil
}

// starts returns where the partitions of a session are read from.
func (h *handler) starts(session sarama.ConsumerGroupSession) ([]*bounds, error) {
	known := func(topic string) bounds {
		return bounds{note: h.notes[topic], noted: h.noted[topic], ends: h.ends[topic]}
	}
	return startsOf(session.Context(), h.client, h.config, session.Claims(), known, h.logger)
}

// startsOf returns where a group reads partitions from, given what is known of their topics.
func startsOf(
	ctx context.Context, client sarama.Client, config Config, partitions map[string][]int32, known func(topic string) bounds, logger watermill.LoggerAdapter,
) (starts []*bounds, err error) {
	committed, err := committedOffsets(ctx, client, config.Group, partitions)
	if err != nil {
		return nil, err
	}
	var questions errgroup.Group
	for topic, numbers := range partitions {
		for _, number := range numbers {
			p := known(topic)
			p.topic, p.number, p.committed = topic, number, committed.GetBlock(topic, number)
			starts = append(starts, &p)
			questions.Go(func() (err error) {
				if p.oldest, err = client.GetOffset(topic, number, sarama.OffsetOldest); err == nil {
					p.newest, err = client.GetOffset(topic, number, sarama.OffsetNewest)
				}
				if err != nil {
					return fmt.Errorf("offsets of %s/%d: %w", topic, number, err)
				}
				p.at = p.start(config.Start, logger)
				return nil
			})
		}
	}
	return starts, questions.Wait()
}

// bounds is what there is of a partition.
type bounds struct {
	topic          string
	number         int32
	note           string          // of the topic
	noted          string          // as a session before found it; empty if there was none
	ends           map[int32]int64 // of the topic, as a new group found them with StartNewest; nil otherwise
	committed      *sarama.OffsetFetchResponseBlock
	oldest, newest int64
	at             int64 // where it is read from
}

// start returns where a group reads a partition from, and logs what that skips or repeats.
func (p *bounds) start(start Start, logger watermill.LoggerAdapter) int64 {
	committed := p.committed
	fields := watermill.LogFields{"topic": p.topic, "partition": p.number, "committed": committed.Offset, "oldest": p.oldest, "newest": p.newest}
	before := committed.Metadata
	if committed.Offset < 0 {
		before = p.noted // brokers forget what was committed, some time after they have deleted the topic
	}
	end, isNew := p.ends[p.number]
	switch {
	case p.note != "" && strings.HasPrefix(before, topicNotePrefix) && before != p.note:
		warnlog.Warn(logger, "Kafka topic was deleted and created again; it is read from the beginning", fields)
		return p.oldest
	case committed.Offset < 0 && isNew && p.oldest <= end && end <= p.newest:
		logger.Info("Kafka group is new; its partition starts with the newest record", fields)
		return end
	case committed.Offset < 0:
		if start == StartNewest {
			logger.Info("Kafka partition without an offset of the group starts with its oldest record", fields)
		}
		return p.oldest
	case committed.Offset > p.newest:
		warnlog.Warn(logger, "Kafka offset is beyond the end of its partition; the partition is read from the beginning", fields)
		return p.oldest
	case committed.Offset < p.oldest:
		fields["deleted"] = p.oldest - committed.Offset
		warnlog.Warn(logger, "Kafka records were deleted before they were acknowledged", fields)
		return p.oldest
	}
	return committed.Offset
}
