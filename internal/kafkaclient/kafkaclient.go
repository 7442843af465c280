// Package kafkaclient has what the sink, the source and the stores of Kafka ask sarama in the same way.
package kafkaclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"golang.org/x/net/proxy"

	"github.com/agrimill/agrimill/internal/backoff"
	"github.com/agrimill/agrimill/internal/dialer"
)

const (
	// attempts is how often a question is asked that finds its connection gone. An outage
	// leaves two behind, and questions that are asked at the same time close those of others.
	attempts = 5
	// pause is the wait between looks whether a new topic has its leaders.
	pause = 20 * time.Millisecond
)

// Dial has d make the connections of clients with this configuration, through its proxy if it has one.
func Dial(config *sarama.Config, d *dialer.Dialer) {
	via := proxy.Dialer(&net.Dialer{})
	if config.Net.Proxy.Enable && config.Net.Proxy.Dialer != nil {
		via = config.Net.Proxy.Dialer
	}
	config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, d.Through(via)
}

// Again asks a question once more when the connection that it used was lost: after an
// outage sarama still holds those from before, to the broker and to the address that it
// was found by, and only using one finds out. A question that is asked at the same time
// may find out first, and close the connection, or forget the broker; while it makes a
// new one, sarama calls the broker not connected for a moment.
func Again(question func() error) error {
	for i := 1; ; i++ {
		err := question()
		if i == attempts || !IsLostConnection(err) {
			return err
		}
		if i > 1 {
			_ = backoff.Sleep(context.Background(), pause)
		}
	}
}

// IsLostConnection reports whether err means that a connection was established and is
// gone, as opposed to one that could not be made or that does not answer.
func IsLostConnection(err error) bool {
	return errors.Is(err, sarama.ErrNotConnected) || errors.Is(err, sarama.ErrBrokerNotFound) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// IsOfTopic reports whether a broker's answer says that a topic cannot be used, or a part of it.
func IsOfTopic(err error) bool {
	return isNew(err) || errors.Is(err, sarama.ErrTopicAuthorizationFailed)
}

// isNew reports whether an answer may be that of a broker to which a topic is new.
func isNew(err error) bool {
	return errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrLeaderNotAvailable)
}

// Create creates a topic, unless it is there, and looks at it until its partitions have leaders, or ctx ends.
func Create(ctx context.Context, client sarama.Client, topic string, detail *sarama.TopicDetail, look func() error) error {
	admin, err := sarama.NewClusterAdminFromClient(client) // closing it would close the client
	if err != nil {
		return err
	}
	create := func() error { return admin.CreateTopic(topic, detail, false) }
	err = Again(func() error {
		err := create()
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			// The controller was forgotten since the last refresh, and sarama has asked for it together
			// with all topics that it knows by name.
			err = create()
		}
		return err
	})
	if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("create topic: %w", err)
	}
	for {
		if err := look(); !isNew(err) || backoff.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// Metadata asks the brokers, one after the other until one answers, for that of topics.
func Metadata(client sarama.Client, topics ...string) (*sarama.MetadataResponse, error) {
	config := client.Config()
	err := error(sarama.ErrOutOfBrokers)
	for _, broker := range client.Brokers() {
		if opened := broker.Open(config); opened != nil && !errors.Is(opened, sarama.ErrAlreadyConnected) {
			err = opened
			continue
		}
		answer, failed := broker.GetMetadata(sarama.NewMetadataRequest(config.Version, topics))
		if failed == nil {
			return answer, nil
		}
		err = failed
		_ = broker.Close() // the next time over a new connection
	}
	return nil, err
}
