package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/agrimill/agrimill/internal/kafkaclient"
	"github.com/agrimill/agrimill/internal/wakeup"
)

// handler handles one session of the consumer group.
type handler struct {
	*subscription
	begun bool // the session has partitions to read, or none
	// cluster is the ID of the cluster, which may have been replaced since the last session; empty if the brokers do not know it.
	cluster string
	// notes are the notes of topics, which tell a topic that was created again.
	notes map[string]string
	// missing is that of the subscription when the session began.
	missing error
	// endSession makes the group rebalance; this member comes back.
	endSession context.CancelFunc
	lost       chan struct{} // closed when the partitions may be somebody else's
	losing     sync.Once
	silence    *time.Timer   // fires when the coordinator has not answered for so long that they may be
	end        chan struct{} // closed at the end of the session
}

// Setup implements [sarama.ConsumerGroupHandler].
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	if err := h.begin(session); err != nil {
		return err
	}
	h.begun = true
	h.alive()
	group := h.client.Config().Consumer.Group
	// A question is no older than a second of these when the last third begins.
	limit := group.Session.Timeout * 2 / 3
	h.silence = time.AfterFunc(limit, func() { h.lose("the coordinator does not answer") })
	go h.watch(session, limit, min(group.Heartbeat.Interval/2, limit/4)+1) // ends with the session, and the answer that it waits for
	return nil
}

// Cleanup implements [sarama.ConsumerGroupHandler]. It is called after a Setup that failed, too.
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error {
	close(h.end)
	if h.silence != nil {
		h.silence.Stop()
	}
	return nil
}

// readable is the client of a group for which a topic that is gone, or may not be read, has no partitions, and a topic has none
// without a leader: otherwise the topics that can be read would wait for the others, too.
type readable struct {
	sarama.Client

	planned sync.Map // the partitions that each topic had when this member, as the leader of the group, assigned them in this session
}

// RefreshMetadata implements sarama.Client.
func (c *readable) RefreshMetadata(topics ...string) error {
	if err := c.Client.RefreshMetadata(topics...); !kafkaclient.IsOfTopic(err) {
		return err
	}
	return nil
}

// Partitions implements sarama.Client.
func (c *readable) Partitions(topic string) ([]int32, error) {
	partitions, err := c.Client.WritablePartitions(topic)
	if err != nil && !kafkaclient.IsOfTopic(err) {
		return nil, err
	}
	c.planned.Store(topic, partitions)
	return partitions, nil
}

// identify asks the brokers for the ID of their cluster, which is empty if they do not know it, and the notes of the topics.
// Without an answer there is none: what has been named without the ID would not be recognized later.
func identify(client sarama.Client, topics []string) (cluster string, notes map[string]string, err error) {
	answer, err := kafkaclient.Metadata(client, topics...)
	if err != nil {
		return "", nil, fmt.Errorf("ask for the ID of the cluster: %w", err)
	}
	if answer.ClusterID != nil {
		cluster = *answer.ClusterID
	}
	return cluster, topicNotes(answer), nil
}

// watch asks the coordinator whether we are a member still. The client does so too, and ends the session when it learns that we
// are not, but not while it waits for an answer that does not come: by then the partitions are somebody else's.
func (h *handler) watch(session sarama.ConsumerGroupSession, limit, every time.Duration) {
	defer h.silence.Stop()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var coordinator *sarama.Broker // over a connection of its own: on that of the client a question would wait until there are records to fetch
	disconnect := func() {
		if coordinator != nil {
			_ = coordinator.Close()
			coordinator = nil
		}
	}
	defer disconnect()
	for {
		select {
		case <-h.end:
			return
		case <-ticker.C:
		}
		asked := time.Now()
		var err error
		if coordinator == nil {
			coordinator, err = h.connect()
		}
		if err == nil {
			err = h.heartbeat(coordinator, session)
		}
		if wakeup.Raised(h.end) {
			return
		}
		switch {
		case err == nil, errors.Is(err, sarama.ErrRebalanceInProgress):
			h.silence.Reset(time.Until(asked.Add(limit)))
			h.alive()
		case errors.Is(err, sarama.ErrUnknownMemberId), errors.Is(err, sarama.ErrIllegalGeneration), errors.Is(err, sarama.ErrFencedInstancedId):
			h.lose("the group has gone on without this member")
			return
		case notReady(err): // it is asked again, until the limit
		default:
			h.state.Fails(h.config.unavailable(err))
		}
		if err == nil {
			h.checkTopics(coordinator, session)
		} else if !errors.As(err, new(sarama.KError)) || errors.Is(err, sarama.ErrNotCoordinatorForConsumer) {
			disconnect()
			_ = h.client.RefreshCoordinator(h.config.Group)
		}
	}
}

// connect connects to the coordinator.
func (h *handler) connect() (*sarama.Broker, error) {
	known, err := h.client.Coordinator(h.config.Group)
	if err != nil {
		return nil, err
	}
	config := *h.client.Config()
	config.Net.DialTimeout, config.Net.ReadTimeout = config.Consumer.Group.Session.Timeout, config.Consumer.Group.Session.Timeout
	coordinator := sarama.NewBroker(known.Addr())
	if err := coordinator.Open(&config); err != nil {
		return nil, err
	}
	if _, err := coordinator.Connected(); err != nil {
		return nil, err
	}
	return coordinator, nil
}

func (h *handler) heartbeat(coordinator *sarama.Broker, session sarama.ConsumerGroupSession) error {
	answer, err := coordinator.Heartbeat(&sarama.HeartbeatRequest{
		GroupId: h.config.Group, GenerationId: session.GenerationID(), MemberId: session.MemberID(),
	})
	if err == nil && answer.Err != sarama.ErrNoError {
		err = answer.Err
	}
	return err
}

func (h *handler) lose(reason string) {
	h.losing.Do(func() {
		h.logger.Info("Kafka partitions are lost; what is open of them is given up", watermill.LogFields{"reason": reason})
		close(h.lost)
	})
}
